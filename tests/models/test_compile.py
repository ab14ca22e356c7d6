"""torch.compile: a compiled model says what the plain one says, at every length, with few graphs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lavagna as lv
from sample_layers import GROWING

HERE = Path(__file__).parent
# A loop of its own is unrolled by the compiler: a graph for each length.
LENGTHS = [name for name in lv.layers.names() if lv.layers.layer_class(name).forms == ("recurrent",)]


def graphs(*arguments: str) -> int:
    """Run `compiled.py` in a process of its own and return the number of graphs it prints."""
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1] / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(HERE / "compiled.py"), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return int(done.stdout)


def test_one_graph_serves_two_lengths(device):
    assert graphs("linear_attention", "aot_eager", "yes", str(device), "9", "17") == 1


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("layer", [name for name in lv.layers.names() if name not in GROWING + LENGTHS])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_five_lengths_take_at_most_three_recompilations(layer, backend, device):
    assert graphs(layer, backend, "yes", str(device), "17", "33", "64", "100", "1") <= 4


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("layer", lv.layers.names())
def test_five_lengths_agree_without_symbols_for_them(layer, device):
    assert graphs(layer, "aot_eager", "no", str(device), "17", "33", "64", "100", "1") >= 5


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("layer", GROWING)
def test_what_grows_by_what_its_rows_hold_agrees_in_several_graphs(layer, device):
    # The compiler can't know what the rows hold.
    assert graphs(layer, "aot_eager", "yes", str(device), "17", "33", "64", "100", "1") >= 1
