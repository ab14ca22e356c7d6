"""Checkpoints of a run: all that the next step depends on, in one folder that is there whole or not at all."""

import os
import shutil
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from lavagna import checkpoints
from lavagna.atomic_file import sync
from lavagna.data import AbstractTokenizer
from lavagna.models import Stack

FORMAT = "lavagna-training-1"
OPTIMIZER = "optimizer.safetensors"


def save_checkpoint(
    folder: Path, step: int, model: Stack, optimizer: Optimizer, tokenizer: AbstractTokenizer | None, *, keep: int
) -> Path:
    """Write `folder/step-00000100` and then remove all but the newest `keep`.

    The folder is what `lavagna.save` writes, so that `lavagna.load` reads it, and the optimizer's moments beside it.
    Nothing else is needed: batches, learning rate and random numbers are functions of the step. It is written under a
    hidden name, brought to the disk and renamed; at every moment the newest folder with a visible name is whole.

    Raises `OSError` in one line where it can't be written; the older checkpoints stay, and the model is unchanged.
    """
    path = folder / f"step-{step:08d}"
    partial = folder / f".{path.name}.partial"
    try:
        tidy(folder, keep=keep)
        checkpoints.save(model, partial, tokenizer)
        save_file(_moments(optimizer), partial / OPTIMIZER, {"format": FORMAT})
        for file in [*partial.iterdir(), partial]:
            sync(file)
        os.replace(partial, path)
        sync(folder)
        tidy(folder, keep=keep)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise OSError(_refusal(error, path, list_checkpoints(folder))) from error
    return path


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(folder.glob("step-[0-9]*"), key=step_of)


def step_of(checkpoint: Path) -> int:
    """The number of updates that a checkpoint has behind it."""
    return int(checkpoint.name.removeprefix("step-"))


def load_checkpoint(checkpoint: Path, model: Stack, optimizer: Optimizer) -> None:
    """Put a checkpoint's parameters and moments, bit for bit, into a model and its optimizer.

    Raises `ValueError` where the files are damaged, of another version, or of another model.
    """
    saved, _ = checkpoints.load(checkpoint)
    try:
        model.load_state_dict(saved.state_dict())
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"train: the checkpoint {checkpoint} is of another model. {reason}") from None
    names = [name for group in optimizer.param_groups for name in group["names"]]
    moments = _read_moments(checkpoint / OPTIMIZER, names)
    state = {i: {kind: moments[f"{name}.{kind}"] for kind in _KINDS} for i, name in enumerate(names)}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def tidy(folder: Path, *, keep: int) -> None:
    """Remove all checkpoints but the newest `keep`, and whatever a killed process left half-written or half-removed."""
    for path in folder.glob(".*"):
        shutil.rmtree(path)
    for old in list_checkpoints(folder)[:-keep]:
        # It loses its visible name before its first file, so that no kill leaves half of one to be resumed from.
        hidden = old.with_name(f".{old.name}.removed")
        os.replace(old, hidden)
        shutil.rmtree(hidden)


_KINDS = ("step", "exp_avg", "exp_avg_sq")


def _moments(optimizer: Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}.{kind}": optimizer.state[parameter][kind].contiguous()
        for group in optimizer.param_groups
        for name, parameter in zip(group["names"], group["params"], strict=True)
        for kind in _KINDS
    }


def _read_moments(path: Path, names: list[str]) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as file:
            came = (file.metadata() or {}).get("format", "no format")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, FileNotFoundError) as error:
        raise ValueError(
            f"train: {path} is not a whole file ({error}). Remove its folder, and training resumes from an older one."
        ) from None
    if came != FORMAT:
        raise ValueError(f"train: {path} holds {came}, but {FORMAT} was wanted. Train anew with this version.")
    wanted = {f"{name}.{kind}" for name in names for kind in _KINDS}
    if tensors.keys() != wanted:
        odd = sorted(tensors.keys() ^ wanted)
        raise ValueError(f"train: {path} and the model differ in {', '.join(odd[:4])}. Resume with the same model.")
    return tensors


def _refusal(error: Exception, path: Path, older: list[Path]) -> str:
    cause: BaseException = error
    while cause.__cause__:
        cause = cause.__cause__
    reason = " ".join(str(getattr(cause, "strerror", None) or cause).split())
    kept = f"{older[-1]} is kept" if older else "there is no older one"
    return f"train: could not write {path} ({reason}); {kept}. Make room and resume."
