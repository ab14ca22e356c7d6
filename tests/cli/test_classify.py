"""`lavagna train --classify`: runs, resuming, and bad input, which leaves nothing behind."""

import json
import shutil

import numpy as np
import pytest

from cli.conftest import TINY
from lavagna.checkpoints import load
from lavagna.cli import main
from lavagna.training.run import read_run

# As TINY, without the length of a text's windows.
SMALL = ["--d-model", "16", "--depth", "1", "--steps", "4", "--batch", "2", "--layer", "retention"]


@pytest.fixture(scope="session")
def file(tmp_path_factory):
    """Sequences of unequal lengths with two arrays of labels."""
    path = tmp_path_factory.mktemp("examples") / "file.npz"
    values = np.random.default_rng(0).integers(-128, 127, 90, dtype=np.int8)
    labels = np.arange(20) % 2
    offsets = np.concatenate([np.arange(20) * 4, [90]])
    np.savez(path, values=values, offsets=offsets, labels=labels, other=np.arange(20) % 3)
    return path


@pytest.fixture(scope="session")
def classified(tmp_path_factory, file):
    """A tiny run of a classifier, trained to its end."""
    folder = tmp_path_factory.mktemp("runs") / "classifier"
    assert main(["train", "--classify", str(file), "--out", str(folder), "--save-every", "2", *SMALL]) == 0
    return folder


def records(run, name: str) -> list[float]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line[name] for line in lines if name in line]


def test_a_run_leaves_a_classifier_its_accuracy_and_a_picture(classified):
    model = load(classified / "checkpoints" / "step-00000004").model
    assert (model.config.kind, model.config.features, model.config.classes) == ("classifier", 1, 2)
    assert len(records(classified, "loss")) == 4 and 0 <= records(classified, "validation_accuracy")[-1] <= 1
    assert (classified / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_the_end_is_told_as_json(table, file, tmp_path):
    (row,) = table("train", "--classify", file, "--out", tmp_path / "run", *SMALL)
    assert row["step"] == 4 and row["validation_accuracy"] == records(tmp_path / "run", "validation_accuracy")[-1]


def test_a_resumed_run_needs_no_other_options_and_repeats_the_losses(lavagna, classified, tmp_path):
    parts = shutil.copytree(classified, tmp_path / "parts")
    shutil.rmtree(parts / "checkpoints" / "step-00000004")
    assert lavagna("train", "--out", parts, "--resume").code == 0
    assert records(parts, "loss") == records(classified, "loss")


def test_options_reach_the_model_and_the_examples(lavagna, file, tmp_path):
    words = ["--label", "other", "--pooling", "max", "--dropout", 0.1, "--decimate", 3, "--validation", 0.5]
    assert lavagna("train", "--classify", file, "--out", tmp_path / "run", *SMALL, *words).code == 0
    settings = read_run(tmp_path / "run")
    assert (settings.kind, settings.model["classes"], settings.model["pooling"]) == ("classifier", 3, "max")
    assert settings.model["dropout"] == 0.1 and settings.data["validation_examples"] == 10


def test_digits_can_be_enlarged(lavagna, tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn, the extra 'digits', is not installed")
    words = ["--classify", "digits", "--enlarge", 5, "--steps", 1, "--validation", 0.05]
    assert lavagna("train", "--out", tmp_path / "run", *SMALL, *words).code == 0
    with np.load(tmp_path / "run" / "examples.npz") as arrays:
        assert len(arrays["values"]) == 25 * 1797


def test_info_tells_what_a_classifier_costs(table, classified):
    model, layer = table("info", classified)
    loaded = load(classified / "checkpoints" / "step-00000004").model
    assert model["parameters"] == sum(parameter.numel() for parameter in loaded.parameters())
    assert model["state_bytes"] == loaded.initial_state(1).nbytes and layer["name"] == "retention"


@pytest.mark.parametrize(
    "words", [["generate", "--prompt", "x"], ["plot", "state", "--run"]], ids=lambda words: words[0]
)
def test_a_classifier_is_not_asked_for_text(refused, classified, words, tmp_path):
    rest = ["--out", tmp_path / "picture"] if words[0] == "plot" else []
    said = refused(
        *words[:1], *([classified, *words[1:]] if words[0] == "generate" else [*words[1:], classified]), *rest
    )
    assert "holds a classifier, which judges sequences and writes no text" in said


@pytest.mark.parametrize(
    "words, said",
    [
        (["--data", "stdlib"], "--data and --classify exclude each other"),
        (["--tokenizer", "bpe"], "--tokenizer is not for a classifier. Leave it out"),
        (["--context", "16"], "--context is not for a classifier"),
        (["--pooling", "sum"], "mean, last, max"),
        (["--enlarge", "28"], "enlarge is for the pictures of digits"),
        (["--label", "nothing"], "has no array nothing; it has values, offsets, labels, other"),
        (["--decimate", "0"], "decimate came as 0"),
        (["--validation", "2"], "validation came as 2.0"),
        (["--dropout", "1"], "dropout must be from 0 to below 1"),
        (["--layer", "nonsense"], "unknown layer 'nonsense'"),
        (["--option", "nonsense=1"], "nonsense"),
        (["--steps", "0"], "steps"),
        (["--classify", "no/such/file"], "no/such/file"),
    ],
)
def test_options_that_do_not_fit_are_refused_and_nothing_is_left(refused, file, tmp_path, words, said):
    assert said in refused("train", "--classify", file, "--out", tmp_path / "run", *SMALL, *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["--pooling", "max"], ["--enlarge", "28"], ["--label", "x"], ["--decimate", "2"]])
def test_options_of_classifiers_are_not_for_text(refused, text, tmp_path, words):
    assert f"{words[0]} is not for a language model. It goes with --classify" in refused(
        "train", "--data", text, "--out", tmp_path / "run", *TINY, *words
    )
    assert not list(tmp_path.iterdir())


def test_a_run_goes_on_as_the_kind_that_it_is(refused, run, classified, file, text):
    assert "trains a classifier, which --data is not for" in refused(
        "train", "--out", classified, "--resume", "--data", text
    )
    assert "trains a language model, which --classify is not for" in refused(
        "train", "--out", run, "--resume", "--classify", file
    )


def test_a_finished_run_is_not_overwritten(refused, classified, file):
    before = records(classified, "loss")
    assert "--resume" in refused("train", "--classify", file, "--out", classified, *SMALL)
    assert records(classified, "loss") == before
