"""A training in a process of its own, for tests that kill it or start it several times over.

program.py TEXT FOLDER MOMENT...      for each moment: train, die there, resume; 0 is never
torchrun ... program.py TEXT FOLDER   by several processes: see `together`
"""

import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch

from lavagna.data import Batches, Tokenizer, open_splits
from lavagna.layers import registry
from lavagna.models import ModelConfig
from lavagna.training import TrainConfig, train

MODEL = ModelConfig(layer="linear_attention", d_model=16, depth=2, vocab_size=256)
CONFIG = TrainConfig(
    steps=12, batch=4, context=16, lr=1e-2, schedule="constant", evaluate_every=4, evaluate_batches=2, save_every=3
)

FILE_EVENTS = {"open", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.scandir", "shutil.rmtree"}


def go(text: str, folder: str, config: TrainConfig = CONFIG, model: ModelConfig = MODEL):
    """Train, or go on training, to the end."""
    return train(model, config, open_splits(text), Tokenizer.bytes(), folder, resume=True, device="cpu", quiet=True)


def die_at(moment: int, folder: str) -> list[str]:
    """Kill this process just before it touches a file of the run for the `moment`th time; 0 only notes the touches."""
    touched: list[str] = []

    def watch(event: str, arguments: tuple) -> None:
        if event in FILE_EVENTS and str(arguments[0]).startswith(folder):
            touched.append(f"{event} {arguments[0]}")
            if len(touched) == moment:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    return touched


def forked(text: str, folder: str, moment: int | None) -> None:
    """Train in a copy of this process, which may die at a moment; write what it touched beside its folder."""
    child = os.fork()
    if child == 0:
        touched = die_at(moment, folder) if moment is not None else []
        go(text, folder)
        Path(f"{folder}.json").write_text(json.dumps(touched))
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) if moment else status == 0, status


def killed_and_resumed(text: str, folder: str, moments: list[int]) -> None:
    """For each moment a run of its own: killed there, then resumed to the end."""
    # What a sitting loads late is loaded here, once for all copies.
    import matplotlib.backends.backend_agg  # noqa: F401
    import tensorboard.summary.writer.record_writer  # noqa: F401
    import torch._dynamo  # noqa: F401

    for moment in moments:
        forked(text, f"{folder}/{moment}", moment)
        if moment:
            forked(text, f"{folder}/{moment}", None)


def together(text: str, folder: str) -> None:
    """What two processes do for the tests of `distributed`, one after the other; the last thing is to fail."""
    rank = os.environ["RANK"]
    go(text, f"{folder}/fresh")
    parameters = {}
    for layer in registry.names():
        model = ModelConfig(layer=layer, d_model=16, depth=2, vocab_size=256)
        ended = go(text, f"{folder}/{layer}", replace(CONFIG, steps=3), model).model
        parameters[layer] = {name: tensor.flatten().tolist() for name, tensor in ended.state_dict().items()}
    Path(f"{folder}/rank-{rank}.json").write_text(json.dumps(parameters))
    go(text, f"{folder}/begun-by-one")
    go(text, f"{folder}/accumulated", replace(CONFIG, micro_batch=1))
    try:
        go(text, f"{folder}/odd", replace(CONFIG, batch=5))
    except ValueError as error:
        Path(f"{folder}/error-{rank}.txt").write_text(str(error))
    failing(text, f"{folder}/failing")


def failing(text: str, folder: str) -> None:
    """A run of which the second process fails in the middle."""
    rows = Batches.rows

    def rows_until_two(self, step, start, stop):
        if step == 2 and start:
            raise ValueError("rank 1 fails")
        return rows(self, step, start, stop)

    Batches.rows = rows_until_two
    go(text, folder)


if __name__ == "__main__":
    torch.set_num_threads(1)
    text, folder, *moments = sys.argv[1:]
    if moments:
        killed_and_resumed(text, folder, [int(moment) for moment in moments])
    else:
        together(text, folder)
