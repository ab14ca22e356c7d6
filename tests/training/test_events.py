"""The record of a run as TensorBoard reads it."""

import pytest

from lavagna.training.events import Events


def read(folder) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard itself makes of a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    seen = EventAccumulator(str(folder)).Reload()
    return {name: [(point.step, point.value) for point in seen.Scalars(name)] for name in seen.Tags()["scalars"]}


def write(folder, steps, *, step=0, factor=1.0):
    events = Events(folder, step=step)
    for number in steps:
        events.append({"step": number, "loss": number * factor})
    events.close()


def test_tensorboard_reads_each_number_at_its_step(tmp_path):
    events = Events(tmp_path)
    events.append({"step": 1, "loss": 2.5, "lr": 0.25})
    events.append({"step": 4, "validation_loss": 3.5})
    events.close()
    assert read(tmp_path) == {"loss": [(1, 2.5)], "lr": [(1, 0.25)], "validation_loss": [(4, 3.5)]}


def test_what_is_told_again_after_a_checkpoint_is_seen_once(tmp_path):
    write(tmp_path, [1, 2, 3, 4])
    write(tmp_path, [3, 4, 5], step=2, factor=2.0)
    assert read(tmp_path)["loss"] == [(1, 1.0), (2, 2.0), (3, 6.0), (4, 8.0), (5, 10.0)]


def test_a_full_disk_is_an_error_of_the_one_who_writes(tmp_path):
    events = Events(tmp_path)
    events._file.close()
    events._writer._writer = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    with pytest.raises(OSError, match="No space left on device"):
        events.append({"step": 1, "loss": 1.0})
    events._writer._writer.close()
