"""A file appears whole or not at all."""

import errno
import os
import subprocess
import sys
import textwrap

import pytest

from lavagna.atomic_file import atomic_file


def test_a_new_file_takes_its_name_at_the_end(tmp_path):
    path = tmp_path / "a folder é" / "x.bin"
    with atomic_file(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["x.bin"]


@pytest.mark.parametrize("error", [RuntimeError("mine"), KeyboardInterrupt(), OSError(errno.ENOENT, "gone")])
def test_an_exception_passes_and_leaves_the_old_file_alone(tmp_path, error):
    path = tmp_path / "x.bin"
    path.write_bytes(b"old")
    with pytest.raises(type(error)) as caught, atomic_file(path) as file:
        file.write(b"half")
        raise error
    assert caught.value is error
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x.bin"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_on_the_disk_is_told_in_one_line(tmp_path, code):
    with (
        pytest.raises(OSError, match="nothing was written. Free some space") as caught,
        atomic_file(tmp_path / "x.bin"),
    ):
        raise OSError(code, os.strerror(code))
    assert caught.value.errno == code
    assert "x.bin" in str(caught.value) and "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no limit on the size of files")
def test_a_real_write_beyond_the_room_leaves_nothing(tmp_path):
    code = textwrap.dedent("""
        import resource, sys
        from pathlib import Path
        from lavagna.atomic_file import atomic_file
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        try:
            with atomic_file(Path(sys.argv[1])) as file:
                file.write(bytes(1 << 20))
        except OSError as error:
            print(error)
    """)
    out = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "x.bin"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert "nothing was written" in out.stdout and len(out.stdout.splitlines()) == 1
    assert os.listdir(tmp_path) == []


def test_what_a_killed_writer_left_is_removed_once_it_is_old(tmp_path):
    old, fresh, other = (tmp_path / name for name in (".x.1-a.partial", ".x.2-b.partial", ".y.1-a.partial"))
    for path in (old, fresh, other):
        path.touch()
    for path in (old, other):
        os.utime(path, (0, 0))
    with atomic_file(tmp_path / "x"):
        pass
    assert not old.exists() and fresh.exists() and other.exists()
