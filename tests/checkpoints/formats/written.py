"""Models of ours that never were anything else, written in a foreign format and read by who else reads it."""

import dataclasses

import pytest
import torch

import lavagna as lv
from checkpoints.formats.comparison import distance, logits, of_transformers
from lavagna.checkpoints.formats import of_name
from lavagna.checkpoints.holding import config_for

# A hybrid; its layers' options and its blocks are each format's own.
HYBRID = lv.ModelConfig(
    layer=["gated_delta_net", "gated_delta_net", "softmax_attention"],
    d_model=32,
    depth=3,
    vocab_size=50,
    norm_eps=1e-6,
    tie_embeddings=False,
)


def written_for(config, format, theirs, folder, *, exact=1e-4):
    """Write a random model of a config in a format, read it by a class of transformers, and expect equal logits."""
    model = lv.LanguageModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    lv.save(model, folder / "ours")
    assert lv.checkpoints.convert(folder / "ours", folder / "theirs", to=format).target == format
    ids = torch.randint(2, 50, (2, 17))
    read = of_transformers(theirs.from_pretrained(folder / "theirs").eval())(ids)[0]
    assert distance(logits(model, ids)[0], read) < exact
    assert distance(logits(lv.load(folder / "theirs")[0], ids)[0], read) < exact


def refused_for(config, format, said, **changed):
    """Expect a format to refuse a config with some fields changed, in words that say which."""
    with pytest.raises(ValueError, match=f"{format} can't hold this model.*{said}"):
        config_for(of_name(format), dataclasses.replace(config, **changed))
