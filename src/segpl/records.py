"""Read and write JSON, TOML and CSV.

Whatever a file contains, reading it either gives the type that was asked for or an `InputError`
that names the file, the place and a remedy.
"""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from segpl.errors import InputError, did_you_mean
from segpl.files import RESTORE, read_bytes, require_writable, storage_errors, write_text

Record = TypeVar("Record")
Row = TypeVar("Row")

# msgspec 0.22 crashes if two threads are the first to decode the same dataclass
DECODING = Lock()

MAX_TOML_BYTES = 2**20
MAX_DEPTH = 32  # of nested tables and lists
LINE_LENGTH = 100  # of a JSON file for readers, in characters
# from the start of a key, without backtracking: long runs of letters take linear time
DOTTED = re.compile(rf"(?<![\w\"'-])(?:[\w\"'-]++\s*+\.\s*+){{{MAX_DEPTH},}}")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def readable_json(value: Any, indent: str = "") -> str:
    """JSON in which whatever fits into a line is on one line."""
    text = json.dumps(value)
    if len(indent) + len(text) <= LINE_LENGTH or not isinstance(value, dict | list | tuple):
        return text
    inner = f"{indent}  "
    if isinstance(value, dict):
        entries = [
            f"{json.dumps(key)}: {readable_json(each, inner)}" for key, each in value.items()
        ]
    else:
        entries = [readable_json(each, inner) for each in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n{inner}" + f",\n{inner}".join(entries) + f"\n{indent}{last}"


def read_toml(path: Path) -> dict[str, Any]:
    content = read_bytes(path, MAX_TOML_BYTES)
    try:
        text = content.decode()
        if DOTTED.search(text):
            raise RecursionError  # tomllib would need minutes
        table = tomllib.loads(text)
        if _is_deeper(table, MAX_DEPTH):
            raise RecursionError
    except RecursionError as error:
        raise InputError(
            f"{path} is not valid TOML: its tables are nested more than {MAX_DEPTH} deep."
        ) from error
    except ValueError as error:  # also bad UTF-8 and numbers of thousands of digits
        raise InputError(f"{path} is not valid TOML: {error}.") from error
    return table


def flat_items(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables by their full names, such as `train.lr`."""
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from flat_items(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _is_deeper(value: Any, depth: int) -> bool:
    below = [value]
    while below and depth >= 0:
        below = [
            child
            for parent in below
            if isinstance(parent, dict | list)
            for child in (parent.values() if isinstance(parent, dict) else parent)
        ]
        depth -= 1
    return bool(below)


def read_record(path: Path, kind: type[Record], remedy: str = RESTORE) -> Record:
    """Decode a JSON file into `kind`, such as a dataclass; unknown keys are ignored."""
    import msgspec

    content = read_bytes(path)
    try:
        with DECODING:
            return msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError as error:
        raise _unusable(path, error, remedy) from error
    except RecursionError as error:
        raise InputError(f"{path} is not valid JSON: it is nested too deeply. {remedy}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON: {error}. {remedy}") from error


def read_edited_record(path: Path, kind: type[Record], remedy: str) -> Record:
    """Decode a JSON file that users may edit into the dataclass `kind`.

    The message names an unknown key, a missing key or a value of the wrong type, and adds `remedy`.
    """
    content = read_record(path, Any, remedy)
    if isinstance(content, dict):
        _reject_unknown_keys(path, content, dict.fromkeys(_field_names(kind)))
    value = convert_record(content, kind, path, remedy)
    _reject_unknown_keys(path, content, asdict(value))  # type: ignore[call-overload]  # a dataclass
    return value


def convert_record(content: Any, kind: type[Record], path: Path, remedy: str = RESTORE) -> Record:
    """Convert what was read from `path` into `kind`."""
    import msgspec

    try:
        with DECODING:
            return msgspec.convert(content, kind, str_keys=True)
    except msgspec.ValidationError as error:
        raise _unusable(path, error, remedy) from error


def _unusable(path: Path, error: Exception, remedy: str) -> InputError:
    what, _, where = str(error).replace("`", "'").partition(" - at ")
    place = where.strip("'").removeprefix("$").removeprefix(".")
    field = f" in '{place}'" if place else ""
    return InputError(f"{path} cannot be used: {what[0].lower()}{what[1:]}{field}. {remedy}")


def _field_names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def _reject_unknown_keys(path: Path, content: Any, known: Any) -> None:
    """Compare the keys of nested tables with those of the decoded value."""
    if isinstance(content, dict) and isinstance(known, dict):
        for name, value in content.items():
            if name not in known:
                raise InputError(f"{path} has an unknown key '{name}'. {did_you_mean(name, known)}")
            _reject_unknown_keys(path, value, known[name])
    elif isinstance(content, list) and isinstance(known, list | tuple):
        for value, decoded in zip(content, known, strict=True):
            _reject_unknown_keys(path, value, decoded)


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def require_own_table(path: Path, columns: Sequence[str]) -> None:
    """Raise if a table with these columns cannot be written, or would replace another file."""
    require_writable(path)
    if not path.exists():
        return
    with storage_errors(path), path.open(encoding="utf-8", errors="replace") as handle:
        first = handle.readline(2000).strip()
    if first not in ("", ",".join(columns)):
        raise InputError(f"{path} exists and was not written by segpl. Choose another --out.")


def read_csv(path: Path, remedy: str = RESTORE) -> list[list[str]]:
    """The cells of a CSV file, header first."""
    try:
        text = read_bytes(path).decode()
        return list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a CSV table: {error}. {remedy}") from error


def read_table(path: Path, kind: type[Row], columns: Sequence[str], remedy: str) -> list[Row]:
    """The rows of a CSV file as the dataclass `kind`, whose fields are the `columns` in order."""
    import msgspec

    header, *rows = read_csv(path, remedy) or [[]]
    if header != list(columns):
        raise InputError(
            f"{path} does not have the columns {','.join(columns)} but '{','.join(header)[:80]}'. "
            f"{remedy}"
        )
    names = _field_names(kind)
    found = []
    for number, row in enumerate(rows, 2):
        try:
            with DECODING:
                value = msgspec.convert(dict(zip(names, row, strict=True)), kind, strict=False)
            found.append(value)
        except ValueError as error:  # also a msgspec.ValidationError
            raise InputError(
                f"{path}, row {number}: '{','.join(row)[:80]}' does not match the columns "
                f"{','.join(columns)}. {remedy}"
            ) from error
    return found
