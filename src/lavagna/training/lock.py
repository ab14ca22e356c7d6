"""One training at a time in a folder."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make the folder, if need be, and keep other processes from training in it for the while.

    The system takes the lock back when the process ends, however it ends. Where it has no such locks there is none.

    Raises `ValueError` where another process has it, or where the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"train: {folder} is a file, but a folder was wanted. Choose another one for the run.")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:
        yield
        return
    with open(folder / ".lock", "wb") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise ValueError(
                f"train: another process is training in {folder}. Wait for its end, or choose another folder."
            ) from None
        yield
