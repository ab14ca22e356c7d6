"""`lavagna train`: from a text to a language model, or from labeled sequences to a classifier, in a run's folder."""

from shlex import quote
from typing import Any

from lavagna.cli import train_options as given
from lavagna.cli.console import Json, show, this_command
from lavagna.cli.device import checked_device


def train(
    out: given.Out = None,
    layer: given.Layer = None,
    data: given.Data = None,
    classify: given.Classify = None,
    resume: given.Resume = False,
    preset: given.Preset = None,
    d_model: given.Width = None,
    depth: given.Depth = None,
    mlp_factor: given.MlpFactor = None,
    dropout: given.Dropout = None,
    pooling: given.Pooling = None,
    option: given.LayerOption = None,
    tokenizer: given.Vocabulary = None,
    vocab_size: given.VocabularySize = None,
    validation: given.Validation = None,
    enlarge: given.Enlarge = None,
    label: given.Label = None,
    decimate: given.Decimate = None,
    limit_bytes: given.LimitBytes = None,
    steps: given.Steps = None,
    batch: given.Batch = None,
    micro_batch: given.MicroBatch = None,
    context: given.Context = None,
    lr: given.Rate = None,
    min_lr: given.LastRate = None,
    warmup: given.Warmup = None,
    schedule: given.Schedule = None,
    weight_decay: given.WeightDecay = None,
    clip: given.Clip = None,
    seed: given.Seed = None,
    dtype: given.Dtype = None,
    compile: given.Compile = None,
    checkpointing: given.Recompute = None,
    evaluate_every: given.EvaluateEvery = None,
    save_every: given.SaveEvery = None,
    keep: given.Keep = None,
    device: given.Device = None,
    as_json: Json = False,
) -> None:
    """Train a language model on text, or a classifier on labeled sequences.

    All that a run makes is kept in the folder --out. A run that was killed goes on with --resume and comes to the same
    losses. Several processes train together where torchrun starts them (torchrun --nproc-per-node 2 -m lavagna train).
    """
    chosen = {name: value for name, value in locals().items() if value is not None}
    checked_device("train", device)
    result = run_training(chosen)
    show("train", {"out": str(out)}, [result], as_json=as_json)
    if not as_json and "validation_accuracy" not in result:
        print(f"Write text with it: {this_command()} generate {quote(str(out))} --prompt 'The '")


def run_training(chosen: dict[str, Any]) -> dict[str, Any]:
    """Prepare the data, train, and tell how it ended. `chosen` holds the options of the verb that the user chose."""
    from lavagna.cli.run_folder import check_folder, opened
    from lavagna.training import train as train_model
    from lavagna.training.distributed import join_world

    check_folder(chosen)
    out = chosen["out"]
    with join_world(chosen.get("device")) as world, opened(chosen, world) as (model, training, data, tokenizer):
        try:
            result = train_model(
                model, training, data, tokenizer, out, resume=chosen["resume"], device=chosen.get("device")
            )
        except KeyboardInterrupt:
            raise KeyboardInterrupt(
                f"interrupted. Go on with: {this_command()} train --out {quote(str(out))} --resume"
            ) from None
    told = {name: value for name, value in result._asdict().items() if isinstance(value, int | float)}
    return told | {"checkpoint": str(result.checkpoint), "picture": str(result.folder / "loss.png")}
