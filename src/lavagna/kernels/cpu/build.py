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


def digest() -> str:
    """A name for what the sources say, compiled into the libraries so that stale ones are known for what they are."""
    whole = hashlib.sha256()
    for file in sorted(SOURCE.iterdir()):
        whole.update(file.name.encode() + file.read_bytes())
    return whole.hexdigest()[:16]


def library_path(level: str) -> Path:
    """Where the library of a level lies, built or not."""
    return Path(__file__).parent / f"lavagna_{level}.so"


def compiler() -> list[str]:
    """The C++ compiler's command: $CXX, else the first of c++, g++, clang++. Raises BuildError where there is none."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("c++", "g++", "clang++"):
        if shutil.which(name):
            return [name]
    raise BuildError("no C++ compiler (c++, g++ or clang++) is on the path; install one or name it in CXX.")


def build(folder: Path | None = None, *, only: str | None = None, sanitize: bool = False) -> list[Path]:
    """Compile every level, or only one, and return the libraries' paths; into a folder or beside the sources.

    With `sanitize` addresses and undefined behavior are checked while the kernels run. Raises BuildError with the
    compiler's words if it fails.
    """
    cxx, name = compiler(), digest()
    folder = Path(__file__).parent if folder is None else folder
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        waiting = [
            pool.submit(_compile, cxx, folder / library_path(level).name, size, flags, name, sanitize)
            for level, (size, flags) in levels().items()
            if only in (None, level)
        ]
        return [each.result() for each in waiting]


def _compile(cxx: list[str], target: Path, size: int, flags: tuple[str, ...], name: str, sanitize: bool) -> Path:
    sources = [str(path) for path in sorted(SOURCE.glob("*.cpp"))]
    # Written beside it and renamed: a process that has the old library open goes on with it.
    fresh = target.with_suffix(f".{os.getpid()}")
    words = [*cxx, *FLAGS, *flags, *(SANITIZED if sanitize else ()), f"-DLAVAGNA_BYTES={size}"]
    words += [f'-DLAVAGNA_DIGEST="{name}"', "-shared", *sources, "-o", str(fresh)]
    # Without OpenMP, which some compilers lack, the kernels run on one thread.
    tries = [[*words, "-fopenmp"], words]
    try:
        for number, tried in enumerate(tries):
            done = subprocess.run(tried, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if not done.returncode:
                break
            if number == len(tries) - 1:
                raise BuildError(f"{shlex.join(tried)} failed:\n{done.stdout.strip()}")
        fresh.replace(target)
    except OSError as error:
        raise BuildError(f"{cxx[0]} can't be run: {error}") from error
    finally:
        fresh.unlink(missing_ok=True)
    return target


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
