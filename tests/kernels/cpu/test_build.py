"""The kernels are built where a compiler is, known for what they were built of, and not missed where there are none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lavagna.kernels.cpu import build
from lavagna.kernels.cpu.library import library

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
TWO = """
import torch, lavagna as lv
q = torch.randn(1, 9, 2, 4)
a = lv.scalar(-torch.rand(1, 9, 2, 1))
assert torch.equal(lv.recur(a, q, q, q).state, lv.recur(a, q, q, q, backend="torch").state)
try:
    lv.recur(a, q, q, q, backend="cpu")
except ValueError as error:
    print(error)
"""


def python(code: str, **environment: str) -> subprocess.CompletedProcess:
    path = os.pathsep.join([str(ROOT / "src"), str(TESTS)])
    return subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler to build them with")
def test_where_a_compiler_is_the_kernels_are_built():
    """Or all other tests of theirs would be left out, and nobody would know."""
    assert library().functions is not None, library().level


def test_without_kernels_torch_serves_and_an_explicit_request_says_why():
    done = python(TWO, LAVAGNA_CPU_LEVEL="none")
    assert done.returncode == 0, done.stderr
    assert "LAVAGNA_CPU_LEVEL=none" in done.stdout and "backend='torch'" in done.stdout


def test_a_level_that_the_processor_lacks_is_refused_with_those_it_has():
    done = python("import lavagna.kernels", LAVAGNA_CPU_LEVEL="avx1024")
    assert done.returncode and "plain" in done.stderr and "avx1024" in done.stderr


@pytest.mark.skipif(library().functions is None, reason="the CPU kernels are not built here")
def test_the_plainest_level_gives_the_same_numbers():
    code = """
import torch, lavagna as lv
from transitions import TRANSITIONS, Sizes, call, difference
for name in TRANSITIONS:
    some = call(name, Sizes(t=70, k=9, v=20), device=torch.device("cpu"))
    for one, other in zip(*(lv.recur(*some, form="recurrent", backend=kind) for kind in ("cpu", "torch"))):
        assert difference(one, other) < 1e-12, name
print(lv.kernels.cpu.library.library().level)
"""
    done = python(code, LAVAGNA_CPU_LEVEL="plain")
    assert done.returncode == 0 and done.stdout == "plain\n", done.stderr


def test_no_compiler_is_said_in_a_line():
    done = subprocess.run(
        [sys.executable, build.__file__],
        env=os.environ | {"CXX": "/nowhere/c++"},
        capture_output=True,
        text=True,
    )
    assert done.returncode and "/nowhere/c++" in done.stderr and "Traceback" not in done.stderr


def test_what_was_built_of_other_sources_is_not_used(monkeypatch):
    if library().functions is None:
        pytest.skip("the CPU kernels are not built here")
    monkeypatch.setattr("lavagna.kernels.cpu.library.digest", lambda: "another")
    found = library.__wrapped__()
    assert found.functions is None and "build.py" in found.level


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not there to build with checks")
def test_no_address_is_wrong_and_no_behavior_undefined(tmp_path):
    """The kernel over ragged sizes, built with sanitizers: forward, backward, packed, masked, one value and many."""
    level = library().level if library().functions else "plain"
    (built,) = build.build(tmp_path, only=level, sanitize=True)
    # With the library of C++ before it, which it looks for when it is loaded: torch throws exceptions.
    names = ("libasan.so", "libstdc++.so.6")
    found = [subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True) for name in names]
    sanitizer = " ".join(one.stdout.strip() for one in found)
    code = f"""
import itertools, pathlib, sys, torch
from lavagna.kernels.cpu import build
build.library_path = lambda level: pathlib.Path({str(built)!r})
import lavagna as lv
from transitions import TRANSITIONS, Sizes, call, leaves
SIZES = [(1, 1, 1, 1), (70, 20, 1, 2), (5, 10, 17, 1), (0, 1, 3, 2)]
for name, (t, k, v) in itertools.product(TRANSITIONS, [(1, 1, 1), (70, 5, 9), (9, 33, 40), (0, 3, 2)]):
    for options in ({{}}, {{"mask": torch.rand(1, t) > 0.5}}, {{"cu_seqlens": [0, t // 2, t // 2, t]}}):
        some = call(name, Sizes(b=1, t=t, h=1, hv=2, k=k, v=v), device=torch.device("cpu"), dtype=torch.float32)
        state = torch.zeros(3 if "cu_seqlens" in options else 1, 2, v, k).to(some.state)
        for x in leaves(some):
            x.requires_grad_()
        for read in ("after", "before"):
            out = lv.recur(*some[:4], state, backend="cpu", read=read, **options)
            (out.output.abs().sum() + out.state.abs().sum()).backward()
sys.path.append({str(TESTS / "kernels" / "cpu")!r})
import test_pointwise as pointwise
for dtype in (torch.float32, torch.bfloat16):
    for size in (1, 7, 300):
        pointwise.test_sums_over_an_axis(size, dtype)
    pointwise.test_copies(dtype)
    pointwise.test_functions_with_options(dtype)
small = [("rwkv4", 20), ("rwkv4", 80), ("rg_lru", 48), ("mamba2", 32), ("slstm", 20), ("slstm", 64)]
for (name, d), t in itertools.product(small, (0, 1, 70)):
    for options in ({{}}, {{"mask": torch.rand(1, t) > 0.5}}, {{"cu_seqlens": [0, t // 2, t // 2, t]}}):
        out = lv.layers.build(name, d)(torch.randn(1, t, d, requires_grad=True), backend="cpu", **options)
        sum(x.abs().sum() for x in (out.y, *out.state.tensors().values()) if x.requires_grad).backward()
for name, (t, h, k, v) in itertools.product(("identity", "diagonal", "diagonal with step"), SIZES):
    for options in ({{}}, {{"mask": torch.rand(1, t) > 0.5}}, {{"cu_seqlens": [0, t // 2, t // 2, t]}}):
        some = call(name, Sizes(b=1, t=t, h=h, hv=20, k=k, v=v), device=torch.device("cpu"), dtype=torch.float32)
        state = torch.zeros(3 if "cu_seqlens" in options else 1, 20, v, k).to(some.state)
        for x in leaves(some):
            x.requires_grad_()
        for read in ("after", "before"):
            out = lv.recur(*some[:4], state, backend="cpu", read=read, **options)
            (out.output.abs().sum() + out.state.abs().sum()).backward()
print("clean")
"""
    done = python(code, LD_PRELOAD=sanitizer, ASAN_OPTIONS="detect_leaks=0", LAVAGNA_CPU_LEVEL=level)
    assert done.stdout == "clean\n", done.stderr[:3000]
