"""A checkpoint becomes ours and goes back, or an error says why not and nothing is written."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

import lavagna as lv
from checkpoints.stand_in import config, shapes
from lavagna.checkpoints import convert, files
from lavagna.data import Tokenizer

pytestmark = pytest.mark.usefixtures("stand_in")
DTYPES = {"layer0.k": torch.float32, "last_norm": torch.float32, "head": torch.bfloat16}


@pytest.fixture
def foreign(tmp_path):
    """A folder of a foreign format: dtypes mixed within one of our matrices, a tied matrix twice, one of no use."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    tensors = {name: torch.randn(shape).to(DTYPES.get(name, torch.bfloat16)) for name, shape in shapes(32, 2).items()}
    tensors |= {"head": tensors["embed"].clone(), "rope.table": torch.arange(7)}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config(32, 2, note="kept as it is"), indent=7))
    Tokenizer.bytes().save(folder)
    return folder


def same_files(one, other):
    before, after = files.open_weights(one), files.open_weights(other)
    assert before.entries == after.entries
    for name in before.entries:
        x, y = before.take(name), after.take(name)
        assert x.dtype == y.dtype and torch.equal(x, y), name
    assert (one / "config.json").read_bytes() == (other / "config.json").read_bytes()


def test_a_round_trip_is_exact_with_all_that_our_model_does_without(foreign, tmp_path):
    done = convert(foreign, tmp_path / "ours")
    assert done[:2] == ("stand_in", "lavagna")
    assert sorted(os.listdir(tmp_path / "ours")) == [
        "config.json", "model.safetensors", "origin.json", "origin.safetensors", "tokenizer.json"
    ]  # fmt: skip
    assert "rope.table" not in load_file(tmp_path / "ours" / "model.safetensors")
    loaded, tokenizer = lv.load(tmp_path / "ours")
    assert tokenizer == Tokenizer.bytes() and loaded.head.weight is loaded.embedding.weight
    assert convert(tmp_path / "ours", tmp_path / "back")[:2] == ("lavagna", "stand_in")
    same_files(foreign, tmp_path / "back")
    assert Tokenizer.load(tmp_path / "back") == tokenizer


