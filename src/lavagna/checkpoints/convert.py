"""Foreign checkpoints made ours, and back, a tensor at a time and to the bit."""

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from lavagna.atomic_file import sync
from lavagna.checkpoints import formats
from lavagna.checkpoints.files import CONFIG, LISTED, SAFETENSORS, TORCH
from lavagna.checkpoints.folder import leads_to_itself, whole_folder
from lavagna.checkpoints.format import Config, Format
from lavagna.checkpoints.holding import config_for, differences, read_back
from lavagna.checkpoints.origin import Origin, origin_of, read_origin, unused_of, write_origin
from lavagna.checkpoints.plan import FORMAT, OURS, Plan, Shapes, first_line, plan
from lavagna.checkpoints.rules import Rule
from lavagna.checkpoints.safetensors_file import write_safetensors
from lavagna.checkpoints.save import WEIGHTS
from lavagna.checkpoints.tensors import tensors_of
from lavagna.checkpoints.weights import Entry
from lavagna.models import ModelConfig

# What stands beside a model and belongs to its text, not to its tensors: copied as it is.
BESIDE = (
    "tokenizer*.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt",
    "merges.txt", "rwkv_vocab*.txt", "chat_template.jinja", "generation_config.json",
)  # fmt: skip


class Converted(NamedTuple):
    """What was made of what: the names of the two formats, how many tensors were written, and how many bytes."""

    source: str
    target: str
    tensors: int
    nbytes: int


class _Package(NamedTuple):
    """What is to be written: the text of config.json, the name of the file, and its tensors."""

    config: str
    file: str
    nest: str | None
    entries: dict[str, Entry]
    tensors: Iterator[tuple[str, Tensor]]
    more: Callable[[Path], None] = lambda folder: None


def convert(source: str | os.PathLike[str], target: str | os.PathLike[str], *, to: str | None = None) -> Converted:
    """Write a checkpoint in another format: a foreign one in ours, ours in the one that it came from, or in `to`.

    A model that is made ours keeps what the way back needs in `origin.json` and `origin.safetensors` beside it; so it
    comes back with every tensor bit for bit, in its dtype and under its name. What never was foreign is written where
    the format can hold it. Tensors pass one by one (a file of torch is put together in memory before it is written).

    The target is a new or an empty folder, or a file where the format has no config.json; it is there whole or not at
    all. Raises ValueError or OSError on a source that can't be read, a target that is taken, an unknown format, and a
    model that the format can't hold.
    """
    source, target = Path(source), Path(target)
    _refuse_taken(target)
    if source.is_dir() and target.absolute().is_relative_to(source.absolute()):
        raise ValueError(f"convert: '{target}' is inside '{source}', which is to be read. Name a folder elsewhere.")
    if to not in (None, OURS):
        formats.of_name(to)
    made = plan(source)
    if made.format == (to or (OURS if made.format != OURS else None)):
        raise ValueError(f"convert: '{source}' is {made.format} already. Name another format with --to.")
    if made.format != OURS and to not in (None, OURS):
        with _naming(target), tempfile.TemporaryDirectory(dir=_existing(target)) as between:
            convert(source, Path(between) / OURS)
            return convert(Path(between) / OURS, target, to=to)._replace(source=made.format)
    if made.format != OURS:
        name, package = OURS, _ours(made, source)
    else:
        format, origin = _wanted(source, to)
        name, package = format.name, _foreign(made, source, format, origin)
    with _naming(target):
        _write(package, source if source.is_dir() else source.parent, target)
    nbytes = sum(_bytes(entry) for entry in package.entries.values())
    return Converted(made.format, name, len(package.entries), nbytes)


def _refuse_taken(target: Path) -> None:
    if leads_to_itself(target):
        raise ValueError(f"convert: '{target}' is a link that leads back to itself. Name a new folder or file.")
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        what = "is a file that exists" if target.is_file() else "is not empty"
        raise ValueError(f"convert: '{target}' {what}. Name a new folder or file.")


@contextlib.contextmanager
def _naming(target: Path) -> Iterator[None]:
    """Says of an OSError of the system's own what it was that couldn't be written."""
    try:
        yield
    except OSError as error:
        if str(error).startswith(("load: ", "convert: ")):
            raise
        reason = (error.strerror or str(error)).removesuffix(".")
        raise OSError(
            f"convert: '{target}' can't be written ({reason}). Free some space or choose another place."
        ) from error


def _existing(path: Path) -> Path:
    return next(folder for folder in path.absolute().parents if folder.is_dir())


def _bytes(entry: Entry) -> int:
    return torch.Size(entry.shape).numel() * entry.dtype.itemsize


def _ours(made: Plan, source: Path) -> _Package:
    config = made.model.config
    text = json.dumps({"format": FORMAT, "kind": config.kind, "model": config.to_dict()}, indent=2) + "\n"
    entries = {}
    for rule in made.rules:
        entries |= _entries(rule.ours, rule.read(_empty(rule.theirs, made.weights.entries)))
    origin = origin_of(made, source)
    return _Package(text, WEIGHTS, None, entries, tensors_of(made), lambda folder: write_origin(folder, origin, made))


def _empty(names: tuple[str, ...], entries: Mapping[str, Entry]) -> list[Tensor]:
    return [torch.empty(entries[name].shape, dtype=entries[name].dtype, device="meta") for name in names]


