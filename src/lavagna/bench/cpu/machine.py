"""What the machine can do: products of matrices, reading and copying, on one thread and on all."""

import platform
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from lavagna.bench.clock import least, on, threads
from lavagna.bench.cpu.row import Row, Subject, measured
from lavagna.bench.floor import SIDE, adding, copying, product, reading
from lavagna.kernels import describe

PEERS = ("transformers", "rwkv", "mambapy", "llama-cpp-python")
CPUINFO = Path("/proc/cpuinfo")


def machine_rows(*, side: int = SIDE, nbytes: int = 1 << 29, rounds: int = 5) -> Iterator[Row]:
    """GFLOP/s of products in float32 and bfloat16, and GB/s of reading, copying and adding blocks beyond any cache."""
    works = {
        f"product {side} float32": (product(side=side), "GFLOP/s"),
        f"product {side} bfloat16": (product(torch.bfloat16, side), "GFLOP/s"),
        "reading": (reading(nbytes), "GB/s"),
        "copying": (copying(nbytes), "GB/s"),
        "adding": (adding(nbytes), "GB/s"),
    }
    every = torch.get_num_threads()
    with threads(every):
        for count in counts(every):
            found = least({name: on(count, work.job) for name, (work, _) in works.items()}, rounds=rounds)
            for name, (work, unit) in works.items():
                subject = Subject("machine", name, "floor", "torch", count)
                yield measured(subject, found[name], work=work.amount / 1e9, unit=unit)


def counts(every: int) -> list[int]:
    """One thread, and all where there are more."""
    return [1, every] if every > 1 else [1]


def about() -> dict[str, Any]:
    """What a result has to be read with: processor, threads, vectors, and the versions of everything that was timed."""
    return {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "kernels": describe("cpu"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        **{name: installed(name) for name in (*PEERS, "torchao")},
    }


def installed(package: str) -> str | None:
    """The version of a package, None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    lines = CPUINFO.read_text().splitlines() if CPUINFO.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
