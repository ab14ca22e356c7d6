"""The parts of `lavagna demo`."""

import sys
import time
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

import torch

from lavagna import checks, data, generation, plots, training
from lavagna.checkpoints import save
from lavagna.cli.console import print_table, this_command
from lavagna.cli.model_source import DEMO_RUN
from lavagna.cli.progress import telling
from lavagna.data.source import STDLIB
from lavagna.models import LanguageModel, ModelConfig
from lavagna.models.size import parameters, state_bytes
from lavagna.training import TrainConfig

PROMPT = "def"
CHECKED_TOKENS = 70
PACED = 5
FIGURES = ("zoo", "recall", "forms", "state")
THEMES = ("light", "dark")
# Steps are planned to fill the time that is given; where the machine becomes slower, training ends this much later.
GRACE = 1.25
# As long as new text may take; it takes a few seconds where nothing else runs.
SECONDS_TO_WRITE = 20.0


class Plan(NamedTuple):
    """The sizes of a demonstration."""

    d_model: int
    depth: int
    vocabulary: int
    limit_bytes: int | None
    steps: int
    batch: int
    context: int
    lr: float
    new_tokens: int


FULL = Plan(256, 1, 1024, None, 700, 8, 128, 6e-3, 400)
QUICK = Plan(32, 2, 300, 200_000, 6, 4, 64, 3e-3, 20)


