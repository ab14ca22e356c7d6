"""Learning to name the class of a sequence."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lavagna import checkpoints
from lavagna.data import Splits, prepare_examples
from lavagna.models import ClassifierConfig, SequenceClassifier
from lavagna.training import TrainConfig, train
from lavagna.training.classification import label_loss, measure
from lavagna.training.distributed import World
from lavagna.training.log import read_log
from training.program import MODEL

SOURCE, TESTS = Path(__file__).parents[2] / "src", Path(__file__).parents[1]
CLASSIFIER = ClassifierConfig("linear_attention", 16, 1, classes=3, features=2, dropout=0.1)
CONFIG = TrainConfig(steps=8, batch=4, lr=1e-2, schedule="constant", evaluate_every=4, save_every=4)
CLOCKS = ("seconds", "sequences_per_second")

PROGRAM = """
import os, signal, sys
from dataclasses import replace
import torch
from lavagna.data import open_examples
from lavagna.training import train
from lavagna.training.trainer import Trainer
from training.test_classification import CLASSIFIER, CONFIG

def go(folder, model=CLASSIFIER):
    train(model, CONFIG, open_examples(examples), None, folder, resume=True, device="cpu", quiet=True)

def dying(self, step):
    if step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return update(self, step)

torch.set_num_threads(1)
examples, folder = sys.argv[1:]
if "WORLD_SIZE" in os.environ:
    go(folder, replace(CLASSIFIER, dropout=0.0))
else:
    # First of all: torch refuses a backward pass in a fork of a process that has had one, where CUDA is there.
    update = Trainer.update
    child = os.fork()
    if child == 0:
        Trainer.update = dying
        go(folder + "/parts")
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert not os.path.exists(folder + "/parts/checkpoints/step-00000008")
    go(folder + "/parts")
    go(folder + "/whole")
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """Sequences of unequal lengths, whose class is the sign of a mean or that it is small."""
    random = np.random.default_rng(0)
    lengths = random.integers(3, 9, 60)
    labels = np.arange(60) % 3
    levels = np.repeat(labels - 1.0, lengths)[:, None]
    values = (levels + 0.3 * random.standard_normal((lengths.sum(), 2))).astype(np.float32)
    path = tmp_path_factory.mktemp("examples") / "source.npz"
    np.savez(path, values=values, offsets=np.concatenate([[0], np.cumsum(lengths)]), labels=labels)
    prepare_examples(path, path.with_name("kept.npz"))
    return path


@pytest.fixture
def splits(file, tmp_path):
    return prepare_examples(file, tmp_path / "kept.npz")


@pytest.fixture
def go(splits, tmp_path, device):
    """Train into a folder of the test's, with some settings changed."""

    def train_in(name: str, model=CLASSIFIER, data=splits, resume=False, **settings):
        changed = replace(CONFIG, **settings)
        return train(model, changed, data, None, tmp_path / name, resume=resume, device=device, quiet=True)

    return train_in


def record(folder: Path) -> list[dict]:
    """The log without its clocks."""
    return [{k: v for k, v in line.items() if k not in CLOCKS} for line in read_log(folder / "log.jsonl")]


