"""The loss of a run as a picture."""

from pathlib import Path

from lavagna.atomic_file import atomic_file
from lavagna.training.log import Record

SMOOTHING = 0.03


def draw_loss_curve(records: list[Record], path: Path) -> None:
    """Draw the training loss, step by step and smoothed, and the validation loss of a run's log into a PNG.

    The left axis is in nats and, where the log has them, the right one in bits a byte, or the share of right answers on
    what was held out. The smoothed line is a mean that forgets with a time constant of three hundredths of the run. The
    file appears whole or not at all.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    steps, losses = _points(records, "loss")
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    each = "sequence" if any("validation_accuracy" in record for record in records) else "token"
    axes = figure.add_subplot(xlabel="step", ylabel=f"loss (nats a {each})", title="Loss while training")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.plot(steps, losses, color="#2a78b5", alpha=0.3, linewidth=0.8)
    axes.plot(steps, _smooth(losses), color="#2a78b5", linewidth=1.8, label="train")
    axes.plot(*_points(records, "validation_loss"), "o-", color="#d1495b", markersize=3.5, label="validation")
    _frame(axes, losses, records)
    with atomic_file(path) as file:
        figure.savefig(file, format="png")


def _points(records: list[Record], name: str) -> tuple[list[int], list[float]]:
    found = [(record["step"], record[name]) for record in records if name in record]
    return [step for step, _ in found], [value for _, value in found]


def _smooth(losses: list[float]) -> list[float]:
    # Divided by the weight so far, so that the line starts at the data and not at zero.
    keep = 1 - 1 / max(SMOOTHING * len(losses), 1.0)
    smoothed, total, weight = [], 0.0, 0.0
    for loss in losses:
        total, weight = keep * total + loss, keep * weight + 1
        smoothed.append(total / weight)
    return smoothed


def _frame(axes, losses: list[float], records: list[Record]) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    lines = list(axes.lines)[1:]
    steps, right = _points(records, "validation_accuracy")
    if steps:
        shares = axes.twinx()
        shares.spines["top"].set_visible(False)
        shares.set(ylim=(0, 1.02), ylabel="right answers")
        lines += shares.plot(steps, right, "s--", color="#3a8f5c", markersize=3, linewidth=1.2, label="right answers")
    axes.legend(handles=lines, frameon=False)
    ratios = [record["bits_per_byte"] / record["loss"] for record in records if "bits_per_byte" in record]
    if ratios and ratios[0] > 0:
        bits = axes.secondary_yaxis("right", functions=(lambda y: y * ratios[0], lambda y: y / ratios[0]))
        bits.set_ylabel("bits a byte (of the training text)")
