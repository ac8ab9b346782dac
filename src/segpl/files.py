"""Read and write files; an interrupted write never leaves a partial file."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from segpl.errors import InputError, MissingFileError, StorageError, UserError, did_you_mean

Record = TypeVar("Record")
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
BAD_PATH = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG)


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file next to `path`, then rename it to `path`.

    A process killed at any moment leaves either the old file or the new one. The temporary name
    keeps the suffix of `path`, because many writers derive the format from it.
    """
    temporary = path.with_name(f".{os.getpid()}.draft.{path.name}")
    with storage_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(temporary)
            with temporary.open("rb") as handle:
                os.fsync(handle.fileno())
            # some writers create files that only their owner can read
            temporary.chmod(path.parent.stat().st_mode & 0o666)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):  # report the first error
                temporary.unlink()
            raise


def is_partial(path: Path) -> bool:
    """Whether an interrupted process left this temporary file behind."""
    return path.name.startswith(".") and ".draft." in path.name


def append_text(path: Path, text: str) -> None:
    with storage_errors(path), path.open("a", encoding="utf-8") as handle:
        handle.write(text)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn errors of the file system into messages that name `path` and say what to do."""
    try:
        yield
    except OSError as error:
        if isinstance(error, UserError):
            raise
        elsewhere = "or write elsewhere with --out or SEGPL_CACHE."
        # libraries that check the written size themselves raise errors without a number
        if error.errno in DISK_FULL or error.errno is None:
            raise StorageError(
                f"no space left on the disk while writing {path} ({error.strerror or error}). An "
                f"existing file is unchanged. Free some space, {elsewhere}"
            ) from error
        if error.errno in NO_PERMISSION:
            raise StorageError(
                f"no permission to write {path}: {error.strerror}. Change the permissions, "
                f"{elsewhere}"
            ) from error
        if error.errno in BAD_PATH:
            raise StorageError(
                f"{path} cannot be written: {error.strerror}. Choose another --out."
            ) from error
        raise


def write_text(path: Path, text: str) -> None:
    def write(temporary: Path) -> None:
        temporary.write_text(text, encoding="utf-8")

    write_atomically(path, write)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON: {error}.") from error


def read_toml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}.") from error


def read_record(path: Path, kind: type[Record]) -> Record:
    """Decode a JSON file into the dataclass `kind`; unknown keys are ignored."""
    import msgspec

    if not path.is_file():
        raise MissingFileError(f"{path} does not exist.")
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged: {error}.") from error


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Format rows as CSV."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def read_edited_record(path: Path, kind: type[Record], remedy: str) -> Record:
    """Decode a JSON file that users may edit into the dataclass `kind`.

    The message names an unknown key, a missing key or a value of the wrong type, and adds `remedy`.
    """
    import msgspec

    content = read_json(path)
    if isinstance(content, dict):
        _reject_unknown_keys(path, content, dict.fromkeys(_field_names(kind)))
    try:
        value = msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        what, _, where = str(error).replace("`", "'").partition(" - at ")
        field = f" in {where.replace('$.', '')}" if where else ""
        raise InputError(
            f"{path} cannot be used: {what[0].lower()}{what[1:]}{field}. {remedy}"
        ) from error
    _reject_unknown_keys(path, content, asdict(value))  # type: ignore[call-overload]  # a dataclass
    return value


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
