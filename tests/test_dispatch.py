"""The door: what it takes, what it returns, what it refuses."""

import math

import pytest
import torch
from torch._subclasses import FakeTensorMode

import lavagna as lv
from lavagna import dispatch
from lavagna.algebra import dense
from transitions import EVERY_WAY, TRANSITIONS, Sizes, call, difference, leaves, unit


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("each", ["key", "value", "one"])
def test_value_head_i_uses_key_head_i_over_r(groups, each, device):
    s = Sizes(b=2, t=7, h=3, hv=3 * groups, k=5, v=11)
    heads = {"key": s.h, "value": s.hv, "one": 1}[each]
    where = {"device": device, "dtype": torch.float64}
    q, v = torch.randn(s.b, s.t, s.h, s.k, **where), torch.randn(s.b, s.t, s.hv, s.v, **where)
    key, beta = unit(s.b, s.t, s.h, s.k, **where), torch.rand(s.b, s.t, heads, **where)
    log_decay = -torch.rand(s.b, s.t, heads, 1, **where)
    ours = lv.recur(lv.gated_householder(log_decay, key, beta), q, key, v)
    for head in range(s.hv):
        g, own = head // groups, {"key": head // groups, "value": head, "one": 0}[each]
        one = slice(own, own + 1)
        a = lv.gated_householder(log_decay[:, :, one], key[:, :, g : g + 1], beta[:, :, one])
        alone = lv.recur(
            a, q[:, :, g : g + 1], key[:, :, g : g + 1], v[:, :, head : head + 1], form="recurrent", backend="torch"
        )
        assert difference(ours.output[:, :, head : head + 1], alone.output) < 1e-13
        assert difference(ours.state[:, head : head + 1], alone.state) < 1e-13


def test_groups_repeat_and_do_not_tile(device):
    k = torch.tensor([1.0, 10.0], device=device).reshape(1, 1, 2, 1)
    one = torch.ones(1, 1, 4, 1, device=device)
    assert lv.recur(lv.identity(), torch.ones_like(k), k, one).output.flatten().tolist() == [1, 1, 10, 10]


@pytest.mark.parametrize("name", [name for name in TRANSITIONS if name != "identity"])
def test_broadcast_parts_get_their_gradient_summed(name, device):
    some = call(name, Sizes(b=2, t=5, h=2, hv=2), device=device)
    small = {id(x): x[:1, :1, :1].clone().requires_grad_() for x in some.a.parts.values()}
    spread = {i: x.expand(2, 5, 2, -1).detach().clone().requires_grad_() for i, x in small.items()}
    for parts in (small, spread):
        out = lv.recur(some.a.map(lambda x, parts=parts: parts[id(x)]), *some[1:])
        (out.output.abs().sum() + out.state.abs().sum()).backward()
    for i in small:
        assert difference(small[i].grad, spread[i].grad.sum((0, 1, 2), keepdim=True)) < 1e-12


@EVERY_WAY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_state_is_single_or_double_and_output_has_the_inputs_dtype(form, backend, dtype, device):
    some = call("gated householder", Sizes(t=70), device=device)
    a = some.a.map(lambda x: x.float() if dtype != torch.float64 else x)
    q, k, v = (x.to(dtype) for x in some[1:4])
    for given in (None, some.state.to(dtype), some.state.half()):
        ours = lv.recur(a, q, k, v, given, form=form, backend=backend)
        assert ours.output.dtype == dtype
        assert ours.state.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        true = dense.recur(a, q, k, v, given)
        assert difference(ours.output, true[0]) < {torch.float16: 2e-2, torch.bfloat16: 2e-2}.get(dtype, 1e-5)
        assert difference(ours.state, true[1]) < 1e-5


