"""Sizes at which axes could be swapped, the last chunk misread or a tile overrun."""

import math

import pytest
import torch

import lavagna as lv
from definition import gradients, held
from sample_layers import VARIANTS, D, build, text
from transitions import EVERY_WAY, TRANSITIONS, Sizes, call, difference, leaves


@pytest.mark.parametrize("name", TRANSITIONS)
@pytest.mark.parametrize("edge", [3, 16, pytest.param(64, marks=pytest.mark.slow)])
def test_nothing_depends_on_the_size_of_a_chunk_gradients_neither(name, edge, device):
    for t in sorted({1, 2, edge - 1, edge, edge + 1, 2 * edge - 1, 2 * edge + 1}):
        some = call(name, Sizes(b=1, t=t, h=1, hv=2, k=4, v=3), device=device)
        for x in leaves(some):
            x.requires_grad_()
        right = lv.recur(*some, form="chunkwise", chunk=edge)
        wanted = [*right, *gradients(some, *right)]
        for chunk in {1, 3, 16, 64, t + 9} - {edge}:
            ours = lv.recur(*some, form="chunkwise", chunk=chunk)
            assert all(difference(a, b) < 1e-11 for a, b in zip([*ours, *gradients(some, *ours)], wanted, strict=True))


@EVERY_WAY
@pytest.mark.parametrize("size", [1, 3, 16, 80, 257])
@pytest.mark.parametrize("name", ["scalar", "diagonal", "householder", "gated householder, diagonal", "dplr"])
def test_heads_of_any_size_are_the_definition(form, backend, size, name, device):
    held(
        call(name, Sizes(b=1, t=7, h=1, hv=2, k=size, v=11), device=device), 1e-12, form=form, backend=backend, chunk=4
    )
    held(call(name, Sizes(b=1, t=7, h=1, hv=1, k=5, v=size), device=device), 1e-12, form=form, backend=backend, chunk=4)


@EVERY_WAY
@pytest.mark.parametrize("name", TRANSITIONS)
def test_as_many_heads_as_steps_swap_nothing(form, backend, name, device):
    held(call(name, Sizes(b=2, t=7, h=7, hv=7, k=7, v=7), device=device), 1e-12, form=form, backend=backend, chunk=3)


@EVERY_WAY
def test_steps_that_fill_up_the_last_chunk_do_not_decay(form, backend, device):
    """A rate of 1 for a time of softplus(5) a step: five steps leave 5.040450, and three more without input 1.5e-6."""
    one = torch.ones(1, 5, 1, 1, dtype=torch.float64, device=device)
    dt = torch.full_like(one, 5).exp().log1p()
    state = lv.recur(lv.scalar(-one[:, :1], step=dt), one, one, dt * one, form=form, backend=backend, chunk=8).state
    assert state.item() == pytest.approx(5.040450, abs=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_step_taken_twice_is_the_same_to_the_bit_and_leaves_the_parameters_alone(variant, device):
    layer, x = build(variant, device, torch.float32), text(device, 2, 8, torch.float32)
    before = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    runs = []
    for _ in range(2):
        state, steps = None, []
        for t in range(8):
            y, state = layer(x[:, t : t + 1], state)
            steps.append(y)
        runs.append([*steps, *state.tensors().values()])
    assert all(torch.equal(one, other) for one, other in zip(*runs, strict=True))
    assert all(torch.equal(tensor, before[name]) for name, tensor in layer.state_dict().items())


@pytest.mark.parametrize("chunk", [4, 5])
@pytest.mark.parametrize("scale", [1, 1e-2, 1e-4])
def test_retention_agrees_in_small_chunks_at_every_scale_of_the_input(scale, chunk, device, monkeypatch):
    layer, x = lv.layers.build("retention", D, heads=2).to(device), scale * text(device, 2, 16, torch.float32)
    right = layer.double()(x.double(), form="recurrent", backend="torch")
    layer.float()
    monkeypatch.setattr("lavagna.dispatch.CHUNK", chunk)
    for cut in (16, 7):
        first, state = layer(x[:, :cut], form="chunkwise")
        rest, state = layer(x[:, cut:], state, form="chunkwise")
        assert difference(torch.cat([first, rest], 1), right.y) < 1e-5
        assert difference(state.memory, right.state.memory) < 1e-5


@EVERY_WAY
def test_seventy_steps_of_one_decay_in_chunks_beyond_the_text(form, backend, device):
    one = torch.ones(1, 70, 1, 1, dtype=torch.float64, device=device)
    right = (1 - math.exp(-7.0)) / (1 - math.exp(-0.1))
    for chunk in (64, 128, 256, 79):
        assert lv.recur(
            lv.scalar(-0.1 * one), one, one, one, form=form, backend=backend, chunk=chunk
        ).state.item() == pytest.approx(right)
