"""The rules of the house that a program can check."""

import ast
import re
from pathlib import Path

import jaxtyping
import pytest
import torch

from lavagna.algebra.transition import identity
from lavagna.forms.recurrent import recurrent

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TEXTS = [
    *SOURCES,
    *TESTS,
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.py")),
    *sorted((ROOT / "benchmarks").rglob("*.md")),
    *[ROOT / name for name in ("Makefile", "pyproject.toml", ".ci/run", ".pre-commit-config.yaml")],
]
CATCH_ALL = {"utils", "util", "common", "misc", "helpers", "helper", "base"}

# Each is written in two pieces, so that this file passes its own test.
FORBIDDEN = {
    "a path of one machine": r"(?<![\w.])/" + r"(work|root|home|Users)/\w",
    "a future import, which hides annotations from the shape checks": r"from __fut" + r"ure__ import annotations",
    "a note to do later": r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b",
    "a merge left open": r"^(<{7}|>{7}) ",
}


def relative(file: Path) -> str:
    return str(file.relative_to(ROOT))


def public(file: Path) -> list[ast.FunctionDef | ast.ClassDef]:
    """Public functions and classes at the top of a module."""
    kinds = (ast.FunctionDef, ast.ClassDef)
    return [node for node in ast.parse(file.read_text()).body if isinstance(node, kinds) and node.name[0] != "_"]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds(what):
    pattern = re.compile(FORBIDDEN[what], re.MULTILINE)
    found = [f"{relative(file)}: {hit[0]}" for file in TEXTS if (hit := pattern.search(file.read_text()))]
    assert not found, "\n".join(found)


def test_no_module_is_a_catch_all():
    found = [relative(file) for file in SOURCES if CATCH_ALL & set(file.relative_to(ROOT).with_suffix("").parts)]
    assert not found, found


def test_every_package_has_an_init_file():
    missing = {relative(file.parent) for file in SOURCES if not (file.parent / "__init__.py").exists()}
    assert not missing, sorted(missing)


@pytest.mark.parametrize("file", SOURCES, ids=relative)
def test_a_module_and_its_public_names_are_documented(file):
    silent = [f"{relative(file)}:{node.lineno} {node.name}" for node in public(file) if not ast.get_docstring(node)]
    assert ast.get_docstring(ast.parse(file.read_text())), relative(file)
    assert not silent, silent


@pytest.mark.parametrize("file", SOURCES + TESTS, ids=relative)
def test_files_and_functions_can_be_read_in_one_sitting(file):
    text = file.read_text()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    long = [f"{node.name}: {node.end_lineno - node.lineno + 1} lines" for node in functions
            if node.end_lineno - node.lineno >= 60]  # fmt: skip
    assert len(text.splitlines()) <= 300
    assert not long, long


def _end(text: ast.expr) -> str:
    """The last words of a message as it is written; nothing where they are put together elsewhere."""
    if isinstance(text, ast.Constant):
        return str(text.value)
    if isinstance(text, ast.JoinedStr):
        return _end(text.values[-1]) or "}"
    return ""


def _open_ended(file: Path) -> list[str]:
    raised = [node.exc for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Raise)]
    calls = [call for call in raised if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args]
    ends = {call.lineno: _end(call.args[-1]) for call in calls if call.func.id.endswith(("Error", "Interrupt"))}
    return [f"{relative(file)}:{line}" for line, end in ends.items() if end and end.rstrip()[-1] not in ".?}"]


def test_messages_end_with_a_full_stop():
    # Some end with what another part says, and that which somebody types is left as it is typed.
    found = [place for file in SOURCES for place in _open_ended(file) if "cli/train.py" not in place]
    assert not found, found


def test_annotated_shapes_are_checked_while_tests_run(device):
    jaxtyping.config.update("jaxtyping_disable", False)
    q, v, state = (torch.zeros(shape, device=device) for shape in ((1, 3, 2, 4), (1, 3, 2, 5), (1, 2, 5, 4)))
    recurrent(identity(), q, q, v, state, read="after", chunk=2)
    with pytest.raises(jaxtyping.TypeCheckError):
        recurrent(identity(), q, q, v[:, :2], state, read="after", chunk=2)
