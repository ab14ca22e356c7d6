"""Text becomes ids and comes back whole, whatever it holds."""

import json
import os
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, processors

from lavagna.data import Tokenizer

SAMPLE = ["def f(x):\n    return x + 1\r\n" * 20, "è così, 안녕하세요 — così è\n" * 20, "<|endoftext|>" * 50]
HARD = [
    "", " ", "  two before, two after  ", "a\r\nb\rc\n\n\n", "\0\0x\0", "\u0301", "e\u0301\u0301", "é한",
    "👨\u200d👩\u200d👧", "<|endoftext|>", "a<|endoftext|>b", "</s>[EOS]", "\ufeffx", "\u00a0\u3000\u2028",
    "\t\t \n\t", "'s 'll Ġ Ċ", "\x85\x1c",
]  # fmt: skip


@pytest.fixture(scope="module")
def bpe():
    return Tokenizer.train(SAMPLE, vocab_size=300)


@pytest.fixture(params=["bytes", "bpe"])
def tokenizer(request, bpe):
    return bpe if request.param == "bpe" else Tokenizer.bytes()


@pytest.fixture
def foreign(tmp_path):
    """A file as others write it: specials first, added tokens, truncation, padding, a template that adds specials."""
    vocab = {c: i + 2 for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab | {"<s>": 0, "</s>": 1}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens(["<s>", "</s>"])
    inner.add_tokens(["    ", "é"])
    inner.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)])
    inner.enable_truncation(5)
    inner.enable_padding(length=9)
    inner.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.mark.parametrize("text", HARD)
def test_hard_text_comes_back_whole(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=st.text())
def test_any_text_comes_back_whole(bpe, text):
    assert bpe.decode(bpe.encode(text)) == text
    assert Tokenizer.bytes().decode(Tokenizer.bytes().encode(text)) == text


@given(data=st.binary(), cut=st.integers(0, 50))
def test_bytes_that_are_not_text_decode_as_bytes_do(data, cut):
    assert Tokenizer.bytes().decode(list(data[cut:])) == data[cut:].decode("utf-8", "replace")


@given(data=st.data())
def test_decoding_joins_the_bytes_of_the_tokens(bpe, data):
    ids = data.draw(st.lists(st.integers(0, bpe.vocab_size - 1)))
    assert bpe.decode(ids) == b"".join(bpe.token_bytes(i) for i in ids).decode("utf-8", "replace")


@given(text=st.text(alphabet="<|endoftx>\n ") | st.text())
def test_plain_text_never_gives_the_document_border(bpe, text):
    assert bpe.eos_id not in bpe.encode(text + "<|endoftext|>" + text)


def test_ids_below_256_are_the_bytes(tokenizer):
    assert [tokenizer.token_bytes(i) for i in range(256)] == [bytes([i]) for i in range(256)]


def test_bytes_encode_to_their_values():
    assert Tokenizer.bytes().encode("é\0\n") == list("é\0\n".encode())
    assert Tokenizer.bytes().vocab_size == 256
    assert Tokenizer.bytes().eos_id is None


def test_the_document_border_is_the_last_id(bpe):
    assert bpe.eos_id == bpe.vocab_size - 1
    assert bpe.token_bytes(bpe.eos_id) == b"<|endoftext|>"


def test_merges_shorten_the_text_they_were_learned_from(bpe):
    assert len(bpe.encode(SAMPLE[0])) < 0.6 * len(SAMPLE[0].encode())


def test_the_least_bpe_is_the_bytes_and_the_border():
    least = Tokenizer.train(SAMPLE, vocab_size=257)
    assert least.encode("è") == list("è".encode())
    assert least.vocab_size == 257


def test_a_vocabulary_too_small_for_the_bytes_says_so():
    with pytest.raises(ValueError, match="vocab_size is 256, .* at least 257"):
        Tokenizer.train(SAMPLE, vocab_size=256)


def test_training_twice_learns_the_same_also_in_another_process(bpe):
    code = f"from lavagna.data import Tokenizer; print(Tokenizer.train({SAMPLE!r}, vocab_size=300).fingerprint)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=_environment())
    assert other.stdout.strip() == bpe.fingerprint


@pytest.mark.parametrize("wrap", [list, np.array, torch.tensor])
def test_ids_may_be_a_list_an_array_or_a_tensor(tokenizer, wrap):
    assert tokenizer.decode(wrap(tokenizer.encode("né"))) == "né"


@pytest.mark.parametrize("id", [-1, 10_000])
def test_an_id_beyond_the_vocabulary_is_named_with_the_size(tokenizer, id):
    for call in (lambda: tokenizer.decode([65, id]), lambda: tokenizer.token_bytes(id)):
        with pytest.raises(ValueError, match=f"id {id} is outside the vocabulary of {tokenizer.vocab_size}"):
            call()


