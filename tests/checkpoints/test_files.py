"""Which files are read, and what is said of those that can't be."""

import json
import pickle

import pytest
import torch
from safetensors.torch import save_file

import lavagna as lv
from checkpoints.stand_in import config, shapes
from lavagna.checkpoints.files import open_weights


def tensors(*names):
    return {name: torch.randn(3, 2) for name in names}


def shards(folder, *parts, suffix="safetensors"):
    """A folder of shards and their index."""
    folder.mkdir(exist_ok=True)
    whole = "model.safetensors" if suffix == "safetensors" else "pytorch_model.bin"
    names = {}
    for number, part in enumerate(parts, 1):
        file = folder / f"part-{number}.{suffix}"
        save_file(part, file) if suffix == "safetensors" else torch.save(part, file)
        names |= dict.fromkeys(part, file.name)
    (folder / f"{whole}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return folder


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards_are_one_and_nothing_beside_them_is_read(suffix, tmp_path):
    one, two, stray = tensors("a", "b"), tensors("c"), tensors("stray")
    folder = shards(tmp_path / "x", one, two, suffix=suffix)
    save_file(stray, folder / "model.safetensors") if suffix == "safetensors" else torch.save(stray, folder / "x.bin")
    found = open_weights(folder)
    assert found.shapes == dict.fromkeys("abc", (3, 2)) and len(found.files) == 3
    for name, tensor in (one | two).items():
        assert torch.equal(found.take(name), tensor)


def test_a_shard_that_is_gone_is_named(tmp_path):
    folder = shards(tmp_path / "x", tensors("a"), tensors("b"))
    (folder / "part-2.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="has no part-2.safetensors, of 2 shards that model.safetensors.index"):
        open_weights(folder)


def test_a_tensor_in_two_shards_is_named_with_both(tmp_path):
    with pytest.raises(ValueError, match=r"b is in '.*part-1.safetensors' and in 'part-2.safetensors'"):
        open_weights(shards(tmp_path / "x", tensors("a", "b"), tensors("b")))


def test_a_tensor_that_its_shard_lacks_is_named(tmp_path):
    folder = shards(tmp_path / "x", tensors("a", "b"), tensors("c"))
    save_file(tensors("a"), folder / "part-1.safetensors")
    with pytest.raises(ValueError, match="b .in part-1.safetensors. is listed by"):
        open_weights(folder)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"),
        ("[1]", "holds no JSON object"),
        ("{}", "no weight_map"),
        ('{"weight_map": {"a": 3}}', "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        pytest.param("[" * 100_000, "is not JSON", id="brackets"),
        ('{"weight_map": {"a": "../up.safetensors"}}', "'../up.safetensors', which is outside"),
    ],
)
def test_an_index_that_is_none_is_refused(text, said, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(ValueError, match=said):
        open_weights(tmp_path)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "pytorch_model.bin", "weights.pth", "old.pt", "other.safetensors"]
)
def test_a_single_file_is_found_whatever_it_is_called(name, tmp_path):
    content = tensors("a", "b")
    write = save_file if name.endswith("safetensors") else torch.save
    write(content, tmp_path / name)
    torch.save({"rate": torch.ones(1)}, tmp_path / "optimizer.bin")
    for path in (tmp_path, tmp_path / name):
        found = open_weights(path)
        assert all(torch.equal(found.take(name), tensor) for name, tensor in content.items())


def test_two_files_and_no_index_are_a_question(tmp_path):
    for name in ("a.pth", "b.pth"):
        torch.save(tensors("a"), tmp_path / name)
    with pytest.raises(ValueError, match="holds a.pth, b.pth, and no index says which"):
        open_weights(tmp_path)


def test_a_link_to_nothing_is_named_and_no_other_file_is_read_for_it(tmp_path):
    save_file(tensors("a"), tmp_path / "other.safetensors")
    (tmp_path / "model.safetensors").symlink_to("gone")
    with pytest.raises(FileNotFoundError, match="model.safetensors' is a link to where no file is"):
        open_weights(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors").symlink_to("other.safetensors")
    assert open_weights(tmp_path).shapes == {"a": (3, 2)}


def test_what_is_neither_a_folder_nor_a_file_is_refused():
    with pytest.raises(ValueError, match="'/dev/null' is neither a folder nor a file. Read are"):
        lv.load("/dev/null")


def test_a_folder_without_tensors_says_what_is_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no model.safetensors. Read are .*pytorch_model.bin"):
        open_weights(tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("nest", [None, "state_dict", "model"])
def test_files_of_torch_are_read_in_both_formats_also_within_a_training(zipped, nest, tmp_path):
    whole = torch.randn(5, 4)
    content = {"a": whole[1:3], "b": whole.t(), "c": torch.ones(2, dtype=torch.bfloat16), "d": torch.tensor(3)}
    file = tmp_path / "x.pth"
    torch.save({nest: content, "step": 3} if nest else content, file, _use_new_zipfile_serialization=zipped)
    found = open_weights(file)
    for _ in range(2):
        for name, tensor in content.items():
            taken = found.take(name)
            assert torch.equal(taken, tensor) and taken.dtype == tensor.dtype
            assert taken.is_contiguous() and taken.untyped_storage().nbytes() == taken.nbytes


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([1, 2], "holds no tensors"),
        ({}, "holds no tensors"),
        ({"a": torch.ones(2), "epoch": 3}, "has epoch, which is no dense"),
        ({"a": torch.eye(3).to_sparse()}, "has a, which is no dense"),
        ({"a": torch.ones(2), "b": torch.ones(2, device="meta")}, "has b, which is no dense"),
    ],
)
def test_a_file_of_torch_without_a_models_tensors_is_refused(content, said, tmp_path):
    torch.save(content, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=said):
        open_weights(tmp_path)


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit('a pickle was executed')",)


@pytest.mark.parametrize("zipped", [True, False])
def test_an_object_among_tensors_is_refused_with_advice_and_never_executed(zipped, tmp_path):
    torch.save({"a": torch.ones(2), "b": Bomb()}, tmp_path / "x.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match="exec.* Where you trust it, .*safetensors.torch.save_file"):
        open_weights(tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_file_of_torch_is_called_so(zipped, share, tmp_path):
    file = tmp_path / "x.bin"
    torch.save({"a": torch.randn(100, 20), "b": torch.randn(7)}, file, _use_new_zipfile_serialization=zipped)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ValueError, match="is not a whole file of torch.save"):
        open_weights(file)


def test_a_raw_pickle_is_refused(tmp_path):
    (tmp_path / "x.pkl").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(ValueError, match="is not a whole file|is a pickle"):
        open_weights(tmp_path)


def test_a_name_that_a_header_has_twice_is_refused(tmp_path):
    header = (
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}'
    )
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ValueError, match="has a twice|is not a whole"):
        open_weights(tmp_path)


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_file_beside_the_config_of_its_format_is_read_in_any_dtype(dtype, tmp_path):
    save_file(
        {name: torch.randn(shape, dtype=dtype) for name, shape in shapes(32, 2).items()}, tmp_path / "x.safetensors"
    )
    (tmp_path / "config.json").write_text("\ufeff" + json.dumps(config(32, 2)))
    for path in (tmp_path, tmp_path / "x.safetensors"):
        assert {x.dtype for x in lv.load(path).model.parameters()} == {dtype}
        wide = lv.load(path, dtype=torch.float32).model
        assert wide(torch.randint(64, (1, 5))).logits.isfinite().all()
