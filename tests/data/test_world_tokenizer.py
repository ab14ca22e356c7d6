"""RWKV's vocabulary is read as published, and encodes as RWKV's own code does."""

import pickle
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import lavagna as lv
from generation.scripted import Scripted
from lavagna.data import Tokenizer, WorldTokenizer, open_splits, prepare
from lavagna.generation import stream

TEXTS = Path(__file__).parents[2].parent / "shared" / "data" / "text"
BYTES = {id: bytes([id - 1]) for id in range(1, 257)}
SMALL = BYTES | {300: b"ab", 301: b"abc", 302: "é".encode(), 303: b"\xad\x9c" + b"a", 304: b"'\"\\", 305: b" \n"}
MANY = [
    "", " ", "abcabab", "  two before, two after  ", "a\r\nb\rc\n\n\n", "\0\0x\0", "e\u0301\u0301", "\ufeffx",
    "é한글 日本語の文章。\n", "👨\u200d👩\u200d👧", "<|endoftext|>", "\u00a0\u3000\u2028\x85",
    "Ελληνικά, русский, עברית, العربية, हिन्दी", "'s \"ll\\ \\x00 '\"", " " * 300,
    "def f(x):\n\treturn x ** 2  # ----------------------------------------\n",
]  # fmt: skip


@pytest.fixture
def small():
    return WorldTokenizer(SMALL)


@pytest.fixture(scope="module")
def published():
    """The vocabulary as it is published, with the tokenizer of its own authors."""
    theirs = pytest.importorskip(
        "rwkv.rwkv_tokenizer", reason="the rwkv package, of the dev extra, holds the vocabulary"
    )
    file = Path(theirs.__file__).with_name("rwkv_vocab_v20230424.txt")
    return WorldTokenizer.load(file), theirs.TRIE_TOKENIZER(str(file)), file


def written(tmp_path, text):
    file = tmp_path / "rwkv_vocab_v1.txt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


@pytest.mark.parametrize("text", MANY)
def test_published_vocabulary_encodes_as_its_authors_do(published, text):
    ours, theirs, _ = published
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("name", ["tinyshakespeare.txt", "wikitext2.valid.txt"])
def test_published_vocabulary_encodes_whole_books_as_its_authors_do(published, name):
    if not (TEXTS / name).is_file():
        pytest.skip(f"there is no {TEXTS / name}")
    ours, theirs, _ = published
    text = (TEXTS / name).read_bytes()[:300_000].decode("utf-8", "ignore")
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.decode(ids) == text


@given(text=st.text() | st.text(alphabet=st.sampled_from("ab cÀé한\n \t'\"\\0")))
def test_any_text_comes_back_whole(published, text):
    ours, theirs, _ = published
    assert ours.decode(ours.encode(text)) == text
    assert ours.encode(text) == theirs.encode(text)


def test_published_vocabulary_is_written_back_line_for_line(published, tmp_path):
    ours, _, file = published
    assert (ours.vocab_size, ours.eos_id, ours.in_pieces) == (65530, 0, True)
    saved = ours.save(tmp_path)
    assert saved.name == "rwkv_vocab.txt"
    assert saved.read_bytes() == file.read_bytes().replace(b"\r\n", b"\n")


def test_a_megabyte_takes_a_second_or_two_whatever_it_holds(published):
    ours, _, _ = published
    # Runs of spaces make the longest tokens, and a letter breaks every one of them off.
    for text in ("the quick brown fox, 1234; " * 37_000, (" " * 127 + "x") * 7_800):
        begin = time.process_time()
        assert len(ours.encode(text)) > 7_800
        assert time.process_time() - begin < 4


