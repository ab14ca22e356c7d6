"""One training by several processes equals the same training by one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from lavagna.data import Tokenizer
from lavagna.layers import registry
from lavagna.training import TrainConfig, train
from lavagna.training.distributed import World, join_world
from lavagna.training.log import read_log
from training.program import CONFIG, MODEL, go

PROGRAM = Path(__file__).with_name("program.py")
SOURCE = Path(__file__).parents[2] / "src"
ALONE = World(torch.device("cpu"))


def torchrun(text: Path, folder: Path) -> subprocess.CompletedProcess:
    """Run the program by two processes."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launch, str(PROGRAM), str(text), str(folder)], env=environment, capture_output=True, text=True, timeout=120
    )


def losses(folder: Path, name: str = "loss") -> dict[int, float]:
    return {record["step"]: record[name] for record in read_log(folder / "log.jsonl") if name in record}


@pytest.fixture(scope="module")
def folders(text_folder, tmp_path_factory) -> Path:
    """Runs of two processes, one of them begun by a single process, and the same run by one process alone."""
    folder = tmp_path_factory.mktemp("runs")
    half = TrainConfig.from_json(CONFIG.to_json().replace('"steps": 12', '"steps": 6'))
    go(str(text_folder), str(folder / "begun-by-one"), half)
    go(str(text_folder), str(folder / "alone"))
    done = torchrun(text_folder, folder)
    (folder / "end.json").write_text(json.dumps([done.returncode, done.stderr]))
    assert (folder / "error-0.txt").exists(), done.stderr
    return folder


@pytest.mark.parametrize("name", ["loss", "validation_loss", "grad_norm"])
@pytest.mark.parametrize("run", ["fresh", "begun-by-one", "accumulated"])
@pytest.mark.sampled(2)
def test_two_processes_see_the_losses_of_one(folders, run, name):
    alone, together = losses(folders / "alone", name), losses(folders / run, name)
    # The run that was prolonged was evaluated once more, at its first end.
    assert {step: together[step] for step in alone} == pytest.approx(alone, rel=0, abs=1e-5)


def test_one_process_goes_on_with_a_run_of_two(folders, text_folder, texts, tmp_path):
    (folders / "fresh").rename(tmp_path / "fresh")
    longer = TrainConfig.from_json(CONFIG.to_json().replace('"steps": 12', '"steps": 18'))
    go(str(text_folder), str(tmp_path / "fresh"), longer)
    train(MODEL, longer, texts, Tokenizer.bytes(), tmp_path / "alone", device="cpu", quiet=True)
    (tmp_path / "fresh").rename(folders / "fresh")
    assert losses(folders / "fresh") == pytest.approx(losses(tmp_path / "alone"), rel=0, abs=1e-5)


@pytest.mark.parametrize("layer", registry.names())
def test_both_processes_end_with_the_same_parameters(folders, layer):
    first, second = (json.loads((folders / f"rank-{rank}.json").read_text())[layer] for rank in (0, 1))
    assert first == second


def test_one_process_writes_the_log(folders):
    steps = [record["step"] for record in read_log(folders / "alone" / "log.jsonl")]
    assert [record["step"] for record in read_log(folders / "accumulated" / "log.jsonl")] == steps


def test_a_batch_that_does_not_divide_is_refused_by_all(folders):
    for rank in (0, 1):
        error = (folders / f"error-{rank}.txt").read_text()
        assert error == "train: batch 5 does not divide by 2 processes. Choose a multiple of 2, such as 6."


def test_a_failing_process_ends_the_others(folders):
    status, said = json.loads((folders / "end.json").read_text())
    assert status != 0 and "rank 1 fails" in said
    assert max(losses(folders / "failing")) == 2


@pytest.mark.parametrize(("batch", "size"), [(6, 1), (6, 2), (6, 3), (8, 8)])
def test_the_shares_of_all_ranks_are_the_batch_in_order(batch, size):
    shares = [World(torch.device("cpu"), rank, size).share(batch) for rank in range(size)]
    assert [row for start, stop in shares for row in range(start, stop)] == list(range(batch))


def test_alone_once_and_mean_are_the_thing_itself():
    assert ALONE.once(lambda: 3) == 3
    assert ALONE.mean(torch.tensor(2.5)) == 2.5
    model = torch.nn.Linear(2, 2)
    assert ALONE.join(model) is model


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE must be a number from 1 in the environment, but is 'two'."),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE must be a number from 1"),
        ({"WORLD_SIZE": "2", "RANK": "2"}, "RANK must be a number from 0 to 1 in the environment, but is '2'."),
        ({"WORLD_SIZE": "2", "RANK": ""}, "RANK must be a number"),
    ],
)
def test_an_environment_that_torchrun_did_not_make_is_refused(monkeypatch, environment, said):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=said), join_world("cpu"):
        pass
