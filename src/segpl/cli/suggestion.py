"""The next command to run, with the options that were already given."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Iterator, Mapping
from typing import Any


def next_command(command: str, given: Mapping[str, Any]) -> str:
    """`segpl COMMAND` with the `given` values of its arguments, by name; others are ignored."""
    parser = argparse.ArgumentParser()
    importlib.import_module(f"segpl.cli.{command}").add_arguments(parser)
    words = [word for action in parser._actions for word in words_of(action, given)]
    return shlex.join(["segpl", command, *words])


def words_of(action: argparse.Action, given: Mapping[str, Any]) -> Iterator[str]:
    """The words of one argument; none if it has its default value."""
    value = given.get(action.dest)
    if value is None or value == action.default:
        return
    option = action.option_strings[-1:]
    values = [str(one) for one in (value if isinstance(value, list | tuple) else [value])]
    if action.nargs == 0:
        yield action.option_strings[0 if value else -1]  # --preview or --no-preview
    elif isinstance(action, argparse._AppendAction):
        for one in values:
            yield from (*option, one)
    else:
        yield from (*option, *values)
