"""How a model is trained: every setting of a run that is not the model's or the data's."""

import json
import sys
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from lavagna.training.schedule import SCHEDULES, learning_rate

DTYPES = ("float32", "bfloat16")


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a training run; the same settings, seed and data give the same losses, bit for bit.

    `batch` counts rows of `context` tokens in one update, over all processes; `micro_batch` is how many of them one
    process holds at a time (None: its whole share), the rest is accumulated. `warmup` None is a twentieth of the steps,
    `min_lr` None a tenth of `lr`. `decay` is the part of a `wsd` run in which the rate falls. `clip` bounds the norm of
    the whole gradient. `dtype` "bfloat16" is autocast; parameters stay float32. `checkpointing` computes activations a
    second time instead of keeping them. `evaluate_batches` batches of validation text are looked at each
    `evaluate_every` updates, a checkpoint is written each `save_every`, and the newest `keep` are kept; all three
    happen at the end too.

    Raises `ValueError` naming the setting, what came and what is allowed.
    """

    steps: int = 1000
    batch: int = 16
    context: int = 256
    micro_batch: int | None = None
    lr: float = 3e-3
    min_lr: float | None = None
    warmup: int | None = None
    schedule: str = "cosine"
    decay: float = 0.2
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    clip: float = 1.0
    seed: int = 0
    dtype: str = "float32"
    compile: bool = False
    checkpointing: bool = False
    evaluate_every: int = 100
    evaluate_batches: int = 8
    save_every: int = 100
    keep: int = 2

    def __post_init__(self) -> None:
        for name in ("steps", "batch", "context", "evaluate_every", "evaluate_batches", "save_every", "keep"):
            self._want(name, "an int >= 1", _whole(getattr(self, name), 1))
        self._want("micro_batch", "an int >= 1 or None", self.micro_batch is None or _whole(self.micro_batch, 1))
        self._want("warmup", "an int >= 0 or None", self.warmup is None or _whole(self.warmup, 0))
        self._want("seed", "an int from 0 to 2^63 - 1", _whole(self.seed, 0) and self.seed < 1 << 63)
        for name in ("lr", "eps", "clip"):
            self._want(name, "a number above 0", _number(getattr(self, name)) and getattr(self, name) > 0)
        self._want("weight_decay", "a number >= 0", _number(self.weight_decay) and self.weight_decay >= 0)
        low = self.min_lr
        self._want("min_lr", "from 0 to lr, or None", low is None or (_number(low) and 0 <= low <= self.lr))
        self._want("decay", "a part from 0 to 1", _number(self.decay) and 0 <= self.decay <= 1)
        self._want("schedule", f"one of {', '.join(SCHEDULES)}", self.schedule in SCHEDULES)
        self._want("dtype", f"one of {', '.join(DTYPES)}", self.dtype in DTYPES)
        betas = len(self.betas) == 2 and all(_number(beta) and 0 <= beta < 1 for beta in self.betas)
        self._want("betas", "two numbers from 0 to below 1", betas)

    def _want(self, name: str, wanted: str, fulfilled: bool) -> None:
        if not fulfilled:
            raise ValueError(f"TrainConfig: {name} came as {getattr(self, name)!r}, but {wanted} was wanted.")

    def rate(self, step: int) -> float:
        """The learning rate of update number `step`, counted from 0."""
        warmup = self.steps // 20 if self.warmup is None else self.warmup
        low = self.lr / 10 if self.min_lr is None else self.min_lr
        return learning_rate(
            step, schedule=self.schedule, steps=self.steps, lr=self.lr, min_lr=low, warmup=warmup, decay=self.decay
        )

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one update learns from."""
        return self.batch * self.context

    def to_json(self) -> str:
        """All settings as one JSON object; `from_json` reads it back equal.

        >>> TrainConfig.from_json(TrainConfig(steps=7).to_json()) == TrainConfig(steps=7)
        True
        """
        return json.dumps(asdict(self), indent=2)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` wrote. Raises `ValueError` on a setting that does not exist."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        """A config from names and values. Raises `ValueError` on a setting that does not exist."""
        legal = [field.name for field in fields(cls)]
        unknown = [name for name in settings if name not in legal]
        if unknown:
            raise ValueError(f"TrainConfig: there is no {', '.join(unknown)}; it has {', '.join(legal)}.")
        # JSON has no tuples.
        values: dict[str, Any] = {
            n: tuple(value) if isinstance(value, list) else value for n, value in settings.items()
        }
        return cls(**values)


def _whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value <= sys.float_info.max
