"""Whether a foreign format can hold a model of ours."""

from typing import Any

from lavagna.checkpoints.files import LISTED
from lavagna.checkpoints.format import Config, Format
from lavagna.checkpoints.plan import Shapes, first_line, foreign_shapes
from lavagna.layers import registry
from lavagna.models import ModelConfig
from lavagna.models.kinds import outline

# Fields that say the same in other words, whose tensors tell (the norm of an embedding), or that only training minds.
FREE = {"layer", "options", "block", "mlp_factor", "vocab_size", "vocab_multiple", "embedding_norm", "dropout"}
# Options that say where a layer stands, or a width that others may say in its place and that shapes tell.
TOLD = {"layer_index", "depth", "expand"}


def config_for(format: Format, ours: ModelConfig) -> dict[str, Any]:
    """The content of a config.json by which a format describes a model of ours.

    The proof is what the format makes of it: a model that is not ours in every number that matters is refused, by
    ValueError, with all that differs.
    """
    try:
        _check_layers(format, ours)
        config = format.foreign_config(ours)
        again = read_back(format, config, ours)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise ValueError(f"convert: {format.name} can't hold this model. {first_line(error)}") from None
    wrong = differences(ours, again)
    if wrong:
        raise ValueError(f"convert: {format.name} can't hold this model: {'; '.join(wrong)}.")
    return config


def _check_layers(format: Format, ours: ModelConfig) -> None:
    # Before anything else, which would only tell of an option or a tensor that another layer lacks.
    held, names = format.held(), dict.fromkeys(ours.layers)
    if held and not {*names} <= {*held}:
        raise ValueError(f"It holds layers of {' and '.join(held)}, but this model's are {' and '.join(names)}.")


def read_back(format: Format, config: Config, ours: ModelConfig, unused: Shapes | None = None) -> ModelConfig:
    """What a format makes of a config, beside the shapes that the tensors of our model would have in it."""
    shapes = {name: tuple(tensor.shape) for name, tensor in outline(ours).state_dict().items()}
    rules = format.rules(config, ours)
    given = {name: None for rule in rules for name in rule.ours}
    unlike = [f"wants {name}, which this model lacks" for name in given if name not in shapes]
    unlike += [f"has no place for this model's {name}" for name in shapes if name not in given]
    if unlike:
        raise ValueError(f"It {unlike[0]}.")
    return format.model_config(config, foreign_shapes(rules, shapes) | dict(unused or {}))


def differences(ours: ModelConfig, theirs: ModelConfig) -> list[str]:
    """In what two configurations describe different models."""
    mine, other = ours.to_dict(), theirs.to_dict()
    wrong = [
        f"{field} is {mine[field]!r}, there {other[field]!r}"
        for field in mine
        if field not in FREE and mine[field] != other[field]
    ]
    if ours.vocab_rows != theirs.vocab_rows:
        wrong.append(f"the vocabulary has {ours.vocab_rows} rows, there {theirs.vocab_rows}")
    if ours.layers != theirs.layers:
        return [*wrong, f"the layers are {', '.join(ours.layers)}, there {', '.join(theirs.layers)}"]
    for name in dict.fromkeys(ours.layers):
        wrong += _options(name, ours.layer_options(name), theirs.layer_options(name))
    for one, two in zip(*([b.around for b in outline(config).each_block] for config in (ours, theirs)), strict=True):
        pairs = zip(one._fields, one, two, strict=True)
        wrong += [f"blocks have {field}={mine!r}, there {its!r}" for field, mine, its in pairs if mine != its]
    wrong = list(dict.fromkeys(wrong))
    # What options left open, which are not told apart above, may still make tensors that only one of the two has.
    return wrong or _shapes(ours, theirs)[:LISTED]


def _shapes(ours: ModelConfig, theirs: ModelConfig) -> list[str]:
    mine, other = (
        {name: tuple(tensor.shape) for name, tensor in outline(config).state_dict().items()}
        for config in (ours, theirs)
    )
    names = [name for name in mine | other if mine.get(name) != other.get(name)]
    return [f"{name} is {mine.get(name, 'missing')}, there {other.get(name, 'missing')}" for name in names]


def _options(layer: str, ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    # An option that is left open, None, follows from others, and shapes are compared besides.
    defaults = registry.options(layer)
    mine, other = defaults | ours, defaults | theirs
    return [
        f"{layer} has {name}={mine[name]!r}, there {other[name]!r}"
        for name in defaults
        if mine[name] != other[name] and None not in (mine[name], other[name]) and name not in TOLD
    ]