@EVERY_WAY
def test_half_inputs_neither_overflow_nor_stall(form, backend, device):
    one = torch.ones(1, 1000, 1, 1, dtype=torch.float16, device=device)
    out = lv.recur(lv.identity(), one * 2**-10, one, one * 100, form=form, backend=backend).output
    assert out[0, -1].item() == pytest.approx(97.65625, abs=0.0625)
    one = torch.ones(1, 1024, 1, 1, dtype=torch.bfloat16, device=device)
    for size in (1024, 16, 1):
        state = None
        for i in range(0, 1024, size):
            part = one[:, i : i + size]
            state = lv.recur(lv.identity(), part, part, part, state, form=form, backend=backend).state
        assert state.item() == 1024


@EVERY_WAY
@pytest.mark.parametrize("which", ["q", "k", "v", "state"])
def test_anything_may_be_complex(form, backend, which, device):
    for name in ("identity", "scalar", "diagonal", "householder"):
        some = call(name, device=device, dtype=torch.float32)._asdict()
        some[which] = torch.complex(some[which], torch.randn_like(some[which]))
        ours = lv.recur(*some.values(), form=form, backend=backend)
        assert ours.output.dtype == ours.state.dtype == torch.complex64
        true = dense.recur(*some.values())
        assert difference(ours.output, true[0]) < 1e-5
        assert difference(ours.state, true[1]) < 1e-5


def test_a_negative_decay_is_a_complex_logarithm(device):
    one = torch.ones(1, 6, 1, 1, dtype=torch.float64, device=device)
    g = torch.full_like(one, math.log(0.5)) + 1j * math.pi
    out = lv.recur(lv.scalar(g), one, one, one).output
    assert difference(out, torch.tensor([1, 0.5, 0.75, 0.625, 0.6875, 0.65625]).reshape(one.shape).to(device)) < 1e-14
    assert out.dtype == torch.complex128


@EVERY_WAY
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_changes_nothing(form, backend, dtype, device):
    some = call("gated householder", Sizes(t=70), device=device, dtype=dtype)
    plain = lv.recur(*some, form=form, backend=backend)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        cast = lv.recur(*some, form=form, backend=backend)
    assert cast.output.dtype == plain.output.dtype
    assert torch.equal(cast.output, plain.output)
    assert torch.equal(cast.state, plain.state)


@EVERY_WAY
@pytest.mark.parametrize("name", TRANSITIONS)
def test_nothing_of_the_callers_is_changed_or_shared(name, form, backend, device):
    for t in (0, 1, 9):
        some = call(name, Sizes(t=t), device=device)
        copies = [x.clone() for x in leaves(some)]
        for mask in (None, torch.zeros(2, t, dtype=torch.bool, device=device)):
            ours = lv.recur(*some, form=form, backend=backend, mask=mask)
            ours.output.fill_(7)
            ours.state.fill_(7)
            assert all(torch.equal(x, y) for x, y in zip(leaves(some), copies, strict=True))


@EVERY_WAY
def test_no_steps_and_no_rows_are_legal(form, backend, device):
    for name in TRANSITIONS:
        empty = call(name, Sizes(t=0), device=device)
        ours = lv.recur(*empty, form=form, backend=backend)
        assert ours.output.shape == (2, 0, 4, 3)
        assert difference(ours.state, empty.state) == 0
        assert not lv.recur(*empty[:4], form=form, backend=backend).state.any()
        none = lv.recur(*call(name, Sizes(b=0), device=device), form=form, backend=backend)
        assert none.output.shape == (0, 7, 4, 3)
        assert none.state.shape == (0, 4, 3, 5)
    packed = call("scalar", Sizes(b=1, t=0), device=device)
    start = torch.randn(2, 4, 3, 5, dtype=torch.float64, device=device)
    assert torch.equal(lv.recur(*packed[:4], start, form=form, backend=backend, cu_seqlens=[0, 0, 0]).state, start)
    assert lv.recur(*packed[:4], form=form, backend=backend, cu_seqlens=[0]).state.shape == (0, 4, 3, 5)


