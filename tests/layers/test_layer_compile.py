"""torch.compile: each layer is one graph, with the numbers of an eager call."""

import os
import subprocess
import sys

import pytest

from lavagna import layers

# In a process of its own, since the shape checks that tests put around every function are not made to be compiled.
COMPILE = """
import sys, torch
from lavagna import layers
name, device = sys.argv[1:]
layer = layers.build(name, 32).to(device, torch.float64)
compiled = torch.compile(lambda x: layer(x).y, backend="aot_eager", fullgraph=True)
x = torch.randn(1, 5, 32, device=device, dtype=torch.float64)
print((compiled(x) - layer(x).y).abs().max().item())
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", layers.names())
def test_a_text_from_its_start_compiles_to_one_graph(name, device):
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", COMPILE, name, str(device)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) < 1e-14
