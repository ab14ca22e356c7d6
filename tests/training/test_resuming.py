"""A run that is killed at any moment goes on to the same numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lavagna.training.log import read_log
from training.program import CONFIG

PROGRAM = Path(__file__).with_name("program.py")
SOURCE = Path(__file__).parents[2] / "src"
PARTS = 5
CLOCKS = ("seconds", "tokens_per_second")


def forked(text: Path, folder: Path, moments: list[int]) -> None:
    """Runs killed at these moments and resumed, each in a folder of its own."""
    command = [sys.executable, str(PROGRAM), str(text), str(folder), *map(str, moments)]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def record(folder: Path) -> list[dict]:
    """The log without its clocks."""
    return [{k: v for k, v in line.items() if k not in CLOCKS} for line in read_log(folder / "log.jsonl")]


@pytest.fixture(scope="module")
def whole(text_folder, tmp_path_factory) -> Path:
    """A run that nobody disturbs; beside it, the list of all the times it touched a file."""
    folder = tmp_path_factory.mktemp("whole")
    forked(text_folder, folder, [0])
    return folder / "0"


def moments_of(whole: Path) -> list[int]:
    return list(range(1, len(json.loads(whole.with_suffix(".json").read_text())) + 1))


def check_moments(whole: Path, text: Path, folder: Path, moments: list[int]) -> None:
    forked(text, folder, moments)
    last = f"checkpoints/step-{CONFIG.steps:08d}"
    for moment in moments:
        run = folder / str(moment)
        assert record(run) == record(whole), moment
        for file in ("model.safetensors", "optimizer.safetensors"):
            assert (run / last / file).read_bytes() == (whole / last / file).read_bytes(), (moment, file)
        left = {path.name for path in (run / "checkpoints").iterdir()}
        assert left == {path.name for path in (whole / "checkpoints").iterdir()}, moment


def test_a_run_killed_at_a_moment_and_resumed_equals_one_that_was_not(whole, text_folder, tmp_path):
    moments = moments_of(whole)
    # Five moments, from the first to the last; the next test takes all of them.
    few = [moments[i * (len(moments) - 1) // (PARTS - 1)] for i in range(PARTS)]
    check_moments(whole, text_folder, tmp_path, few)


@pytest.mark.slow
def test_a_run_killed_at_any_moment_and_resumed_equals_one_that_was_not(whole, text_folder, tmp_path):
    check_moments(whole, text_folder, tmp_path, moments_of(whole))


def test_the_moments_are_before_within_and_after_the_writing_of_checkpoints(whole):
    touched = json.loads(whole.with_suffix(".json").read_text())
    assert sum("os.rename" in touch and "/.step-" in touch for touch in touched) == CONFIG.steps // CONFIG.save_every
    assert sum("os.rmdir" in touch for touch in touched) >= 2
    assert "config.json" in touched[0] or "os.mkdir" in touched[0]