def test_the_longest_token_is_taken_also_where_it_costs_more_tokens():
    assert WorldTokenizer({1: b"a", 2: b"b", 3: b"ab", 4: b"bcd", 5: b"c", 6: b"d"}).encode("abcd") == [3, 5, 6]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_lines_may_end_either_way_and_stand_in_any_order(tmp_path, end, last, mark):
    lines = ["9 'é\\n' 3", "2 b'\\xff\\x00' 2", '3 "it\'s" 4', "11 '\\'\"' 2", "4 '    ' 4"]
    read = WorldTokenizer.load(written(tmp_path, mark + end.join(lines) + end * last))
    assert read == WorldTokenizer({9: "é\n".encode(), 2: b"\xff\x00", 3: b"it's", 11: b"'\"", 4: b"    "})
    assert read.vocab_size == 12


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("2 'ab' 3", "the token has 2 bytes, but 3 are said"),
        ("2 'é' 1", "the token has 2 bytes, but 1 are said"),
        ("2 'a' 1", "b'a' is already id 1"),
        ("1 'b' 1", "id 1 was already given"),
        ("0 'b' 1", "id 0 is the end of a document"),
        ("-2 'b' 1", "is not an id, a token and a length"),
        ("2 'b'", "is not an id, a token and a length"),
        ("", "is not an id, a token and a length"),
        ("2 '' 0", "the token is empty"),
        ("2 b 1", "is not a str or bytes"),
        ("2 'b 1", "is not a str or bytes"),
        ("2 'b'+'c' 2", "is not a str or bytes"),
        ("2 17 2", "is not a str or bytes"),
        ("2 '\\ud800' 3", "is not a str or bytes"),
        ("2 __import__('os').abort() 1", "is not a str or bytes"),
        ("2 " + "(" * 5000 + " 1", "is not a str or bytes"),
    ],
)
def test_a_broken_line_is_refused_by_its_number(tmp_path, line, what):
    with pytest.raises(ValueError, match="rwkv_vocab_v1.txt', line 2, ") as caught:
        WorldTokenizer.load(written(tmp_path, f"1 'a' 1\n{line}\n3 'c' 1\n"))
    assert what in str(caught.value)
    assert len(str(caught.value).replace(str(tmp_path), "")) < 400


def test_a_file_that_is_no_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match="not UTF-8 near byte 6"):
        WorldTokenizer.load(written(tmp_path, b"1 'a' \xff"))
    with pytest.raises(ValueError, match="line 1, ''"):
        WorldTokenizer.load(written(tmp_path, b""))


