"""`lavagna bench`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lavagna import layers
from lavagna.bench import cpu
from lavagna.bench.cpu import generation, scan
from lavagna.bench.forms import BOUNDS, PASSES
from lavagna.kernels import serves

SOURCE = Path(__file__).parents[2] / "src"


def test_every_transition_is_measured_in_both_directions_and_beside_the_loop(table):
    rows = table("bench", "forms", "--quick")
    measured = {(row["transition"], row["form"], row["backend"], row["direction"]) for row in rows}
    kinds = [("chunkwise", "torch", way) for way in PASSES] + [("recurrent", "torch", "forward")]
    kinds += [("recurrent", "cpu", way) for way in PASSES if serves("cpu")]
    assert measured == {(name, *kind) for name in BOUNDS for kind in kinds}
    assert all(row["time_ms"] > 0 and row["ratio"] > 0 for row in rows)


def test_only_what_keeps_its_inputs_grows_while_it_decodes(table):
    rows = table("bench", "decoding", "--quick", "--layer", "softmax_attention,hyena,gla,rwkv4,mamba,s4d")
    growing = {row["layer"] for row in rows if row["state_ratio"] > 1}
    assert growing == {"softmax_attention", "hyena"}


@pytest.mark.slow
def test_every_layer_can_be_measured(table):
    rows = table("bench", "decoding", "--quick")
    assert {row["layer"] for row in rows} == set(layers.names())


def test_an_unknown_part_or_layer_is_refused(refused):
    assert "decoding" in refused("bench", "nonsense")
    assert "gla" in refused("bench", "--layer", "nonsense")


def test_a_section_of_the_cpu_is_measured_and_says_on_what(lavagna):
    done = lavagna("bench", "cpu", "--section", "machine", "--threads", "1", "--quick", "--json")
    content = json.loads(done.out)
    assert done.code == 0 and content["settings"]["machine"]["threads"] == 1
    assert {row["section"] for row in content["rows"]} == {"machine"} and {row["part"] for row in content["rows"]} == {
        "cpu"
    }


def test_a_wrong_answer_is_told_of_and_is_no_success(lavagna, monkeypatch):
    monkeypatch.setattr(scan, "distance", lambda came, wanted: 1.0)
    done = lavagna("bench", "cpu", "--section", "scan", "--peer", "none", "--quick")
    assert done.code == 1 and "not timed" in done.out


def test_an_unknown_section_or_peer_is_refused(refused):
    assert "recurrence" in refused("bench", "cpu", "--section", "nonsense")
    assert "mambapy" in refused("bench", "cpu", "--peer", "nonsense")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["forms", "--section", "scan"], "--section is for cpu."),
        (["forms", "--layer", "gla"], "--layer is for decoding and cpu --section training,generation."),
        (["cpu", "--section", "recurrence", "--layer", "gla"], "--layer is for decoding and cpu --section training"),
        (["forms", "decoding", "--threads", "2"], "--threads is for cpu --section machine,"),
        (["cpu", "--section", "step", "--threads", "2"], "--threads is for cpu --section machine,"),
        (["decoding", "--peer", "rwkv"], "--peer rwkv is for cpu --section generation."),
        (["cpu", "--section", "scan,training", "--peer", "mambapy,rwkv"], "--peer rwkv is for cpu --section gen"),
        (["cpu", "--section", "machine,recurrence,step", "--peer", "none"], "--peer none is for cpu --section scan,"),
        (["cpu", "--peer", "none,rwkv"], "none goes alone"),
    ],
)
def test_an_option_that_nothing_asked_for_uses_is_refused(refused, words, said):
    assert said in refused("bench", *words)


@pytest.mark.parametrize("words", [["forms"], ["cpu", "--section", "scan", "--peer", "none"]])
def test_a_quick_run_is_held_to_no_bound_and_says_so(lavagna, table, words):
    assert all(row["bound"] is None and row["holds"] is None for row in table("bench", *words, "--quick"))
    assert "can't meet bounds" in lavagna("bench", *words, "--quick").out


def settings(done):
    assert done.code == 0, done.err
    return json.loads(done.out)["settings"]


@pytest.mark.parametrize(
    ("words", "layers", "peers"),
    [
        (["forms"], [], None),
        (["cpu", "--section", "machine"], [], []),
        (["cpu", "--section", "scan"], [], ["mambapy"]),
        (["cpu", "--section", "training", "--layer", "gla", "--peer", "none"], ["gla"], []),
        (["decoding", "--layer", "gla,s4d"], ["gla", "s4d"], None),
    ],
)
def test_settings_name_the_layers_and_peers_that_are_used(lavagna, words, layers, peers):
    found = settings(lavagna("bench", *words, "--quick", "--json"))
    assert found["layers"] == layers and found.get("peers") == peers


def test_settings_name_the_layers_that_a_section_chooses_itself(lavagna, monkeypatch):
    monkeypatch.setattr(generation, "LAYERS", ("gla",))
    found = settings(lavagna("bench", "cpu", "--section", "generation", "--peer", "none", "--quick", "--json"))
    assert found["layers"] == ["gla"]


def test_a_file_holds_what_json_prints(lavagna, tmp_path):
    file = tmp_path / "new" / "result.json"
    done = lavagna("bench", "cpu", "--section", "step", "--quick", "--json", "--output", file)
    assert json.loads(file.read_text()) == json.loads(done.out) and done.code == 0


def test_an_interrupted_run_leaves_the_rows_that_it_measured(lavagna, tmp_path, monkeypatch):
    rows = cpu.SECTIONS["scan"].rows

    def broken(**options):
        yield from [*rows(**options)][:3]
        raise KeyboardInterrupt

    monkeypatch.setitem(cpu.SECTIONS, "scan", cpu.SECTIONS["scan"]._replace(rows=broken))
    file = tmp_path / "result.json"
    done = lavagna("bench", "cpu", "--section", "step,scan", "--quick", "--output", file)
    found = json.loads(file.read_text())["rows"]
    steps = sum(row["section"] == "step" for row in found)
    assert steps and len(found) == steps + 3
    assert done.code == 130 and done.err.count("\n") == 1 and f"holds the {len(found)} rows" in done.err
    assert list(tmp_path.iterdir()) == [file]


def test_a_file_that_is_there_already_is_refused_and_kept(refused, tmp_path):
    (tmp_path / "mine").write_text("keep")
    assert "another --output" in refused("bench", "forms", "--quick", "--output", tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "keep"


def test_other_packages_write_nothing_to_stderr():
    for package in ("torchao", "transformers"):
        pytest.importorskip(package)
    words = [
        "bench",
        "cpu",
        "--section",
        "training,generation",
        "--layer",
        "mamba",
        "--peer",
        "transformers",
        "--quick",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "lavagna", *words],
        env=os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
