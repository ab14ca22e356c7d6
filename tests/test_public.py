"""The names that the package promises are there, and most of them come when first asked for."""

import subprocess
import sys
from pathlib import Path

import pytest

import lavagna as lv

SOURCE = Path(__file__).parents[1] / "src"
CORE = ["identity", "scalar", "diagonal", "householder", "gated_householder", "dplr", "recur", "load_state"]
MODELS = ["ModelConfig", "LanguageModel", "load", "save", "generate", "stream"]


@pytest.mark.parametrize("name", sorted({*lv.__all__, *CORE, *MODELS}))
def test_a_promised_name_is_there_and_listed(name):
    assert getattr(lv, name) is not None
    assert name in dir(lv) and name in lv.__all__


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'lavagna' has no attribute 'Transformer'"):
        lv.Transformer  # noqa: B018


def test_importing_the_package_leaves_models_and_tokenizers_for_later():
    code = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); import lavagna; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"lavagna.models", "lavagna.training", "tokenizers", "matplotlib"} & set(done.stdout.split())
