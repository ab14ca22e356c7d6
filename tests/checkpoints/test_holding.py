"""What a format says of a model that it cannot hold: what it holds, and what the model has."""

import pytest

import lavagna as lv
from lavagna import layers
from lavagna.checkpoints import formats
from lavagna.checkpoints.holding import config_for

# One that needs no other word than "pictures" to refuse every model.
LANGUAGE = [name for name in formats.names() if name != "qwen3_5_multimodal"]


def said(format, layer="gla", **changed):
    """What a format answers to a model."""
    config = lv.ModelConfig(layer, **{"d_model": 64, "depth": 2, "vocab_size": 50, "tie_embeddings": False} | changed)
    with pytest.raises(ValueError, match=f"^convert: {format} can't hold this model[.:] ") as caught:
        config_for(formats.of_name(format), config)
    return str(caught.value)


@pytest.mark.parametrize("format", LANGUAGE)
def test_layers_of_another_kind_are_named_beside_those_that_it_holds(format):
    held = " and ".join(formats.of_name(format).held())
    for layer, told in (("hyena", "hyena"), (["s4d", "hyena"], "s4d and hyena")):
        assert said(format, layer).endswith(f". It holds layers of {held}, but this model's are {told}.")


def test_options_of_another_layer_are_not_the_reason():
    answer = said("mamba", "mamba2", options={"groups": 2, "d_state": 16})
    assert "no option" not in answer and "holds layers of mamba, but this model's are mamba2" in answer


@pytest.mark.parametrize(
    ("format", "layer", "changed", "answer"),
    [
        ("gla", "softmax_attention", {}, "It holds softmax_attention only beside gla, of which this model has none."),
        ("olmo_hybrid", "gated_delta_net", {}, "some of both, but this model has no softmax_attention."),
        ("state_spaces", ["mamba", "mamba2"], {}, "It holds layers of mamba or mamba2, but this model has both."),
        ("gla", "gla", {"options": {"feature_map": "gelu"}}, "feature_map is 'gelu', but the format has"),
        ("mamba", "mamba", {"mlp_factor": 2}, "It has no place for this model's blocks.0.mlp_norm.weight."),
        ("rwkv7_rosa", "rwkv7", {}, "It wants head.bias, which this model lacks."),
        ("rwkv", "rwkv4", {"block": {"norm_place": "post"}}, "blocks have norm_place='post', there 'pre'."),
        ("gla", "gla", {"block": {"mlp": "geglu"}}, "those of gla have norm='rms', norm_place='pre', mlp='geglu'"),
        ("falcon_mamba", "mamba", {}, "mamba has norm=False, there True."),
    ],
)
def test_what_differs_is_said_of_the_format_and_of_the_model(format, layer, changed, answer):
    assert answer in said(format, layer, **changed)


@pytest.mark.parametrize("format", [name for name in LANGUAGE if "packed" not in name])
def test_whatever_a_layer_may_be_asked_for_is_written_or_refused_by_name(format):
    """Words of an option that only this layer knows, each of them, and no other exception than the refusal."""
    for layer in formats.of_name(format).held():
        for option, default in layers.options(layer).items():
            if isinstance(default, str):
                with pytest.raises((ValueError, TypeError)) as caught:
                    lv.layers.build(layer, 64, **{option: "?"})
                listed = str(caught.value).split("must be one of ")[1].split(", but came")[0]
                for word in listed.split(", "):
                    config = lv.ModelConfig(layer, 64, 2, 50, options={option: word}, tie_embeddings=False)
                    try:
                        config_for(formats.of_name(format), config)
                    except ValueError as error:
                        assert "can't hold this model" in str(error)
