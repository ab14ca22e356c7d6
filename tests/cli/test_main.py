"""How a call ends: exit codes, one line for bad input, any encoding, a closed pipe."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from lavagna.cli import app, main
from lavagna.version import __version__

SOURCE = Path(__file__).parents[2] / "src"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}


def command(*words, **environment):
    """The command in a process of its own."""
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen(
        [sys.executable, "-m", "lavagna", *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_without_a_verb_all_verbs_are_listed(lavagna):
    done = lavagna()
    assert done.code == 0
    assert all(f" {verb.callback.__name__} " in done.out for verb in app.registered_commands)


def test_the_version_is_said(lavagna):
    assert lavagna("--version").out.strip() == __version__


@pytest.mark.parametrize(
    "words", [["nonsense"], ["info", "--nonsense"], ["info", "--d-model", "x"], ["train"], ["reproduce", "nonsense"]]
)
def test_a_wrong_word_is_one_line_and_exit_code_2(refused, words):
    assert refused(*words)


@pytest.mark.parametrize("words", [["--debug", "info", "nowhere"], ["info", "nowhere", "--debug"]])
def test_debug_lets_the_traceback_through(words):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        main(words)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ValueError("two\nlines"), 2, "lavagna: two lines\n"),
        (ValueError("lti.part: x must be y."), 2, "lavagna: reproduce: x must be y.\n"),
        (ValueError("gla: heads=3 does not divide."), 2, "lavagna: gla: heads=3 does not divide.\n"),
        (OSError(28, "No space left on device", "x/y"), 2, "lavagna: x/y: No space left on device\n"),
        (KeyboardInterrupt(), 130, "lavagna: interrupted\n"),
    ],
)
def test_what_a_verb_raises_is_one_line(lavagna, monkeypatch, error, code, said):
    def broken(*_, **__):
        raise error

    monkeypatch.setattr("lavagna.reproduce.run", broken)
    done = lavagna("reproduce", "forms")
    assert (done.code, done.err, done.out) == (code, said, "")


def test_a_fault_of_our_own_keeps_its_traceback(monkeypatch):
    def broken(*_, **__):
        raise AssertionError("ours")

    monkeypatch.setattr("lavagna.reproduce.run", broken)
    with pytest.raises(AssertionError, match="ours"):
        main(["reproduce", "forms"])


def test_a_terminal_without_unicode_gets_escapes():
    out, err = command("reproduce", "fade", **ASCII).communicate()
    assert not err
    assert b"\\xb1" in out


def test_a_closed_pipe_is_no_error():
    process = command("reproduce", "limits")
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141


def test_every_verb_and_each_of_its_options_is_described_in_a_sentence():
    group = typer.main.get_command(app)
    for verb in (group, *group.commands.values()):
        texts = {verb.name: verb.help} | {each.name: each.help for each in verb.params}
        for name, text in texts.items():
            assert len(text.split()) >= 3 and text[0].isupper() and text.endswith("."), (verb.name, name)


@pytest.mark.parametrize("words", [["info"], ["check", "--layer", "gla"], ["train", "--out", "nowhere"]])
def test_a_level_of_vectors_that_is_not_there_is_one_line_before_anything_is_begun(words):
    process = command(*words, LAVAGNA_CPU_LEVEL="avx1024")
    out, err = process.communicate()
    assert (process.returncode, out, err.count(b"\n")) == (2, b"", 1)
    assert err.startswith(b"lavagna: LAVAGNA_CPU_LEVEL must be") and b"avx1024" in err
