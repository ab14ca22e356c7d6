"""Streaming gives the text that generation gives, piece by piece."""

import itertools

import pytest
import torch

import lavagna as lv
from generation.scripted import Scripted
from lavagna.data import Tokenizer

BYTES = Tokenizer.bytes()
BPE = Tokenizer.train(["the cat sat on the mat\n\n" * 30, "User: hi\n\nUser: ho\n" * 30], vocab_size=300)
PROMPT = "hello"


def scripted(said, *, tokenizer=BYTES):
    """A model that goes on from PROMPT with given text, bytes or ids."""
    said = list(said) if isinstance(said, bytes | list) else tokenizer.encode(said)
    return Scripted([0] * (len(tokenizer.encode(PROMPT)) - 1) + said, vocab_size=tokenizer.vocab_size)


def streamed(said, *, tokenizer=BYTES, count=None, **options):
    model = scripted(said, tokenizer=tokenizer)
    count = len(model.ids) - len(tokenizer.encode(PROMPT)) if count is None else count
    return list(lv.stream(model, tokenizer, PROMPT, max_new_tokens=count, temperature=0, **options))


def build(layer="gated_delta_net", vocab_size=256):
    return lv.LanguageModel(lv.ModelConfig(layer=layer, d_model=32, depth=2, vocab_size=vocab_size)).double()


@pytest.mark.parametrize("text", ["안녕하세요", "👨\u200d👩\u200d👧 ok", " a\r\n\0b  "])
@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
def test_pieces_are_whole_and_together_the_text(text, tokenizer):
    pieces = streamed(text, tokenizer=tokenizer)
    assert "".join(pieces) == text and "" not in pieces
    assert all("\ufffd" not in piece for piece in pieces)


def test_a_character_broken_off_at_the_end_becomes_one_mark():
    assert "".join(streamed("안녕".encode(), count=5)) == "안\ufffd"
    assert "".join(streamed(b"\xff\xfeA")) == "\ufffd\ufffdA"


@pytest.mark.parametrize("stop", ["\n\n", ["User:", "\n\n"], ("ser",)])
@pytest.mark.parametrize("tokenizer", [BYTES, BPE], ids=["bytes", "bpe"])
@pytest.mark.parametrize("text", ["hi there\n\nUser: go on", "the 안\nUser: ho", "on the mat"])
def test_text_ends_just_before_a_stop_string_inside_or_across_tokens(stop, tokenizer, text):
    strings = [stop] if isinstance(stop, str) else stop
    ends = [place for string in strings if (place := text.find(string)) >= 0]
    wanted = text[: min(ends)] if ends else text
    assert "".join(streamed(text, tokenizer=tokenizer, stop=stop)) == wanted


def test_after_a_stop_string_no_more_steps_are_taken():
    model = scripted("ab.cdefgh")
    assert "".join(lv.stream(model, BYTES, PROMPT, max_new_tokens=9, temperature=0, stop=".")) == "ab"
    assert len(model.calls) == 3


def test_text_ends_before_the_end_of_text():
    said = [*BPE.encode("the cat"), BPE.eos_id, *BPE.encode(" sat")]
    assert "".join(streamed(said, tokenizer=BPE)) == "the cat"


def test_a_stop_string_in_the_prompt_does_not_end_the_text():
    assert "".join(streamed("lo", stop="hello")) == "lo"


@pytest.mark.parametrize("count", [0, 1, 12])
def test_greedy_text_is_that_of_generate(count):
    model, ids = build(), torch.tensor([BYTES.encode(PROMPT)])
    out = lv.generate(model, ids, max_new_tokens=count, temperature=0)
    pieces = lv.stream(model, BYTES, PROMPT, max_new_tokens=count, temperature=0)
    assert "".join(pieces) == BYTES.decode(out.ids[0, 5:])


def test_a_seed_gives_the_text_that_it_gives_generate():
    model, ids = build(), torch.tensor([BYTES.encode(PROMPT)])
    options = {"max_new_tokens": 20, "temperature": 2.0, "top_k": 50, "top_p": 0.9, "seed": 3}
    wanted = BYTES.decode(lv.generate(model, ids, **options).ids[0, 5:])
    assert "".join(lv.stream(model, BYTES, PROMPT, **options)) == wanted


def test_two_streams_in_turns_give_what_each_gives_alone():
    model = build()
    options = {"max_new_tokens": 12, "temperature": 0}
    alone = ["".join(lv.stream(model, BYTES, prompt, **options)) for prompt in ("one", "other")]
    turns = itertools.zip_longest(*(lv.stream(model, BYTES, p, **options) for p in ("one", "other")), fillvalue="")
    assert ["".join(pieces) for pieces in zip(*turns, strict=True)] == alone


def test_an_empty_prompt_starts_from_the_end_of_text():
    model = build(vocab_size=BPE.vocab_size)
    out = lv.generate(model, torch.tensor([[BPE.eos_id]]), max_new_tokens=8, temperature=0, eos=BPE.eos_id)
    new = [id for id in out.ids[0, 1:].tolist() if id != BPE.eos_id]
    assert "".join(lv.stream(model, BPE, "", max_new_tokens=8, temperature=0)) == BPE.decode(new)


def test_ids_stay_below_the_tokenizer_where_the_model_has_more_rows():
    model = Scripted([300] * 50, vocab_size=320)
    assert "".join(lv.stream(model, BPE, PROMPT, max_new_tokens=5, temperature=0)) == "\0" * 5


def test_the_model_keeps_its_mode_between_pieces():
    model = build().train()
    for _ in lv.stream(model, BYTES, PROMPT, max_new_tokens=3, temperature=0):
        assert all(part.training for part in model.modules())


@pytest.mark.parametrize(
    "prompt, options, said",
    [
        ("", {}, "the prompt is empty and the tokenizer has no end of text"),
        ("a", {"stop": ["x", ""]}, "stop holds an empty string"),
        ("a", {"max_new_tokens": -1}, "max_new_tokens must be an int >= 0"),
        ("a", {"temperature": -1.0}, "stream: temperature must be 0"),
        ("aé", {}, "id 195 is beyond the vocabulary of 128"),
    ],
)
def test_what_cannot_be_met_is_refused_at_the_call(prompt, options, said):
    with pytest.raises(ValueError, match=said):
        lv.stream(build(vocab_size=128), BYTES, prompt, **({"max_new_tokens": 3} | options))
