"""A sample call of everything whose backward pass is written by hand: the operators and functions of torch's graph."""

import torch

import lavagna as lv
from lavagna.layers import slstm as slstm_layer

WAYS = {
    "whole": {},
    "masked": {"mask": torch.tensor([[1, 1, 0, 1, 0]]).bool()},
    "packed": {"offsets": [0, 2, 2, 5]},
    "both": {"mask": torch.tensor([[0, 1, 1, 1, 1]]).bool(), "offsets": [0, 1, 5]},
}


def draw(*shape, dtype=torch.float64):
    return torch.randn(*shape, dtype=dtype).requires_grad_()


def rows(way):
    return len(way.get("offsets", "ab")) - 1


def onward(run, *state):
    """What two calls in a row show, the second from the state that the first returned: no unit of measure is seen."""
    shown, *state = run(*state)
    return shown, run(*state)[0]


def door(way, heads, a, *parts):
    """A call of `recur` with a transition made of parts."""

    def run(q, k, v, state, *parts):
        where = {"mask": way.get("mask"), "cu_seqlens": way.get("offsets")}
        return lv.recur(a(k, *parts), q, k, v, state, backend="cpu", **where)

    return run, [draw(1, 5, heads, 3), draw(1, 5, heads, 3), draw(1, 5, heads, 2), draw(rows(way), heads, 2, 3), *parts]


def recurrence(way):
    return door(way, 1, lambda k, g, beta: lv.gated_householder(-g.abs(), k, beta), draw(1, 5, 1, 3), draw(1, 5, 1))


def narrow(way):
    return door(way, 9, lambda k, g, step: lv.diagonal(-g.abs(), step=step), draw(1, 1, 9, 3), draw(1, 5, 9, 1))


def kernel(name, way):
    from lavagna.kernels.table import find_fused

    run = find_fused("cpu", name).run
    return run, {"real": way.get("mask"), "offsets": way.get("offsets")}


def selective(way):
    run, where = kernel("selective_scan", way)

    def call(x, dt, A, B, C, D, state):
        return run(x, dt.abs(), -A.abs(), B, C, D, state, **where)

    shapes = [(1, 5, 3), (1, 5, 3), (3, 2), (1, 5, 2), (1, 5, 2), (3,), (rows(way), 3, 1, 2)]
    return call, [draw(*shape) for shape in shapes]


def wkv(way):
    run, where = kernel("wkv", way)

    def call(decay, u, k, v, sums, unit):
        # A sum of weights is positive.
        memory = torch.stack([sums[..., 0], sums[..., 1].exp()], -1).unsqueeze(-1)
        return onward(lambda *state: run(-decay.abs(), u, k, v, *state, **where), memory, unit.unsqueeze(-1))

    n = rows(way)
    return call, [draw(*shape) for shape in [(3,), (3,), (1, 5, 3), (1, 5, 3), (n, 3, 2), (n, 3)]]


def cells(way):
    run, where = kernel("slstm", way)

    def call(i, f, z, o, bias, mixing, hidden, cell, normalizer, unit):
        given = (i, f, z, o, bias, mixing)
        return onward(lambda *state: run(*given, *state, **where), hidden, cell, normalizer.exp(), unit)

    state = [draw(rows(way), 2, 3) for _ in range(4)]
    return call, [*(draw(1, 5, 2, 3) for _ in range(4)), draw(4, 2, 3), draw(2, 12, 3), *state]


def response(way):
    run, where = kernel("response", way)

    def call(u, size, angle, b, c, state):
        return run(u, torch.polar(-(-size.abs()).expm1(), angle), b, c, state, **where)

    complex = {"dtype": torch.complex128}
    shapes = [(3, 2), (3, 2), (rows(way), 3, 2)]
    return call, [draw(1, 5, 3), draw(3, 2), draw(3, 2), *(draw(*shape, **complex) for shape in shapes)]


def short_conv(way):
    run, where = kernel("short_conv", way)

    def call(x, weight, bias, window):
        return run(x, weight, bias, window, silu=True, **where)

    return call, [draw(1, 5, 3), draw(3, 4), draw(3), draw(rows(way), 3, 3)]


def gated_norm(way):
    run, _ = kernel("gated_norm", way)

    def call(x, gate, weight):
        return tuple(run(x, gate, weight, eps=1e-3, width=3, before=before) for before in (False, True))

    return call, [draw(2, 5, 6), draw(2, 5, 6), draw(6)]


def attention_step(way):
    from lavagna.kernels.cpu.attention import attention_step as step

    def call(*given):
        return step(*given, torch.tensor([3, 1]), window=None)

    return call, [draw(*shape) for shape in [(2, 1, 4, 3), (2, 1, 2, 3), (2, 1, 2, 3), (2, 3, 2, 3), (2, 3, 2, 3)]]


def linear_few(way):
    from lavagna.kernels.cpu.linear_few import linear_few

    return linear_few, [draw(*shape, dtype=torch.float32) for shape in [(2, 3), (4, 3), (4,)]]


def cauchy_sums(conjugates):
    complex = {"dtype": torch.complex128}

    def call(V, z):
        a, b = torch.tensor([3 + 1j, 2 - 1j, 4 + 2j]), torch.tensor([1 + 0j, 1 - 1j, 2 + 0j])
        z = torch.complex(-z.real.abs(), z.imag)
        return lv.lti.cauchy_sums.cauchy_sums(V, z, a.to(z), b.to(z), conjugates=conjugates)

    return lambda way: (call, [draw(2, 3, 2, **complex), draw(2, 3, **complex)])


def phi(way):
    # Near zero and far from it.
    return lv.lti.exponential.phi1, [draw(2, 3, dtype=torch.complex128)]


def loop(way):
    def call(given, mixing, h, pair, unit):
        shown, pair, unit = slstm_layer._loop(given, mixing, h, torch.stack([pair[0], pair[1].exp()]), unit)
        return shown, pair * unit.exp()

    return call, [draw(*shape) for shape in [(3, 2, 1, 12), (2, 3, 12), (2, 1, 3), (2, 2, 1, 3), (2, 1, 3)]]


def spectrum(way):
    from lavagna.forms.convolution import convolve

    return lambda u, K: convolve(u, K, method="fft"), [draw(2, 5), draw(2, 4)]


# Those that know masks and borders.
OF_TEXTS = [
    f"lavagna::{name}"
    for name in ("recurrence", "narrow_recurrence", "response", "selective_scan", "wkv", "slstm", "short_conv")
]
# Of each backward pass written by hand, a function that it serves and what that is of.
SAMPLES = {
    "lavagna::recurrence": recurrence,
    "lavagna::narrow_recurrence": narrow,
    "lavagna::response": response,
    "lavagna::selective_scan": selective,
    "lavagna::wkv": wkv,
    "lavagna::slstm": cells,
    "lavagna::short_conv": short_conv,
    "lavagna::gated_norm": gated_norm,
    "lavagna::attention_step": attention_step,
    "lavagna::linear_few": linear_few,
    "lavagna.lti.cauchy_sums._Sums": cauchy_sums(False),
    "lavagna.lti.cauchy_sums._PairSums": cauchy_sums(True),
    "lavagna.lti.exponential._Phi": phi,
    "lavagna.layers.slstm._Loop": loop,
    "lavagna.forms.convolution._Spectrum": spectrum,
}
