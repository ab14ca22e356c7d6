"""Options of layers that are refused, whatever layer takes them."""

import math
import os
import subprocess
import sys
from pathlib import Path

from lavagna import layers

# Values that no layer may take, by option; each is refused by a ValueError in one line that names layer and option.
REFUSED = {
    "norm_eps": [-1.0, math.nan, "x"],
    "max_beta": [math.nan, -1.0, 0.0, 3.0, "x"],
    "temperature": [0, -1, math.nan, "x"],
    "rotary_base": [0, -1, math.nan, "x"],
    "rotary_fraction": [-0.5, 1.5, 0.3, math.nan, "x"],
    "kv_heads": [0, 3, 1.5, "x"],
    "qk_norm": ["x", True],
    "window": [0, 1.5, "x"],
    "bias": ["x"],
    "out_bias": ["x"],
    "order": [1, 0, 2.5, "x"],
    "max_length": [0, 2.5, "x"],
    "bands": [0, "x"],
    "filter_width": [0, "x"],
    "frequency": [0, math.nan, "x"],
    "depth": [0, -1, 1.5, "x"],
    "gate_rank": [0, -1, "x"],
    "decay_rank": [0, -1, "x"],
    "rate_rank": [0, -1, "x"],
    "value_rank": [0, -1, "x"],
    "mix_rank": [0, -1, "x"],
    "learned_state": ["x"],
    "version": ["x", 5.2, "6"],
    "value_residual": ["x"],
    "layer_index": [-1, 1.5, "x"],
    "dt_limit": [3, (1,), (2, 1), "ab"],
    "conv_size": [-1, 1.5, "x"],
    "heads": [0, "x", 1.5],
    "head_dim": [0, "x"],
    "conv_bias": ["x"],
    "gate_bias": ["x"],
    "factors": [0, 1.5, "x"],
    "fading": ["x"],
    "nu": [0, 1.5, "x"],
    "transition": ["x"],
    "qk_activation": ["tanh"],
    "lower_bound": [0, 1.0, -math.inf, math.nan, "x"],
    "expand": [0, -1, math.inf, math.nan, "x"],
    "expand_k": [0, -1, math.inf, math.nan, "x"],
    "value_heads": [0, 3.5, "x"],
    "groups": [0, "x"],
    "d_state": [0, "x"],
    "blocks": [0, 5, "x"],
    "readout": ["x"],
    "init": ["x"],
    "discretization": ["x"],
    "tied": ["x"],
    "dt_min": [0, -1, math.nan, 1.0, "x"],
    "dt_max": [0, -1, math.inf, "x"],
    "step_rescale": [0, -1, math.inf, "x"],
    "bidirectional": ["x"],
    "fixed": ["x"],
    "channels": [0, "x"],
    "method": ["x"],
    "dt_rank": [0, "x"],
    "D_per_channel": ["x"],
    "norm_before_gate": ["x"],
    "rank": [0, "x"],
    "rope_fraction": [0, 2, "x"],
    "norm": ["x"],
    "feature_map": ["tanh"],
    "decay": ["x"],
    "gate": ["x"],
    "rescale": ["x", "scores"],
    "rotation": ["x"],
    "affine": ["x"],
    "activation": ["x"],
    "normalize": ["x"],
    "block": ["x"],
    "gate_cap": [-1.0, math.nan, "x"],
    "normalizer_eps": [-1.0, math.nan, "x"],
    "projection_block": [0, 3, "x"],
}


def refusals() -> None:
    """Ask every layer for every value that it must refuse."""
    for name in layers.names():
        for option in layers.options(name):
            for value in REFUSED[option]:
                try:
                    layers.build(name, 32, **{option: value})
                except ValueError as error:
                    assert str(error).startswith(f"{name}: ") and "\n" not in str(error), error
                    assert option in str(error) or option == "expand", error
                else:
                    raise AssertionError(f"{name} took {option}={value!r}")


def test_every_layer_refuses_what_it_cannot_take():
    # In a process of its own: the shape checks of the tests would refuse a wrong type before the layer can.
    here = Path(__file__)
    path = os.pathsep.join([str(here.parents[2] / "src"), str(here.parent)])
    code = "import test_options; test_options.refusals()"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-1000:]
