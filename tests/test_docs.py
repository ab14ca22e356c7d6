"""The documentation runs: every block of Python in README.md and docs/, from top to bottom of its page."""

import doctest
import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")


class Block(NamedTuple):
    """Code between two fences: `python` is executed, `pycon` must also print what it shows."""

    language: str
    code: str
    line: int


def relative(file: Path) -> str:
    return str(file.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [Block(hit[1], hit[2], text.count("\n", 0, hit.start(2))) for hit in BLOCK.finditer(text)]


def run(block: Block, page: Path, names: dict) -> None:
    if block.language == "pycon":
        examples = doctest.DocTestParser().get_doctest(block.code, {}, relative(page), str(page), block.line)
        examples.globs = names
        flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        doctest.DebugRunner(optionflags=flags).run(examples, clear_globs=False)
    else:
        # Empty lines above make a traceback point at the page's own line.
        exec(compile("\n" * block.line + block.code, str(page), "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=relative)
def test_the_code_of_a_page_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    names = {"__name__": "__main__"}
    for block in blocks(page):
        run(block, page, names)


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_between_pages_lead_somewhere(page):
    broken = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not broken, broken
