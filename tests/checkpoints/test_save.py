"""What is saved is whole, or what was there before is."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import lavagna as lv
from lavagna.data import Tokenizer

SOURCE = Path(__file__).parents[2] / "src"
WRITER = """
import sys, resource, torch, lavagna as lv
if sys.argv[2] != "0":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
model = lv.LanguageModel(lv.ModelConfig(layer="gla", d_model=64, depth=2, vocab_size=256))
number = 0
while True:
    number += 1
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(number)
    lv.save(model, sys.argv[1])
    print(number, flush=True)
"""


def build(**changed):
    return lv.LanguageModel(
        lv.ModelConfig(**({"layer": "gla", "d_model": 32, "depth": 1, "vocab_size": 256} | changed))
    )


def writer(path, limit=0):
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", WRITER, path, str(limit)], env=environment, text=True, **pipes)


def number_in(path):
    """The one number that every tensor of the checkpoint must hold."""
    numbers = {value for parameter in lv.load(path)[0].parameters() for value in parameter.unique().tolist()}
    assert len(numbers) == 1
    return numbers.pop()


def test_a_writer_killed_at_any_moment_leaves_a_whole_checkpoint(tmp_path):
    path = tmp_path / "model"
    for delay in (0.0, 0.003, 0.011):
        running = writer(path)
        first = running.stdout.readline()
        time.sleep(delay)
        running.send_signal(signal.SIGKILL)
        seen = [int(line) for line in (first + running.communicate()[0]).split()]
        assert number_in(path) in (seen[-1], seen[-1] + 1)


def test_a_full_disk_is_said_in_one_line_and_leaves_the_old_checkpoint_alone(tmp_path):
    path = tmp_path / "model"
    lv.save(build(), path)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    running = writer(path, limit=100_000)
    error = running.communicate()[1].strip().splitlines()[-1]
    assert running.returncode and error.startswith("OSError: save: ") and "can't be written" in error
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
    assert os.listdir(tmp_path) == ["model"]


def test_a_full_disk_where_nothing_was_leaves_nothing(tmp_path):
    assert writer(tmp_path / "model", limit=100_000).wait() != 0
    assert os.listdir(tmp_path) == []


def test_the_files_can_be_read_by_whoever_may_read_new_files(tmp_path):
    lv.save(build(), tmp_path / "model", Tokenizer.bytes())
    (tmp_path / "other").touch()
    modes = {stat.S_IMODE(file.stat().st_mode) for file in [*(tmp_path / "model").iterdir(), tmp_path / "other"]}
    assert len(modes) == 1


def test_a_model_without_its_tokenizer_replaces_one_with(tmp_path):
    lv.save(build(), tmp_path / "model", Tokenizer.bytes())
    lv.save(build(), tmp_path / "model")
    assert sorted(os.listdir(tmp_path / "model")) == ["config.json", "model.safetensors"]


def test_saving_changes_neither_the_model_nor_its_mode(tmp_path):
    model = build().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    lv.save(model, tmp_path / "model")
    assert model.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_parameters_that_share_storage_are_written_both(tmp_path):
    model = build(tie_embeddings=False)
    model.head.weight = model.embedding.weight
    lv.save(model, tmp_path / "model")
    loaded, _ = lv.load(tmp_path / "model")
    assert torch.equal(loaded.head.weight, model.embedding.weight)


def test_a_model_on_the_meta_device_is_refused(tmp_path):
    with torch.device("meta"), pytest.raises(ValueError, match="has no numbers"):
        lv.save(build(), tmp_path / "model")
    assert not os.listdir(tmp_path)
