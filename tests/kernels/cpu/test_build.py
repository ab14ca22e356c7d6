"""The kernels are built where a compiler is, known for what they were built of, and not missed where there are none."""

import importlib.util
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lavagna.kernels import describe
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
    done = python(f"import lavagna\n{TWO}", LAVAGNA_CPU_LEVEL="avx1024")
    assert done.returncode and "ValueError: LAVAGNA_CPU_LEVEL must be" in done.stderr
    assert "plain" in done.stderr and "avx1024" in done.stderr


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


@pytest.fixture
def copies(tmp_path, monkeypatch):
    """A folder with a copy of what was built, in which the libraries are looked for."""
    if library().functions is None:
        pytest.skip("the CPU kernels are not built here")
    for level in build.levels():
        shutil.copy(build.library_path(level), tmp_path)
    monkeypatch.setattr("lavagna.kernels.cpu.library.library_path", lambda level: tmp_path / f"lavagna_{level}.so")
    monkeypatch.delenv("LAVAGNA_CPU_LEVEL", raising=False)
    return tmp_path


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zeroed(path):
    content = path.read_bytes()
    path.write_bytes(content[:4096] + bytes(len(content) - 4096))


def another(path):
    """A library of the machine's own."""
    shutil.copy(importlib.util.find_spec("torch._C").origin, path)


def replaced_by_a_folder(path):
    path.unlink()
    path.mkdir()


def of_another_level(path):
    """Whole, but renamed."""
    content = path.read_bytes()[: -len(build.mark(b"", build.digest(), ""))]
    path.write_bytes(content + build.mark(content, build.digest(), "lavagna_other.so"))


DAMAGES = [
    cut,
    zeroed,
    another,
    of_another_level,
    Path.unlink,
    replaced_by_a_folder,
    lambda path: path.write_bytes(b""),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_best_level_whose_file_is_whole_is_taken_and_the_others_are_named_with_the_mend(copies, damage):
    whole = library.__wrapped__()
    levels = list(build.levels())
    levels = levels[: levels.index(whole.level) + 1]
    assert whole.functions is not None and not whole.passed_over
    for level, lower in zip(levels[:0:-1], levels[-2::-1], strict=True):
        damage(copies / f"lavagna_{level}.so")
        found = library.__wrapped__()
        assert found.level == lower and found.functions is not None
        assert f"lavagna_{level}.so" in found.passed_over and build.__file__ in found.passed_over
    damage(copies / "lavagna_plain.so")
    found = library.__wrapped__()
    assert found.functions is None and build.__file__ in found.level


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_best_level_needs_no_plain_one(copies, damage):
    level = library.__wrapped__().level
    damage(copies / "lavagna_plain.so")
    found = library.__wrapped__()
    assert level == "plain" or (found.level == level and "lavagna_plain.so" in found.passed_over)


def test_a_level_that_was_asked_for_is_not_replaced(copies, monkeypatch):
    cut(copies / "lavagna_plain.so")
    monkeypatch.setenv("LAVAGNA_CPU_LEVEL", "plain")
    found = library.__wrapped__()
    assert found.functions is None and "lavagna_plain.so is not what a build left there" in found.level


def test_what_was_passed_over_is_told_in_the_line_of_the_backend(monkeypatch):
    spoiled = library()._replace(functions=object(), passed_over="lavagna_avx512.so is not there: build it")
    monkeypatch.setattr("lavagna.kernels.cpu.recurrence.LIBRARY", spoiled)
    assert describe("cpu").endswith("; lavagna_avx512.so is not there: build it")


def test_what_was_built_of_other_sources_is_not_used(copies, monkeypatch):
    monkeypatch.setattr("lavagna.kernels.cpu.library.digest", lambda: "another")
    found = library.__wrapped__()
    assert found.functions is None and "from other sources" in found.level and build.__file__ in found.level


def test_what_editors_leave_beside_the_sources_is_not_compiled_nor_told_of(tmp_path, monkeypatch):
    before = build.digest()
    shutil.copytree(build.SOURCE, tmp_path / "source")
    monkeypatch.setattr(build, "SOURCE", tmp_path / "source")
    assert build.digest() == before
    for name in (".#level.cpp", "notes.cpp~", "level.cpp.orig"):
        (build.SOURCE / name).symlink_to("user@host.1234")
    (build.SOURCE / "._level.cpp").write_bytes(b"\0\5\26\7")
    (build.SOURCE / "folder.cpp").mkdir()
    assert build.digest() == before and [file.stem for file in build.sources("cpp")].count("level") == 1
    (build.SOURCE / "level.cpp").write_text("")
    assert build.digest() != before


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("at_once", ["threads", "processes"])
def test_two_builds_at_once_leave_one_whole_library(at_once, few, tmp_path):
    if at_once == "threads":
        with ThreadPoolExecutor(2) as pool:
            for _ in pool.map(lambda _: build.build(tmp_path, only="plain"), range(2)):
                pass
    else:
        code = f"""
from pathlib import Path
from lavagna.kernels.cpu import build
build.SOURCE = Path({str(few)!r})
build.build(Path({str(tmp_path)!r}), only="plain")
"""
        with ThreadPoolExecutor(2) as pool:
            assert all(done.returncode == 0 for done in pool.map(lambda _: python(code), range(2)))
    assert [file.name for file in tmp_path.iterdir() if file.is_file()] == ["lavagna_plain.so"]
    assert build.built_of(tmp_path / "lavagna_plain.so") == build.digest()


@pytest.fixture
def few(tmp_path, monkeypatch):
    """Sources that compile in a moment, outside the folder of the library."""
    folder = tmp_path / "few"
    folder.mkdir()
    shutil.copy(build.SOURCE / "level.cpp", folder)
    monkeypatch.setattr(build, "SOURCE", folder)
    return folder


@pytest.mark.parametrize(
    "cxx", ["c++ 'unbalanced", "/nowhere/c++", os.path.dirname(__file__), "echo", "false", "c++ -nonsense"]
)
@pytest.mark.usefixtures("few")
def test_a_compiler_that_is_none_is_said_in_a_line(cxx, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", cxx)
    with pytest.raises(build.BuildError) as raised:
        build.build(tmp_path, only="plain")
    assert cxx.split()[0].strip("'") in str(raised.value)
    assert not list(tmp_path.glob("lavagna_*"))


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
@pytest.mark.usefixtures("few")
def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(build.BuildError, match="lavagna_plain.so can't be written"):
        build.build(tmp_path / "file", only="plain")


def test_no_compiler_is_said_in_a_line():
    done = subprocess.run(
        [sys.executable, build.__file__],
        env=os.environ | {"CXX": "/nowhere/c++"},
        capture_output=True,
        text=True,
    )
    assert done.returncode and "/nowhere/c++" in done.stderr and "Traceback" not in done.stderr


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
