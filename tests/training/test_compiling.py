"""Training a compiled model, in processes of their own: the shape checks of the tests can't be compiled."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lavagna.training.log import read_log

PROGRAM = """
import sys
from dataclasses import replace
from training.program import CONFIG, go
text, folder = sys.argv[1:]
go(text, folder + "/plain")
try:
    go(text, folder + "/compiled", replace(CONFIG, compile=True))
except ValueError as error:
    print(error)
"""


def run(text: Path, folder: Path, **environment: str) -> str:
    source, tests = Path(__file__).parents[2] / "src", Path(__file__).parents[1]
    paths = {"PYTHONPATH": f"{source}{os.pathsep}{tests}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(text), str(folder)]
    done = subprocess.run(command, env=os.environ | paths | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_compiled_model_learns_what_the_plain_one_does(text_folder, tmp_path):
    assert run(text_folder, tmp_path) == ""
    plain, compiled = (
        {(record["step"], name): record[name] for record in read_log(tmp_path / kind / "log.jsonl")
         for name in ("loss", "validation_loss") if name in record}
        for kind in ("plain", "compiled")
    )  # fmt: skip
    assert compiled == pytest.approx(plain, abs=1e-5)


@pytest.mark.slow
def test_a_machine_that_can_not_compile_says_so_in_one_line(text_folder, tmp_path):
    said = run(text_folder, tmp_path, CXX="no-such-compiler", TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "cache"))
    assert said.startswith("train: torch.compile failed (") and "no-such-compiler" in said
    assert said.endswith("Mend that, or train without compile.\n") and said.count("\n") == 1