def run(folder: Path, file: Path, *launch: str) -> None:
    environment = os.environ | {"PYTHONPATH": f"{SOURCE}{os.pathsep}{TESTS}", "OMP_NUM_THREADS": "1"}
    program = folder.with_name("program.py")
    program.write_text(PROGRAM)
    command = [sys.executable, *launch, str(program), str(file.with_name("kept.npz")), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_loss_is_the_mean_surprise_of_each_label(splits, device):
    model = SequenceClassifier(CLASSIFIER).to(device).eval()
    batch = splits.train.take(np.arange(5)).to(device)
    apart = [splits.train.take(np.array([i])).to(device) for i in range(5)]
    surprises = [-model(one.x).logits.double().log_softmax(1)[0, one.labels[0]].item() for one in apart]
    assert label_loss(model, batch).item() == pytest.approx(np.mean(surprises), rel=1e-5)


@pytest.mark.parametrize("size", [1, 5, 100])
@pytest.mark.parametrize("ranks", [1, 3])
def test_everything_held_out_is_judged_once_in_portions_and_by_any_number_of_processes(splits, size, ranks, device):
    model, examples = SequenceClassifier(CLASSIFIER).to(device), splits.validation
    batch = examples.take(np.arange(len(examples))).to(device)
    right = (model.eval()(batch.x, mask=batch.mask).logits.argmax(1) == batch.labels).float().mean().item()

    class Ranks(World):
        def mean(self, value):
            return value / self.size

    parts = [measure(model, examples, size=size, world=Ranks(device, rank, ranks)) for rank in range(ranks)]
    loss, accuracy = (sum(part) for part in zip(*parts, strict=True))
    assert accuracy == pytest.approx(right) and loss == pytest.approx(label_loss(model, batch).item(), rel=1e-5)


def test_a_small_classifier_learns_and_its_run_tells_how_well(go):
    result = go("run", steps=40, batch=8, evaluate_every=10)
    assert result.validation_accuracy == 1.0 and result.validation_loss < 0.3
    judged = [line for line in record(result.folder) if "validation_accuracy" in line]
    assert [line["step"] for line in judged] == [10, 20, 30, 40]
    assert (result.folder / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_pixel_by_pixel_a_small_state_space_model_reads_digits(tmp_path, device):
    pytest.importorskip("sklearn", reason="scikit-learn, the extra 'digits', is not installed")
    data = prepare_examples("digits", tmp_path / "kept.npz")
    model = ClassifierConfig("s4d", 32, 2, classes=10, features=1, pooling="last", options={"d_state": 16})
    config = TrainConfig(steps=200, batch=32, lr=1e-2, evaluate_every=200, save_every=200)
    result = train(model, config, data, None, tmp_path / "run", device=device, quiet=True)
    assert result.validation_accuracy > 0.85


def test_the_checkpoint_is_the_classifier_that_training_returned(go, splits, device):
    result = go("run")
    batch = splits.validation.take(np.arange(6)).to(device)
    loaded, tokenizer = checkpoints.load(result.checkpoint, device=device)
    assert torch.equal(loaded(batch.x, mask=batch.mask).logits, result.model(batch.x, mask=batch.mask).logits)
    assert tokenizer is None


def test_a_batch_in_portions_learns_as_the_whole_batch_does(go):
    without = replace(CLASSIFIER, dropout=0.0)
    whole, portions = go("whole", without), go("portions", without, micro_batch=3)
    for one, other in zip(record(whole.folder), record(portions.folder), strict=True):
        assert other == pytest.approx(one, abs=1e-5)


def test_a_killed_run_goes_on_to_the_same_numbers_bit_for_bit(file, tmp_path):
    run(tmp_path / "runs", file)
    whole, parts = tmp_path / "runs" / "whole", tmp_path / "runs" / "parts"
    assert record(parts) == record(whole)
    last = "checkpoints/step-00000008/model.safetensors"
    assert (parts / last).read_bytes() == (whole / last).read_bytes()


def test_two_processes_see_the_losses_of_one(go, file, tmp_path):
    alone = go("alone", replace(CLASSIFIER, dropout=0.0))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    run(tmp_path / "together", file, *launch)
    for one, other in zip(record(alone.folder), record(tmp_path / "together"), strict=True):
        assert other == pytest.approx(one, abs=1e-5)


def test_a_run_goes_on_only_with_its_own_examples(go, file, tmp_path):
    go("run")
    other = prepare_examples(file, tmp_path / "other.npz", validation=0.5)
    with pytest.raises(ValueError, match="validation_examples 12 .now 30., fingerprint"):
        go("run", data=other, resume=True)


@pytest.mark.parametrize("sizes", [{"features": 1}, {"classes": 2}, {"features": None, "vocab_size": 4}])
def test_a_model_of_other_sizes_is_refused_before_anything_is_written(go, sizes, tmp_path):
    with pytest.raises(ValueError, match="have 2 features and 3 classes, but the model"):
        go("run", replace(CLASSIFIER, **sizes))
    assert not (tmp_path / "run").exists()


def test_data_for_another_kind_of_model_is_refused(go, texts):
    with pytest.raises(ValueError, match="the data is for a classifier, but the model is a language model"):
        go("run", MODEL)
    with pytest.raises(ValueError, match="the data is for a language model, but the model is a classifier"):
        go("run", data=Splits(texts.train, texts.validation, texts.header))


def test_a_run_of_another_kind_of_model_is_refused(go, texts, config, tmp_path):
    go("run")
    with pytest.raises(ValueError, match="trains a classifier, not a language model"):
        train(MODEL, config, texts, None, tmp_path / "run", resume=True, device="cpu", quiet=True)


def test_a_run_from_before_there_were_kinds_is_one_of_a_language_model_and_goes_on(texts, config, tmp_path):
    def go_on():
        return train(MODEL, config, texts, None, tmp_path / "run", resume=True, device="cpu", quiet=True)

    first = go_on()
    path = tmp_path / "run" / "config.json"
    content = json.loads(path.read_text())
    del content["kind"], content["model"]["dropout"]
    path.write_text(json.dumps(content))
    shutil.rmtree(first.checkpoint)
    assert go_on().loss == first.loss
