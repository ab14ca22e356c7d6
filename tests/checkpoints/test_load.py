"""A checkpoint comes back bit for bit, or an error says what is wrong with it."""

import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

import lavagna as lv
from checkpoints.own_folder import build, configure, edit
from lavagna.data import Tokenizer
from lavagna.modules.precision import Wide

LAYERS = [*lv.layers.names(), ["gated_delta_net", "mamba2", "softmax_attention"]]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_logits_are_the_same_bit_for_bit(layer, tied, tmp_path, device):
    model = build(layer, tie_embeddings=tied).to(device)
    lv.save(model, tmp_path / "model", Tokenizer.bytes())
    loaded, tokenizer = lv.load(tmp_path / "model", device=device)
    ids = torch.randint(256, (2, 9), device=device)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.config == model.config and not loaded.training
    assert tokenizer == Tokenizer.bytes()


@pytest.mark.parametrize("kind", [{"features": 2}, {"vocab_size": 7}], ids=str)
def test_a_classifier_comes_back_as_one_with_the_same_logits_bit_for_bit(kind, tmp_path, device):
    model = lv.SequenceClassifier(lv.ClassifierConfig("gla", 32, 2, classes=3, pooling="max", **kind)).to(device)
    lv.save(model, tmp_path / "model")
    loaded, tokenizer = lv.load(tmp_path / "model", device=device)
    x = torch.randint(7, (2, 9), device=device) if "vocab_size" in kind else torch.randn(2, 9, 2, device=device)
    assert torch.equal(loaded(x).logits, model(x).logits)
    assert loaded.config == model.config and not loaded.training and tokenizer is None


def test_a_folder_that_does_not_say_its_kind_holds_a_language_model(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config.pop("kind") == "language_model" and config["model"].pop("dropout") == 0
    (folder / "config.json").write_text(json.dumps(config))
    assert lv.load(folder)[0].config == build().config


def test_a_kind_of_model_that_there_is_not_is_refused_with_those_that_there_are(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"kind": "oracle"}))
    with pytest.raises(ValueError, match="'oracle'; there are language_model, classifier"):
        lv.load(folder)


def test_a_step_of_training_then_a_round_trip_changes_no_logit(tmp_path):
    model, ids = build(), torch.randint(256, (2, 9))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    model(ids).logits.square().mean().backward()
    optimizer.step()
    lv.save(model, tmp_path / "model")
    assert torch.equal(lv.load(tmp_path / "model")[0](ids).logits, model(ids).logits)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_dtype_is_kept_or_cast_but_decays_stay_float32(layer, dtype, tmp_path):
    lv.save(build(layer).to(dtype), tmp_path / "model")
    kept, cast = lv.load(tmp_path / "model")[0], lv.load(tmp_path / "model", dtype=torch.float16)[0]
    for model, wanted in ((kept, dtype), (cast, torch.float16)):
        for place, part in model.named_modules():
            for name, parameter in part.named_parameters(recurse=False):
                least = torch.promote_types(wanted, torch.float32) if isinstance(part, Wide) else wanted
                assert parameter.dtype == least, (place, name)
        assert model(torch.randint(256, (1, 5))).logits.isfinite().all()


def test_a_dtype_that_nothing_computes_in_needs_another_named(tmp_path):
    lv.save(build("gla"), tmp_path / "model")
    (file,) = (tmp_path / "model").glob("*.safetensors")
    save_file({name: x.to(torch.float8_e4m3fn) for name, x in load_file(file).items()}, file)
    with pytest.raises(ValueError, match="float8_e4m3fn.*dtype=torch.bfloat16"):
        lv.load(tmp_path / "model")
    model, _ = lv.load(tmp_path / "model", dtype=torch.float32)
    assert model(torch.randint(256, (1, 5))).logits.isfinite().all()


@pytest.mark.parametrize(
    "content", [b"\x80", b"no tensors", b"\x08\0\0\0\0\0\0\0{}      "], ids=["cut", "text", "safetensors"]
)
def test_what_torch_never_wrote_is_said_to_be_no_file_of_it(content, tmp_path):
    (tmp_path / "model.pth").write_bytes(content)
    with pytest.raises(ValueError, match="is not a (whole )?file of torch.save"):
        lv.load(tmp_path / "model.pth")


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_float64_casts_everything(layer, tmp_path):
    lv.save(build(layer), tmp_path / "model")
    loaded, _ = lv.load(tmp_path / "model", dtype=torch.float64)
    assert {tensor.dtype for tensor in [*loaded.parameters(), *loaded.buffers()]} == {torch.float64}


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_loading_draws_no_random_number_and_keeps_every_mark(layer, tmp_path):
    model = build(layer)
    lv.save(model, tmp_path / "model")
    before = torch.get_rng_state()
    loaded, _ = lv.load(tmp_path / "model")
    assert torch.equal(torch.get_rng_state(), before)
    marks = [[getattr(x, "no_weight_decay", False) for x in each.parameters()] for each in (model, loaded)]
    assert marks[0] == marks[1] and all(x.requires_grad for x in loaded.parameters())


@pytest.mark.parametrize("names", [["embedding.weight"], ["head.weight"], ["embedding.weight", "head.weight"]], ids=str)
def test_a_tied_matrix_may_have_either_name_or_both(names, folder):
    model, ids = lv.load(folder)[0], torch.randint(256, (1, 5))
    edit(folder, lambda x: x.update({name: x["embedding.weight"].clone() for name in names}))
    edit(folder, lambda x: [x.pop(name) for name in {"embedding.weight", "head.weight"} - set(names) if name in x])
    loaded, _ = lv.load(folder)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert loaded.double().head.weight is loaded.embedding.weight


