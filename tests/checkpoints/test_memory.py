"""Loading takes the memory of the model and little more, whatever its files are."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lavagna.checkpoints.safetensors_file import write_safetensors
from lavagna.checkpoints.weights import Entry

TESTS = Path(__file__).parents[1]
LIMIT = 1.3
WRITE = """
import sys, json, torch
from pathlib import Path
from checkpoints.stand_in import config, shapes
from lavagna.checkpoints.safetensors_file import write_safetensors
from lavagna.checkpoints.weights import Entry

folder, kind, width, depth = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
dtype = torch.bfloat16 if "bf16" in kind else torch.float32
entries = {name: Entry(shape, dtype) for name, shape in shapes(width, depth, vocab=8 * width).items()}
full = lambda entry: torch.full(entry.shape, 0.01, dtype=entry.dtype)
parts = [dict(list(entries.items())[n::3]) for n in range(3)] if "shards" in kind else [entries]
names = {}
for number, part in enumerate(parts):
    file = f"part{number}." + ("bin" if "bin" in kind else "safetensors")
    if "bin" in kind:
        torch.save({name: full(entry) for name, entry in part.items()}, folder / file,
                   _use_new_zipfile_serialization="old" not in kind)
    else:
        write_safetensors(folder / file, part, ((name, full(entry)) for name, entry in part.items()))
    names |= dict.fromkeys(part, file)
index = "pytorch_model.bin.index.json" if "bin" in kind else "model.safetensors.index.json"
if len(parts) > 1:
    (folder / index).write_text(json.dumps({"weight_map": names}))
(folder / "config.json").write_text(json.dumps(config(width, depth, vocab=8 * width)))
"""
READ = """
import sys, json, time, torch, lavagna as lv
import lavagna.models, lavagna.checkpoints
from pathlib import Path
from memory import peak
from checkpoints.stand_in import StandIn
lv.checkpoints.formats.register(StandIn)
# Whatever is imported late by a first load is imported before memory is counted.
lv.load(sys.argv[1] + "/small")
size = sum(file.stat().st_size for file in Path(sys.argv[1], "large").glob("part*"))
before, start = peak(), time.perf_counter()
model, _ = lv.load(sys.argv[1] + "/large")
added, seconds = peak() - before, time.perf_counter() - start
assert all((x == 0.01).all() or x.dtype != torch.float32 for x in model.parameters())
print(json.dumps({"ratio": added / size, "size": size, "seconds": seconds}))
"""


def run(code, *words):
    """Run code in a process of its own, without the shape checks of the tests; what it printed."""
    path = os.pathsep.join([str(TESTS.parent / "src"), str(TESTS)])
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def measured(folder, kind, width, depth):
    """The peak of loading a checkpoint over the size of its files."""
    for name, sizes in (("small", (32, 1)), ("large", (width, depth))):
        (folder / name).mkdir()
        run(WRITE, folder / name, kind, *sizes)
    found = json.loads(run(READ, folder))
    print(kind, found)
    return found


KINDS = ["safetensors", "safetensors bf16", "safetensors shards", "bin", "bin bf16", "bin shards", "bin old"]


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from Linux's /proc")
@pytest.mark.parametrize("kind", ["safetensors shards bf16", pytest.param("bin shards", marks=pytest.mark.slow)])
def test_loading_takes_little_more_than_the_size_of_the_files(kind, tmp_path):
    # 3.7 and 7.5 times the window that a mapped file has.
    assert measured(tmp_path, kind, 1024, 6)["ratio"] < LIMIT


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from Linux's /proc")
@pytest.mark.parametrize("kind", KINDS)
def test_loading_a_gigabyte_takes_little_more(kind, tmp_path):
    found = measured(tmp_path, kind, 2048, 6 if "bf16" not in kind else 13)
    assert found["size"] > 9e8 and found["ratio"] < LIMIT


def test_a_file_is_written_tensor_by_tensor(tmp_path):
    """Nothing is kept: tensors come from a generator, in any order, and land at their places."""
    from safetensors.torch import load_file
    from torch import bfloat16, float32, full

    entries = {"a": Entry((3,), bfloat16), "b": Entry((2, 2), float32), "c": Entry((0, 4), float32)}
    tensors = {name: full(entry.shape, 2.5, dtype=entry.dtype) for name, entry in entries.items()}
    write_safetensors(tmp_path / "x.safetensors", entries, ((name, tensors[name]) for name in "cab"))
    found = load_file(tmp_path / "x.safetensors")
    assert found.keys() == entries.keys()
    assert all(found[name].dtype == x.dtype and found[name].tolist() == x.tolist() for name, x in tensors.items())
