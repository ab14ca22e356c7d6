"""The folder of a run: what was asked for, the record, the checkpoints, the pictures."""

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

from lavagna.atomic_file import atomic_file
from lavagna.models import ModelConfig
from lavagna.models.kinds import read_config
from lavagna.training.checkpoint import list_checkpoints, step_of, tidy
from lavagna.training.config import TrainConfig
from lavagna.version import __version__

FORMAT = "lavagna-run-1"

# What may change from one sitting to the next, because another machine may ask for it or because it changes no number
# that was already computed. `steps` is here so that a run can be prolonged.
FREE = {
    "steps", "micro_batch", "compile", "checkpointing", "evaluate_every", "evaluate_batches", "save_every", "keep",
}  # fmt: skip


class Settings(NamedTuple):
    """What a run was started with: the model's config and the data as plain values, and the training's.

    `kind` is the kind of model; runs that don't say theirs are of language models.
    """

    model: dict[str, Any]
    training: TrainConfig
    data: dict[str, Any]
    kind: str = ModelConfig.kind

    @property
    def model_config(self) -> Any:
        """The model's config, with fields that came later at their defaults."""
        return read_config(self.kind, self.model)


class Run:
    """A run's folder: `config.json log.jsonl loss.png tensorboard/ checkpoints/step-00000100/ ...`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.json"
        self.log = folder / "log.jsonl"
        self.picture = folder / "loss.png"
        self.tensorboard = folder / "tensorboard"
        self.checkpoints = folder / "checkpoints"

    @property
    def latest(self) -> Path | None:
        """The newest checkpoint, None before the first."""
        return (list_checkpoints(self.checkpoints) or [None])[-1]

    @property
    def step(self) -> int:
        """How many updates the newest checkpoint has behind it."""
        return step_of(self.latest) if self.latest else 0


def open_run(folder: Path, settings: Settings, *, resume: bool) -> Run:
    """Start a run in a folder, or, with `resume`, go on with the one that is there, if any.

    Raises `ValueError` where the folder holds a run and `resume` is not set, or holds one of other settings or another
    version.
    """
    run = Run(folder)
    if run.config.exists() or run.latest:
        if not resume:
            raise ValueError(
                f"train: {folder} already holds a run, {run.step} steps long. Resume it, or choose another folder."
            )
        _compare(folder, read_run(folder), settings)
    run.checkpoints.mkdir(parents=True, exist_ok=True)
    tidy(run.checkpoints, keep=settings.training.keep)
    content = {"format": FORMAT, "version": __version__, **settings._asdict(), "training": asdict(settings.training)}
    with atomic_file(run.config) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")
    return run


def read_run(folder: Path) -> Settings:
    """What the run in a folder was started with.

    Raises `FileNotFoundError` where there is none, `ValueError` where it is of another version or damaged.
    """
    path = Run(Path(folder)).config
    if not path.is_file():
        raise FileNotFoundError(f"read_run: there is no run in {folder}. Start one with train, or name its folder.")
    try:
        content = json.loads(path.read_bytes())
        came = content.get("format", "no format")
    except (ValueError, AttributeError):
        raise ValueError(f"read_run: {path} is not the JSON of a run. Choose another folder.") from None
    if came != FORMAT:
        version = content.get("version", "an unknown version")
        raise ValueError(
            f"read_run: {path} holds {came}, written by lavagna {version}, but {FORMAT} was wanted. "
            "Train anew with this version, or go on with that one."
        )
    kind = content.get("kind", ModelConfig.kind)
    return Settings(content["model"], TrainConfig.from_dict(content["training"]), content["data"], kind)


def _compare(folder: Path, stored: Settings, asked: Settings) -> None:
    names = [field.name for field in fields(TrainConfig) if field.name not in FREE]
    if stored.kind != asked.kind:
        raise ValueError(
            f"train: the run in {folder} trains a {stored.kind.replace('_', ' ')}, not a "
            f"{asked.kind.replace('_', ' ')}. Choose another folder."
        )
    before = {
        **stored.model_config.to_dict(),
        **stored.data,
        **{name: getattr(stored.training, name) for name in names},
    }
    now = {**asked.model, **asked.data, **{name: getattr(asked.training, name) for name in names}}
    changed = [
        f"{name} {before.get(name)!r} (now {now.get(name)!r})"
        for name in before | now
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise ValueError(
            f"train: the run in {folder} was started with {', '.join(changed)}. "
            "Resume with the same settings, or choose another folder."
        )
