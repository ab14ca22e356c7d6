"""What a checkpoint holds and what it costs, from the headers of its files: no number of a tensor is read."""

from collections import Counter
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from lavagna.cli.model_source import find_checkpoint

# Lengths of text at which a state is held against a transformer's cache.
LENGTHS = {"4k": 4096, "32k": 32768, "1m": 2**20}


class Told(NamedTuple):
    """What a checkpoint is, by names; the configuration of its model, and the dtype of most of its numbers."""

    facts: dict[str, Any]
    config: Any
    dtype: Any


def tell(call: str, path: Path) -> Told:
    """Look into a run's newest checkpoint, or into a checkpoint, ours or foreign.

    Raises `FileNotFoundError` or `ValueError` where there is none, or where it is not whole.
    """
    from lavagna.checkpoints.plan import plan

    checkpoint = find_checkpoint(call, path)
    made = plan(checkpoint)
    config, weights = made.model.config, made.weights
    numbers = Counter()
    for entry in weights.entries.values():
        numbers[entry.dtype] += prod(entry.shape)
    (dtype, _), *_ = numbers.most_common(1)
    run = {} if checkpoint == path else _run(checkpoint.parents[1])
    facts = {
        "checkpoint": str(checkpoint),
        **run,
        "format": made.format,
        "kind": config.kind,
        "layers": ", ".join(f"{count} x {name}" for name, count in Counter(config.layers).items()),
        "d_model": config.d_model,
        "dtype": str(dtype).removeprefix("torch."),
        "tensors": len(weights.entries),
        "file_bytes": weights.nbytes,
    }
    return Told(facts, config, dtype)


def _run(path: Path) -> dict[str, Any]:
    from lavagna.training.run import Run, read_run

    return {"run": str(path), "steps": Run(path).step, "of_steps": read_run(path).training.steps}


def memory(config: Any, dtype: Any) -> dict[str, Any]:
    """Bytes of a model's state after short and long texts, and of the cache of a transformer of its width and depth."""
    from lavagna.models.size import kv_cache_bytes, state_bytes

    return {f"state_bytes_{name}": state_bytes(config, tokens, dtype=dtype) for name, tokens in LENGTHS.items()} | {
        f"kv_cache_bytes_{name}": kv_cache_bytes(config, tokens, dtype=dtype) for name, tokens in LENGTHS.items()
    }
