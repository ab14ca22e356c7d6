"""The registry: every name builds, and what cannot be says so."""

import subprocess
import sys

import pytest

from lavagna import layers


@pytest.mark.parametrize("name", layers.names())
def test_a_layer_carries_the_name_it_is_registered_under(name):
    assert layers.layer_class(name).name == name
    assert layers.build(name, 32).initial_state(1).kind == name


def test_an_unknown_name_lists_the_legal_ones():
    with pytest.raises(ValueError, match="no layer 'transformer'.*linear_attention.*mamba2.*softmax_attention"):
        layers.build("transformer", 32)


@pytest.mark.parametrize("name", layers.names())
def test_an_unknown_option_lists_the_legal_ones(name):
    with pytest.raises(TypeError, match=f"{name}: there is no option n_heads.*{', '.join(layers.options(name))}"):
        layers.build(name, 32, n_heads=2)


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for name in layers.names() for option in ("heads", "head_dim") if option in layers.options(name)],
)
def test_heads_that_do_not_divide_name_the_nearest_that_do(name, option):
    with pytest.raises(ValueError, match=rf"{name}: {option}=7 does not divide .*\d+\. Use {option}=8"):
        layers.build(name, 32, **{option: 7})


@pytest.mark.parametrize("name", layers.names())
@pytest.mark.parametrize("d_model", [0, -16])
def test_a_width_that_cannot_be_is_refused(name, d_model):
    with pytest.raises(ValueError, match="d_model must be an int >= 1"):
        layers.build(name, d_model)


def test_a_layer_is_imported_only_when_it_is_asked_for():
    code = "import sys; from lavagna import layers; layers.names(); print('lavagna.layers.mamba2' in sys.modules)"
    path = ":".join(sys.path)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={"PYTHONPATH": path})
    assert done.stdout.strip() == "False", done.stderr
