"""What HiPPO's matrix is worth: the same linear system from it and from a random one, on long sequences of pixels."""

from lavagna.data import read_examples
from lavagna.reproduce.reading import WIDTH, percent_right
from lavagna.reproduce.row import Row

TITLE = "A linear system reads long sequences when its matrix is HiPPO's, and hardly when it is a random one."
SOURCE = (
    "Sequential MNIST with LSSL's system, 60 and 98 per cent, in Gu, Goel and Ré 2021, arXiv 2111.00396, section 2.2."
)
SLOW = True

PUBLISHED = {"legs": 98.0, "random": 60.0}
NAMES = {"legs": "HiPPO's A", "random": "a random A"}
# Three standard errors of the difference of two shares of 359 digits.
LEAST_GAIN = 11.0


def rows(
    *, seed: int = 0, steps: int = 600, batch: int = 16, side: int = 28, d_state: int = 32, width: int = WIDTH
) -> list[Row]:
    """Per cent right with HiPPO's A and with a random one, and the difference, on digits of 28 by 28 pixels.

    The published numbers are of MNIST, trained to the end; ours of 1438 smaller pictures enlarged to as many pixels and
    of 600 updates: the effect is the claim, not the numbers, so every row holds if HiPPO's A is better by more than
    chance allows. A is held fixed in both, for what is learned without bounds may come to grow.
    """
    data = read_examples("digits", enlarge=side)
    ours = {
        init: percent_right(
            "lssl",
            {"init": init, "d_state": d_state, "fixed": True},
            data,
            steps=steps,
            batch=batch,
            seed=seed,
            width=width,
        )
        for init in PUBLISHED
    }
    gain = ours["legs"] - ours["random"]
    holds = gain > LEAST_GAIN
    found = [
        Row("hippo_init", f"{NAMES[init]}: right on {side * side} pixels (%)", published, ours[init], holds)
        for init, published in PUBLISHED.items()
    ]
    return [*found, Row("hippo_init", f"gain (points, above {LEAST_GAIN:g})", 38.0, gain, holds)]