def test_gradient_reaches_the_given_state_without_steps(device):
    some = call("scalar", Sizes(t=0), device=device)
    some.state.requires_grad_()
    lv.recur(*some).state.sum().backward()
    assert torch.equal(some.state.grad, torch.ones_like(some.state))


@EVERY_WAY
def test_strided_inputs_equal_contiguous_ones(form, backend, device):
    s = Sizes(b=2, t=6, h=2, hv=2, k=4, v=4)
    base = torch.randn(s.b, s.t, 3 * 8, dtype=torch.float64, device=device, requires_grad=True)
    wider = torch.rand(s.b, 2 * s.t, s.h, 3, dtype=torch.float64, device=device)
    state = torch.randn(s.b, s.k, s.v, s.h, dtype=torch.float64, device=device).permute(0, 3, 2, 1)
    results = []
    for plain in (False, True):
        q, k, v = (x.unflatten(-1, (2, 4)) for x in base.chunk(3, -1))
        k = k.transpose(1, 2).contiguous().transpose(1, 2)[:, :, :1].expand(-1, -1, 2, -1) * 0.3
        beta = wider[:, ::2, :, 1]
        if plain:
            q, k, v, beta, start = (x.contiguous() for x in (q, k, v, beta, state))
        else:
            start = state
        out, last = lv.recur(lv.householder(k, beta), q, k, v, start, form=form, backend=backend)
        loss = torch.cat([out, out], 1)[..., 0].sum() + last.sum()
        results.append((out, last, *torch.autograd.grad(loss, base)))
    for one, other in zip(*results, strict=True):
        assert difference(one, other) < 1e-13


def test_auto_gives_what_a_named_form_gives(device):
    for t in (1, 2, 5, 65):
        some = call("gated householder", Sizes(t=t), device=device)
        assert difference(lv.recur(*some).output, lv.recur(*some, form="recurrent").output) < 1e-13


def test_memory_of_the_chunkwise_form_grows_linearly(device):
    # Numbers held for the backward pass, counted exactly: twice the text may hold twice as many.
    def held(t: int) -> int:
        some = call("gated householder, diagonal", Sizes(b=1, t=t, h=1, hv=1, k=8, v=8), device=device)
        for x in leaves(some):
            x.requires_grad_()
        kept = {}
        with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.setdefault(x.data_ptr(), x), lambda x: x):
            lv.recur(*some, form="chunkwise", chunk=16)
        return sum(x.numel() for x in kept.values())

    assert held(512) < 2.2 * held(256)


def _bad(**changes):
    good = {
        "a": lv.scalar(torch.zeros(2, 11, 3, 1)),
        "q": torch.zeros(2, 11, 3, 4),
        "k": torch.zeros(2, 11, 3, 4),
        "v": torch.zeros(2, 11, 3, 5),
    }
    return good | changes


