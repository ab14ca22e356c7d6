"""What a config leaves out is what the class of transformers has, or it is required by name."""

import pytest

from lavagna.checkpoints.formats import of_name

# Their sizes, small where the default would take long.
SMALL = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 50, "num_experts": 0}
FORMATS = {
    "mamba": "mamba",
    "falcon_mamba": "falcon_mamba",
    "mamba2": "mamba2",
    "xlstm": "xlstm",
    "rwkv": "rwkv",
    "qwen3_next": "qwen3_next",
    "qwen3_5": "qwen3_5_text",
    "olmo_hybrid": "olmo_hybrid",
    "recurrent_gemma": "recurrent_gemma",
}


class Shapes(dict):
    """Every matrix as large as the embedding."""

    def __missing__(self, name):
        return (50, 64)


@pytest.mark.parametrize("name", FORMATS)
def test_a_key_that_is_left_out_is_the_default_of_their_class_or_required(name, transformers):
    config_class = transformers.models.auto.configuration_auto.CONFIG_MAPPING[FORMATS[name]]
    sizes = dict(SMALL) if name != "mamba2" else SMALL | {"num_heads": 16, "head_dim": 8}
    whole = config_class().to_dict()
    sizes = {key: size for key, size in sizes.items() if key in whole}
    whole = config_class(**sizes).to_dict()
    format, usual = of_name(name), config_class().to_dict()
    right = format.model_config(whole, Shapes())
    required = []
    for key, value in whole.items():
        if value == usual[key] and key != "model_type":
            try:
                read = format.model_config({one: other for one, other in whole.items() if one != key}, Shapes())
            except KeyError as error:
                assert error.args == (key,)
                required.append(key)
            else:
                assert read == right, key
    assert len(required) < 6


@pytest.mark.parametrize("name", ["retnet", "gla", "delta_net", "gated_deltanet", "kda"])
def test_how_many_heads_there_are_is_never_guessed(name):
    config = {"model_type": name, "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 50, "intermediate_size": 64}
    with pytest.raises(KeyError, match="num_heads"):
        of_name(name).model_config(config, Shapes())
