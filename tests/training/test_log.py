"""The record of a run."""

import pytest

from lavagna.training.log import Log, read_log


def written(path, steps):
    log = Log(path)
    for step in steps:
        log.append({"step": step, "loss": step / 2})
    log.close()


def test_records_come_back_as_they_were_written(tmp_path):
    written(tmp_path / "log.jsonl", [1, 2, 3])
    assert read_log(tmp_path / "log.jsonl") == [{"step": step, "loss": step / 2} for step in (1, 2, 3)]


def test_opening_at_a_checkpoint_drops_what_came_after_it(tmp_path):
    path = tmp_path / "log.jsonl"
    written(path, [1, 2, 3, 4])
    log = Log(path, step=2)
    log.append({"step": 3, "loss": 9.0})
    assert [record["loss"] for record in read_log(path)] == [0.5, 1.0, 9.0]
    assert log.last == {"step": 3, "loss": 9.0}


@pytest.mark.parametrize("torn", [b"{", b'{"step": 3, "loss": 1.', b'{"step": 3, "loss": 1.5}'])
def test_a_line_torn_by_a_kill_is_dropped(tmp_path, torn):
    path = tmp_path / "log.jsonl"
    written(path, [1, 2])
    with open(path, "ab") as file:
        file.write(torn)
    log = Log(path, step=2)
    log.append({"step": 3, "loss": 9.0})
    assert [record["step"] for record in read_log(path)] == [1, 2, 3]


def test_a_full_disk_is_an_error_that_names_the_log():
    log = Log.__new__(Log)
    log._path, log.last = "/dev/full", {}
    log._file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with pytest.raises(OSError, match="No space left on device"):
        log.append({"step": 1})
    log.close()
