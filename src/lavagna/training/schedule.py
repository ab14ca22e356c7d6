"""The learning rate as a function of the step."""

import math

SCHEDULES = ("cosine", "wsd", "constant")


def learning_rate(
    step: int, *, schedule: str, steps: int, lr: float, min_lr: float = 0.0, warmup: int = 0, decay: float = 0.2
) -> float:
    """The rate of update number `step`, counted from 0, out of `steps`.

    It climbs in a straight line to `lr`, which update `warmup` is the first to use in full, and then

    - `constant`: stays;
    - `cosine`: falls along half a cosine, `min_lr + (lr - min_lr) (1 + cos(pi p)) / 2`;
    - `wsd` (warm-up, stable, decay): stays until the last `decay * steps` updates and falls there as `1 - sqrt(p)`,

    where `p` runs over the falling part from 0 and would be 1 at update number `steps`. Beyond it the rate is `min_lr`.

    >>> learning_rate(500, schedule="cosine", steps=1000, lr=1.0) == 0.5
    True

    Loshchilov and Hutter, SGDR, 2017 (cosine). Hu et al., MiniCPM, 2024, and Hägele et al., Scaling Laws and
    Compute-Optimal Training Beyond Fixed Training Durations, 2024 (stable, then `1 - sqrt`).
    """
    if schedule not in SCHEDULES:
        raise ValueError(f"learning_rate: schedule came as {schedule!r}, but one of {', '.join(SCHEDULES)} was wanted.")
    if step < warmup:
        return lr * (step + 1) / (warmup + 1)
    if schedule == "constant":
        return lr
    first = warmup if schedule == "cosine" else max(warmup, steps - round(decay * steps))
    passed = min(max((step - first) / max(steps - first, 1), 0.0), 1.0)
    left = (1 + math.cos(math.pi * passed)) / 2 if schedule == "cosine" else 1 - math.sqrt(passed)
    return min_lr + (lr - min_lr) * left
