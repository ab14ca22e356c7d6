"""Files of RWKV-LM, versions 4 to 7: the same logits as the rwkv package's, which their authors keep."""

import importlib.util
import subprocess
import sys

import pytest
import torch

import lavagna as lv
from checkpoints.formats import rwkv_files, rwkv_package
from checkpoints.formats.comparison import distance, in_pieces, logits, round_trip_is_exact
from lavagna.checkpoints.plan import plan
from lavagna.data import WorldTokenizer

FILES = {version: (version, {}) for version in rwkv_files.VERSIONS} | {
    "5.1 flat": ("5.1", {"flat": True}),
    "6 started": ("6", {"learned_state": True}),
    "7 flat": ("7", {"flat": True, "first_v": False}),
    "7 shallow": ("7", {"depth": 1}),
}
LENGTHS = (13, 9)
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folder with a random file of each kind, and two texts."""
    folder = tmp_path_factory.mktemp("rwkv")
    torch.manual_seed(1)
    for name, (version, changes) in FILES.items():
        rwkv_files.write(folder / f"{name}.pth", version, **changes)
    texts = [torch.randint(rwkv_files.SIZES["vocab"], (length,)) for length in LENGTHS]
    torch.save(texts, folder / "texts.pt")
    return folder, texts


@pytest.fixture(scope="module")
def theirs(written):
    """What the package makes of the texts, by file; it lives in a process of its own."""
    if importlib.util.find_spec("rwkv") is None:
        pytest.skip("the rwkv package, of the dev extra, is not installed")
    folder, _ = written
    subprocess.run([sys.executable, rwkv_package.__file__, str(folder)], check=True, capture_output=True, timeout=240)
    return torch.load(folder / "logits.pt", weights_only=True)


@pytest.mark.parametrize("name", FILES)
def test_logits_are_those_of_the_rwkv_package(written, theirs, name):
    folder, (first, second) = written
    model, tokenizer = lv.load(folder / f"{name}.pth")
    assert tokenizer is None
    for text, right in zip((first, second), theirs[name], strict=True):
        half = len(text) // 2
        assert distance(right["steps"], right["whole"]) < TOLERANCE
        cuts = ([half, len(text) - half], [half] + [1] * (len(text) - half)) if text is first else ()
        for pieces in ([len(text)], *cuts):
            ours = in_pieces(lambda ids, state: logits(model, ids, state), text[None], pieces)
            assert distance(ours[0], right["whole"]) < TOLERANCE, pieces


@pytest.mark.parametrize("name", rwkv_files.VERSIONS)
@pytest.mark.parametrize("place", [0, 5, 9])
def test_rows_of_unlike_length_have_the_logits_that_the_rwkv_package_gives_each_alone(written, theirs, name, place):
    folder, texts = written
    model, _ = lv.load(folder / f"{name}.pth")
    mask = torch.ones(2, LENGTHS[0], dtype=torch.bool)
    mask[1, place : place + LENGTHS[0] - LENGTHS[1]] = False
    ids = torch.full(mask.shape, 7)
    for row, text in enumerate(texts):
        ids[row, mask[row]] = text
    half = LENGTHS[0] // 2
    begun, state = logits(model, ids[:, :half], mask=mask[:, :half])
    ended, _ = logits(model, ids[:, half:], state, mask[:, half:])
    for row, right in enumerate(theirs[name]):
        assert distance(torch.cat([begun, ended], 1)[row][mask[row]], right["whole"]) < TOLERANCE


@pytest.mark.parametrize("name", FILES)
def test_forms_agree_in_float64(written, name):
    folder, (text, _) = written
    model, _ = lv.load(folder / f"{name}.pth", dtype=torch.float64)
    with torch.no_grad():
        right, state = model(text[None], form="recurrent")
        for form in model.each_block[0].mixer.forms:
            found, after = model(text[None], form=form)
            assert distance(found, right) < 1e-10, form
            for block in range(model.config.depth):
                for key, tensor in after[block].tensors().items():
                    assert torch.allclose(tensor, state[block].tensors()[key], rtol=1e-10, atol=1e-10), (form, key)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_told_apart_by_its_tensors_and_comes_back_bit_for_bit(written, name):
    folder, _ = written
    found = plan(folder / f"{name}.pth")
    assert found.format == f"rwkv{name[0]}"
    assert found.model.config.layer_options(found.format).get("version", name[:3]) == name[:3]
    round_trip_is_exact(folder / f"{name}.pth")


@pytest.mark.parametrize(("layer", "options"), [
    ("rwkv4", {"expand": 2}), ("rwkv5", {"version": "5.0"}), ("rwkv5", {"version": "5.1"}), ("rwkv5", {}),
    ("rwkv6", {"learned_state": True}), ("rwkv7", {}),
])  # fmt: skip
def test_a_model_of_ours_is_written_as_a_file_of_theirs_and_read_again(tmp_path, layer, options):
    config = lv.ModelConfig(layer, 32, 2, 50, tie_embeddings=False, options=options)
    model = lv.LanguageModel(config).eval()
    lv.save(model, tmp_path / "ours")
    lv.checkpoints.convert(tmp_path / "ours", tmp_path / "theirs.pth", to=layer)
    found = plan(tmp_path / "theirs.pth")
    assert found.format == layer
    assert found.model.config.options.get("version", "5.2") == options.get("version", "5.2")
    ids = torch.randint(50, (1, 5))
    assert torch.equal(logits(lv.load(tmp_path / "theirs.pth").model, ids)[0], logits(model, ids)[0])


def test_a_file_is_converted_to_the_format_of_flash_linear_attention_and_back(tmp_path):
    # With heads of 64 channels both have the same epsilon in the norm of heads.
    before = rwkv_files.write(tmp_path / "a.pth", "7", width=64, heads=1, first_v=False)
    lv.checkpoints.convert(tmp_path / "a.pth", tmp_path / "fla", to="fla_rwkv7")
    lv.checkpoints.convert(tmp_path / "fla", tmp_path / "b.pth", to="rwkv7")
    after = torch.load(tmp_path / "b.pth", weights_only=True)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_file_that_lies_in_a_folder_of_ours_is_told_by_its_own_tensors(tmp_path):
    ours = lv.LanguageModel(lv.ModelConfig("gla", 32, 1, 50))
    lv.save(ours, tmp_path)
    rwkv_files.write(tmp_path / "other.pth", "7")
    assert lv.load(tmp_path / "other.pth").model.config.layers[0] == "rwkv7"
    assert lv.load(tmp_path).model.config == lv.load(tmp_path / "model.safetensors").model.config == ours.config
    done = lv.checkpoints.convert(tmp_path / "other.pth", tmp_path.parent / "converted")
    assert done.source == "rwkv7"


def test_a_model_that_their_files_cannot_hold_is_refused(tmp_path):
    refused = {
        "layers of rwkv7, but this model's are gla": {"layer": "gla"},
        "tie_embeddings is True": {"tie_embeddings": True},
        "norm_eps": {"norm_eps": 1e-6},
        "no place for this model's blocks.0.mixer.out.bias": {"options": {"out_bias": True}},
        "wants blocks.0.mlp.shift.k": {"block": {"mlp": "swiglu"}},
        "wants embedding_norm.weight": {"embedding_norm": False},
    }
    for said, change in refused.items():
        fields = {"layer": "rwkv7", "d_model": 32, "depth": 2, "vocab_size": 50, "tie_embeddings": False} | change
        lv.save(lv.LanguageModel(lv.ModelConfig(**fields)), tmp_path / "ours")
        with pytest.raises(ValueError, match="rwkv7 can't hold this model") as caught:
            lv.checkpoints.convert(tmp_path / "ours", tmp_path / "theirs.pth", to="rwkv7")
        assert said in str(caught.value)
        assert not (tmp_path / "theirs.pth").exists()


@pytest.mark.parametrize(("version", "dtype"), [("4", torch.float16), ("6", torch.bfloat16), ("7", torch.bfloat16)])
def test_files_in_half_precision_keep_their_dtype_but_for_what_decays(tmp_path, version, dtype):
    tensors = {name: tensor.to(dtype) for name, tensor in rwkv_files.write(tmp_path / "a.pth", version).items()}
    torch.save(tensors, tmp_path / "a.pth")
    model, _ = lv.load(tmp_path / "a.pth")
    assert model.embedding.weight.dtype == model.blocks[0].mlp.key.weight.dtype == dtype
    assert model.blocks[0].mixer.w0.dtype == model.blocks[0].mixer.shift.k.dtype == torch.float32
    round_trip_is_exact(tmp_path / "a.pth")
    wide, _ = lv.load(tmp_path / "a.pth", dtype=torch.float32)
    assert {parameter.dtype for parameter in wide.parameters()} == {torch.float32}
    assert torch.equal(wide.head.weight, tensors["head.weight"].float())


def test_a_folder_with_the_file_and_its_vocabulary_gives_both(tmp_path):
    tensors = rwkv_files.write(tmp_path / "RWKV-x070-World.pth", "7")
    vocabulary = WorldTokenizer({1: b"a", 2: b"b", 49: b"ab"})
    vocabulary.save(tmp_path / "rwkv_vocab_v20230424.txt")
    for path in (tmp_path, tmp_path / "RWKV-x070-World.pth"):
        model, tokenizer = lv.load(path)
        assert tokenizer == vocabulary
        assert torch.equal(model.embedding.weight, tensors["emb.weight"])


def test_tensors_saved_from_another_device_are_read(tmp_path, monkeypatch):
    # As a file is written where torch has CUDA: each storage is marked with its device.
    mark = (0, lambda storage: "cuda:0", lambda storage, location: None)
    monkeypatch.setattr(torch.serialization, "_package_registry", [mark])
    tensors = rwkv_files.write(tmp_path / "a.pth", "6")
    monkeypatch.undo()
    assert b"cuda:0" in (tmp_path / "a.pth").read_bytes()
    assert torch.equal(lv.load(tmp_path / "a.pth").model.head.weight, tensors["head.weight"])


def refused(file, tensors, **change):
    """What is said of a file with some of its tensors changed, or taken out."""
    torch.save({name: tensor for name, tensor in (tensors | change).items() if tensor is not None}, file)
    with pytest.raises(ValueError) as caught:
        lv.load(file)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("version", rwkv_files.VERSIONS)
def test_what_does_not_fit_is_named_with_both_shapes_and_the_version(tmp_path, version):
    tensors = rwkv_files.tensors(version, **rwkv_files.SIZES)
    key = "blocks.1.att.output.weight"
    title = f"rwkv5, version {version}" if version[0] == "5" else f"rwkv{version}"
    blend = next(name for name in tensors if name.startswith("blocks.1.ffn") and tensors[name].ndim == 3)
    changes = {
        f"{key} is (32, 33) where the configuration wants (32, 32)": {key: torch.zeros(32, 33)},
        f"{blend} is (1, 1, 31) where the configuration wants (1, 1, 32)": {blend: torch.zeros(1, 1, 31)},
        f"{key} is missing": {key: None},
        "blocks.0.att.stranger is extra": {"blocks.0.att.stranger": torch.zeros(3)},
        f"{key} is torch.int32, not floating": {key: tensors[key].int()},
    }
    for said, change in changes.items():
        assert f"does not fit together as {title}: {said}" in refused(tmp_path / "a.pth", tensors, **change)


@pytest.mark.parametrize("version", rwkv_files.VERSIONS)
def test_what_tells_no_size_is_named_with_the_version(tmp_path, version):
    tensors = rwkv_files.tensors(version, **rwkv_files.SIZES)
    changes = {
        "emb.weight is (50,), where 2 axes are wanted": {"emb.weight": torch.zeros(50)},
        "has no 'blocks.0.ffn.key.weight'": {"blocks.0.ffn.key.weight": None},
        "blocks.0.ffn.s_emb.weight: DeepEmbed": {"blocks.0.ffn.s_emb.weight": torch.zeros(50, 8)},
    }
    for said, change in changes.items():
        text = refused(tmp_path / "a.pth", tensors, **change)
        assert said in text and f"looks like rwkv{version[0]}" in text


@pytest.mark.parametrize(("version", "name"), [("5.0", "time_first"), ("5.2", "time_faaaa"), ("7", "x_w")])
def test_a_version_that_lacks_one_of_its_vectors_is_still_known(tmp_path, version, name):
    tensors = rwkv_files.tensors(version, **rwkv_files.SIZES)
    said = refused(tmp_path / "a.pth", tensors, **{f"blocks.0.att.{name}": None})
    assert f"rwkv{version[0]}" in said and f"blocks.0.att.{name} is missing" in said
