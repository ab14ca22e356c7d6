"""A folder of ours for tests of what is read from one, and how it comes to hold something else."""

import json

from safetensors.torch import load_file, save_file

import lavagna as lv


def build(layer="gla", **changed):
    """A small model of a layer or of several."""
    depth = len(layer) if isinstance(layer, list) else 2
    return lv.LanguageModel(
        lv.ModelConfig(layer=layer, **({"d_model": 32, "depth": depth, "vocab_size": 256} | changed))
    )


def edit(folder, change):
    """Rewrite the tensors of a checkpoint."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def configure(folder, **changed):
    """Rewrite what a checkpoint says of its model."""
    config = json.loads((folder / "config.json").read_text())
    config["model"] |= changed
    (folder / "config.json").write_text(json.dumps(config))
