"""What the tests of the command line share: a way to call it, and one tiny trained run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from lavagna.cli import main

TINY = ["--d-model", "16", "--depth", "1", "--steps", "4", "--batch", "2", "--context", "16", "--layer", "retention"]


def as_a_shell(command: str) -> subprocess.CompletedProcess:
    """Run a command that was printed to be copied."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    """Output goes to a file, whatever width the shell that runs the tests has told them of."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def lavagna(capsys):
    """Call the command; its exit code, stdout and stderr."""

    def call(*words) -> SimpleNamespace:
        capsys.readouterr()
        code = main([str(word) for word in words])
        shown = capsys.readouterr()
        return SimpleNamespace(code=code, out=shown.out, err=shown.err)

    return call


@pytest.fixture
def refused(lavagna):
    """Call the command with bad input; the one line that it says."""

    def call(*words) -> str:
        done = lavagna(*words)
        assert done.code == 2
        assert done.err.startswith("lavagna: ") and done.err.count("\n") == 1, done.err
        assert not done.out
        return done.err

    return call


@pytest.fixture
def table(lavagna):
    """Call the command with --json; its rows."""

    def call(*words, code: int = 0) -> list[dict]:
        done = lavagna(*words, "--json")
        assert done.code == code, done.err
        content = json.loads(done.out)
        assert set(content) == {"command", "version", "settings", "rows"} and content["command"] == words[0]
        return content["rows"]

    return call


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    """A file of real text: a module of the standard library's."""
    path = tmp_path_factory.mktemp("text") / "text.py"
    path.write_text(sys.modules["json"].__doc__ * 2, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def run(tmp_path_factory, text):
    """A tiny run, trained to its end."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    assert main(["train", "--data", str(text), "--out", str(folder), *TINY]) == 0
    return folder
