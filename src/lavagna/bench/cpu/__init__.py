"""What a CPU makes of lavagna: floors of the machine, kernels, and whole models beside other implementations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from lavagna.bench.cpu import generation, scan, training
from lavagna.bench.cpu.generation import generation_rows
from lavagna.bench.cpu.machine import PEERS, about, machine_rows
from lavagna.bench.cpu.recurrence import recurrence_rows
from lavagna.bench.cpu.row import Row
from lavagna.bench.cpu.scan import scan_rows
from lavagna.bench.cpu.step import step_rows
from lavagna.bench.cpu.training import training_rows
from lavagna.layers import names

__all__ = ["PEERS", "SECTIONS", "Row", "about", "rows"]


class Section(NamedTuple):
    """What makes its rows, what makes it quick, and which options it takes.

    - layers: those it measures where none are asked for; None where it measures no layers.
    - peers: those it knows of.
    - threads: whether it is measured on as many as torch has.
    """

    rows: Callable[..., Iterator[Row]]
    quick: Mapping[str, Any]
    layers: Callable[[], Sequence[str]] | None = None
    peers: tuple[str, ...] = ()
    threads: bool = True


_TINY: Mapping[str, Any] = {"d_model": 64, "vocab_size": 128, "size": 200_000, "rounds": 1}
SECTIONS = {
    "machine": Section(machine_rows, {"side": 64, "nbytes": 1 << 20, "rounds": 1}),
    "recurrence": Section(recurrence_rows, {"sizes": (16,), "steps": 128, "rounds": 1}),
    "scan": Section(scan_rows, {"steps": 64, "channels": 16, "rounds": 1}, peers=scan.OTHERS),
    "step": Section(step_rows, {"heads": 2, "size": 16, "rounds": 1, "calls": 10}, threads=False),
    "training": Section(training_rows, {**_TINY, "tokens": 32}, names, training.OTHERS),
    "generation": Section(
        generation_rows,
        {**_TINY, "tokens": 8, "prompt": 32, "nbytes": 1 << 20},
        lambda: generation.LAYERS,
        generation.OTHERS,
    ),
}


def rows(
    section: str, *, layers: Sequence[str] | None = None, others: Sequence[str] = PEERS, quick: bool = False
) -> Iterator[Row]:
    """The rows of a section: `layers` are measured as models, None for those it measures by itself; `others` are peers.

    `quick` has small sizes and a single round: to try it, not to judge.
    """
    found = SECTIONS[section]
    chosen: dict[str, Any] = {"layers": layers} if found.layers else {}
    if found.peers:
        chosen["others"] = tuple(name for name in others if name in found.peers)
    return found.rows(**(found.quick if quick else {}), **chosen)
