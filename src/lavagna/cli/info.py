"""`lavagna info`: what a layer, a run or a checkpoint costs, and what this machine has."""

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from lavagna.cli.console import Json, print_turned, show

LATE = 10_000


def info(
    target: Annotated[str | None, typer.Argument(metavar="LAYER|RUN|CHECKPOINT", help="What to tell of.")] = None,
    d_model: Annotated[int, typer.Option(help="For a layer: its width.")] = 256,
    option: Annotated[list[str] | None, typer.Option(help="For a layer: KEY=VALUE.")] = None,
    as_json: Json = False,
) -> None:
    """Parameters, bytes of state, arithmetic a token and the form that would run; without a target, this machine."""
    from lavagna.layers import names

    if target is None:
        show("info", {}, list(_machine()), as_json=as_json)
        if not as_json:
            print("layers:", " ".join(names()))
        return
    if target in names():
        rows = [_layer(target, d_model, option or [])]
        settings = {"layer": target, "d_model": d_model}
    else:
        rows, checkpoint = _model(target, names())
        settings = {"checkpoint": str(checkpoint)}
    if as_json:
        show("info", settings, rows, as_json=True)
    else:
        print_turned(rows, "name")


def _machine() -> Iterator[dict[str, Any]]:
    import torch

    from lavagna.dispatch import BACKENDS
    from lavagna.version import __version__

    yield {"what": "lavagna", "is": __version__}
    yield {"what": "python", "is": f"{platform.python_version()} on {platform.system()} {platform.machine()}"}
    yield {"what": "torch", "is": torch.__version__}
    yield {"what": "threads", "is": str(torch.get_num_threads())}
    for index in range(torch.cuda.device_count()):
        yield {"what": f"cuda:{index}", "is": torch.cuda.get_device_name(index)}
    if not torch.cuda.is_available():
        yield {"what": "cuda", "is": "none"}
    for backend in BACKENDS:
        yield {"what": f"backend {backend}", "is": "runs everything" if backend == "torch" else "not in this version"}


def _layer(name: str, d_model: int, words: list[str]) -> dict[str, Any]:
    from lavagna.cli.choices import parse_options
    from lavagna.models import ClassifierConfig

    # Of the kinds of models, the one that takes every layer, those too that read in both directions.
    def model(depth: int) -> ClassifierConfig:
        options = parse_options(words, name)
        return ClassifierConfig(name, d_model, depth, classes=1, features=1, options=options, mlp_factor=0)

    try:
        return {"name": name, **_mixer(model(2), model(1))}
    except TypeError as error:
        raise ValueError(str(error)) from None


def _mixer(two: Any, one: Any) -> dict[str, Any]:
    """What one block more makes of a model: the cost of its mixer."""
    costs = zip(_costs(two).items(), _costs(one).values(), strict=True)
    return {name: more - less for (name, more), less in costs} | _choice(one)


def _costs(model: Any) -> dict[str, int]:
    from lavagna.models.size import flops, parameters, state_bytes

    return {
        "parameters": parameters(model),
        "state_bytes": state_bytes(model),
        f"state_bytes_after_{LATE}": state_bytes(model, LATE),
        "flops_per_token": flops(model),
        f"flops_per_token_after_{LATE}": flops(model, LATE),
    }


def _choice(config: Any) -> dict[str, Any]:
    """The forms of a model's first layer, and those that `auto` takes of a long text and of a token on a CPU."""
    import torch

    from lavagna.dispatch import fastest
    from lavagna.layers import build

    name = config.layers[0]
    with torch.device("meta"):
        layer = build(name, config.d_model, **config.layer_options(name))
        memory = layer.initial_state(1).tensors().get("memory")
    of_a_text = next((form for form in ("convolution", "chunkwise") if form in layer.forms), layer.forms[-1])
    if of_a_text == "chunkwise" and memory is not None:
        _, _, values, keys = memory.shape
        # Heads of one value are the channels of a diagonal system.
        of_a_text = fastest(LATE, values * keys, memory.numel(), diagonal=values == 1)
    choice = {"form_of_a_text": of_a_text, "form_of_a_token": "recurrent", "backend": "torch"}
    return {"forms": " ".join(layer.forms)} | choice


def _model(target: str, layers: list[str]) -> tuple[list[dict[str, Any]], Path]:
    from dataclasses import replace

    from lavagna.checkpoints import load
    from lavagna.cli.model_source import find_checkpoint

    if not Path(target).exists():
        raise FileNotFoundError(
            f"info: {target!r} is neither a layer nor a folder. Layers are {', '.join(layers)}; or give a run or a "
            "checkpoint folder."
        )
    checkpoint = find_checkpoint("info", Path(target))
    config = load(checkpoint).model.config
    rows = [
        {"name": "model", **_costs(config), "forms": "", "form_of_a_text": "", "form_of_a_token": "", "backend": ""}
    ]
    for name in dict.fromkeys(config.layers):
        alone = replace(config, layer=name, options=config.layer_options(name), mlp_factor=0)
        rows.append({"name": name, **_mixer(replace(alone, depth=2), replace(alone, depth=1))})
    return rows, checkpoint
