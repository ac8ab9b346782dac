"""Errors that are the input's fault, not the program's.

The command line prints these as one sentence; any other exception is a bug and keeps its traceback.
Each is also the built-in exception that a Python user would catch.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user can put right; the message says how."""

    def __str__(self) -> str:
        # KeyError would show the message in quotes
        return str(self.args[0]) if self.args else ""


class InputError(UserError, ValueError):
    """A value, file or dataset that cannot be used."""


class MissingFileError(UserError, FileNotFoundError):
    """A file or folder that should be there."""


class UnknownNameError(UserError, KeyError):
    """A name that nothing answers to."""


class StorageError(UserError, OSError):
    """A file could not be written, such as on a full disk."""


class DivergedError(UserError, FloatingPointError):
    """Training produced a number that is not finite."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """'Did you mean ...? Known: ...', for the end of a message about an unknown name."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"Did you mean '{close[0]}'? " if close else ""
    return f"{hint}Known: {', '.join(names)}."


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    return UnknownNameError(f"no {kind} named '{name}'. {did_you_mean(name, known)}")
