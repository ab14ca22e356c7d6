"""A token file holds the ids in the narrowest dtype, is mapped and not read, and is trusted only when whole."""

import os
import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest

from lavagna.data import open_splits
from lavagna.data.tokens import HEADER_BYTES, TOKENS, Header, token_dtype

HEADER = Header(
    tokens=10,
    split=7,
    vocab_size=300,
    train_bytes=14,
    validation_bytes=3,
    documents=1,
    skipped=0,
    source="",
    tokenizer="",
    validation=0.3,
    limit_bytes=None,
)


def write(folder, header=HEADER):
    ids = np.arange(header.tokens).astype(token_dtype(header.vocab_size))
    (folder / TOKENS).write_bytes(header.to_bytes() + ids.tobytes())
    return folder


@pytest.mark.parametrize(("vocab_size", "width"), [(2, 1), (256, 1), (257, 2), (65_536, 2), (65_537, 4), (1 << 32, 4)])
def test_the_dtype_holds_the_largest_id_and_is_no_wider(vocab_size, width):
    dtype = token_dtype(vocab_size)
    assert dtype.itemsize == width
    assert np.array(vocab_size - 1).astype(dtype) == vocab_size - 1


def test_the_parts_are_the_ids_before_and_after_the_split(tmp_path):
    train, validation, header = open_splits(write(tmp_path))
    assert train[:].tolist() == list(range(7))
    assert validation[:].tolist() == [7, 8, 9]
    assert header == HEADER


def test_bytes_per_token_are_each_parts_own(tmp_path):
    train, validation, _ = open_splits(write(tmp_path))
    assert (train.bytes_per_token, validation.bytes_per_token) == (2.0, 1.0)


def test_a_part_may_be_empty(tmp_path):
    train, validation, _ = open_splits(write(tmp_path, replace(HEADER, split=10)))
    assert (len(train), len(validation)) == (10, 0)
    assert np.isnan(validation.bytes_per_token)


def test_the_ids_cannot_be_written_to(tmp_path):
    with pytest.raises(ValueError, match="read-only"):
        open_splits(write(tmp_path)).train[:1][0] = 1


def test_the_header_is_a_line_of_text():
    assert len(HEADER.to_bytes()) == HEADER_BYTES
    assert HEADER.to_bytes().decode("ascii").splitlines()[0].startswith('{"format": "lavagna tokens 1"')


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory as Linux does")
def test_a_file_larger_than_memory_is_opened_without_reading_it(tmp_path):
    tokens = 1 << 36
    with open(tmp_path / TOKENS, "wb") as file:
        file.write(replace(HEADER, tokens=tokens, split=tokens - 9).to_bytes())
        file.truncate(HEADER_BYTES + 2 * tokens)
    code = textwrap.dedent("""
        import sys
        from lavagna.data import Batches, open_splits
        from memory import peak
        before = peak()
        batches = Batches(open_splits(sys.argv[1]).train, batch=8, context=64, seed=0)
        for step in range(20):
            batches.at(step)
        print(peak() - before)
    """)
    out = subprocess.run(
        [sys.executable, "-c", code, tmp_path],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert int(out.stdout) < 50e6


def test_a_missing_file_says_how_to_make_it(tmp_path):
    with pytest.raises(FileNotFoundError, match="Make it with prepare"):
        open_splits(tmp_path)


@pytest.mark.parametrize("change", [-1, 1])
def test_a_file_of_another_length_is_not_trusted(tmp_path, change):
    path = write(tmp_path) / TOKENS
    os.truncate(path, path.stat().st_size + change)
    with pytest.raises(ValueError, match="10 tokens make 4116. Remove it"):
        open_splits(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", bytes(9000), HEADER.to_bytes().replace(b"tokens 1", b"tokens 9"), b'{"format": 1, "dtype": 1}'],
)
def test_a_file_of_another_kind_is_not_trusted(tmp_path, content):
    (tmp_path / TOKENS).write_bytes(content)
    with pytest.raises(ValueError, match="not a token file of this version"):
        open_splits(tmp_path)
