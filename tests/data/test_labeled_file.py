"""Labeled sequences come out of a file as they went in, or one line says what is wrong with it."""

from pathlib import Path

import numpy as np
import pytest

from lavagna.data.labeled_file import read_labeled

SHARED = Path(__file__).parents[2].parent / "shared" / "data" / "spoken-digits" / "spoken_digits.npz"
X = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
Y = np.array([0, 1, 1, 2])
RAGGED = {"values": np.arange(6.0), "offsets": np.array([0, 1, 4, 6]), "labels": np.array([1, 0, 1])}


@pytest.fixture
def write(tmp_path):
    """Write arrays to a file; its path."""

    def save(**arrays) -> Path:
        np.savez_compressed(tmp_path / "file.npz", **arrays)
        return tmp_path / "file.npz"

    return save


def test_rows_of_one_length_are_sequences(write):
    examples, held_out = read_labeled(write(x=X, y=Y))
    assert held_out is None and examples.labels.tolist() == [0, 1, 1, 2]
    assert np.array_equal(examples.take(np.array([1, 3])).x.numpy(), X[[1, 3]])


def test_rows_without_an_axis_of_features_have_one(write):
    x = read_labeled(write(x=X[..., 0], y=Y)).examples.take(np.array([2])).x
    assert np.array_equal(x[0, :, 0].numpy(), X[2, :, 0])


@pytest.mark.parametrize("names", [("values", "offsets", "labels"), ("audio", "offsets", "digit")])
@pytest.mark.parametrize("shape", [(6,), (6, 1)])
def test_sequences_end_to_end_are_cut_at_their_offsets(write, names, shape):
    arrays = dict(zip(names, RAGGED.values(), strict=True))
    arrays[names[0]] = arrays[names[0]].reshape(shape)
    examples = read_labeled(write(**arrays)).examples
    assert examples.lengths.tolist() == [1, 3, 2] and examples.take(np.array([1])).x[0, :, 0].tolist() == [1, 2, 3]


def test_another_array_of_labels_can_be_named(write):
    assert read_labeled(write(x=X, y=Y, loud=np.array([1, 0, 0, 1])), label="loud").examples.labels.tolist() == [
        1,
        0,
        0,
        1,
    ]


@pytest.mark.parametrize(
    "name, said, held_out",
    [
        ("split", np.array([0, 1, 0, 2]), [1, 3]),
        ("split", np.array([True, False, False, False]), [0]),
        ("split", np.array(["train", "test", "valid", "test"]), [1, 3]),
        ("index", np.array([4, 5, 0, 17]), [0, 2]),
    ],
    ids=["numbers", "booleans", "words", "index"],
)
def test_a_file_says_what_is_held_out(write, name, said, held_out):
    assert np.flatnonzero(read_labeled(write(x=X, y=Y, **{name: said})).held_out).tolist() == held_out


@pytest.mark.parametrize(
    "arrays, said",
    [
        ({"x": X}, "has no array y; it has x"),
        ({"y": Y}, "has neither x and y nor values, offsets and labels; it has y"),
        ({"x": X, "y": Y[:3]}, "has 4 sequences in x, but 3 labels"),
        ({"x": X, "y": Y.astype(float)}, "labels y of float64"),
        ({"x": X, "y": Y.astype(str)}, "one integer an example was wanted"),
        ({"x": X, "y": Y[:, None]}, r"labels y of int64 \(4, 1\)"),
        ({"x": X, "y": Y - 1}, "has label -1 in y"),
        ({"x": X, "y": np.array([0, 1, 3, 3])}, "no example of label 2, but some of 3"),
        ({"x": X, "y": Y + 1}, "no example of label 0"),
        ({"x": X[:0], "y": Y[:0]}, "y is empty"),
        ({"x": X[0, 0], "y": Y}, r"x of shape \(2,\)"),
        ({"x": X[:, :0], "y": Y}, "none of them 0"),
        ({"x": np.where(X == 8, np.nan, X), "y": Y}, "NaN or infinity in x, first in sequence 1"),
        ({"x": X.astype(str), "y": Y}, "numbers were wanted"),
        ({"x": X * 1j, "y": Y}, "x of complex64, but numbers were wanted"),
        ({"x": X.astype(object), "y": Y}, "holds Python objects in x"),
        ({"x": X.astype(np.int64), "y": Y}, "x of int64, over whose range integers are scaled, but none is beyond 23"),
        ({"x": X, "y": Y, "split": np.ones(3)}, r"split of float64 \(3,\)"),
        (RAGGED | {"offsets": np.array([0, 1, 6])}, r"offsets of int64 \(3,\), but 4 integers"),
        (RAGGED | {"offsets": np.array([0, 1, 4, 7])}, "do not rise from 0 to 6"),
        (RAGGED | {"offsets": np.array([0, 4, 4, 6])}, "every sequence has a step"),
        (RAGGED | {"offsets": np.array([1, 2, 4, 6])}, "do not rise from 0"),
        ({k: v for k, v in RAGGED.items() if k != "offsets"}, "has no array offsets"),
    ],
)
def test_a_file_that_holds_no_labeled_sequences_is_refused_in_one_line_that_names_it(write, arrays, said):
    with pytest.raises(ValueError, match=said) as caught:
        read_labeled(write(**arrays))
    assert "file.npz" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [0, 1, 20, 200, -5])
def test_a_file_cut_short_is_refused(write, kept):
    path = write(x=np.random.default_rng(0).standard_normal((50, 9)), y=np.arange(50) % 2)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="is not a whole .npz file"):
        read_labeled(path)


def test_a_file_with_a_changed_byte_is_refused(write):
    path = write(x=np.random.default_rng(0).standard_normal((50, 9)), y=np.arange(50) % 2)
    content = bytearray(path.read_bytes())
    content[300] ^= 255
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is damaged in x"):
        read_labeled(path)


def test_other_files_and_no_file_are_refused(tmp_path):
    np.save(tmp_path / "one.npy", X)
    (tmp_path / "text.npz").write_text("x = 1\n")
    with pytest.raises(ValueError, match="is one array"):
        read_labeled(tmp_path / "one.npy")
    with pytest.raises(ValueError, match="is not a whole .npz file"):
        read_labeled(tmp_path / "text.npz")
    with pytest.raises(FileNotFoundError, match="or the word digits"):
        read_labeled(tmp_path / "none.npz")


@pytest.mark.skipif(not SHARED.is_file(), reason="the spoken digits are not on this machine")
def test_the_spoken_digits_hold_out_thirty_recordings_of_each():
    examples, held_out = read_labeled(SHARED)
    assert np.bincount(examples.labels[held_out]).tolist() == [30] * 10 and len(examples) == 3000
    assert examples.take(np.array([0])).x.abs().max() <= 1
