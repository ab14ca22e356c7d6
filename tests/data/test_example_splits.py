"""A run's own copy of its examples, split once and for all."""

import numpy as np
import pytest

from lavagna.data import open_examples, prepare_examples

X = np.random.default_rng(0).standard_normal((30, 7)).astype(np.float32)
Y = np.arange(30) % 3
OURS, OTHERS = ("examples 1".encode("utf-32-le"), "examples 9".encode("utf-32-le"))


@pytest.fixture
def source(tmp_path):
    np.savez(tmp_path / "source.npz", x=X, y=Y)
    return tmp_path / "source.npz"


def same(one, other) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("values", "offsets", "labels"))


def test_what_was_prepared_is_opened_as_it_was(source, tmp_path):
    prepared = prepare_examples(source, tmp_path / "kept.npz", decimate=2)
    opened = open_examples(tmp_path / "kept.npz")
    assert opened.header == prepared.header
    assert same(opened.train, prepared.train) and same(opened.validation, prepared.validation)


@pytest.mark.parametrize("share", [None, 0.5])
def test_each_example_is_in_one_part_and_the_share_is_held_out(source, tmp_path, share):
    train, validation, header = prepare_examples(source, tmp_path / "kept.npz", validation=share)
    rows = np.concatenate([train.values.reshape(-1, 7), validation.values.reshape(-1, 7)])
    assert sorted(map(tuple, rows)) == sorted(map(tuple, X))
    assert (header.train, header.validation) == ((24, 6) if share is None else (15, 15))


def test_a_share_that_is_given_goes_before_what_the_file_says(tmp_path):
    np.savez(tmp_path / "said.npz", x=X, y=Y, split=np.arange(30) >= 27)
    said = prepare_examples(tmp_path / "said.npz", tmp_path / "kept.npz")
    assert np.array_equal(said.validation.values.reshape(-1, 7), X[27:])
    assert prepare_examples(tmp_path / "said.npz", tmp_path / "kept.npz", validation=0.5).header.validation == 15


def test_a_decimated_sequence_is_the_means_of_its_pieces(source, tmp_path):
    decimated = prepare_examples(source, tmp_path / "kept.npz", decimate=3)
    whole = prepare_examples(source, tmp_path / "kept.npz")
    pieces = [whole.train.values.reshape(-1, 7)[:, part].mean(1) for part in (slice(0, 3), slice(3, 6), slice(6, 7))]
    assert np.allclose(decimated.train.values.reshape(-1, 3), np.stack(pieces, 1), atol=1e-6)


def test_the_fingerprint_tells_other_numbers_labels_and_splits_apart(tmp_path):
    changed = X.copy()
    changed[3, 2] += 1
    found = set()
    for arrays in ({"x": X, "y": Y}, {"x": changed, "y": Y}, {"x": X, "y": Y[::-1]}):
        np.savez(tmp_path / "source.npz", **arrays)
        for share in (None, 0.3):
            header = prepare_examples(tmp_path / "source.npz", tmp_path / "kept.npz", validation=share).header
            found.add(header.fingerprint)
    assert len(found) == 6


def test_the_digits_hold_out_a_fifth_with_every_label(tmp_path):
    pytest.importorskip("sklearn", reason="scikit-learn, the extra 'digits', is not installed")
    splits = prepare_examples("digits", tmp_path / "kept.npz")
    assert (splits.header.train, splits.header.validation) == (1438, 359)
    assert np.bincount(splits.validation.labels).min() >= 20


@pytest.mark.parametrize(
    "options, said",
    [
        ({"enlarge": 28}, "enlarge is for the pictures of digits"),
        ({"decimate": 0}, "decimate came as 0"),
        ({"validation": 0.0}, "validation came as 0.0"),
        ({"validation": 1.0}, "validation came as 1.0"),
        ({"validation": 0.01}, "0 are held out"),
        ({"validation": 0.95}, "all examples of label . .* are held out"),
    ],
)
def test_options_that_leave_nothing_to_learn_are_refused_and_nothing_is_written(source, tmp_path, options, said):
    with pytest.raises(ValueError, match=said):
        prepare_examples(source, tmp_path / "kept.npz", **options)
    assert not (tmp_path / "kept.npz").exists()


def test_the_digits_have_one_label(tmp_path):
    with pytest.raises(ValueError, match="the source is digits, which has one label"):
        prepare_examples("digits", tmp_path / "kept.npz", label="y")


@pytest.mark.parametrize("damage", [lambda data: data[:-30], lambda data: b"", lambda data: data.replace(OURS, OTHERS)])
def test_a_damaged_copy_is_refused(source, tmp_path, damage):
    kept = tmp_path / "kept.npz"
    prepare_examples(source, kept)
    kept.write_bytes(damage(kept.read_bytes()))
    with pytest.raises(ValueError, match="is not a whole file of examples"):
        open_examples(kept)
    with pytest.raises(FileNotFoundError, match="there is no"):
        open_examples(tmp_path / "none.npz")