def test_a_folder_gives_its_only_vocabulary(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no vocabulary at"):
        WorldTokenizer.load(tmp_path)
    written(tmp_path, "1 'a' 1")
    assert WorldTokenizer.load(tmp_path).encode("aa") == [1, 1]
    (tmp_path / "rwkv_vocab_v2.txt").write_bytes(b"1 'a' 1")
    assert WorldTokenizer.load(tmp_path).encode("aa") == [1, 1]
    (tmp_path / "rwkv_vocab_v2.txt").write_text("1 'b' 1")
    with pytest.raises(ValueError, match="several vocabularies: rwkv_vocab_v1.txt, rwkv_vocab_v2.txt"):
        WorldTokenizer.load(tmp_path)


@pytest.mark.parametrize("tokens", [{}, {0: b"a"}, {-1: b"a"}, {1: b""}, {1: b"a", 2: b"a"}])
def test_tokens_that_are_no_vocabulary_are_refused(tokens):
    with pytest.raises(ValueError, match="WorldTokenizer: the vocabulary holds"):
        WorldTokenizer(tokens)


def test_text_whose_bytes_no_token_covers_is_refused_with_the_byte():
    few = WorldTokenizer({1: b"a", 2: b"bc"})
    with pytest.raises(ValueError, match="no token fits at byte 3 of the text, b'bd', .* lacks the byte 0x62"):
        few.encode("abcbd")


def test_a_lone_surrogate_is_refused_with_its_place(small):
    with pytest.raises(ValueError, match="lone surrogate, .* at character 2"):
        small.encode("ab\ud800")


def test_the_document_border_reads_as_its_name_and_is_never_encoded(small):
    assert small.decode([0, 300, 0]) == "<|endoftext|>ab<|endoftext|>"
    assert small.token_bytes(0) == b"<|endoftext|>"
    assert 0 not in small.encode("a<|endoftext|>b\0")
    assert small.byte_lengths()[[0, 1, 257, 300, 301]].tolist() == [0, 1, 0, 2, 3]


@pytest.mark.parametrize("id", [-1, 257, 306])
def test_an_id_that_has_no_token_is_named_with_the_size(small, id):
    for call in (lambda: small.decode([65, id]), lambda: small.token_bytes(id)):
        with pytest.raises(ValueError, match=f"id {id} is outside the vocabulary of 306"):
            call()


@pytest.mark.parametrize("wrap", [list, np.array, torch.tensor])
def test_ids_may_be_a_list_an_array_or_a_tensor(small, wrap):
    assert small.decode(wrap(small.encode("né"))) == "né"


def test_many_texts_encode_as_each_alone(small):
    assert [ids.tolist() for ids in small.encode_many(MANY)] == [small.encode(text) for text in MANY]


@pytest.mark.parametrize("name", ["a folder é", "a folder é/mine.txt"])
def test_saved_loaded_and_pickled_it_is_the_same(small, tmp_path, name):
    file = small.save(tmp_path / name)
    for copy in (
        WorldTokenizer.load(file),
        WorldTokenizer.load(file.parent / file.name),
        pickle.loads(pickle.dumps(small)),
    ):
        assert copy == small
        assert hash(copy) == hash(small)
        assert [copy.encode(text) for text in MANY] == [small.encode(text) for text in MANY]


def test_other_tokens_or_another_kind_are_not_the_same(small):
    assert small != WorldTokenizer({**SMALL, 300: b"ba"})
    assert small != WorldTokenizer({**BYTES, 301: b"ab"})
    assert WorldTokenizer(BYTES) != Tokenizer.bytes()
    assert repr(small) == "WorldTokenizer(vocab_size=306, eos_id=0)"


@pytest.mark.parametrize(
    ("token", "whole"), [(b"\n\n a", True), ("。\n".encode(), True), (b"a ", False), (b"\xa9\n", False)]
)
def test_a_text_may_be_encoded_in_pieces_where_no_token_reaches_over_a_cut(token, whole):
    assert WorldTokenizer({**BYTES, 300: token}).in_pieces is whole


def test_text_is_prepared_for_training_with_a_border_after_each_document(small, tmp_path):
    (tmp_path / "text.txt").write_bytes("abc é\r\nab".encode() * 1000)
    splits = prepare(tmp_path / "text.txt", small, tmp_path / "out", validation=0.2)
    ids = np.concatenate([splits.train.ids, splits.validation.ids])
    assert ids[-1] == 0
    assert small.decode(ids[:-1]) == "abc é\r\nab" * 1000
    assert splits.header.train_bytes + splits.header.validation_bytes == 10_000
    assert open_splits(tmp_path / "out").header.tokenizer == small.fingerprint


def test_a_model_is_saved_and_loaded_with_it_and_streams_its_text(small, tmp_path):
    model = lv.LanguageModel(lv.ModelConfig("linear_attention", d_model=16, depth=1, vocab_size=320))
    lv.save(model, tmp_path / "m", Tokenizer.bytes())
    lv.save(model, tmp_path / "m", small)
    assert sorted(file.name for file in (tmp_path / "m").iterdir()) == [
        "config.json",
        "model.safetensors",
        "rwkv_vocab.txt",
    ]
    assert lv.load(tmp_path / "m").tokenizer == small


def test_streamed_text_has_whole_characters_and_ends_at_the_document_border(small):
    said = [*small.encode("abcé한 ab"), 303, 0, 300]
    assert list(stream(Scripted(said[1:], vocab_size=320), small, "abc", max_new_tokens=20)) == [
        *"é한 ", "ab", "\ufffd\ufffda",
    ]  # fmt: skip
