"""A source becomes a token file that holds all of its text, once, and is made anew only when something changed."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from lavagna.data import Tokenizer, documents, open_splits, prepare
from lavagna.data.preparation import _split_point
from lavagna.data.tokens import TOKENS

WORDS = "the cat è 한 sat\r\n on the mat.\n\n  And  then? "


@pytest.fixture(scope="module")
def bpe():
    return Tokenizer.train([WORDS * 30], vocab_size=300)


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "text é"
    root.mkdir()
    for i in range(40):
        (root / f"{i}.txt").write_bytes(f"{i} {WORDS * (i % 7 + 1)}".encode())
    (root / "noise.bin").write_bytes(b"\0")
    return root


def ids_of(splits):
    return np.concatenate([splits.train[:], splits.validation[:]]).tolist()


def test_bytes_hold_the_documents_one_after_the_other(folder, tmp_path):
    splits = prepare(folder, Tokenizer.bytes(), tmp_path / "out")
    text = b"".join(document.read() for document in documents(folder, order="mixed"))
    assert bytes(ids_of(splits)) == text
    assert splits.header.documents == 40 and splits.header.skipped == 1


def test_each_document_is_encoded_alone_and_ended_by_the_border(folder, tmp_path, bpe):
    splits = prepare(folder, bpe, tmp_path / "out")
    wanted = []
    for document in documents(folder, order="mixed"):
        wanted += [*bpe.encode(document.read().decode()), bpe.eos_id]
    assert ids_of(splits) == wanted


def test_a_long_document_encodes_as_a_whole(tmp_path, bpe):
    path = tmp_path / "long.txt"
    path.write_bytes((WORDS * 8000).encode())
    assert ids_of(prepare(path, bpe, tmp_path / "out")) == [*bpe.encode(WORDS * 8000), bpe.eos_id]


def test_a_tokenizer_of_another_kind_gets_whole_documents(tmp_path):
    inner = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    (tmp_path / "x.txt").write_text("a b " * 50_000)
    splits = prepare(tmp_path / "x.txt", Tokenizer(inner), tmp_path / "out", validation=0.25)
    assert ids_of(splits) == [0, 1] * 50_000
    assert splits.validation.bytes_per_token == 2.0


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_byte_counts_are_those_of_the_decoded_parts(folder, tmp_path, bpe, kind):
    tokenizer = bpe if kind == "bpe" else Tokenizer.bytes()
    for part in prepare(folder, tokenizer, tmp_path / "out", validation=0.2)[:2]:
        assert part.byte_count == sum(len(tokenizer.token_bytes(i)) for i in part[:].tolist() if i != tokenizer.eos_id)
        assert part.bytes_per_token == part.byte_count / len(part)


def test_validation_is_the_end_in_whole_documents_where_that_is_near(folder, tmp_path, bpe):
    train, validation, _ = prepare(folder, bpe, tmp_path / "out", validation=0.3)
    assert train[-1] == bpe.eos_id
    assert 0.15 < len(validation) / (len(train) + len(validation)) < 0.45


def test_validation_of_one_document_is_its_end(tmp_path):
    (tmp_path / "x.txt").write_bytes(bytes(range(32, 127)) * 10)
    train, validation, _ = prepare(tmp_path / "x.txt", Tokenizer.bytes(), tmp_path / "out", validation=0.1)
    assert (len(train), len(validation)) == (855, 95)


@given(ends=st.lists(st.integers(1, 99), min_size=1), share=st.floats(0, 0.99))
def test_the_split_keeps_near_its_share(ends, share):
    ends = np.cumsum(ends)
    tokens = int(ends[-1])
    split = _split_point(ends, tokens, share)
    held = min(tokens // 2, max(2, round(tokens * share))) if share else 0
    assert 0 <= split <= tokens and abs((tokens - split) - held) <= held / 2


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_outside_is_refused(folder, tmp_path, share):
    with pytest.raises(ValueError, match="validation is .* below 1"):
        prepare(folder, Tokenizer.bytes(), tmp_path / "out", validation=share)


def test_without_a_validation_share_all_is_to_train_on(folder, tmp_path):
    assert len(prepare(folder, Tokenizer.bytes(), tmp_path / "out", validation=0).validation) == 0


def test_preparing_again_leaves_the_file_alone(folder, tmp_path, bpe):
    prepare(folder, bpe, tmp_path / "out")
    before = (tmp_path / "out" / TOKENS).stat()
    prepare(folder, bpe, tmp_path / "out")
    after = (tmp_path / "out" / TOKENS).stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def _edit(folder):
    path = folder / "3.txt"
    times = path.stat()
    path.write_bytes(path.read_bytes().replace(b"cat", b"dog"))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        _edit,
        lambda folder: (folder / "3.txt").unlink(),
        lambda folder: (folder / "new.txt").write_text("x"),
    ],
    ids=["edited within its size and time", "removed", "added"],
)
def test_a_changed_source_is_noticed(folder, tmp_path, change):
    prepare(folder, Tokenizer.bytes(), tmp_path / "out")
    change(folder)
    again = prepare(folder, Tokenizer.bytes(), tmp_path / "out")
    assert bytes(ids_of(again)) == b"".join(document.read() for document in documents(folder, order="mixed"))
    assert again.header == prepare(folder, Tokenizer.bytes(), tmp_path / "fresh").header


def test_text_moved_from_one_document_to_the_next_is_noticed(tmp_path, bpe):
    (tmp_path / "text").mkdir()
    for first, second in (("the cat", " sat"), ("the", " cat sat")):
        lines = [json.dumps({"text": text}) for text in (first, second)]
        (tmp_path / "text" / "x.jsonl").write_text("\n".join(lines))
        splits = prepare(tmp_path / "text", bpe, tmp_path / "out")
        assert ids_of(splits) == [*bpe.encode(first), bpe.eos_id, *bpe.encode(second), bpe.eos_id]


@pytest.mark.parametrize("options", [{"validation": 0.2}, {"limit_bytes": 500}])
def test_changed_options_are_noticed(folder, tmp_path, options):
    prepare(folder, Tokenizer.bytes(), tmp_path / "out")
    again = prepare(folder, Tokenizer.bytes(), tmp_path / "out", **options)
    assert again.header == prepare(folder, Tokenizer.bytes(), tmp_path / "fresh", **options).header


def test_another_tokenizer_is_noticed(folder, tmp_path, bpe):
    prepare(folder, Tokenizer.bytes(), tmp_path / "out")
    assert prepare(folder, bpe, tmp_path / "out").header.tokenizer == bpe.fingerprint


def test_a_damaged_file_is_made_anew(folder, tmp_path):
    whole = ids_of(prepare(folder, Tokenizer.bytes(), tmp_path / "out"))
    os.truncate(tmp_path / "out" / TOKENS, 5000)
    assert ids_of(prepare(folder, Tokenizer.bytes(), tmp_path / "out")) == whole


def test_whoever_holds_the_old_file_keeps_it(folder, tmp_path):
    old = prepare(folder, Tokenizer.bytes(), tmp_path / "out")
    before = ids_of(old)
    _edit(folder)
    prepare(folder, Tokenizer.bytes(), tmp_path / "out")
    assert ids_of(old) == before


def test_a_limit_bounds_the_text(folder, tmp_path):
    splits = prepare(folder, Tokenizer.bytes(), tmp_path / "out", limit_bytes=1000)
    assert len(splits.train) + len(splits.validation) == 1000


def test_progress_ends_at_all_of_the_text(folder, tmp_path, bpe):
    calls = []
    prepare(folder, bpe, tmp_path / "out", progress=lambda done, total: calls.append((done, total)))
    done = [d for d, _ in calls]
    assert done == sorted(done) and done[-1] == calls[-1][1] == sum(len(d.read()) for d in documents(folder))


def test_a_source_whose_lines_are_all_empty_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "x.jsonl").write_text('{"text": ""}\n')
    with pytest.raises(ValueError, match="no text at all"):
        prepare(tmp_path / "x.jsonl", Tokenizer.bytes(), tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []


def _run(code, *arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        timeout=120,
    )


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no SIGKILL")
@pytest.mark.parametrize("had", [True, False], ids=["over an older file", "into an empty folder"])
def test_a_killed_preparation_is_not_trusted_later(folder, tmp_path, had):
    out = tmp_path / "out"
    if had:
        prepare(folder, Tokenizer.bytes(), out)
        _edit(folder)
    killed = _run(
        """
        import os, signal, sys
        from lavagna.data import Tokenizer, prepare
        prepare(sys.argv[1], Tokenizer.bytes(), sys.argv[2], progress=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
        """,
        folder,
        out,
    )
    assert killed.returncode == -signal.SIGKILL
    assert (out / TOKENS).exists() == had
    assert prepare(folder, Tokenizer.bytes(), out).header == prepare(folder, Tokenizer.bytes(), tmp_path / "b").header


def test_processes_that_prepare_at_once_all_get_the_whole(folder, tmp_path):
    code = """
        import sys
        from lavagna.data import Tokenizer, prepare
        splits = prepare(sys.argv[1], Tokenizer.bytes(), sys.argv[2])
        sys.stdout.buffer.write(bytes(splits.train[:]) + bytes(splits.validation[:]))
    """
    with ThreadPoolExecutor(3) as pool:
        done = list(pool.map(lambda _: _run(code, folder, tmp_path / "out"), range(3)))
    text = b"".join(document.read() for document in documents(folder, order="mixed"))
    assert [out.stdout for out in done] == [text] * 3
    assert os.listdir(tmp_path / "out") == [TOKENS]


@pytest.mark.skipif(sys.platform == "win32", reason="this system has no limit on the size of files")
def test_a_full_disk_leaves_the_old_file_and_one_line(folder, tmp_path, bpe):
    before = prepare(folder, bpe, tmp_path / "out").header
    out = _run(
        """
        import resource, sys
        from lavagna.data import Tokenizer, prepare
        resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
        try:
            prepare(sys.argv[1], Tokenizer.bytes(), sys.argv[2])
        except OSError as error:
            print(error)
        """,
        folder,
        tmp_path / "out",
    )
    assert out.returncode == 0 and b"Free some space" in out.stdout and len(out.stdout.splitlines()) == 1
    assert os.listdir(tmp_path / "out") == [TOKENS]
    assert open_splits(tmp_path / "out").header == before


def test_a_locale_without_utf8_changes_nothing(tmp_path, bpe):
    folder = tmp_path / "un dossier é"
    folder.mkdir()
    (folder / "é한 x.txt").write_bytes("\ufeffé한\r\nfine\r\n".encode() * 20)
    bpe.save(folder)
    here = prepare(folder / "é한 x.txt", bpe, tmp_path / "here").header
    there = _run(
        """
        import sys
        from lavagna.data import Tokenizer, prepare
        path, tokenizer, out = sys.argv[1:]
        assert not sys.flags.utf8_mode
        print(prepare(path, Tokenizer.load(tokenizer), out).header.to_bytes().decode())
        """,
        folder / "é한 x.txt",
        folder,
        folder / "tokens",
        LC_ALL="C",
        PYTHONUTF8="0",
        PYTHONCOERCECLOCALE="0",
        PYTHONIOENCODING="ascii",
    )
    assert there.stdout.strip() == here.to_bytes().strip(), there.stderr
