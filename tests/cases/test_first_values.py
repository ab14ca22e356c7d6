"""Decay parameters after a build without memory: within the ranges of their papers, however often they are reset."""

import math

import pytest
import torch
import torch.nn.functional as F

import lavagna as lv

# Lowest and highest rate exp(A_log) of the layers that learn one.
RATES = {"gated_delta_net": (0.01, 16), "mamba": (1, 16), "mamba2": (1, 16)}
# Where the dynamics of the linear systems start, lowest and highest; step sizes from 1e-3 to 0.1 in all of them.
STEPS = (math.log(1e-3), math.log(0.1))
HALF = (math.log(0.5), math.log(0.5))
LINEAR = {
    "lssl": {"log_step": STEPS, "A": (-math.sqrt(127 * 125), 0), "B": (1, math.sqrt(127))},
    "s4": {"log_step": STEPS, "A_log": HALF, "A_imag": (0, math.inf)},
    "dss": {"log_step": STEPS, "A_real": (-0.5, -0.5), "A_imag": (0, math.inf)},
    "s4d": {"system.log_step": STEPS, "system.A_log": HALF, "system.A_imag": (0, math.inf)},
    "s5": {"log_step": STEPS, "A_log": HALF, "A_imag": (0, math.inf)},
    "h3": {"system.log_step": STEPS, "system.A_log": HALF, "system.A_imag": (0, math.pi * 31), "system.B": (0, 1)},
    "mamba3": {"dt_bias": (math.log(math.expm1(1e-3)), math.log(math.expm1(0.1))), "B_bias": (1, 1), "D": (1, 1)},
}


def emptied(build):
    """What `build` makes on the meta device, given memory full of NaN."""
    with torch.device("meta"):
        part = build()
    part.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in (*part.parameters(), *part.buffers()):
            tensor.fill_(math.nan)
    return part


def check(layer):
    low, high = RATES[layer.name]
    rates, steps = layer.A_log.exp(), F.softplus(layer.dt_bias)
    assert (rates >= low * (1 - 1e-5)).all() and (rates <= high * (1 + 1e-5)).all()
    assert (steps >= 1e-3 * (1 - 1e-4)).all() and (steps <= 0.1 * (1 + 1e-4)).all()
    assert layer.A_log.dtype == layer.dt_bias.dtype == torch.float32


@pytest.mark.parametrize("name", lv.layers.names())
def test_no_nan_is_left_and_decays_are_in_range_after_one_reset_and_after_two(name):
    layer = emptied(lambda: lv.layers.build(name, 256))
    alone = lv.layers.build(name, 256)
    for _ in range(2):
        layer.reset_parameters()
        assert all(tensor.isfinite().all() for tensor in (*layer.parameters(), *layer.buffers()))
        for one in (layer, alone):
            if name in RATES:
                check(one)
    if name in ("mamba", "mamba2"):
        assert (layer.D == 1).all()


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_system_starts_where_its_paper_says_after_one_reset_and_after_two(name):
    layer = emptied(lambda: lv.layers.build(name, 256))
    for _ in range(2):
        layer.reset_parameters()
        for part, (low, high) in LINEAR[name].items():
            values = dict(layer.named_parameters())[part]
            assert values.dtype == torch.float32, part
            assert values.min() >= low - 1e-4 * (1 + abs(low)) and values.max() <= high + 1e-4 * (1 + abs(high)), part
            # A spread that is stated is filled.
            if "step" in part:
                assert values.max() - values.min() > 0.6 * (high - low)


@pytest.mark.parametrize("name", RATES)
def test_a_model_resets_the_decays_of_its_layers(name):
    model = emptied(lambda: lv.LanguageModel(lv.ModelConfig(layer=name, d_model=256, depth=2, vocab_size=16)))
    model.reset_parameters()
    assert all(tensor.isfinite().all() for tensor in (*model.parameters(), *model.buffers()))
    for block in model.blocks:
        check(block.mixer)
