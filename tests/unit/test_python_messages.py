"""Messages name options on the command line, and arguments in Python."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import segpl
from segpl.display import say
from segpl.errors import ARGUMENTS, OPTION, SWITCHES, InputError, Spelling, spell_options
from segpl.experiments.engines.base import EngineOptions
from segpl.predict.options import PredictOptions

ROOT = Path(segpl.__file__).parent
# commands without a Python function
COMMANDS_ONLY = ("cli", "stress", "bench", "demo", "environment")
# arguments of functions that `segpl` does not list
OTHER_ARGUMENTS = {"config"}


@pytest.fixture
def in_python(monkeypatch):
    monkeypatch.setattr(Spelling, "is_command_line", False)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("--labeled 8 exceeds 4.", "labeled=8 exceeds 4."),
        ("Hold some out with --test N.", "Hold some out with test=N."),
        ("Choose another --out.", "Choose another `out`."),
        ("Resume it with --resume, or", "Resume it with resume=True, or"),
        ("Use --device cpu.", "Use device='cpu'."),
        ("--fast uses one run", "fast=True uses one run"),
        ("--pgd-steps is 0", "`pgd_steps` is 0"),
        ("off: --set train.compile=off.", "off: overrides=['train.compile=off']."),
        ("--subject '(a' has", "subject='(a' has"),
        ("Run `segpl train --out a --resume`.", "Run `segpl train --out a --resume`."),
    ],
)
def test_options_are_arguments_in_python(in_python, message, expected):
    assert spell_options(message) == str(InputError(message)) == expected


def test_the_command_line_keeps_options(monkeypatch):
    monkeypatch.setattr(Spelling, "is_command_line", True)
    assert str(InputError("Use --device cpu.")) == "Use --device cpu."


def test_notes_are_spelled_like_errors(in_python, capsys):
    say("--largest none keeps all components.")
    assert capsys.readouterr().err == "largest='none' keeps all components.\n"


def known_arguments() -> set[str]:
    functions = [getattr(segpl, name) for name in segpl.__all__ if name != "report"]
    functions += [segpl.Run.predict, segpl.Run.predict_array]
    from segpl.api import report

    functions += [report, PredictOptions, EngineOptions]
    return {name for function in functions for name in inspect.signature(function).parameters}


def test_every_option_in_a_message_is_an_argument_in_python():
    """A message that names an option of the command line only would be useless in Python."""
    known = known_arguments() | OTHER_ARGUMENTS
    unknown = {}
    for path in ROOT.rglob("*.py"):
        if any(name in path.relative_to(ROOT).as_posix() for name in COMMANDS_ONLY):
            continue
        source = path.read_text(encoding="utf-8")
        if not OPTION.search(source):
            continue
        for node in ast.walk(ast.parse(source)):
            if not (isinstance(node, ast.Raise) and node.exc is not None):
                continue
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "" for part in ast.walk(node)
            )
            for found in OPTION.finditer(text):
                if (name := found["name"]) and name not in SWITCHES:
                    name = ARGUMENTS.get(name, name.replace("-", "_"))
                    if name not in known:
                        unknown[name] = path.name
    assert not unknown
