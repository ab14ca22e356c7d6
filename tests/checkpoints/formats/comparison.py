"""One model by two implementations: what a test of a format asks of logits, round trips and damaged files.

`theirs` is a function of ids, a state and a mask that returns logits and a state; `of_transformers` makes one.
"""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import lavagna as lv
from lavagna.checkpoints.files import open_weights

TOLERANCE = 1e-4
CACHES = ("cache", "cache_params", "past_key_values", "state")


def of_transformers(model):
    """A causal language model of transformers as a function of ids, a state and a mask."""

    def theirs(ids, state=None, mask=None):
        options = {} if state is None else {state[0]: state[1]}
        if mask is not None:
            options["attention_mask"] = mask.long()
        with torch.no_grad():
            out = model(ids, use_cache=True, **options)
        name = next((name for name in CACHES if getattr(out, name, None) is not None), None)
        return out.logits, None if name is None else (name, getattr(out, name))

    return theirs


def saved(model, folder):
    """Give a model of transformers numbers that hide nothing, write it, and return its folder and itself."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    model.eval().save_pretrained(folder)
    return folder


def logits(model, ids, state=None, mask=None):
    """Logits and state of one of our models."""
    with torch.no_grad():
        return model(ids, state, mask=mask)


def in_pieces(call, ids, sizes):
    """The logits of a text that is read in pieces, each with the state of the one before."""
    state, read = None, []
    for piece in ids.split(sizes, 1):
        out, state = call(piece, state)
        read.append(out)
    return torch.cat(read, 1)


def distance(x, y):
    """Largest absolute difference over largest absolute value of the second."""
    assert x.shape == y.shape, (x.shape, y.shape)
    return ((x - y).abs().max() / y.abs().max()).item()


def same_logits(folder, theirs, *, vocab=None, length=23, tolerance=TOLERANCE, steps=True, cut=True, padding=True):
    """Hold a checkpoint to the implementation that it is of.

    Two rows at once: a whole pass, a first part and single steps, a cut in the middle, and texts of unlike lengths with
    their padding on the left. Ours is also held to the whole pass of each row alone, whatever theirs does. Where theirs
    is wrong, `steps`, `cut` or `padding` is False, and a test of its own says so.
    """
    model, _ = lv.load(folder)

    def ours(ids, state=None, mask=None):
        return logits(model, ids, state, mask)

    ids = torch.randint(vocab or model.config.vocab_size, (2, length))
    whole, first = theirs(ids)[0], length // 2
    pieces = {"steps": [first] + [1] * (length - first), "cut": [first, length - first]}
    assert distance(ours(ids)[0], whole) < tolerance
    for name, right in (("steps", steps), ("cut", cut)):
        assert distance(in_pieces(ours, ids, pieces[name]), whole) < tolerance, name
        assert not right or distance(in_pieces(theirs, ids, pieces[name]), whole) < tolerance, f"theirs, {name}"
    for place in ("left", "middle", "right"):
        texts, mask, real = padded(ids, place)
        read = ours(texts, mask=mask)[0]
        for row, text in enumerate(real):
            assert distance(read[row][mask[row]], theirs(text)[0][0]) < tolerance, (place, row)
    texts, mask, _ = padded(ids, "left")
    if padding:
        assert distance(ours(texts, mask=mask)[0][mask], theirs(texts, mask=mask)[0][mask]) < tolerance
    return model


def same_model(model, folder, **same):
    """Write a model of transformers, hold what is read of it to it (`same_logits`), and expect it to come back exactly.

    Where transformers' own logits are wrong, tests beside this one say so.
    """
    same_logits(saved(model, folder), of_transformers(model), **same)
    round_trip_is_exact(folder)


def reads_padding(folder, theirs, place):
    """Whether an implementation takes padding at a place for text. Ours is held to the text without it."""
    ours = lv.load(folder)[0]
    texts, mask, real = padded(torch.randint(1, ours.config.vocab_size, (2, 23)), place)
    alone = theirs(real[1])[0][0]
    assert distance(logits(ours, texts, mask=mask)[0][1][mask[1]], alone) < TOLERANCE
    return distance(theirs(texts, mask=mask)[0][1][mask[1]], alone) > 1e-2


def reads_on(folder, ids, sizes, dtype=None):
    """What ours says of a text that it reads in pieces."""
    ours = lv.load(folder, dtype=dtype)[0]
    return in_pieces(lambda piece, state: logits(ours, piece, state), ids, sizes)


def rewritten(folder, **changed):
    """The folder with other values in its config.json; "gone" takes a key away."""
    config = json.loads((folder / "config.json").read_text()) | changed
    (folder / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value != "gone"}))
    return folder


def padded(ids, place, pads=5):
    """Two rows of which the second has lost some ids to padding, the mask of both, and the texts without it."""
    length = ids.shape[1]
    start = {"left": 0, "middle": length // 2, "right": length - pads}[place]
    mask = torch.ones_like(ids, dtype=torch.bool)
    mask[1, start : start + pads] = False
    texts = torch.where(mask, ids, 0)
    return texts, mask, [texts[row : row + 1, mask[row]] for row in range(2)]


def wrong(call, ids, sizes, *, least=1e-2):
    """Whether an implementation reads a text in pieces otherwise than as a whole."""
    return distance(in_pieces(call, ids, sizes), call(ids)[0]) > least


def round_trip_is_exact(path):
    """A checkpoint made ours and back has every tensor bit for bit, in its dtype and under its name, and its config.

    What comes between computes what the checkpoint does.
    """
    with tempfile.TemporaryDirectory() as folder:
        there, back = Path(folder, "there"), Path(folder, "back" + (path.suffix if path.is_file() else ""))
        done = lv.checkpoints.convert(path, there)
        assert done.target == "lavagna"
        done = lv.checkpoints.convert(there, back)
        before, after = open_weights(path), open_weights(back)
        assert before.entries == after.entries and done[2:] == _size(before)
        for name in before.entries:
            assert torch.equal(_bits(before.take(name)), _bits(after.take(name))), name
        if path.is_dir() and (path / "config.json").exists():
            assert (back / "config.json").read_text() == (path / "config.json").read_text()
        ids = torch.randint(lv.load(path).model.config.vocab_size, (1, 9))
        assert torch.equal(lv.load(path).model(ids).logits, lv.load(there).model(ids).logits)


def _size(weights):
    entries = weights.entries.values()
    return len(entries), sum(torch.Size(x.shape).numel() * x.dtype.itemsize for x in entries)


def _bits(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def damages(folder, format, tmp_path):
    """Spoil a folder with one model.safetensors in every way, and expect errors that say what, and of which format."""
    tensors = load_file(folder / "model.safetensors")
    key = max((name for name, tensor in tensors.items() if tensor.ndim == 2 and ".0." in name), key=len)
    rows, columns = tensors[key].shape
    wanted = f"({rows}, {columns})"

    def spoilt(change):
        new = tmp_path / "spoilt"
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(folder, new)
        changed = dict(tensors)
        change(changed)
        save_file(changed, new / "model.safetensors")
        return new

    def refused(new, *said):
        with pytest.raises((ValueError, FileNotFoundError)) as caught:
            lv.load(new)
        text = str(caught.value)
        assert "\n" not in text
        for each in said:
            assert each in text, text

    refused(spoilt(lambda x: x.update({key: torch.zeros(rows + 1, columns)})), key, f"({rows + 1}, {columns})", format)
    refused(spoilt(lambda x: x.pop(key)), f"{key} is missing", format)
    refused(spoilt(lambda x: x.update(stranger=torch.zeros(3))), "stranger is extra", format)
    refused(spoilt(lambda x: x.update({key: tensors[key].int()})), f"{key} is torch.int32", format)
    cut = spoilt(lambda x: None)
    (cut / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-1])
    refused(cut, "is not a whole safetensors file")
    refused(rewritten(spoilt(lambda x: None), model_type="unheard_of"), "unheard_of", "Known are")
    assert wanted in str(tuple(tensors[key].shape))
