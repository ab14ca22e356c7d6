"""The options of `lavagna train`, as its help explains them. What is left out is None, so that a run's own stays."""

from pathlib import Path
from typing import Annotated, Any

import typer


def _told(help: str, default: str | bool = False) -> Any:
    """What an option is for, and what is taken where it is left out."""
    return typer.Option(help=help, show_default=default)


Out = Annotated[Path | None, _told("The folder of the run, in which all that it makes is kept. It is always needed.")]
Layer = Annotated[
    str | None,
    _told(
        "The architecture. Several names, separated by commas, make a hybrid whose blocks take turns. 'lavagna info' "
        "lists all names.",
        "gated_delta_net",
    ),
]
Data = Annotated[
    str | None,
    _told(
        "What to learn from: a text file, a folder of text files, or stdlib, which is Python's own standard library.",
        "stdlib",
    ),
]
Classify = Annotated[
    str | None,
    _told(
        "Train a classifier instead of a language model, on scikit-learn's handwritten digits (digits) or on an .npz "
        "file of labeled sequences.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Go on with the run in --out, with the settings that it was started with."),
]
Preset = Annotated[
    str | None,
    _told(
        "The size of the model: about 1m, 4m, 15m, 60m, 130m, 340m or 1.3b parameters. A classifier without a preset "
        "is 64 wide and 4 blocks deep.",
        "1m",
    ),
]
Width = Annotated[int | None, _told("The width of the model, in place of the preset's.")]
Depth = Annotated[int | None, _told("The number of blocks, in place of the preset's.")]
MlpFactor = Annotated[float | None, _told("How many times as wide as the model its MLPs are. With 0 there are none.")]
Dropout = Annotated[float | None, _told("The share of each branch that is left out at random while training.", "0")]
Pooling = Annotated[
    str | None, _told("For a classifier: what it judges a sequence by, the mean, last or max of its steps.", "mean")
]
LayerOption = Annotated[
    list[str] | None,
    typer.Option(
        help="An option of the layer as KEY=VALUE, such as heads=4, or as NAME.KEY=VALUE for one layer of a hybrid. It "
        "may be given several times."
    ),
]
Vocabulary = Annotated[
    str | None, _told("How text becomes tokens: bytes, or a vocabulary learned from the text (bpe).", "bytes")
]
VocabularySize = Annotated[int | None, _told("How many tokens a learned vocabulary has.", "4096")]
Validation = Annotated[
    float | None,
    _told(
        "The share of the data that is kept aside to judge by.",
        "0.05; of examples what the file says, else 0.2",
    ),
]
Enlarge = Annotated[
    int | None,
    _told("For --classify digits: enlarge each picture to this many pixels a side. 28 makes sequences of 784 steps."),
]
Label = Annotated[str | None, _told("For --classify FILE: the name of the array in the file that holds the labels.")]
Decimate = Annotated[int | None, _told("For --classify: replace every so many steps by their mean.")]
LimitBytes = Annotated[int | None, _told("Take only so many bytes of the text.")]
Steps = Annotated[int | None, _told("How many updates to make.", "1000")]
Batch = Annotated[int | None, _told("How many rows an update learns from, over all processes.", "16")]
MicroBatch = Annotated[
    int | None, _told("How many of these rows to compute at a time, which needs less memory; gradients are added up.")
]
Context = Annotated[int | None, _told("How many tokens a row has.", "256")]
Rate = Annotated[float | None, _told("The highest learning rate.", "0.003")]
LastRate = Annotated[float | None, _told("The learning rate at the end.", "lr / 10")]
Warmup = Annotated[int | None, _told("During how many steps the learning rate rises at the beginning.", "steps / 20")]
Schedule = Annotated[
    str | None, _told("How the learning rate then falls: cosine, wsd (only at the end) or constant.", "cosine")
]
WeightDecay = Annotated[float | None, _told("The weight decay of matrices; nothing else decays.", "0.1")]
Clip = Annotated[float | None, _told("Gradients with a larger norm than this are scaled down to it.", "1.0")]
Seed = Annotated[int | None, _told("The seed of the parameters and of the order of the batches.", "0")]
Dtype = Annotated[str | None, _told("The precision of the products: float32, or bfloat16 by autocast.", "float32")]
Compile = Annotated[
    bool | None, typer.Option("--compile", help="Compile the model with torch.compile.", show_default=False)
]
Recompute = Annotated[
    bool | None,
    typer.Option(
        "--checkpointing",
        help="Compute each block again in the backward pass, which needs less memory and more time.",
        show_default=False,
    ),
]
EvaluateEvery = Annotated[int | None, _told("After how many steps the model is judged on the data kept aside.", "100")]
SaveEvery = Annotated[int | None, _told("After how many steps a checkpoint is saved.", "100")]
Keep = Annotated[int | None, _told("How many of the newest checkpoints stay.", "2")]
Device = Annotated[str | None, _told("The device to train on: cpu or cuda. By default CUDA where there is one.")]