def _set(name: str, value):
    return lambda: _bad(**{name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("q", torch.zeros(2, 11, 4)), r"q \(2, 11, 4\)"),
        (_set("q", torch.zeros(2, 11, 3, 5)), r"q \(2, 11, 3, 5\), k \(2, 11, 3, 4\)"),
        (_set("v", torch.zeros(2, 10, 3, 5)), r"v \(2, 10, 3, 5\)"),
        (_set("v", torch.zeros(2, 11, 4, 5)), r"multiple of their heads.*v \(2, 11, 4, 5\)"),
        (_set("v", torch.zeros(2, 11, 3, 5, dtype=torch.float64)), "q torch.float32, k torch.float32, v torch.float64"),
        (_set("q", torch.zeros(2, 11, 3, 4, dtype=torch.int64)), "share one floating dtype"),
        (_set("a", lv.diagonal(torch.zeros(2, 11, 3, 3))), r"log_decay has last axis 3, but k has 4. Use scalar"),
        (_set("a", lv.scalar(torch.zeros(2, 7, 3, 1))), r"log_decay must have axes.*\(2, 7, 3, 1\)"),
        (_set("a", lv.householder(torch.zeros(2, 11, 2, 4), torch.zeros(2, 11, 3))), r"right must have axes"),
        (_set("state", torch.zeros(2, 3, 4, 5)), r"state must be .* \(2, 3, 5, 4\).*\(2, 3, 4, 5\)"),
        (_set("form", "fast"), "form must be one of recurrent, scan, chunkwise, parallel or auto.*'fast'"),
        (_set("form", "convolution"), "form must be one of"),
        (_set("backend", "cuda"), "backend must be one of torch, cpu, triton or auto.*'cuda'"),
        (_set("backend", "triton"), "triton backend has no kernels yet, for any device. Use backend='torch'"),
        (_set("chunk", 0), "chunk must be an int >= 1.*0"),
        (_set("chunk", True), "chunk must be an int"),
        (_set("read", "during"), "read must be 'after' or 'before'"),
        (_set("mask", torch.ones(2, 10)), r"mask must be a tensor \(b, t\) = \(2, 11\).*\(2, 10\)"),
        (_set("mask", torch.full((2, 11), 0.5)), "mask must hold only 0 and 1"),
        (_set("mask", torch.full((2, 11), math.nan)), "mask must hold only 0 and 1"),
        (_set("cu_seqlens", [0, 11]), "b must be 1.*b is 2"),
    ],
)
def test_a_bad_call_gets_one_clear_line(change, message):
    for _ in range(2):
        arguments = change()
        with pytest.raises(ValueError, match=message) as caught:
            lv.recur(*(arguments.pop(name) for name in ("a", "q", "k", "v")), arguments.pop("state", None), **arguments)
        assert "\n" not in str(caught.value)
        # What fits is known from then on, and no bad call beside it.
        lv.recur(*_bad().values())


def test_of_calls_that_fit_only_so_many_are_kept(monkeypatch):
    monkeypatch.setattr(dispatch, "MANY", 5)
    dispatch._KNOWN.clear()
    x = torch.ones(1, 12, 1, 2)
    for steps in range(1, 13):
        assert lv.recur(lv.identity(), *(x[:, :steps],) * 3).output.dtype == torch.float32
    assert 0 < len(dispatch._KNOWN) <= 5


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_what_is_traced_is_not_known():
    x, a = torch.ones(1, 3, 1, 2), lv.identity()
    dispatch._KNOWN.clear()
    with pytest.warns(DeprecationWarning):
        torch.jit.trace(lambda x: lv.recur(lv.identity(), x, x, x).output, (x,), check_trace=False)
    torch.compile(lambda x: lv.recur(a, x, x, x).output, backend="eager", fullgraph=True)(x)
    with FakeTensorMode() as mode:
        lv.recur(lv.identity(), *(mode.from_tensor(x),) * 3)
    assert not dispatch._KNOWN
    for transform in (torch.func.grad, torch.func.vmap):
        transform(lambda x: lv.recur(lv.identity(), *(x.reshape(1, -1, 1, 1),) * 3).output.sum())(torch.ones(2))
    assert all(type(n) is int for facts in dispatch._KNOWN for one in facts if one is not None for n in one[1])


@pytest.mark.parametrize("offsets", [[1, 7], [0, 5], [0, 5, 3, 7], [], [0, 8], torch.tensor([0.0, 7.0]), [False, 7]])
def test_offsets_that_do_not_tile_the_row_are_refused(offsets):
    some = call("scalar", Sizes(b=1), device=torch.device("cpu"))
    with pytest.raises(ValueError, match="cu_seqlens must"):
        lv.recur(*some[:4], cu_seqlens=offsets)


def test_a_misspelt_option_is_a_type_error():
    some = call("scalar", device=torch.device("cpu"))
    with pytest.raises(TypeError, match="cu_seqlen"):
        lv.recur(*some, cu_seqlen=[0, 7])
