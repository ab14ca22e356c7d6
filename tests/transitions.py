"""The table of transitions that tests run over: one entry a kind of rule, with random parts of norm at most 1."""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import lavagna as lv
from lavagna.checks.row import ways
from lavagna.forms import FORMS
from lavagna.kernels import serves


class Sizes(NamedTuple):
    """Sizes of a call, all different by default, value heads twice the key heads."""

    b: int = 2
    t: int = 7
    h: int = 2
    hv: int = 4
    k: int = 5
    v: int = 3


DEFAULT = Sizes()

# Each form by torch, and the recurrent one by the kernel where there is one: a test with `form` and `backend`.
EVERY_WAY = pytest.mark.parametrize(("form", "backend"), ways(FORMS, kernel=serves("cpu")))


class Call(NamedTuple):
    """A call of the recurrence on random numbers."""

    a: lv.Transition
    q: Tensor
    k: Tensor
    v: Tensor
    state: Tensor


def unit(*shape: int, **where) -> Tensor:
    """Random vectors of norm 1."""
    return F.normalize(torch.randn(*shape, **where), dim=-1)


def fading(*shape: int, **where) -> Tensor:
    """Random logarithms of decay: most mild, some strong."""
    return -(torch.rand(*shape, **where) ** 4) * 6


def _identity(s: Sizes, k: Tensor, **where) -> lv.Transition:
    return lv.identity()


def _scalar(s: Sizes, k: Tensor, **where) -> lv.Transition:
    return lv.scalar(fading(s.b, s.t, s.hv, 1, **where))


def _constant(s: Sizes, k: Tensor, **where) -> lv.Transition:
    return lv.scalar(fading(1, 1, s.hv, 1, **where))


def _stepped(s: Sizes, k: Tensor, **where) -> lv.Transition:
    return lv.diagonal(fading(1, 1, s.h, s.k, **where), step=torch.rand(s.b, s.t, s.h, 1, **where))


def _diagonal(s: Sizes, k: Tensor, **where) -> lv.Transition:
    return lv.diagonal(fading(s.b, s.t, s.h, s.k, **where))


def _rotating(s: Sizes, k: Tensor, **where) -> lv.Transition:
    size = (s.b, s.t, s.hv, s.k)
    return lv.diagonal(torch.complex(fading(*size, **where), torch.randn(*size, **where)))


def _householder(s: Sizes, k: Tensor, **where) -> lv.Transition:
    return lv.householder(k, 2 * torch.rand(s.b, s.t, s.hv, **where))


def _gated(s: Sizes, k: Tensor, **where) -> lv.Transition:
    return lv.gated_householder(fading(s.b, s.t, s.hv, 1, **where), k, torch.rand(s.b, s.t, s.h, 1, **where))


def _kda(s: Sizes, k: Tensor, **where) -> lv.Transition:
    return lv.gated_householder(fading(s.b, s.t, s.hv, s.k, **where), k, torch.rand(s.b, s.t, s.hv, **where))


def _other_key(s: Sizes, k: Tensor, **where) -> lv.Transition:
    return lv.householder(unit(s.b, s.t, s.h, s.k, **where), torch.rand(s.b, s.t, s.hv, **where))


def _dplr(s: Sizes, k: Tensor, **where) -> lv.Transition:
    log_decay, key = fading(s.b, s.t, s.hv, s.k, **where), unit(s.b, s.t, s.hv, s.k, **where)
    return lv.dplr(log_decay, -torch.rand(s.b, s.t, 1, 1, **where) * key * log_decay.exp().amin(-1, True), key)


TRANSITIONS: dict[str, Callable[..., lv.Transition]] = {
    "identity": _identity,
    "scalar": _scalar,
    "scalar constant": _constant,
    "diagonal": _diagonal,
    "diagonal with step": _stepped,
    "diagonal complex": _rotating,
    "householder": _householder,
    "householder, other key": _other_key,
    "gated householder": _gated,
    "gated householder, diagonal": _kda,
    "dplr": _dplr,
}


def call(name: str, sizes: Sizes = DEFAULT, *, device: torch.device, dtype: torch.dtype = torch.float64) -> Call:
    """A random call of a transition of the table; keys have norm 1 and are the transition's own where it has one."""
    s, where = sizes, {"device": device, "dtype": dtype}
    k = unit(s.b, s.t, s.h, s.k, **where)
    a = TRANSITIONS[name](s, k, **where)
    q, v = torch.randn(s.b, s.t, s.h, s.k, **where), torch.randn(s.b, s.t, s.hv, s.v, **where)
    return Call(a, q, k, v, torch.randn(s.b, s.hv, s.v, s.k, **where))


def leaves(some: Call) -> list[Tensor]:
    """Every tensor of a call, once."""
    unique = {id(x): x for x in (*some.a.parts.values(), *some[1:])}
    return list(unique.values())


def difference(ours: Tensor, right: Tensor) -> float:
    """Largest absolute difference over largest absolute reference."""
    wide = torch.complex128 if right.is_complex() or ours.is_complex() else torch.float64
    ours, right = ours.to(wide), right.to(wide)
    assert ours.shape == right.shape, (ours.shape, right.shape)
    if not right.numel():
        return 0.0
    return ((ours - right).abs().max() / right.abs().max().clamp_min(1e-300)).item()
