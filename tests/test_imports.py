"""Imports go downhill, and importing the package is light."""

import ast
import os
import statistics
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
PACKAGE = SOURCE / "lavagna"
FILES = sorted(PACKAGE.rglob("*.py"))

# Lowest first: a room imports from rooms on its own level or below, never from above, and never in a circle.
# A new room is added here, where its place is argued about once.
SLOPE = [
    ["version", "state", "packing", "atomic_file", "autocast", "extras", "facts"],
    ["derivatives"],
    ["algebra"],
    ["forms", "kernels"],
    ["dispatch"],
    ["lti"],
    ["modules"],
    ["layers"],
    ["models"],
    ["checkpoints", "data", "tasks"],
    ["bench", "checks", "generation", "plots", "reproduce", "training"],
    ["__init__"],
    ["cli", "__main__"],
]
RANK = {room: rank for rank, level in enumerate(SLOPE) for room in level}

OPTIONAL = ["triton", "mamba_ssm", "causal_conv1d", "transformers", "numba", "matplotlib", "tensorboard"]
HELP = """
import sys
from lavagna.cli import main
sys.argv = ["lavagna", "--help"]
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""


def room_of(parts: list[str]) -> str:
    """The first name below the package, or `__init__` for a name that the package itself holds."""
    if parts and ((PACKAGE / parts[0]).is_dir() or (PACKAGE / f"{parts[0]}.py").is_file()):
        return parts[0]
    return "__init__"


def imports(file: Path) -> list[tuple[int, list[str]]]:
    """Line and path below the package of every import of ours in a file, those inside functions too."""
    here = ["lavagna", *file.relative_to(PACKAGE).parts[:-1]]
    found = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = here[: len(here) - node.level + 1] if node.level else []
            module = above + (node.module.split(".") if node.module else [])
            targets = [[*module, alias.name] for alias in node.names]
        else:
            continue
        found += [(node.lineno, target[1:]) for target in targets if target[0] == "lavagna"]
    return found


def owner(file: Path) -> str:
    return file.relative_to(PACKAGE).with_suffix("").parts[0]


def python(code: str) -> str:
    """Run code in a fresh interpreter that sees this source tree; what it printed."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_room_has_a_place_on_the_slope():
    strangers = {owner(file) for file in FILES} - RANK.keys()
    assert not strangers, f"add to SLOPE in tests/test_imports.py: {sorted(strangers)}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_import_goes_uphill(file):
    uphill = [
        f"{file.relative_to(SOURCE.parent)}:{line}: {owner(file)} imports {room_of(target)}"
        for line, target in imports(file)
        if RANK[room_of(target)] > RANK[owner(file)]
    ]
    assert not uphill, "\n".join(uphill)


def test_rooms_do_not_import_each_other_in_a_circle():
    graph = {room: set() for room in RANK}
    for file in FILES:
        graph[owner(file)] |= {room_of(target) for _, target in imports(file)} - {owner(file)}
    list(TopologicalSorter(graph).static_order())


def test_the_package_imports_without_any_optional_one():
    python(f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL})); import lavagna; lavagna.recur")


def test_help_is_printed_without_any_optional_package():
    shown = python(f"import sys; sys.modules.update(dict.fromkeys({OPTIONAL}))\n{HELP}")
    assert "train" in shown and "generate" in shown


@pytest.mark.parametrize("code", ["import lavagna", HELP], ids=["import", "help"])
def test_starting_takes_under_two_seconds_beyond_torch(code):
    # Processor time, because a busy machine stretches the clock on the wall.
    measured = f"import time, torch\nstart = time.process_time()\n{code}\nprint(time.process_time() - start)"
    assert statistics.median(float(python(measured).split()[-1]) for _ in range(3)) < 2


def test_building_a_model_does_not_import_the_compiler_of_torch():
    build = "for name in lv.layers.names(): lv.LanguageModel(lv.ModelConfig(name, 32, 1, 16))"
    python(f"import sys, lavagna as lv\n{build}\nassert 'torch._dynamo' not in sys.modules")
