"""`lavagna bench`."""

import json

import pytest

from lavagna import layers
from lavagna.bench import cpu
from lavagna.bench.cpu import scan
from lavagna.bench.forms import BOUNDS, PASSES
from lavagna.cli.bench import PEERS, SECTIONS
from lavagna.kernels import serves


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


def test_every_section_can_be_asked_for():
    assert list(cpu.SECTIONS) == list(SECTIONS) and list(cpu.PEERS) == list(PEERS)


def test_a_wrong_answer_is_told_of_and_is_no_success(lavagna, monkeypatch):
    monkeypatch.setattr(scan, "distance", lambda came, wanted: 1.0)
    done = lavagna("bench", "cpu", "--section", "scan", "--peer", "none", "--quick")
    assert done.code == 1 and "not timed" in done.out


def test_an_unknown_section_or_peer_is_refused(refused):
    assert "recurrence" in refused("bench", "cpu", "--section", "nonsense")
    assert "mambapy" in refused("bench", "cpu", "--peer", "nonsense")
