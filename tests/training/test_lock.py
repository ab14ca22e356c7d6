"""One training at a time in a folder."""

import subprocess
import sys
from pathlib import Path

import pytest

from lavagna.training.lock import locked

HOLD = """
import sys
from pathlib import Path
from lavagna.training.lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_is_locked_while_another_process_trains_there_and_free_when_that_is_killed(tmp_path):
    source = str(Path(__file__).parents[2] / "src")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})\n{HOLD}", str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match=r"another process is training in .*/run\. Wait for its end"), \
                locked(tmp_path / "run"):  # fmt: skip
            pass
        other.kill()
    with locked(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(ValueError, match="is a file, but a folder was wanted"), locked(tmp_path / "run"):
        pass
