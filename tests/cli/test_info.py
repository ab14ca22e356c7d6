"""`lavagna info`."""

import json
import math

import pytest

import lavagna as lv
from lavagna import layers
from lavagna.checkpoints import load
from lavagna.checkpoints.files import open_weights
from lavagna.checkpoints.safetensors_file import SafetensorsFile
from lavagna.kernels import serves
from lavagna.layers import build


def test_without_a_target_the_machine_is_told(table):
    told = {row["what"]: row["is"] for row in table("info")}
    assert told["backend torch"] == "runs everything" and "torch" in told


@pytest.mark.parametrize("name", ["gla", "mamba2", "softmax_attention"])
def test_a_layer_has_the_parameters_of_one_that_is_built_and_the_norm_before_it(table, name):
    (row,) = table("info", name, "--d-model", 64)
    built = sum(parameter.numel() for parameter in build(name, 64).parameters())
    assert row["parameters"] == built + 64
    assert row["forms"].split() == list(layers.layer_class(name).forms)


@pytest.mark.parametrize(
    ("name", "width", "form"),
    [
        ("mamba2", 256, "chunkwise"),
        ("delta_net", 256, "chunkwise"),
        ("s4d", 256, "convolution"),
        ("mamba", 256, "recurrent"),
        ("mamba", 64, "scan"),
    ],
)
def test_the_form_of_a_text_depends_on_how_much_a_head_remembers(table, name, width, form):
    (row,) = table("info", name, "--d-model", width)
    # The one form of the CPU kernel, where it is built.
    form = "recurrent" if serves("cpu") and form != "convolution" else form
    assert row["form_of_a_text"] == form and row["form_of_a_token"] == "recurrent"


def test_a_layer_that_reads_both_ways_has_no_state(table):
    (row,) = table("info", "s4d", "--d-model", 32, "--option", "bidirectional=true")
    assert row["state_bytes"] == 0 < row["parameters"]


def test_only_a_memory_that_grows_costs_more_later(table):
    (fixed,), (growing,) = (table("info", name) for name in ("gated_delta_net", "softmax_attention"))
    assert fixed["state_bytes"] == fixed["state_bytes_after_10000"]
    assert growing["state_bytes"] < growing["state_bytes_after_10000"]


def test_a_run_is_told_by_its_newest_checkpoint(table, run):
    model, layer = table("info", run)
    loaded = load(run / "checkpoints" / "step-00000004").model
    assert model["parameters"] == sum(parameter.numel() for parameter in loaded.parameters())
    assert model["state_bytes"] == loaded.initial_state(1).nbytes
    assert layer["name"] == "retention" and layer["forms"].startswith("recurrent")
    # Which forms run is a layer's to say, and a model's row has nothing in their place.
    assert [key for key, value in model.items() if value is None] == [
        "forms", "form_of_a_text", "form_of_a_token", "backend"
    ]  # fmt: skip
    assert None not in layer.values() and "" not in [*model.values(), *layer.values()]


def test_layers_are_counted_and_one_that_has_a_net_of_its_own_width_is_told_without_it(table, lavagna, tmp_path):
    config = lv.ModelConfig(["gla", "gla", "mamba2"], 32, 8, 50, block={"gla": {"mlp_width": 48}})
    lv.save(lv.LanguageModel(config), tmp_path / "model")
    assert "6 x gla, 2 x mamba2" in lavagna("info", tmp_path / "model").out
    _, gla, _ = table("info", tmp_path / "model")
    assert gla["parameters"] == sum(parameter.numel() for parameter in build("gla", 32).parameters()) + 32


@pytest.fixture
def foreign(tmp_path):
    """A checkpoint of a foreign format, in bfloat16."""
    lv.save(lv.LanguageModel(lv.ModelConfig("mamba2", 32, 3, 256)).bfloat16(), tmp_path / "ours")
    lv.checkpoints.convert(tmp_path / "ours", tmp_path / "theirs", to="mamba2")
    return tmp_path / "theirs"


def test_a_foreign_checkpoint_is_told_from_its_headers(table, lavagna, foreign, monkeypatch):
    monkeypatch.setattr(SafetensorsFile, "take", lambda *_: pytest.fail("a tensor was read"))
    model, layer = table("info", foreign)
    told = lavagna("info", foreign)
    for word in ("format", "mamba2", "3 x mamba2", "bfloat16", "language_model", "file bytes"):
        assert word in told.out, told.out
    assert model["parameters"] == sum(math.prod(x) for x in open_weights(foreign).shapes.values())
    assert model["kv_cache_bytes_1m"] == 2 * 3 * 32 * 2**20 * 2
    assert model["state_bytes_4k"] == model["state_bytes_1m"] == 3 * layer["state_bytes_32k"]


def test_a_run_says_how_long_it_was_trained(lavagna, run):
    told = lavagna("info", run, "--json")
    settings = json.loads(told.out)["settings"]
    assert settings["steps"] == settings["of_steps"] == 4
    assert settings["kind"] == "language_model" and settings["layers"] == "1 x retention"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "neither a layer nor a folder"),
        (["gla", "--d-model", "7", "--option", "heads=2"], "7"),
        (["gla", "--option", "nonsense=2"], "nonsense"),
        (["--d-model", "64"], "--d-model is for a layer"),
        (["nowhere", "--option", "heads=2"], "--option is for a layer"),
    ],
)
def test_what_cannot_be_told_is_refused(refused, words, said):
    assert said in refused("info", *words)