class Demonstration:
    """One demonstration: a folder, and the model once it is trained."""

    def __init__(self, folder: Path, layer: str, *, seconds: float, seed: int, quick: bool) -> None:
        self.folder, self.layer, self.seconds, self.seed = folder, layer, seconds, seed
        self.plan = QUICK if quick else FULL
        # Said now, not when the text has been read.
        ModelConfig(layer, self.plan.d_model, self.plan.depth, self.plan.vocabulary)
        self.start = time.monotonic()
        self.run, self.model_folder, self.pictures = folder / DEMO_RUN, folder / "model", folder / "pictures"

    def train(self) -> None:
        """Learn from the standard library's source, and save the model."""
        plan, source = self.plan, STDLIB
        _headline(1, "A text that is always there: Python's standard library")
        with telling("reading"):
            some = data.texts(source, limit_bytes=plan.limit_bytes or 4_000_000)
            self.tokenizer = data.Tokenizer.train(some, vocab_size=plan.vocabulary)
        with telling("encoding") as progress:
            self.texts = data.prepare(
                source, self.tokenizer, self.folder / "text", limit_bytes=plan.limit_bytes, progress=progress
            )
        config = ModelConfig(self.layer, plan.d_model, plan.depth, self.tokenizer.vocab_size)
        header = self.texts.header
        _say(
            f"{header.documents:,} files, {header.train_bytes + header.validation_bytes:,} bytes, {header.tokens:,} "
            f"tokens of a vocabulary of {header.vocab_size:,}"
        )
        _headline(2, f"Train {self.layer}, {parameters(config):,} parameters")
        settings = self._settings(config)
        if settings.steps < plan.steps:
            _say(
                f"This machine is slow or busy: {settings.steps} of {plan.steps} steps fit into {self.seconds:g} "
                "seconds, so the text will be rougher. --seconds gives more time.\n"
            )
        result = training.train(
            config, settings, self.texts, self.tokenizer, self.run, seconds=GRACE * self.seconds, device="cpu"
        )
        self.model = result.model
        save(self.model, self.model_folder, self.tokenizer)
        if result.validation_bits_per_byte is not None:
            _say(
                f"On text it has not seen: {result.validation_bits_per_byte:.3f} bits a byte, "
                f"{result.validation_loss:.3f} nats a token. Before training: {self._untrained():.3f} bits a byte."
            )

    def write(self) -> None:
        """Write new text, each token at the same cost."""
        _headline(3, "Write new text, token by token")
        options = {"max_new_tokens": self.plan.new_tokens, "temperature": 0.6, "top_p": 0.95, "seed": self.seed}
        begin = time.monotonic()
        print(PROMPT, end="", flush=True)
        text = PROMPT
        for piece in generation.stream(self.model, self.tokenizer, PROMPT, **options):
            print(piece, end="", flush=True)
            text += piece
            if time.monotonic() - begin > SECONDS_TO_WRITE:
                break
        print()
        (self.folder / "generated.txt").write_text(text, encoding="utf-8")
        each = (time.monotonic() - begin) / max(len(self.tokenizer.encode(text[len(PROMPT) :])), 1)
        _say(
            f"\n{1e3 * each:.1f} ms a token; the memory is {state_bytes(self.model):,} bytes after one token and "
            f"{state_bytes(self.model, 10_000):,} after ten thousand."
        )

    def check(self) -> bool:
        """Show that the trained model answers the same in every form; whether it does."""
        _headline(4, "The same answer in every form")
        ids = torch.from_numpy(self.texts.validation[:CHECKED_TOKENS].astype("int64"))[None]
        rows = list(checks.model_rows(self.model, ids, (torch.float64, torch.float32)))
        print_table(_side_by_side(rows))
        _say(
            "Each number is the largest difference from the recurrence itself, taken one step at a time in float64,\n"
            "over the largest logit. It must stay below "
            + " and ".join(
                f"{limit:.0e} in {dtype}" for dtype, limit in {row.dtype: row.tolerance for row in rows}.items()
            )
            + "."
        )
        return all(row.ok for row in rows)

    def draw(self) -> None:
        """Draw the figures, light and dark."""
        _headline(5, "Pictures")
        options = {"state": {"model": self.model, "tokenizer": self.tokenizer}}
        for name in FIGURES:
            for theme in THEMES:
                plots.draw(name, theme=theme, out=self.pictures / f"{name}-{theme}.png", **options.get(name, {}))
        for name in FIGURES:
            _say(f"{self.pictures / name}-*.png  {plots.describe(name)}")
        _say(f"{self.run / 'loss.png'}  The loss while it trained.")

    def close(self) -> None:
        """Say where everything is and how to go on."""
        _headline(6, f"Done in {time.monotonic() - self.start:.0f} seconds")
        command, model = this_command(), quote(str(self.model_folder))
        _say(f"everything     {self.folder}")
        _say(f"more text      {command} generate {model} --prompt 'class '")
        _say(f"its size       {command} info {model}")
        _say(f"your own text  {command} train --data FILE --out runs/mine")

    def _settings(self, config: ModelConfig) -> TrainConfig:
        plan = self.plan
        settings = TrainConfig(
            steps=plan.steps,
            batch=plan.batch,
            context=plan.context,
            lr=plan.lr,
            seed=self.seed,
            evaluate_every=max(plan.steps // 6, 1),
            save_every=plan.steps,
        )
        steps = min(plan.steps, max(int(self.seconds / self._pace(config, settings)), 1))
        return settings if steps == plan.steps else _shortened(settings, steps)

    def _pace(self, config: ModelConfig, settings: TrainConfig) -> float:
        """Seconds an update takes on this machine."""
        from lavagna.training.next_token import next_token_loss

        model = LanguageModel(config)
        rows = data.Batches(self.texts.train, batch=settings.batch, context=settings.context, seed=0).at(0)
        next_token_loss(model, rows).backward()
        begin = time.monotonic()
        for _ in range(PACED):
            next_token_loss(model, rows).backward()
        return (time.monotonic() - begin) / PACED

    def _untrained(self) -> float:
        """Bits a byte of guessing all tokens alike, which is what the untrained model does."""
        from math import log2

        return log2(self.tokenizer.vocab_size) / self.texts.validation.bytes_per_token


def _shortened(settings: TrainConfig, steps: int) -> TrainConfig:
    from dataclasses import replace

    return replace(settings, steps=steps, evaluate_every=max(steps // 6, 1), save_every=steps)


def _side_by_side(rows: list[Any]) -> list[dict[str, Any]]:
    """One line a form, the differences of each precision beside one another."""
    lines: dict[str, dict[str, Any]] = {}
    for row in rows:
        line = lines.setdefault(row.form, {"form": row.form})
        line[row.dtype] = row.difference
    return [line | {"holds": all(row.ok for row in rows if row.form == form)} for form, line in lines.items()]


def _headline(number: int, text: str) -> None:
    print(f"\n{number}. {text}\n", flush=True)


def _say(text: str) -> None:
    print(text, flush=True)
    sys.stdout.flush()
