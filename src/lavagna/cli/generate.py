"""`lavagna generate`: text from a trained model, token by token."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from lavagna.cli.device import checked_device
from lavagna.cli.model_source import open_source

STDIN = "-"


def generate(
    model: Annotated[
        Path, typer.Argument(metavar="RUN_OR_CHECKPOINT", help="The folder of a run, or a checkpoint, ours or foreign.")
    ],
    prompt: Annotated[str, typer.Option(help="The text to go on from. With - it is read from stdin.")],
    max_new_tokens: Annotated[int, typer.Option(help="The largest number of tokens to write.")] = 256,
    temperature: Annotated[
        float, typer.Option(help="How freely tokens are drawn. With 0 the likeliest is always taken.")
    ] = 0.8,
    top_p: Annotated[
        float | None, typer.Option(help="Draw only from the likeliest tokens that have this share of all probability.")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw only from this many of the likeliest tokens.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="End before this text comes. It may be given several times.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same text.")] = None,
    weights: Annotated[
        str,
        typer.Option(
            help="How wide the weights are kept in memory: as in the file (file), or in 8 bits (int8), by torchao."
        ),
    ] = "file",
    device: Annotated[str | None, typer.Option(help="The device to run on: cpu or cuda. By default the CPU.")] = None,
) -> None:
    """Write the text that follows a prompt, token by token.

    Only the new text goes to stdout; in a terminal, the prompt is shown before it.
    """
    from lavagna.generation import stream
    from lavagna.models import quantize

    checked_device("generate", device)
    if weights not in ("file", "int8"):
        raise ValueError(f"generate: weights must be file or int8, but came as {weights!r}.")
    text = read_prompt(prompt)
    source = open_source("generate", model, device=device, tokenizer=True)
    pieces = stream(
        quantize(source.model) if weights == "int8" else source.model,
        source.tokenizer,
        text,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        stop=stop or (),
        seed=seed,
    )
    if sys.stdout.isatty():
        print(text, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()


def read_prompt(prompt: str) -> str:
    """The prompt, or stdin for '-', as the UTF-8 that it is, whatever the locale takes it for."""
    if prompt == STDIN:
        try:
            return sys.stdin.buffer.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"generate: stdin is not UTF-8 at byte {error.start}. Convert it and try again.") from None
    return os.fsencode(prompt).decode("utf-8", "replace") if _has_surrogates(prompt) else prompt


def _has_surrogates(text: str) -> bool:
    # Python hides the bytes of an argument that the locale can't decode in these.
    return any("\ud800" <= character <= "\udfff" for character in text)
