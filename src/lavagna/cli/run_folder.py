"""From the options of `lavagna train` to all that training needs, without leaving half a run behind."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from lavagna.cli import example_task, text_task
from lavagna.cli.choices import chosen_training
from lavagna.cli.task import Task
from lavagna.models import ClassifierConfig, ModelConfig
from lavagna.training import read_run
from lavagna.training.distributed import World
from lavagna.training.run import Run

# What each kind of model learns from: where it is prepared, and the options that are for it alone.
SOURCES: dict[str, ModuleType] = {ModelConfig.kind: text_task, ClassifierConfig.kind: example_task}


def check_folder(given: Mapping[str, Any]) -> None:
    """Raises `ValueError` where the options name no folder for the run; what else is wrong with them is said first."""
    if "out" in given:
        return
    if not given["resume"]:
        kind = _kind(given, None)
        chosen_training(given, None)
        SOURCES[kind].check_task(given)
    raise ValueError("train: --out is missing, the folder that the run is kept in. Give one, such as --out runs/first.")


@contextmanager
def opened(given: Mapping[str, Any], world: World) -> Iterator[Task]:
    """The task that the options describe, its data prepared in the run's folder by the first process.

    Where the task is refused before the run has begun, whatever was written for it is removed again. With `resume` the
    data is the run's own copy, and what the options leave open is as the run has it.
    """
    run = Run(given["out"])
    fresh = not run.folder.exists()
    kind = world.once(lambda: _kind(given, run))
    try:
        if not given["resume"]:
            world.once(lambda: _prepare(given, run, kind))
        stored = read_run(run.folder) if given["resume"] else None
        yield SOURCES[kind].open_task(given, run, stored)
    except BaseException:
        if world.first and not given["resume"] and not run.config.exists():
            SOURCES[kind].remove(run)
            if fresh:
                shutil.rmtree(run.folder, ignore_errors=True)
        raise


def _kind(given: Mapping[str, Any], run: Run | None) -> str:
    """The kind of model to train. Raises ValueError where the options, or options and run, contradict each other."""
    if "data" in given and "classify" in given:
        raise ValueError(
            "train: --data and --classify exclude each other: the one trains a language model on text, the other a "
            "classifier on labeled sequences. Give one of them."
        )
    asked = ClassifierConfig.kind if "classify" in given else ModelConfig.kind
    resumed = run if given["resume"] else None
    kind = read_run(resumed.folder).kind if resumed else asked
    contrary = [
        _flag(name) for other, source in SOURCES.items() if other != kind for name in source.ONLY & given.keys()
    ]
    if contrary and resumed:
        raise ValueError(
            f"train: the run in '{resumed.folder}' trains a {kind.replace('_', ' ')}, which {contrary[0]} is not for. "
            "Leave it out, or choose another folder."
        )
    if contrary:
        raise ValueError(
            f"train: {contrary[0]} is not for a {kind.replace('_', ' ')}. "
            + ("Leave it out." if "classify" in given else "It goes with --classify.")
        )
    return kind


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _prepare(given: Mapping[str, Any], run: Run, kind: str) -> None:
    if run.folder.exists() and not run.folder.is_dir():
        raise ValueError(f"train: '{run.folder}' is a file, but a folder was wanted. Choose another --out.")
    if run.config.exists():
        raise ValueError(
            f"train: '{run.folder}' already holds a run, {run.step} steps long. Go on with --resume, or choose another "
            "--out."
        )
    # Whatever is wrong with the sizes is said before minutes are spent on the data.
    chosen_training(given, None)
    SOURCES[kind].prepare_task(given, run)
