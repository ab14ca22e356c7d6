"""Files of one JSON object a line, whose `text` is a document."""

import io
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from lavagna.data.document import Document

JSON_LINES = ".jsonl"


def json_lines(name: str, path: Path) -> Iterator[Document]:
    """A document for each line, named `file:line`. Blank lines and empty texts are passed over.

    Lone surrogates, which JSON can spell and UTF-8 cannot, become U+FFFD.

    Raises `ValueError`, naming file and line, for a line that is not an object with a string `text`.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip(b" \t\r\n\xef\xbb\xbf"):
                continue
            data = (
                _text(f"{name}:{number}", line).encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
            )
            if data:
                yield Document(f"{name}:{number}", len(data), partial(io.BytesIO, data))


def _text(place: str, line: bytes) -> str:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"documents: {place} is not JSON in UTF-8 ({error}). Every line must be one object.") from None
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str):
        got = f"keys {sorted(row)}" if isinstance(row, dict) else f"a {type(row).__name__}"
        raise ValueError(f'documents: {place} has {got}. Every line must be an object with a string "text".')
    return text
