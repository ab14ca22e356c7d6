"""torch.compile: the same numbers as eager, in one graph, with few graphs for many lengths."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def graphs(*arguments: str) -> int:
    """Run `compiled.py` in a process of its own and return the number of graphs it prints."""
    path = os.pathsep.join([str(HERE.parent / "src"), str(HERE)])
    command = [sys.executable, str(HERE / "compiled.py"), *arguments]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


def test_a_compiled_call_equals_eager_at_a_second_length(device):
    assert graphs("scalar", "aot_eager", "auto", str(device), "17", "1") == 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", ["auto", "yes"])
@pytest.mark.parametrize("name", ["scalar", "diagonal", "gated householder"])
def test_many_lengths_take_at_most_three_recompilations(name, backend, dynamic, device):
    assert graphs(name, backend, dynamic, str(device), "17", "33", "64", "100", "1") <= 4