@pytest.mark.parametrize("nest", [None, "state_dict"])
def test_a_file_of_torch_comes_back_as_one_with_its_order_of_names(nest, foreign, tmp_path):
    tensors = dict(reversed(load_file(foreign / "model.safetensors").items()))
    (foreign / "model.safetensors").unlink()
    torch.save({nest: tensors} if nest else tensors, foreign / "weights.pth")
    convert(foreign, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back")
    same_files(foreign, tmp_path / "back")
    again = torch.load(tmp_path / "back" / "weights.pth", weights_only=True)
    assert list(again[nest] if nest else again) == list(tensors)
    # Nothing of what tensors were cut out of comes along.
    assert (tmp_path / "back" / "weights.pth").stat().st_size < 1.1 * (foreign / "weights.pth").stat().st_size


def test_a_tied_matrix_under_the_heads_name_alone_keeps_that_name(foreign, tmp_path):
    tensors = load_file(foreign / "model.safetensors")
    tensors["head"] = tensors.pop("embed")
    save_file(tensors, foreign / "model.safetensors")
    convert(foreign, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "back")
    same_files(foreign, tmp_path / "back")


def test_a_model_of_ours_is_written_where_the_format_can_hold_it(tmp_path):
    options = {"layer": "mamba", "d_model": 32, "depth": 2, "vocab_size": 50, "tie_embeddings": False}
    lv.save(model := lv.LanguageModel(lv.ModelConfig(**options)).eval(), tmp_path / "ours")
    for name in ("mamba", "state_spaces"):
        convert(tmp_path / "ours", tmp_path / name, to=name)
        ids = torch.randint(50, (1, 7))
        assert torch.equal(lv.load(tmp_path / name).model(ids).logits, model(ids).logits)
    # And from one foreign format to another.
    assert convert(tmp_path / "mamba", tmp_path / "other", to="state_spaces")[:2] == ("mamba", "state_spaces")
    assert torch.equal(lv.load(tmp_path / "other").model(ids).logits, model(ids).logits)


@pytest.mark.parametrize(
    ("changed", "to", "said"),
    [
        ({}, "mamba2", "can't hold this model"),
        ({"norm_eps": 1e-3}, "state_spaces", "norm_eps is 0.001, there 1e-05"),
        ({"logit_cap": 30.0}, "mamba", "logit_cap is 30.0, there None"),
        ({"options": {"norm": True}}, "mamba", "mamba has norm=True, there False"),
        ({"mlp_factor": 2}, "mamba", "can't hold this model"),
        ({"layer": ["mamba", "gla"]}, "mamba", "can't hold this model"),
        ({}, "stand_in", "can't hold this model"),
        ({}, None, "came from no other format. Name one with --to: mamba, falcon"),
        ({}, "unheard_of", "no format 'unheard_of'. Known are mamba"),
        ({}, "lavagna", "is lavagna already"),
    ],
)
def test_what_a_format_cannot_hold_is_said_and_nothing_written(changed, to, said, tmp_path):
    options = {"layer": "mamba", "d_model": 32, "depth": 2, "vocab_size": 50} | changed
    lv.save(lv.LanguageModel(lv.ModelConfig(**options)), tmp_path / "ours")
    with pytest.raises(ValueError, match=said):
        convert(tmp_path / "ours", tmp_path / "new", to=to)
    assert os.listdir(tmp_path) == ["ours"]


def test_a_classifier_has_no_foreign_format(tmp_path):
    lv.save(lv.SequenceClassifier(lv.ClassifierConfig("mamba", 32, 1, classes=2, features=1)), tmp_path / "ours")
    with pytest.raises(ValueError, match="mamba holds language models, but .* is a classifier"):
        convert(tmp_path / "ours", tmp_path / "new", to="mamba")


def test_a_target_that_is_taken_is_left_as_it_is(foreign, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").write_text("mine")
    (tmp_path / "file.pth").write_text("mine")
    for name, said in (("full", "is not empty"), ("file.pth", "is a file that exists")):
        with pytest.raises(ValueError, match=said):
            convert(foreign, tmp_path / name)
    with pytest.raises(ValueError, match="needs a config.json beside its tensors"):
        convert(foreign, tmp_path / "new.safetensors")
    assert sorted(os.listdir(tmp_path)) == ["file.pth", "full", "theirs"]


def test_a_target_inside_the_source_is_refused(foreign):
    before = os.listdir(foreign)
    with pytest.raises(ValueError, match="is inside .* Name a folder elsewhere"):
        convert(foreign, foreign / "ours")
    assert os.listdir(foreign) == before


def test_a_tensor_that_cannot_be_read_leaves_nothing_behind(foreign, tmp_path):
    tensors = load_file(foreign / "model.safetensors")
    save_file(tensors | {"head": tensors["head"] + 1}, foreign / "model.safetensors")
    with pytest.raises(ValueError, match="embed and a head that differ"):
        convert(foreign, tmp_path / "ours")
    assert os.listdir(tmp_path) == ["theirs"]


def test_a_config_that_was_changed_since_takes_a_new_one_along(foreign, tmp_path):
    convert(foreign, tmp_path / "ours")
    changed = json.loads((tmp_path / "ours" / "config.json").read_text())
    changed["model"]["vocab_size"] = 60
    changed["model"]["vocab_multiple"] = 64
    (tmp_path / "ours" / "config.json").write_text(json.dumps(changed))
    convert(tmp_path / "ours", tmp_path / "back")
    assert lv.load(tmp_path / "back").model.config.vocab_rows == 64


def test_saving_over_a_converted_model_forgets_where_that_came_from(foreign, tmp_path):
    convert(foreign, tmp_path / "ours")
    lv.save(lv.load(tmp_path / "ours").model, tmp_path / "ours")
    assert sorted(os.listdir(tmp_path / "ours")) == ["config.json", "model.safetensors"]
    with pytest.raises(ValueError, match="came from no other format"):
        convert(tmp_path / "ours", tmp_path / "back")


def converted(foreign, tmp_path, **changed):
    """A converted model whose origin.json was edited since."""
    convert(foreign, tmp_path / "ours")
    file = tmp_path / "ours" / "origin.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changed))
    return tmp_path / "ours"


@pytest.mark.parametrize(
    "changed",
    [
        {"file": "../outside.safetensors"}, {"file": "/outside.safetensors"}, {"file": ".."}, {"file": "config.json"},
        {"file": None}, {"config": []}, {"nest": 5}, {"more": 1}, {"tensors": {"head": "float7"}},
    ],
    ids=str,
)  # fmt: skip
def test_an_origin_that_was_edited_is_refused_by_its_key_and_writes_nowhere(changed, foreign, tmp_path):
    ours = converted(foreign, tmp_path, **changed)
    with pytest.raises(
        ValueError, match=f"load: '{next(iter(changed))}' in '.*origin.json' is not what lavagna writes"
    ):
        convert(ours, tmp_path / "deep" / "back")
    assert sorted(os.listdir(tmp_path)) == ["ours", "theirs"]


def test_tensors_that_an_origin_tells_otherwise_are_named(foreign, tmp_path):
    ours = converted(foreign, tmp_path)
    (ours / "origin.safetensors").unlink()
    with pytest.raises(ValueError, match="origin.json in .* tells otherwise of rope.table than"):
        convert(ours, tmp_path / "back")
    told = json.loads((ours / "origin.json").read_text())
    told["tensors"] |= {"last_norm": "int8"}
    (ours / "origin.json").write_text(json.dumps(told))
    with pytest.raises(ValueError, match="tells otherwise of rope.table, last_norm than"):
        convert(ours, tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize("target", ["file/back", "file/back.pth"])
def test_a_target_that_cannot_be_written_is_named(target, foreign, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=f"convert: '.*{target}' can't be written .*. Free some space or choose another"):
        convert(rwkv(tmp_path) if target.endswith("pth") else foreign, tmp_path / target)


def rwkv(tmp_path):
    config = lv.ModelConfig("rwkv7", 64, 1, 20, tie_embeddings=False)
    lv.save(lv.LanguageModel(config), tmp_path / "rwkv")
    convert(tmp_path / "rwkv", tmp_path / "rwkv.pth", to="rwkv7")
    convert(tmp_path / "rwkv.pth", tmp_path / "again")
    return tmp_path / "again"
