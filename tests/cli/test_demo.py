"""`lavagna demo`: everything from text to pictures, in small."""

import pytest

from cli.conftest import as_a_shell
from lavagna.checkpoints import load


def test_a_demonstration_leaves_a_model_a_text_and_pictures(lavagna, tmp_path):
    out = tmp_path / "demo"
    done = lavagna("demo", "--quick", "--out", out, "--seconds", "5")
    assert done.code == 0, done.err
    assert load(out / "model").tokenizer is not None
    assert (out / "generated.txt").read_text(encoding="utf-8").startswith("def")
    pictures = {path.name for path in (out / "pictures").iterdir()}
    assert pictures == {
        f"{name}-{theme}.png" for name in ("zoo", "recall", "forms", "state") for theme in ("light", "dark")
    }
    assert (out / "run" / "loss.png").is_file()
    assert "bits a byte" in done.out and "token by token" in done.out
    told = dict(line.split("  ", 1) for line in done.out.splitlines() if "  " in line)
    for name, rest in {"more text": " --max-new-tokens 5 --seed 0", "its size": ""}.items():
        shown = as_a_shell(told[name] + rest)
        assert shown.returncode == 0 and shown.stdout, shown.stderr
    # The folder itself serves as well.
    words = ["--prompt", "class ", "--max-new-tokens", "5", "--seed", "0"]
    assert lavagna("generate", out, *words).out == lavagna("generate", out / "model", *words).out
    assert lavagna("info", out).code == 0


def test_a_folder_with_something_in_it_is_refused(refused, tmp_path):
    (tmp_path / "mine").write_text("keep")
    assert "another --out" in refused("demo", "--out", tmp_path)
    assert (tmp_path / "mine").read_text() == "keep"


@pytest.mark.parametrize("words", [["--layer", "nonsense"], ["--seconds", "0"]])
def test_wrong_options_are_refused_and_nothing_is_left(refused, tmp_path, words):
    assert refused("demo", "--quick", "--out", tmp_path / "demo", *words)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_training_that_is_cut_short_says_so(lavagna, tmp_path):
    done = lavagna("demo", "--quick", "--out", tmp_path / "demo", "--seconds", "0.001")
    assert done.code == 0, done.err
    assert "1 of 6 steps fit into 0.001 seconds" in done.out