@pytest.mark.parametrize("ids", [torch.zeros(1, 2, dtype=torch.long), [0.5], ["a"]])
def test_what_is_not_a_row_of_ids_is_refused(tokenizer, ids):
    with pytest.raises(ValueError, match="is not an id"):
        tokenizer.decode(ids)


def test_a_lone_surrogate_is_refused_with_its_place(tokenizer):
    with pytest.raises(ValueError, match="lone surrogate, .* at character 2"):
        tokenizer.encode("ab\ud800")


def test_many_texts_encode_as_each_alone(tokenizer):
    many = [ids.tolist() for ids in tokenizer.encode_many(HARD)]
    assert many == [tokenizer.encode(text) for text in HARD]


@pytest.mark.parametrize("name", ["a folder é", "a folder é/mine.json"])
def test_saving_and_loading_gives_the_same_tokenizer(tokenizer, tmp_path, name):
    tokenizer.save(tmp_path / name)
    loaded = Tokenizer.load(tmp_path / name)
    assert loaded == tokenizer
    assert [loaded.encode(text) for text in HARD] == [tokenizer.encode(text) for text in HARD]
    assert loaded.eos_id == tokenizer.eos_id


def test_the_file_is_one_that_the_library_reads_alike(tokenizer, tmp_path):
    library = tokenizers.Tokenizer.from_file(str(tokenizer.save(tmp_path)))
    text = "def f(x): è 안녕\r\n"
    assert library.encode(text).ids == tokenizer.encode(text)
    assert library.decode(tokenizer.encode(text)) == text


def test_pickling_keeps_special_tokens_out_of_plain_text(bpe):
    copy = pickle.loads(pickle.dumps(bpe))
    assert copy == bpe
    assert copy.encode("<|endoftext|>") == bpe.encode("<|endoftext|>")


def test_a_foreign_file_drops_no_text_and_adds_none(foreign):
    text = "longer than five tokens, é    <s>"
    loaded = Tokenizer.load(foreign)
    assert loaded.decode(loaded.encode(text)) == text
    assert not {0, 1} & set(loaded.encode(text))


def test_added_tokens_of_a_foreign_file_stand_for_their_own_text(foreign):
    loaded = Tokenizer.load(foreign)
    assert loaded.token_bytes(loaded.encode("    ")[0]) == b"    "
    assert loaded.decode(loaded.encode("é")) == "é"


def test_an_id_that_the_vocabulary_leaves_out_is_refused():
    inner = tokenizers.Tokenizer(models.BPE(vocab={"a": 0, "b": 2}, merges=[]))
    inner.decoder = decoders.ByteLevel()
    assert Tokenizer(inner).decode([0, 2]) == "ab"
    with pytest.raises(ValueError, match="id 1 is outside the vocabulary of 3"):
        Tokenizer(inner).decode([1])


def test_the_document_border_of_a_foreign_file_goes_by_its_usual_name(foreign):
    assert Tokenizer.load(foreign).eos_id == 1


@pytest.mark.parametrize("token", ["<s>", {"content": "<s>", "lstrip": False}])
def test_a_config_beside_the_file_names_the_document_border(foreign, token):
    (foreign / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
    assert Tokenizer.load(foreign).eos_id == 0


def test_a_file_of_another_kind_decodes_as_the_library_does(tmp_path):
    inner = tokenizers.Tokenizer(models.WordLevel({"ciao": 0, "mondo": 1, "?": 2}, unk_token="?"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    inner.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path)
    assert not loaded.byte_level
    assert loaded.decode(loaded.encode("ciao mondo")) == "ciao mondo"
    with pytest.raises(ValueError, match="not byte-level"):
        loaded.token_bytes(0)
    with pytest.raises(ValueError, match="id 3 is outside the vocabulary of 3"):
        loaded.decode([3])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no tokenizer at .*nowhere"):
        Tokenizer.load(tmp_path / "nowhere")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b'{"version": "1.0", "model": 3}'])
def test_a_file_that_is_no_tokenizer_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match="is not a tokenizer.json") as caught:
        Tokenizer.load(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_encodes_after_its_parent_did():
    code = textwrap.dedent("""
        import os, signal
        from lavagna.data import Tokenizer
        bpe = Tokenizer.train(["some words " * 99], vocab_size=270)
        list(bpe.encode_many(["some words"] * 99))
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            os._exit(len(list(bpe.encode_many(["some words"] * 99))) != 99)
        raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """)
    assert subprocess.run([sys.executable, "-c", code], env=_environment(), timeout=120).returncode == 0


def _environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
