"""The command `lavagna`: one file a verb, and what all verbs share: how a call ends.

A verb raises `ValueError` or `OSError` for what the user can mend; here it becomes one line on stderr and exit code 2.
"""

import io
import os
import re
import sys
from collections.abc import Sequence
from typing import Any

import typer

from lavagna.cli.app import app
from lavagna.kernels import serves

BAD_INPUT = 2
INTERRUPTED = 130
# What the shell reports of a program that wrote into a closed pipe.
CLOSED_PIPE = 141

_CALL = re.compile(r"([A-Za-z_][\w.]*): ")

# What the parser raises. Some versions of typer take it from click and some bring it along, so it is found above an
# error that all of them name.
_ParserError: Any = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line, `sys.argv` by default, and return its exit code.

    Bad input is one line on stderr and 2; `--debug`, anywhere before `--`, lets the traceback through instead. What the
    terminal's encoding lacks is printed as escapes.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    words, debug = _without_debug(given)
    for stream in (sys.stdout, sys.stderr):
        # Some programs put streams of their own here, without encodings.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        _run(words or ["--help"])
        sys.stdout.flush()
        return 0
    except typer.Exit as end:
        return end.exit_code
    except BrokenPipeError:
        # Python would try to write the rest once more at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE
    except KeyboardInterrupt as stop:
        return _complain(str(stop) or "interrupted", INTERRUPTED)
    except _ParserError as error:
        return _complain(f"{error.format_message()}{_where_help_is(error)}", BAD_INPUT)
    except (ValueError, OSError) as error:
        if debug:
            raise
        return _complain(_told(error, words), BAD_INPUT)


def _run(words: list[str]) -> None:
    # Not by calling the app, which has ways of its own with interrupts and closed pipes.
    command = typer.main.get_command(app)
    with command.make_context("lavagna", words) as context:
        # A level of vectors in the environment that isn't there is said before anything is begun.
        serves("cpu")
        command.invoke(context)


def _without_debug(words: list[str]) -> tuple[list[str], bool]:
    end = words.index("--") if "--" in words else len(words)
    return [word for word in words[:end] if word != "--debug"] + words[end:], "--debug" in words[:end]


def _complain(text: str, code: int) -> int:
    print("lavagna:", " ".join(text.split()), file=sys.stderr)
    return code


def _where_help_is(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f" See: {context.command_path} --help" if context else ""


def _told(error: Exception, words: Sequence[str]) -> str:
    """The error's own words; for one of the system's, what it was about first.

    A message begins with the call that it is about. Of those a person at a terminal knows the layers alone; in place of
    any other stands the verb.
    """
    from lavagna.layers import names

    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    text = str(error) or type(error).__name__
    call = _CALL.match(text)
    if call is None or call[1] in names():
        return text
    verb = next(word for word in words if not word.startswith("-"))
    return f"{verb}: {text[call.end() :]}"
