"""A trained RWKV-7 of its authors, which reverses digits."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import lavagna as lv
from checkpoints.formats.comparison import distance, in_pieces, logits, round_trip_is_exact
from lavagna.checkpoints.plan import plan

FILE = Path(__file__).parents[3].parent / "shared" / "data" / "rwkv7-reverse" / "reverse.pth"
pytestmark = pytest.mark.skipif(not FILE.is_file(), reason=f"there is no {FILE}")

ALPHABET = "0123456789,#"
# At the last position of "12345,5432", by its authors' formulas in float64.
PINNED = [
    -18.18415, -1.082614, -14.840723, -15.565914, -22.300489, -19.955982, -23.182183, -20.061105, -23.647303,
    -15.051081, -24.44034, -8.115254,
]  # fmt: skip

PARTS = [
    *(f"x_{reader}" for reader in "rwkvag"), *(f"{part}{n}" for part in "wav" for n in range(3)), "g1", "g2", "k_k",
    "k_a", "r_k", "ln_x.weight", "ln_x.bias", *(f"{part}.weight" for part in ("receptance", "key", "value", "output")),
]  # fmt: skip


def encoded(*texts):
    return torch.tensor([[ALPHABET.index(character) for character in text] for text in texts])


@pytest.fixture(scope="module")
def model():
    return lv.load(FILE, dtype=torch.float64).model


def test_pinned_logits_are_met(model):
    for form in model.each_block[0].mixer.forms:
        with torch.no_grad():
            found = model(encoded("12345,5432"), form=form).logits[0, -1]
        assert (found - torch.tensor(PINNED, dtype=torch.float64)).abs().max() < 1e-5, form


def test_steps_and_cuts_have_the_logits_of_the_whole(model):
    ids = encoded("12345,54321#", "90807,70809#")
    whole = logits(model, ids)[0]
    for pieces in ([5, 7], [3] + [1] * 9):
        assert distance(in_pieces(lambda ids, state: logits(model, ids, state), ids, pieces), whole) < 1e-10


def by_the_formulas(tensors, ids):
    """The model as its authors' formulas say, step by step, for one text."""
    blend = {}
    x = tensors["e.weight"][ids]

    def norm(y, name):
        return F.layer_norm(y, y.shape[-1:], tensors[f"{name}.weight"], tensors[f"{name}.bias"])

    for block in range(1, 3):
        p = {name: tensors[f"rwkv{block}.{name}"].squeeze() for name in PARTS}
        y = norm(x, f"ln{block}a")
        back = F.pad(y, (0, 0, 1, -1)) - y
        r, w, k, v, a, g = (y + back * p[f"x_{reader}"] for reader in "rwkvag")
        mix = torch.sigmoid(p["v0"] + v @ p["v1"] @ p["v2"])
        w = torch.exp(-math.exp(-0.5) * torch.sigmoid(p["w0"] + torch.tanh(w @ p["w1"]) @ p["w2"]))
        r, k, v = r @ p["receptance.weight"].T, k @ p["key.weight"].T, v @ p["value.weight"].T
        a, g = torch.sigmoid(p["a0"] + a @ p["a1"] @ p["a2"]), torch.sigmoid(g @ p["g1"]) @ p["g2"]
        v = v + (blend.setdefault("first", v) - v) * (mix if block > 1 else 0)
        r, w, v, a, kept, k = (z.view(-1, 2, 16) for z in (r, w, v, a, k * p["k_k"], k * (1 + (a - 1) * p["k_a"])))
        kept = kept / kept.norm(dim=-1, keepdim=True)
        memory, read = x.new_zeros(2, 16, 16), []
        for t in range(len(ids)):
            removed = memory @ kept[t, :, :, None]
            memory = memory * w[t, :, None] - removed * (a[t] * kept[t])[:, None] + v[t, :, :, None] * k[t, :, None]
            read.append((memory @ r[t, :, :, None]).squeeze(-1))
        y = F.group_norm(torch.stack(read).flatten(1), 2, p["ln_x.weight"], p["ln_x.bias"], eps=64e-5)
        y = (y + ((r * k * p["r_k"]).sum(-1, keepdim=True) * v).flatten(1)) * g
        x = x + tensors[f"rosa{block}.o.bias"] + y @ p["output.weight"].T
        y = norm(x, f"ln{block}b")
        y = y + (F.pad(y, (0, 0, 1, -1)) - y) * tensors[f"ffn{block}.x_k"].squeeze()
        x = x + F.relu(y @ tensors[f"ffn{block}.key.weight"].T).square() @ tensors[f"ffn{block}.value.weight"].T
    return norm(x, "lno") @ tensors["o.weight"].T + tensors["o.bias"]


