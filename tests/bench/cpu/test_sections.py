"""Every section of what is measured on a CPU, at small sizes."""

import pytest
import torch

from lavagna.bench import cpu
from lavagna.bench.clock import threads
from lavagna.bench.cpu import generation, machine, pace, peers, recurrence, scan, step, training
from lavagna.bench.cpu.row import Verdict
from lavagna.kernels import serves

needs_kernel = pytest.mark.skipif(not serves("cpu"), reason="the CPU kernels are not built")
WRONG = Verdict(1.0, 1e-5)
# One of each kind: nothing learns of more of them.
LAYERS = ["gla", "s4d"]


@pytest.fixture(autouse=True)
def threads_are_given_back():
    before = torch.get_num_threads()
    yield
    assert torch.get_num_threads() == before


@pytest.fixture
def two_threads():
    """More than one, so that what is measured on one and on all is two things."""
    with threads(2):
        yield


def quick(section, **given):
    return list(cpu.rows(section, quick=True, others=(), **given))


def test_the_machine_is_measured_on_one_thread_and_on_all(two_threads):
    rows = quick("machine")
    assert {row.threads for row in rows} == {1, 2} and all(row.rate and row.rate > 0 for row in rows)
    assert {row.unit for row in rows} == {"GFLOP/s", "GB/s"}


@needs_kernel
def test_each_transition_is_held_to_its_goal_and_beaten_by_nobody_unseen(two_threads):
    rows = list(recurrence.recurrence_rows(["scalar", "dplr"], sizes=(8,), steps=70, rounds=1))
    seen = {(row.name, row.what, row.by, row.threads) for row in rows}
    kinds = [("kernel", 1), ("kernel", 2), ("chunks", 1)]
    assert seen == {
        (f"{name} k=v=8", what, *kind)
        for name in ("scalar", "dplr")
        for what in recurrence.DIRECTIONS
        for kind in kinds
    }
    assert all(row.right and row.difference is not None and row.ratio for row in rows)
    assert {row.bound for row in rows if row.threads == 2} == {1 / recurrence.GAIN}
    alone = {(row.what, row.bound) for row in rows if (row.by, row.threads) == ("kernel", 1)}
    # Five times the forward pass's goal; what it is held against counts three times its operations.
    assert alone == {("forward", 1.0), ("with backward", 5 / 3)}
    assert all((row.holds is None) == (row.bound is None) for row in rows)


def test_scans_are_held_against_their_traffic():
    rows = quick("scan")
    assert {row.against for row in rows} == {"one copy of the states", "adding"}
    assert {row.bound for row in rows} == {scan.FORWARD, scan.BACKWARD, scan.PASSES, None}
    assert all(row.right and row.time_ms for row in rows)


@needs_kernel
def test_a_step_is_measured_at_every_depth_of_the_call():
    ways = ["call", "operator", "operator through torch", "kernel", "recur", "recur by torch"]
    assert [row.by for row in quick("step")] == ways


def test_training_is_held_against_arithmetic_and_attention():
    rows = quick("training", layers=LAYERS)
    assert [(row.name, row.against) for row in rows] == [
        (layer, against) for layer in LAYERS for against in ("arithmetic", "softmax_attention's share")
    ]
    assert all(row.right and row.unit == "tokens/s" and row.rate for row in rows)
    assert all((row.holds is None) == (row.bound is None) for row in rows)
    assert "aten::" in (rows[0].note or "")


def test_generation_is_held_against_bytes_and_arithmetic():
    rows = quick("generation", layers=["gla"])
    whats = {row.what for row in rows}
    kinds = [*generation.DTYPES, *([generation.INT8] if machine.installed("torchao") else [])]
    wanted = {f"{what} {kind}" for what in ("step", "prompt of 32") for kind in kinds}
    # Without torchao a row says so.
    assert whats | {"step int8"} == wanted | {f"generate 8 {kind}" for kind in generation.DTYPES} | {"step int8"}
    assert all(row.right for row in rows)


def test_of_a_tied_model_a_token_reads_every_weight():
    sizes = {"d_model": 64, "vocab_size": 128, "twin": False}
    tied = peers.stirred(peers.configuration("gla", 1, **sizes))
    assert pace.weight_bytes(tied) == sum(parameter.nbytes for parameter in tied.parameters())
    alone = peers.stirred(generation.untied(lambda depth: peers.configuration("gla", depth, **sizes), 1))
    assert pace.weight_bytes(alone) == pace.weight_bytes(tied)


@pytest.mark.parametrize("package", ["transformers", "rwkv", "mambapy"])
def test_a_peer_has_the_same_weights_and_is_measured(package):
    pytest.importorskip(package)
    section, layer = {"transformers": ("training", "mamba2"), "rwkv": ("generation", "rwkv7")}.get(
        package, ("scan", None)
    )
    rows = [row for row in cpu.rows(section, layers=[layer], others=(package,), quick=True) if row.by == package]
    assert rows and all(row.right and row.time_ms and row.difference is not None for row in rows)


def test_a_peer_that_is_not_there_is_told_of(monkeypatch):
    monkeypatch.setattr(peers, "installed", lambda name: None)
    rows = [row for row in cpu.rows("training", layers=["mamba"], quick=True) if row.by == "transformers"]
    assert [row.note for row in rows] == ["transformers is not installed"]


def test_a_call_that_fails_is_a_line():
    def fails():
        raise RuntimeError("no\nway")

    assert peers.failure(fails) == "fails: RuntimeError: no" and peers.failure(dict) is None


@needs_kernel
@pytest.mark.parametrize(
    ("module", "section", "layers"),
    [(recurrence, "recurrence", None), (training, "training", ["gla"]), (generation, "generation", ["gla"])],
)
def test_what_is_wrong_is_not_timed(module, section, layers, monkeypatch):
    def judged(*given):
        if module is not recurrence:
            return WRONG
        return {(by, direction): WRONG for by in ("kernel", "chunks") for direction in recurrence.DIRECTIONS}

    monkeypatch.setattr(module, "judged", judged)
    rows = quick(section, layers=layers)
    assert rows and all(not row.right and row.time_ms is None and row.difference == 1.0 for row in rows)


@needs_kernel
@pytest.mark.parametrize(("module", "section"), [(scan, "scan"), (step, "step")])
def test_a_distance_from_the_definition_is_wrong(module, section, monkeypatch):
    monkeypatch.setattr(module, "distance", lambda came, wanted: float("nan"))
    rows = quick(section)
    assert rows and all(not row.right and row.time_ms is None for row in rows)


def test_a_kernel_that_is_wrong_is_found(monkeypatch):
    real = recurrence.output
    monkeypatch.setattr(
        recurrence, "output", lambda name, x, way: real(name, x, way) * (1.001 if way is recurrence.KERNEL else 1)
    )
    verdicts = recurrence.judged("scalar", 8, 70)
    assert not verdicts["kernel", "forward"].right and verdicts["chunks", "forward"].right


def test_results_say_what_they_were_measured_on(two_threads):
    about = machine.about()
    assert about["threads"] == 2 and about["torch"] == torch.__version__ and set(machine.PEERS) < set(about)