def _entries(names: tuple[str, ...], tensors: list[Tensor]) -> dict[str, Entry]:
    return {name: Entry(tuple(x.shape), x.dtype) for name, x in zip(names, tensors, strict=True)}


def _wanted(source: Path, to: str | None) -> tuple[Format, Origin | None]:
    origin = read_origin(source if source.is_dir() else source.parent)
    if to is None and origin is None:
        raise ValueError(
            f"convert: '{source}' came from no other format. Name one with --to: {', '.join(formats.names())}."
        )
    format = formats.of_name(to or (origin.name if origin else ""))
    return format, origin if origin and origin.name == format.name else None


def _foreign(made: Plan, source: Path, format: Format, origin: Origin | None) -> _Package:
    ours = made.model.config
    if not isinstance(ours, ModelConfig):
        raise ValueError(f"convert: {format.name} holds language models, but '{source}' is a {ours.kind}.")
    config = origin.config if origin else {}
    unused = unused_of(source if source.is_dir() else source.parent) if origin else None
    if origin and _changed(format, config, ours, unused.shapes if unused else {}):
        origin = unused = None
    if origin is None:
        config = config_for(format, ours)
    text = origin.text if origin else (json.dumps(config, indent=2) + "\n" if config else "")
    rules = _named(format, format.rules(config, ours), origin)
    twins = {}
    if origin and format.tied and ours.tie_embeddings and {*format.tied} <= origin.tensors.keys():
        twins = {format.tied[0]: format.tied[1]}
    entries = {}
    for rule in rules:
        entries |= _entries(rule.theirs, rule.write(_empty(rule.ours, made.weights.entries)))
    entries |= {twin: entries[name] for name, twin in twins.items()} | (unused.entries if unused else {})
    if origin:
        _refuse_others(entries, origin, source)
        entries = {name: Entry(entries[name].shape, origin.dtype(name)) for name in origin.tensors}

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for rule in rules:
            written = rule.write([made.weights.take(name) for name in rule.ours])
            for name, tensor in zip(rule.theirs, written, strict=True):
                for each in (name, twins.get(name)):
                    if each is not None:
                        yield each, tensor.to(entries[each].dtype)
        if unused:
            yield from ((name, unused.take(name)) for name in unused.entries)

    nest, file = (origin.nest, origin.file) if origin else (None, format.file)
    return _Package(text, file, nest, entries, tensors())


def _changed(format: Format, config: Config, ours: ModelConfig, unused: Shapes) -> bool:
    """Whether the config that a model came with no longer describes it."""
    try:
        return bool(differences(ours, read_back(format, config, ours, unused)))
    except (ValueError, TypeError, KeyError, RuntimeError):
        return True


def _refuse_others(entries: Mapping[str, Entry], origin: Origin, source: Path) -> None:
    # Of files that were lost or edited since: what is floating here would be cut to integers without a word.
    wrong = [name for name in entries if name not in origin.tensors]
    wrong += [
        name
        for name in origin.tensors
        if name not in entries or entries[name].dtype.is_floating_point != origin.dtype(name).is_floating_point
    ]
    if wrong:
        more = f" and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
        raise ValueError(
            f"convert: origin.json in '{source}' tells otherwise of {', '.join(wrong[:LISTED])}{more} than the tensors "
            "there. Convert the checkpoint again, or remove origin.json and name a format with --to."
        )


def _named(format: Format, rules: list[Rule], origin: Origin | None) -> list[Rule]:
    """The rules, with the head's name where the file had a tied matrix under that alone."""
    if origin is None or format.tied is None or format.tied[0] in origin.tensors:
        return rules
    embedding, head = format.tied
    return [Rule(rule.ours, (head,), rule.turns) if rule.theirs == (embedding,) else rule for rule in rules]


def _write(package: _Package, source: Path, target: Path) -> None:
    alone = target.suffix in (SAFETENSORS, *TORCH)
    if alone and package.config:
        raise ValueError(f"convert: this format needs a config.json beside its tensors. Name a folder, not '{target}'.")
    beside = [] if alone else sorted({file for pattern in BESIDE for file in source.glob(pattern) if file.is_file()})
    file = target.name if alone else package.file
    files = frozenset({file, CONFIG, *(each.name for each in beside)})
    with contextlib.ExitStack() as stack:
        if alone:
            target.parent.mkdir(parents=True, exist_ok=True)
            new = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=target.parent)))
        else:
            new = stack.enter_context(whole_folder(target, files=files))
        _write_tensors(new / file, package)
        package.more(new)
        if package.config:
            (new / CONFIG).write_text(package.config, encoding="utf-8")
        for each in beside:
            shutil.copyfile(each, new / each.name)
        if alone:
            sync(new / file)
            os.replace(new / file, target)


def _write_tensors(file: Path, package: _Package) -> None:
    if file.suffix == SAFETENSORS:
        write_safetensors(file, package.entries, package.tensors)
        return
    tensors = dict(package.tensors)
    ordered = {name: _alone(tensors.pop(name)) for name in package.entries}
    try:
        torch.save({package.nest: ordered} if package.nest else ordered, file)
    except RuntimeError as error:
        # What torch makes of a disk that is full.
        raise OSError(first_line(error)) from error


def _alone(tensor: Tensor) -> Tensor:
    """The tensor without what it was cut out of, which torch.save would write too."""
    whole = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if whole else tensor.contiguous().clone()
