"""Decay parameters after a build without memory: within the ranges of their papers, however often they are reset."""

import math

import pytest
import torch
import torch.nn.functional as F

import lavagna as lv

# Lowest and highest rate exp(A_log) of the layers that learn one.
RATES = {"gated_delta_net": (0.01, 16), "mamba": (1, 16), "mamba2": (1, 16)}


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


@pytest.mark.parametrize("name", RATES)
def test_a_model_resets_the_decays_of_its_layers(name):
    model = emptied(lambda: lv.LanguageModel(lv.ModelConfig(layer=name, d_model=256, depth=2, vocab_size=16)))
    model.reset_parameters()
    assert all(tensor.isfinite().all() for tensor in (*model.parameters(), *model.buffers()))
    for block in model.blocks:
        check(block.mixer)
