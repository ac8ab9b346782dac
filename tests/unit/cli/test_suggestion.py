"""A suggested command keeps every option that was given."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from segpl.cli.main import COMMANDS
from segpl.cli.options import next_command, parser_of


def parse(command: str, *words: str) -> argparse.Namespace:
    return parser_of(command).parse_args(words)


GIVEN = {
    "train": "'my data' --labeled 5 --test 0 --resume --set a.b=1 --set 'c.d=x y' --out 'my run'",
    "predict": "run 'a b' c --out o --samples 3 --ensemble r s --no-preview --largest none",
    "compare": "data --methods segpl 'x y' --seeds 0 1 --phantom --out o",
}


@pytest.mark.parametrize("command", GIVEN)
def test_given_arguments_survive(command):
    given = parse(command, *shlex.split(GIVEN[command]))
    name, *words = shlex.split(next_command(command, vars(given)))[1:]
    assert name == command
    assert parse(command, *words) == given


def test_defaults_and_arguments_of_other_commands_are_left_out():
    given = {"data": Path("data"), "out": Path("o"), "device": None, "ensemble": ["r"]}
    assert next_command("train", given) == "segpl train data --out o"
    assert next_command("predict", {"run": "r", "out": "o", "device": "auto"}) == (
        "segpl predict r --out o"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_argument_can_be_written(command):
    """`next_command` knows these kinds of arguments only."""
    kinds = {type(action).__name__ for action in parser_of(command)._actions}
    assert kinds <= {"_StoreAction", "_StoreTrueAction", "_AppendAction", "BooleanOptionalAction"}