def numbers(length):
    """Four random numbers of a length, each with its reverse and the mark of the end behind it."""
    digits = ["".join(map(str, row)) for row in torch.randint(10, (4, length)).tolist()]
    return encoded(*(f"{number},{number[::-1]}#" for number in digits))


def mistakes(model, ids, length):
    """How many digits of the reverses, and marks of the end, are not what the model would say next."""
    guessed = logits(model, ids)[0].argmax(-1)
    return (guessed[:, length:-1] != ids[:, length + 1 :]).sum().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1, 2, 9, 33, 60])
def test_digits_are_reversed_without_a_mistake(dtype, length):
    assert mistakes(lv.load(FILE, dtype=dtype).model, numbers(length), length) == 0


def test_logits_are_those_of_the_formulas(model):
    tensors = {name: tensor.double() for name, tensor in torch.load(FILE, "cpu", weights_only=True).items()}
    ids = numbers(30)[:2]
    for text, found in zip(ids, logits(model, ids)[0], strict=True):
        assert distance(found, by_the_formulas(tensors, text)) < 1e-10


@pytest.mark.exhaustive
def test_digits_of_every_length_are_reversed_as_well_as_the_weights_can(model):
    """The weights themselves get about one digit in ten thousand wrong, by their authors' formulas too."""
    tensors = {name: tensor.double() for name, tensor in torch.load(FILE, "cpu", weights_only=True).items()}
    wrong = 0
    for length in range(1, 61):
        ids = numbers(length)
        wrong += mistakes(model, ids, length)
        assert distance(logits(model, ids)[0][0], by_the_formulas(tensors, ids[0])) < 1e-10
    assert wrong <= 2


def test_digits_are_reversed_as_they_are_generated(model):
    out = lv.generate(model, encoded("31415926,"), max_new_tokens=9, temperature=0)
    assert "".join(ALPHABET[id] for id in out.ids[0]) == "31415926,62951413#"


def test_every_tensor_is_used_or_known_to_be_idle_and_comes_back_bit_for_bit(tmp_path):
    found = plan(FILE)
    assert found.format == "rwkv7_rosa"
    assert not {name for name in found.unused if not name.startswith(("rosa", "ln", "rwkv1.v"))}
    assert sum(parameter.numel() for parameter in found.model.parameters()) < 39_564
    round_trip_is_exact(FILE)


def test_a_branch_of_rosa_that_is_on_is_refused_and_damage_is_named(tmp_path):
    tensors = torch.load(FILE, map_location="cpu", weights_only=True)
    changes = {
        "rosa2.rosa_qkv.emb is not zero": {"rosa2.rosa_qkv.emb": torch.full((1, 1, 32), 0.5)},
        "rwkv2.w1 is missing": {"rwkv2.w1": None},
        "rwkv2.w1 is (32, 9) where the configuration wants (32, 8)": {"rwkv2.w1": torch.zeros(32, 9)},
        "rwkv2.w9 is extra": {"rwkv2.w9": torch.zeros(1)},
    }
    for said, change in changes.items():
        spoilt = {name: x for name, x in {**tensors, **change}.items() if x is not None}
        torch.save(spoilt, tmp_path / "a.pth")
        with pytest.raises(ValueError) as caught:
            lv.load(tmp_path / "a.pth")
        assert said in str(caught.value)
        assert "rwkv7_rosa" in str(caught.value)
