"""Errors that the user can fix.

The command line prints only their message; any other exception is a bug and keeps its traceback.
Each error also derives from the built-in exception that a Python user would catch.

Messages name options as on the command line (`--labeled 8`). Python users read them as arguments
(`labeled=8`).
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

LONG_LIST = 40  # names
OPTION = re.compile(
    r"(?P<command>`[^`]*`)|--(?P<name>[a-z][a-z-]*)"
    r"(?: (?P<number>N\b|-?\d+(?:\.\d+)?)| (?P<text>'[^']*')"
    r"| (?P<word>(?:auto|cpu|cuda|last|best|all|none|supervised|local|ray|slurm)\b)"
    r"| (?P<setting>[a-z_]+\.[a-z_.]+=[^\s,;:]*[^\s,;:.]))?"
)
SWITCHES = ("fast", "fill", "overwrite", "phantom", "probabilities", "resume", "yes")
ARGUMENTS = {"set": "overrides"}  # options that Python names differently


class Spelling:
    """Whether messages name options (the command line) or arguments (Python)."""

    is_command_line = False


def spell_options(message: str) -> str:
    """The message with options as arguments, unless the command line is in use.

    Commands in backquotes stay as they are.
    """
    return message if Spelling.is_command_line else OPTION.sub(_as_argument, message)


def _as_argument(found: re.Match[str]) -> str:
    if found["command"]:
        return found["command"]
    option = found["name"]
    name = ARGUMENTS.get(option, option.replace("-", "_"))
    if option in SWITCHES:
        return f"{name}=True"
    if value := found["number"] or found["text"]:
        return f"{name}={value}"
    if found["word"]:
        return f"{name}='{found['word']}'"
    return f"{name}=['{found['setting']}']" if found["setting"] else f"`{name}`"


class UserError(Exception):
    """An error that the user can fix; the message says how."""

    def __str__(self) -> str:
        # KeyError would put quotes around the message
        return spell_options(str(self.args[0])) if self.args else ""


class InputError(UserError, ValueError):
    """A value, file or dataset that cannot be used."""


class UnusableFileError(InputError):
    """A file that cannot be used: what is wrong, and separately what to do."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(f"{what}. {remedy}".strip())
        self.what = what
        self.remedy = remedy


class MissingFileError(UserError, FileNotFoundError):
    """A required file or folder is missing."""


class UnknownNameError(UserError, KeyError):
    """A name that is not registered."""


class StorageError(UserError, OSError):
    """A file cannot be written, for example because the disk is full."""


class DivergedError(UserError, FloatingPointError):
    """Training produced a non-finite number."""


@contextmanager
def errors_naming(path: Path) -> Iterator[None]:
    """Turn any error of a format's reader into one that names the file."""
    try:
        yield
    except UserError:
        raise
    except MemoryError as error:
        raise UnusableFileError(
            f"{path} does not fit in memory", "Free some memory, or crop the scan."
        ) from error
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} does not exist.") from error
    except PermissionError as error:
        raise UnusableFileError(
            f"no permission to read {path}", "Ask its owner for permission."
        ) from error
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise UnusableFileError(
            f"{path} is corrupt or truncated ({cause})",
            "Copy or download it again, or remove the case from the dataset.",
        ) from error


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "Did you mean ...? Known: ..." for a message about an unknown name.

    A long list of known names is left out if one of them is close.
    """
    names = sorted(known)
    by_lower = {one.lower(): one for one in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    hint = f"Did you mean '{by_lower[close[0]]}'?" if close else ""
    if hint and len(names) > LONG_LIST:
        return hint
    return f"{hint} Known: {', '.join(names)}.".lstrip()


def mark_reconstruction(label: str) -> str:
    """The label of a method whose source is known only in part, as tables show it."""
    return f"{label} (reconstruction)"


def count_noun(count: int, noun: str) -> str:
    """'1 case', '2,000 cases'."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percent(share: float) -> str:
    """'2.60 %'."""
    return f"{100 * share:.2f} %"


def in_voxels(count: object, dims: int) -> str:
    """'32x32x16 voxels'; in 2D, '32x32 pixels'."""
    return f"{count} {'pixels' if dims == 2 else 'voxels'}"


def join_names(names: Sequence[str]) -> str:
    """'a', 'a and b', 'a, b and c'."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def name_some(names: Iterable[str], most: int) -> str:
    """The first few names, and how many more there are."""
    known = list(names)
    more = f" and {len(known) - most} more" if len(known) > most else ""
    return ", ".join(known[:most]) + more or "none"


def unknown(kind: str, name: str, known: Iterable[str]) -> UnknownNameError:
    return UnknownNameError(f"no {kind} named '{name}'. {did_you_mean(name, known)}")


def require_utf8(path: object) -> None:
    """Reject names that no JSON or CSV file can hold."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        shown = str(path).encode("utf-8", "backslashreplace").decode()
        raise InputError(f"the name of {shown} is not valid UTF-8. Rename it.") from error


def require_range(
    settings: object, low: float, high: float, *names: str, section: str = "method"
) -> None:
    """Reject settings that are not finite or lie outside [low, high], by name."""
    for name in names:
        value = getattr(settings, name)
        if not low <= value <= high or value == math.inf:
            allowed = (
                f"{low:g} or more, and finite"
                if high == math.inf
                else f"from {low:g} to {high:,.10g}"
            )
            raise InputError(f"{section}.{name} is {value}: it must be {allowed}.")
