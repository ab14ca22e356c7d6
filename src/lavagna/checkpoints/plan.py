"""How a checkpoint becomes a model: found out and checked before a number is read."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lavagna.checkpoints import formats
from lavagna.checkpoints.files import CONFIG, LISTED, open_weights, read_json
from lavagna.checkpoints.format import Config, Format
from lavagna.checkpoints.rules import Rule, same
from lavagna.checkpoints.weights import Weights
from lavagna.models import ModelConfig
from lavagna.models.kinds import outline, read_config
from lavagna.models.stack import Stack
from lavagna.models.stack_config import StackConfig

FORMAT = "lavagna-checkpoint-1"
EMBEDDING, HEAD = "embedding.weight", "head.weight"
OURS = "lavagna"
# What configurations call the number of blocks.
DEPTHS = ("num_hidden_layers", "n_layer")
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Plan:
    """An outline of a model, and the rules by which its parameters are made of the tensors of a checkpoint.

    - format: the name of the format, "lavagna" for our own.
    - config: what config.json says, or what the format says in its place.
    - stated: whether there is such a file.
    - title: what errors call the format.
    - model: the model, on the meta device.
    - unused: tensors that the model does without.
    - twins: two names of one matrix, both of them in the file, of which the rules read the first.
    """

    format: str
    config: Config
    model: Stack
    rules: list[Rule]
    weights: Weights
    unused: frozenset[str] = frozenset()
    twins: tuple[str, str] | None = None
    stated: bool = True
    title: str = OURS


def plan(path: Path) -> Plan:
    """Find out what is at a path and check that every tensor of it fits.

    Raises FileNotFoundError where files are missing, ValueError where the format is unknown or the tensors are not
    those of the configuration.
    """
    config = _config(path)
    # A file given alone may lie beside a config.json that is not its own: what its tensors tell goes before.
    if "format" in config and path.is_file() and formats.recognized({}, open_weights(path).entries):
        config = {}
    if "format" in config:
        made = _ours(path, config)
    else:
        made = _foreign(path, config)
    _check(made)
    return made


def _config(path: Path) -> dict[str, Any]:
    """What config.json says; nothing where there is none, or where a single file tells enough by itself."""
    if not path.exists():
        raise FileNotFoundError(f"load: there is nothing at '{path}'. Give a checkpoint's folder or file.")
    file = (path if path.is_dir() else path.parent) / CONFIG
    return read_json(file) if file.is_file() else {}


def _ours(path: Path, config: Config) -> Plan:
    folder = path if path.is_dir() else path.parent
    file = folder / CONFIG
    kind, stated = (str(name).rpartition("-")[0] for name in (FORMAT, config["format"]))
    if stated != kind and stated.startswith("lavagna-"):
        raise ValueError(
            f"load: '{folder}' is no checkpoint, its {CONFIG} is {config['format']}. A run has checkpoints once the "
            "training has saved one: go on with it, or give another folder."
        )
    if config["format"] != FORMAT:
        raise ValueError(
            f"load: '{file}' is {config['format']}, but this version of lavagna reads {FORMAT}. Use the version that "
            "wrote it, or save it again."
        )
    try:
        if not isinstance(config.get("model"), dict):
            raise ValueError(f"It wants an object under 'model', but has {config.get('model')!r}.")
        # Folders from before there were other kinds don't say that theirs is a language model.
        described = read_config(config.get("kind", ModelConfig.kind), config["model"])
        weights = open_weights(path)
        model = _outlined(described, weights)
    # A RuntimeError or OverflowError is torch's, of sizes and numbers that no tensor can have.
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        if str(error).startswith("load: "):
            raise
        raise ValueError(f"load: '{file}' describes no model. {first_line(error)}") from None
    rules = [same(name, name) for name in model.state_dict()]
    return _tied(Plan(OURS, config, model, rules, weights), (EMBEDDING, HEAD))


def _foreign(path: Path, config: Config) -> Plan:
    weights = open_weights(path)
    format, stated = _recognized(path, config, weights)
    try:
        config = format.described(stated, weights.shapes)
        _refuse_depth(config, weights)
        described = format.model_config(config, _either(weights.shapes, format.tied))
        model = _outlined(described, weights)
        rules = format.rules(config, described)
        if faults := format.faults(weights):
            raise ValueError(" ".join(faults))
    except KeyError as error:
        raise ValueError(
            f"load: '{path}' looks like {format.name}, but has no {error} in its config.json or tensors. Copy both "
            "again from one place."
        ) from None
    # A RuntimeError or OverflowError is torch's, of sizes and numbers that no tensor can have.
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise ValueError(
            f"load: '{path}' looks like {format.name}, but describes no model of ours. {first_line(error)}"
        ) from None
    unused = frozenset(format.unused(weights.entries))
    title = format.title(described)
    made = Plan(format.name, config, model, rules, weights, unused, stated=bool(stated), title=title)
    return _tied(made, format.tied)


def first_line(error: Exception) -> str:
    """What an error says, without the calls inside torch that torch's own list behind it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _outlined(described: StackConfig, weights: Weights) -> Stack:
    """An outline of the model. Raises ValueError where it has more blocks than tensors: at once, not after an hour."""
    _refuse_more_blocks(described.depth, weights)
    return outline(described)


