"""`lavagna train`: from a text to a language model, or from labeled sequences to a classifier, in a run's folder."""

from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from lavagna.cli.console import Json, show, this_command
from lavagna.cli.device import checked_device

Layers = Annotated[
    str | None, typer.Option(help="NAME[,NAME...]; several make a hybrid.", show_default="gated_delta_net")
]
Classified = Annotated[
    str | None, typer.Option(help="Train a classifier instead: digits, or an .npz file of labeled sequences.")
]
Sizes = Annotated[
    str | None,
    typer.Option(
        help="Sizes: 1m 4m 15m 60m 130m 340m 1.3b. A classifier without one is 64 wide, 4 deep.", show_default="1m"
    ),
]
KeyValues = Annotated[list[str] | None, typer.Option(help="KEY=VALUE of the layer; NAME.KEY=VALUE in a hybrid.")]
Share = Annotated[
    float | None,
    typer.Option(help="Share to judge by.", show_default="0.05; of examples what the file says, else 0.2"),
]
Warmup = Annotated[int | None, typer.Option(help="Steps in which the rate rises.", show_default="steps / 20")]
Recompute = Annotated[bool | None, typer.Option("--checkpointing", help="Less memory, more time.", show_default=False)]


def train(
    out: Annotated[Path | None, typer.Option(help="Folder of the run; always needed.", show_default=False)] = None,
    layer: Layers = None,
    data: Annotated[str | None, typer.Option(help="A text file, a folder, or stdlib.", show_default="stdlib")] = None,
    classify: Classified = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, with its settings.")] = False,
    preset: Sizes = None,
    d_model: Annotated[int | None, typer.Option(help="Width, instead of the preset's.")] = None,
    depth: Annotated[int | None, typer.Option(help="Blocks, instead of the preset's.")] = None,
    mlp_factor: Annotated[float | None, typer.Option(help="Width of the MLPs over d_model; 0 for none.")] = None,
    dropout: Annotated[float | None, typer.Option(help="Share of each branch to leave out.", show_default="0")] = None,
    pooling: Annotated[str | None, typer.Option(help="Judge by mean, last or max.", show_default="mean")] = None,
    option: KeyValues = None,
    tokenizer: Annotated[str | None, typer.Option(help="bytes or bpe.", show_default="bytes")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Of the bpe.", show_default="4096")] = None,
    validation: Share = None,
    enlarge: Annotated[int | None, typer.Option(help="Pixels a side of the digits: 28 makes 784 steps.")] = None,
    label: Annotated[str | None, typer.Option(help="The array of the file that holds the labels.")] = None,
    decimate: Annotated[int | None, typer.Option(help="Take the mean of so many steps as one.")] = None,
    limit_bytes: Annotated[int | None, typer.Option(help="Take only so much of the text.")] = None,
    steps: Annotated[int | None, typer.Option(help="Updates.", show_default="1000")] = None,
    batch: Annotated[int | None, typer.Option(help="Rows an update, over all processes.", show_default="16")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Rows at a time; the rest is accumulated.")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens a row.", show_default="256")] = None,
    lr: Annotated[float | None, typer.Option(help="Highest learning rate.", show_default="0.003")] = None,
    min_lr: Annotated[float | None, typer.Option(help="Last learning rate.", show_default="lr / 10")] = None,
    warmup: Warmup = None,
    schedule: Annotated[str | None, typer.Option(help="cosine, wsd or constant.", show_default="cosine")] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Of matrices.", show_default="0.1")] = None,
    clip: Annotated[float | None, typer.Option(help="Bound on the gradient's norm.", show_default="1.0")] = None,
    seed: Annotated[int | None, typer.Option(help="Of parameters and batches.", show_default="0")] = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or bfloat16 (autocast).", show_default="float32")] = None,
    compile: Annotated[bool | None, typer.Option("--compile", help="Use torch.compile.", show_default=False)] = None,
    checkpointing: Recompute = None,
    evaluate_every: Annotated[int | None, typer.Option(help="Steps between evaluations.", show_default="100")] = None,
    save_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.", show_default="100")] = None,
    keep: Annotated[int | None, typer.Option(help="Newest checkpoints that stay.", show_default="2")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    as_json: Json = False,
) -> None:
    """Train a language model, or a classifier; a killed run goes on with --resume, to the same losses.

    Several processes: torchrun.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    checked_device("train", device)
    result = run_training(given)
    show("train", {"out": str(out)}, [result], as_json=as_json)
    if not as_json and "validation_accuracy" not in result:
        print(f"Write text with it: {this_command()} generate {quote(str(out))} --prompt 'The '")


def run_training(given: dict[str, Any]) -> dict[str, Any]:
    """Prepare the data, train, and tell how it ended. `given` holds the options of the verb that the user chose."""
    from lavagna.cli.run_folder import check_folder, opened
    from lavagna.training import train as train_model
    from lavagna.training.distributed import join_world

    check_folder(given)
    out = given["out"]
    with join_world(given.get("device")) as world, opened(given, world) as (model, training, data, tokenizer):
        try:
            result = train_model(
                model, training, data, tokenizer, out, resume=given["resume"], device=given.get("device")
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted. Go on with: {this_command()} train --out {quote(str(out))} --resume"
            ) from None
    told = {name: value for name, value in result._asdict().items() if isinstance(value, int | float)}
    return told | {"checkpoint": str(result.checkpoint), "picture": str(result.folder / "loss.png")}
