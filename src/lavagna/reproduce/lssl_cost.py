"""What S4 costs beside LSSL: time and memory of one training step, at three widths."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

from lavagna.layers import build
from lavagna.reproduce.row import Row

TITLE = (
    "A training step of S4 is 1.9, 6.7, 29.6 times as fast as one of LSSL at width 128, 256, 512, in 42, 133, 392 "
    "times less memory."
)
SOURCE = "Table 2 of Gu, Goel and Re 2021, arXiv 2111.00396; there on a GPU."
SLOW = True

# Width and state size are one number, as in the paper. At the widest, one dense matrix a channel is half a gigabyte in
# float32, and a step of LSSL with steps of 32 tokens holds a dozen: 7 GB, and under a minute on two cores.
WIDTHS = (128, 256, 512)
LENGTH, BATCH = 32, 1
FASTER = (9.32 / 4.77, 20.6 / 3.07, 140.7 / 4.75)
SMALLER = (222.1 / 5.3, 1685 / 12.6, 13140 / 33.5)
# Seconds of steps that a measurement goes on for, so that a short step is measured often.
PATIENCE = 3.0


class Cost(NamedTuple):
    """Median time of a training step, and the most memory that the first one took beyond what stood before it."""

    seconds: float
    bytes: float


def rows(*, seed: int = 0) -> list[Row]:
    """LSSL over S4, in time and in memory; a row holds where S4 is ahead, and further than at the width before.

    Each measurement is a process of its own, on the GPU if there is one, in float32. `seed` draws weights and texts.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    costs = [[measured(name, width, device, seed) for width in WIDTHS] for name in ("lssl", "s4")]
    found, before = [], Cost(1.0, 1.0)
    for width, faster, smaller, dense, ours in zip(WIDTHS, FASTER, SMALLER, *costs, strict=True):
        ratios = Cost(dense.seconds / ours.seconds, dense.bytes / max(ours.bytes, 1))
        text = f"width {width}, {BATCH} x {LENGTH} tokens, {device}"
        for what, published, ratio, bar, sizes in (
            (
                "time",
                faster,
                ratios.seconds,
                before.seconds,
                f"{1e3 * dense.seconds:.0f} / {1e3 * ours.seconds:.1f} ms",
            ),
            ("memory", smaller, ratios.bytes, before.bytes, f"{dense.bytes / 1e6:.0f} / {ours.bytes / 1e6:.1f} MB"),
        ):
            found.append(Row("lssl_cost", f"{what}, LSSL over S4, {text}: {sizes}", published, ratio, ratio > bar))
        before = ratios
    return found


def measured(name: str, width: int, device: str, seed: int, *, patience: float = PATIENCE) -> Cost:
    """The cost of a training step of a layer, measured in a process that has done nothing else."""
    run = f"from {__name__} import measure; print(list(measure({name!r}, {width}, {device!r}, {seed}, {patience})))"
    command = [sys.executable, "-c", run]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(
            f"lssl_cost: {name} of width {width} did not finish a step: {done.stderr.strip().splitlines()[-1:]}."
        )
    return Cost(*json.loads(done.stdout.splitlines()[-1]))


def measure(name: str, width: int, device: str, seed: int, patience: float) -> Cost:
    """The cost of a training step in this process, from steps that take `patience` seconds together, one at least."""
    torch.manual_seed(seed)
    layer = build(name, width, d_state=width).to(device)
    x = torch.randn(BATCH, LENGTH, width, device=device)
    # What libraries set up when they are first used is not the step's.
    _step(build(name, 16, d_state=4).to(device), x[..., :16])
    before = _memory(device)
    seconds = [_step(layer, x)]
    peak = _peak(device)
    while sum(seconds) < patience:
        seconds.append(_step(layer, x))
    # The first step of several sets things up.
    return Cost(statistics.median(seconds[1:] or seconds), peak - before)


def _step(layer: torch.nn.Module, x: torch.Tensor) -> float:
    layer.zero_grad()
    if x.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    layer(x, form="convolution").y.square().mean().backward()
    if x.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _memory(device: str) -> int:
    """Bytes in use; the peak is counted from here on, where the system lets it."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass
    return _peak(device)


def _peak(device: str) -> int:
    """The most bytes that were in use: those of torch on a GPU, else those of this process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    status = Path("/proc/self/status")
    if status.exists():
        # Not what getrusage says: that begins at what the parent held.
        return 1024 * int(status.read_text().partition("VmHWM:")[2].split()[0])
    # Not on every system, so not at the top.
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
