"""Labeled sequences to learn from, in a run's folder."""

from collections.abc import Mapping
from typing import Any

from lavagna.cli.choices import chosen_model, chosen_training
from lavagna.cli.task import Task
from lavagna.data import open_examples, prepare_examples, read_examples
from lavagna.models import ClassifierConfig
from lavagna.training.run import Run, Settings

EXAMPLES = "examples.npz"
ONLY = frozenset({"classify", "pooling", "enlarge", "label", "decimate"})


def check_task(given: Mapping[str, Any]) -> None:
    """Raises `ValueError` or `OSError` where no examples can be read as the options say."""
    _check_model(given)
    read_examples(given["classify"], **_options(given))


def prepare_task(given: Mapping[str, Any], run: Run) -> None:
    """Read the examples that the options name, and keep them in the run's folder."""
    _check_model(given)
    prepare_examples(given["classify"], run.folder / EXAMPLES, **_options(given))


def open_task(given: Mapping[str, Any], run: Run, stored: Settings | None) -> Task:
    """The examples in the run's folder, and what the options and the run say of the rest."""
    splits = open_examples(run.folder / EXAMPLES)
    ends = {"features": splits.header.features, "classes": splits.header.classes}
    model = chosen_model(given, ClassifierConfig.kind, ends, stored.model if stored else None)
    return Task(model, chosen_training(given, stored.training if stored else None), splits, None)


def remove(run: Run) -> None:
    """Remove what `prepare_task` wrote."""
    (run.folder / EXAMPLES).unlink(missing_ok=True)


def _check_model(given: Mapping[str, Any]) -> None:
    chosen_model(given, ClassifierConfig.kind, {"features": 1, "classes": 2}, None)


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: given[name] for name in ("label", "enlarge", "decimate", "validation") if name in given}
