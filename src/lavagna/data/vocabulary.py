"""What a tokenizer.json says about its tokens: the bytes of each, and which one ends a document."""

import json
from pathlib import Path

# GPT-2's printable stand-ins: a byte that prints is its own character, the n-th of the others is character 256 + n.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_STAND_INS = {**{byte: chr(byte) for byte in _PRINTABLE}, **{byte: chr(256 + n) for n, byte in enumerate(_OTHERS)}}

BYTE_CHARACTERS = "".join(_STAND_INS[byte] for byte in range(256))
"""The character that stands for each byte in the vocabulary of a byte-level tokenizer."""

_BYTE_OF = {character: byte for byte, character in enumerate(BYTE_CHARACTERS)}
_EOS_NAMES = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "<eos>", "[EOS]")
_LOCAL_NORMALIZERS = ("NFC", "NFD", "NFKC", "NFKD", "Lowercase")


def tokens_as_bytes(tokenizer_json: str, vocab: dict[str, int]) -> dict[int, bytes] | None:
    """The bytes of each id that has a token, or None if the tokenizer is not byte-level.

    An added token is spelled in plain text, every other token in stand-ins for bytes.
    """
    content = json.loads(tokenizer_json)
    added = {token["content"] for token in content["added_tokens"]}
    learned = set().union(*(token for token in vocab if token not in added))
    if not (_names_byte_level(content["decoder"]) and learned <= _BYTE_OF.keys()):
        return None
    return {
        id: token.encode("utf-8") if token in added else bytes([_BYTE_OF[c] for c in token])
        for token, id in vocab.items()
    }


def end_of_text(tokenizer_json: str, config: Path) -> str | None:
    """The token that ends a document: `eos_token` of tokenizer_config.json, else a special token with a usual name."""
    named = _configured(config)
    if named is not None:
        return named
    special = {token["content"] for token in json.loads(tokenizer_json)["added_tokens"] if token["special"]}
    return next((name for name in _EOS_NAMES if name in special), None)


def encodes_in_pieces(tokenizer_json: str) -> bool:
    """Whether a text cut where `Document.pieces` cuts encodes as the whole does: nothing is put before a text."""
    content = json.loads(tokenizer_json)
    adds_space = '"add_prefix_space": true' in json.dumps(content["pre_tokenizer"])
    return not adds_space and (content["normalizer"] is None or content["normalizer"]["type"] in _LOCAL_NORMALIZERS)


def _names_byte_level(decoder: dict | None) -> bool:
    if decoder is None:
        return False
    return decoder["type"] == "ByteLevel" or any(map(_names_byte_level, decoder.get("decoders", [])))


def _configured(config: Path) -> str | None:
    try:
        token = json.loads(config.read_bytes()).get("eos_token")
    except (OSError, ValueError, AttributeError):
        return None
    return token.get("content") if isinstance(token, dict) else token