def _refuse_depth(config: Config, weights: Weights) -> None:
    # Before the format, which may list every block's layer.
    for said in (config, config.get("text_config")):
        for depth in (said.get(key) for key in DEPTHS) if isinstance(said, Mapping) else ():
            if isinstance(depth, int):
                _refuse_more_blocks(depth, weights)


def _refuse_more_blocks(depth: int, weights: Weights) -> None:
    if depth > len(weights.entries):
        raise ValueError(f"It has {depth} blocks, but the file has {len(weights.entries)} tensors in all.")


def _either(shapes: Shapes, names: tuple[str, str] | None) -> Shapes:
    """The shapes, with that of a tied matrix under the embedding's name where the file has the head's alone."""
    if names is None or names[0] in shapes or names[1] not in shapes:
        return shapes
    return {**shapes, names[0]: shapes[names[1]]}


def _recognized(path: Path, config: Config, weights: Weights) -> tuple[Format, Config]:
    names = weights.entries
    # A file given alone may lie among others, with a config.json that is not its own.
    for said in [config] if path.is_dir() else [{}, config]:
        if (format := formats.recognized(said, names)) is not None:
            return format, config if format.beside else said
    kind = f"model_type {config['model_type']!r}" if "model_type" in config else "no model_type"
    kind = kind if config else "no config.json"
    first = f"tensors such as {', '.join(list(names)[:3])}" if names else "no tensors"
    raise ValueError(
        f"load: '{path}' is of no format that is known, with {kind} and {first}. "
        f"Known are {', '.join(formats.names())}, and folders that lavagna.save wrote."
    )


def _tied(made: Plan, names: tuple[str, str] | None) -> Plan:
    """With tied embeddings either name will do, and both where they hold the same."""
    if names is None or not getattr(made.model.config, "tie_embeddings", False):
        return made
    embedding, head = names
    if head not in made.weights.entries:
        return made
    if embedding in made.weights.entries:
        return replace(made, twins=names)
    rules = [replace(rule, theirs=(head,)) if rule.theirs == (embedding,) else rule for rule in made.rules]
    return replace(made, rules=rules)


def _check(made: Plan) -> None:
    """Raises ValueError with all that is missing, extra or misshapen."""
    ours = {name: tuple(tensor.shape) for name, tensor in made.model.state_dict().items()}
    given = [name for rule in made.rules for name in rule.ours]
    assert sorted(given) == sorted(ours), sorted({*given} ^ {*ours}) or sorted(given)
    wanted = foreign_shapes(made.rules, ours)
    if made.twins:
        wanted[made.twins[1]] = wanted[made.twins[0]]
    entries = made.weights.entries
    wrong = [
        f"{name} is {entries[name].shape} where the configuration wants {shape}"
        for name, shape in wanted.items()
        if name in entries and entries[name].shape != shape
    ]
    wrong += [f"{name} is missing" for name in wanted if name not in entries]
    wrong += [f"{name} is extra" for name in entries if name not in wanted and name not in made.unused]
    wrong += [
        f"{name} is {entries[name].dtype}, not floating"
        for name in wanted
        if name in entries and not entries[name].dtype.is_floating_point
    ]
    if wrong:
        more = f"; and {len(wrong) - LISTED} more" if len(wrong) > LISTED else ""
        fits = f"its config.json of {made.title}" if made.stated else f"together as {made.title}"
        fits = "its config.json" if made.format == OURS else fits
        raise ValueError(f"load: '{made.weights.path}' does not fit {fits}: {'; '.join(wrong[:LISTED])}{more}.")


def foreign_shapes(rules: list[Rule], ours: Shapes) -> dict[str, tuple[int, ...]]:
    """The shapes of their tensors that parameters of ours become."""

    def empty(name: str) -> Tensor:
        return torch.empty(ours[name], device="meta")

    return {
        name: tuple(tensor.shape)
        for rule in rules
        for name, tensor in zip(rule.theirs, rule.write([empty(each) for each in rule.ours]), strict=True)
    }
