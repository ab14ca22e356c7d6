"""`lavagna info`: what a layer, a run or a checkpoint costs, and what this machine has."""

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from lavagna.cli.console import Json, print_pairs, print_turned, show

LATE, WIDTH = 10_000, 256


def info(
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="LAYER|RUN|CHECKPOINT",
            help="The name of a layer, the folder of a run, or a checkpoint, ours or foreign.",
        ),
    ] = None,
    d_model: Annotated[int | None, typer.Option(help="For a layer: how wide it is.", show_default=str(WIDTH))] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(help="For a layer: an option of it as KEY=VALUE, such as heads=4. It may be given several times."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell what a layer, a run or a checkpoint costs, or what this machine has where none is named.

    That is: parameters, bytes of state, arithmetic a token, and the form and the backend that would be used. Of a
    checkpoint only the headers are read. Its state is compared with the cache of a transformer of the same width and
    depth: 2 x depth x d_model x tokens x bytes of a number.
    """
    from lavagna.layers import names

    given = {"--d-model": d_model, "--option": option}
    if target not in names() and (idle := next((name for name, value in given.items() if value is not None), None)):
        raise ValueError(f"info: {idle} is for a layer, such as gla. Name one, or leave it out.")
    if target is None:
        show("info", {}, list(_machine()), as_json=as_json)
        if not as_json:
            print("layers:", " ".join(names()))
        return
    if target in names():
        width = WIDTH if d_model is None else d_model
        rows = [_layer(target, width, option or [])]
        settings = {"layer": target, "d_model": width}
    else:
        rows, settings = _model(target, names())
    if as_json:
        show("info", settings, rows, as_json=True)
        return
    if target not in names():
        print_pairs(settings)
    print_turned(rows, "name")


def _machine() -> Iterator[dict[str, Any]]:
    import torch

    from lavagna.dispatch import BACKENDS
    from lavagna.kernels import describe
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
        yield {"what": f"backend {backend}", "is": "runs everything" if backend == "torch" else describe(backend)}


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
    from lavagna.kernels import find_fused, serves
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
    served = memory is not None or find_fused("cpu", name) is not None
    backend = "cpu" if served and of_a_text != "convolution" and serves("cpu") else "torch"
    if backend == "cpu":
        # The kernel's one form, for any text.
        of_a_text = "recurrent"
    choice = {"form_of_a_text": of_a_text, "form_of_a_token": "recurrent", "backend": backend}
    return {"forms": " ".join(layer.forms)} | choice


def _model(target: str, layers: list[str]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    from dataclasses import replace

    from lavagna.cli.checkpoint_info import memory, tell

    if not Path(target).exists():
        raise FileNotFoundError(
            f"info: {target!r} is neither a layer nor a folder or file. Layers are {', '.join(layers)}; or give a run "
            "or a checkpoint."
        )
    facts, config, dtype = tell("info", Path(target))
    nothing = dict.fromkeys(("forms", "form_of_a_text", "form_of_a_token", "backend"))
    rows = [{"name": "model", **_costs(config), **memory(config, dtype), **nothing}]
    for name in dict.fromkeys(config.layers):
        block = {"mlp": None} | {key: it for key, it in config.block_choices(name).items() if not key.startswith("mlp")}
        options = config.layer_options(name)
        two, one = (
            replace(config, layer=name, options=options, mlp_factor=0, block=block, depth=depth) for depth in (2, 1)
        )
        more = zip(memory(two, dtype).items(), memory(one, dtype).values(), strict=True)
        costs = _mixer(two, one)
        choice = {key: costs.pop(key) for key in nothing}
        rows.append({"name": name, **costs, **{key: after - before for (key, after), before in more}, **choice})
    return rows, facts
