"""Build the kernels: one shared library for each level of vectors, with the C++ compiler that is there.

Run by the installation, and by hand after a change of the sources: `python src/lavagna/kernels/cpu/build.py`. Nothing
but the standard library is imported, because an installation has nothing else yet.
"""

import argparse
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(__file__).parent / "source"
# Bytes of a vector and what the compiler is told; the processor chooses among them when the kernels are loaded.
PLAIN = {"plain": (16, ())}
X86 = PLAIN | {
    "avx2": (32, ("-mavx2", "-mfma")),
    "avx512": (64, ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma")),
}
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wno-psabi")
# One type of number is enough, since all are one template; more, or optimized, would take minutes to compile.
SANITIZED = ("-g1", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-DLAVAGNA_ONLY_FLOAT")


class BuildError(Exception):
    """The kernels can't be built here; the message says why."""


def levels() -> dict[str, tuple[int, tuple[str, ...]]]:
    """The levels that this kind of processor may have, the plainest first."""
    return X86 if platform.machine().lower() in ("x86_64", "amd64") else PLAIN


def sources(ending: str) -> list[Path]:
    """The sources with an ending, without what editors and file systems leave beside them under names with a dot."""
    return sorted(file for file in SOURCE.glob(f"*.{ending}") if file.is_file() and not file.name.startswith("."))


def digest() -> str:
    """A name for what the sources say."""
    whole = hashlib.sha256()
    for file in sorted((*sources("cpp"), *sources("h"))):
        whole.update(file.name.encode() + file.read_bytes())
    return whole.hexdigest()[:16]


def mark(library: bytes, of: str, name: str) -> bytes:
    """What stands at the end of a whole library in a file of that name, built of the sources named by their digest."""
    return f"lavagna {of} {hashlib.sha256(name.encode() + library).hexdigest()}".encode()


def built_of(file: Path) -> str | None:
    """The digest of the sources that a library was built of; None of a file that is not whole, or no library of ours.

    To be asked before it is loaded: a library that was cut ends the process that loads it. Raises OSError where it
    can't be read.
    """
    content = file.read_bytes()
    length = len(mark(b"", digest(), ""))
    library, end = content[:-length], content[-length:]
    words = end.decode("ascii", "replace").split()
    return words[1] if len(words) == 3 and end == mark(library, words[1], file.name) else None


def library_path(level: str) -> Path:
    """Where the library of a level lies, built or not."""
    return Path(__file__).parent / f"lavagna_{level}.so"


def compiler() -> list[str]:
    """The C++ compiler's command: $CXX, else the first of c++, g++, clang++. Raises BuildError where there is none."""
    if os.environ.get("CXX"):
        try:
            words = shlex.split(os.environ["CXX"])
        except ValueError as error:
            raise BuildError(f"CXX must be a command, but is {os.environ['CXX']!r}: {error}") from error
        if words:
            return words
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError("no C++ compiler (c++, g++ or clang++) is on the path; install one or name it in CXX.")


def build(folder: Path | None = None, *, only: str | None = None, sanitize: bool = False) -> list[Path]:
    """Compile every level, or only one, and return the libraries' paths; into a folder or beside the sources.

    With `sanitize` addresses and undefined behavior are checked while the kernels run. Raises BuildError with the
    compiler's words if it fails.
    """
    cxx = [*compiler(), *FLAGS, *(SANITIZED if sanitize else ())]
    folder = Path(__file__).parent if folder is None else folder
    of, wanted = digest(), [level for level in levels() if only in (None, level)]
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        if _understands(cxx, "-fopenmp", Path(scratch)):
            cxx.append("-fopenmp")
        jobs = [
            (level, source, Path(scratch) / f"{level}_{source.stem}.o") for level in wanted for source in sources("cpp")
        ]
        # The largest first, so that none is begun when the others have ended.
        jobs.sort(key=lambda job: -job[1].stat().st_size)
        list(pool.map(lambda job: _run([*cxx, *_flags(*job[:2]), "-c", str(job[1]), "-o", str(job[2])]), jobs))
        targets = [folder / library_path(level).name for level in wanted]
        for level, target in zip(wanted, targets, strict=True):
            linked = Path(scratch) / target.name
            objects = [str(made) for at, _, made in jobs if at == level]
            _run([*cxx, "-shared", *objects, "-o", str(linked)])
            _put(linked, target, of)
    return targets


def _flags(level: str, source: Path) -> tuple[str, ...]:
    # Any processor can ask any library what it can take.
    size, flags = levels()["plain" if source.stem == "level" else level]
    return *flags, f"-DLAVAGNA_BYTES={size}"


def _understands(cxx: list[str], flag: str, scratch: Path) -> bool:
    """Whether the compiler has OpenMP, say: without it the kernels run on one thread."""
    source = scratch / "empty.cpp"
    source.write_text("")
    try:
        _run([*cxx, flag, "-shared", str(source), "-o", str(scratch / "empty.so")])
    except BuildError:
        return False
    return True


def _put(linked: Path, target: Path, of: str) -> None:
    """Put a library in its place with its mark."""
    # Written beside it and renamed: a process that has the old library open goes on with it.
    fresh = target.with_suffix(f".{linked.parent.name}")
    try:
        content = linked.read_bytes()
    except OSError as error:
        raise BuildError(f"{compiler()[0]} ended well, but made no library: {error}") from error
    try:
        fresh.write_bytes(content + mark(content, of, target.name))
        fresh.replace(target)
    except OSError as error:
        raise BuildError(f"{target} can't be written: {error}") from error
    finally:
        if fresh.exists():
            fresh.unlink()


def _run(words: list[str]) -> None:
    try:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    except OSError as error:
        raise BuildError(f"{words[0]} can't be run: {error}") from error
    if done.returncode:
        raise BuildError(f"{shlex.join(words)} failed:\n{done.stdout.strip()}")


def main() -> None:
    """Build from the command line."""
    parser = argparse.ArgumentParser(description="Build the CPU kernels of lavagna in place.")
    parser.add_argument("--sanitize", action="store_true", help="check addresses and undefined behavior while running")
    try:
        for path in build(sanitize=parser.parse_args().sanitize):
            print(path)
    except BuildError as error:
        sys.exit(f"build: {error}")


if __name__ == "__main__":
    main()
