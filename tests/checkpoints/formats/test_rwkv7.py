"""A trained RWKV-7 of its authors, which reverses digits."""

from pathlib import Path

import pytest
import torch

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


def reverses(model, length):
    """Whether four random numbers of a length are reversed to the last digit, and the end is marked."""
    digits = ["".join(map(str, row)) for row in torch.randint(10, (4, length)).tolist()]
    ids = encoded(*(f"{number},{number[::-1]}#" for number in digits))
    guessed = logits(model, ids)[0].argmax(-1)
    return torch.equal(guessed[:, length:-1], ids[:, length + 1 :])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("length", [1, 2, 9, 33, 60])
def test_digits_are_reversed_without_a_mistake(dtype, length):
    assert reverses(lv.load(FILE, dtype=dtype).model, length)


@pytest.mark.exhaustive
def test_digits_of_every_length_are_reversed_without_a_mistake(model):
    assert all(reverses(model, length) for length in range(1, 61))


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