def test_a_tied_matrix_with_two_values_is_refused_by_both_names(folder):
    edit(folder, lambda x: x.update({"head.weight": x["embedding.weight"] + 1}))
    with pytest.raises(ValueError, match="embedding.weight and a head.weight that differ.*tie_embeddings"):
        lv.load(folder)
    configure(folder, tie_embeddings=False)
    loaded, _ = lv.load(folder)
    assert torch.equal(loaded.head.weight, loaded.embedding.weight + 1)


def test_a_head_put_in_by_hand_is_never_dropped(tmp_path):
    model = build()
    model.head = build(tie_embeddings=False).head
    lv.save(model, tmp_path / "model")
    with pytest.raises(ValueError, match="that differ"):
        lv.load(tmp_path / "model")


def test_missing_extra_and_misshapen_tensors_are_all_named_with_both_shapes(folder):
    def spoil(tensors):
        del tensors["norm.weight"]
        tensors["norm.bias"] = torch.zeros(32)
        tensors["blocks.0.mixer.out.weight"] = torch.zeros(31, 32)

    edit(folder, spoil)
    with pytest.raises(ValueError) as caught:
        lv.load(folder)
    said = str(caught.value)
    assert r"blocks.0.mixer.out.weight is (31, 32) where the configuration wants (32, 32)" in said
    assert "norm.weight is missing" in said and "norm.bias is extra" in said and "\n" not in said


def test_a_configuration_of_another_size_takes_no_memory_before_it_is_refused(folder):
    # More than any machine has: it would fail otherwise if it were asked for.
    configure(folder, d_model=10**8)
    with pytest.raises(ValueError, match="embedding.weight is .* where the configuration wants .*100000000"):
        lv.load(folder)


def test_a_truncated_file_is_refused(folder):
    whole = (folder / "model.safetensors").read_bytes()
    for length in (0, 7, 100, len(whole) - 1):
        (folder / "model.safetensors").write_bytes(whole[:length])
        with pytest.raises(ValueError, match="is not a whole safetensors file"):
            lv.load(folder)


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('a pickle was executed')",)


@pytest.mark.parametrize("name", ["model.pth", "pytorch_model.bin", "weights.pt"])
def test_a_pickle_is_refused_with_advice_and_never_executed(name, folder):
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb()))
    for path in (folder, folder / name):
        with pytest.raises(ValueError, match="is a pickle of more than tensors, .* safetensors.torch.save_file"):
            lv.load(path)


def test_a_pickle_alone_in_a_folder_is_refused_with_advice(tmp_path):
    (tmp_path / "model.pth").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match="is a pickle"):
        lv.load(tmp_path)


def test_another_version_is_named_beside_the_wanted(folder):
    text = (folder / "config.json").read_text().replace("lavagna-checkpoint-1", "lavagna-checkpoint-7")
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match="is lavagna-checkpoint-7, but .* reads lavagna-checkpoint-1"):
        lv.load(folder)


def test_a_run_that_has_saved_nothing_yet_is_said_to_be_one(tmp_path):
    (tmp_path / "config.json").write_text('{"format": "lavagna-run-1"}')
    with pytest.raises(ValueError, match="is no checkpoint.* go on with it, or give another folder"):
        lv.load(tmp_path)


@pytest.mark.parametrize(
    "text, said",
    [
        ("{", "is not JSON"),
        ("[]", "holds no JSON object"),
        (
            '{"model_type": "mamba2"}',
            "of no format that is known, with model_type 'mamba2' and tensors such as blocks.0",
        ),
        ('{"format": "lavagna-checkpoint-1"}', "describes no model"),
        ('{"format": "lavagna-checkpoint-1", "model": {"layer": "gla"}}', "d_model, depth, vocab_size missing"),
    ],
)
def test_a_config_that_is_not_ours_is_refused(text, said, folder):
    (folder / "config.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        lv.load(folder)


def test_an_option_that_the_layer_lacks_is_an_error_of_the_file(folder):
    configure(folder, options={"head_count": 2})
    with pytest.raises(ValueError, match="config.json' describes no model.*head_count"):
        lv.load(folder)


def test_a_missing_file_is_named(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="has no model.safetensors"):
        lv.load(folder)


def test_tensors_without_their_configuration_are_named_beside_the_formats_that_are_known(folder):
    (folder / "config.json").unlink()
    with pytest.raises(ValueError, match="with no config.json and tensors such as .*Known are mamba"):
        lv.load(folder)


def test_a_path_where_nothing_is_or_a_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is nothing at .*nowhere"):
        lv.load(tmp_path / "nowhere")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ValueError, match="is a file, but no checkpoint. Read are"):
        lv.load(tmp_path / "notes.txt")


def test_a_dtype_that_is_not_floating_is_refused(folder):
    with pytest.raises(ValueError, match="dtype must be floating"):
        lv.load(folder, dtype=torch.int8)


@pytest.mark.parametrize(
    "changed, said",
    [
        ({"depth": 10_000_000}, "It has 10000000 blocks, but the file has [0-9]+ tensors in all"),
        ({"depth": 10**18}, "It has 1000000000000000000 blocks"),
        ({"d_model": 2**40}, "describes no model"),
        ({"d_model": 10**18}, "describes no model"),
    ],
    ids=str,
)
@pytest.mark.timeout(30)
def test_sizes_that_the_file_cannot_have_are_refused_before_a_model_is_built(changed, said, folder):
    configure(folder, **changed)
    with pytest.raises(ValueError, match=said):
        lv.load(folder)
