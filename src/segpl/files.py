"""Read and write files.

An interrupted write never leaves a partial file. Whatever a file contains, reading it either gives
the type that was asked for or an `InputError` that names the file, the place and a remedy.
"""

from __future__ import annotations

import csv
import errno
import fcntl
import hashlib
import io
import json
import os
import platform
import re
import secrets
import stat
import time
import tomllib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from segpl.errors import InputError, MissingFileError, StorageError, UserError, did_you_mean

Record = TypeVar("Record")
Row = TypeVar("Row")
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
BAD_PATH = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)

# msgspec 0.22 crashes if two threads are the first to decode the same dataclass
DECODING = Lock()

MAX_BYTES = 2**28  # of a JSON or CSV file
MAX_TOML_BYTES = 2**20
MAX_DEPTH = 32  # of nested tables and lists
LINE_LENGTH = 100  # of a JSON file for readers, in characters
# from the start of a key, without backtracking: long runs of letters take linear time
DOTTED = re.compile(rf"(?<![\w\"'-])(?:[\w\"'-]++\s*+\.\s*+){{{MAX_DEPTH},}}")
RESTORE = "The file was edited or damaged. Restore it, or write it again."

DRAFT = re.compile(r"\.(?P<host>[0-9a-f]{8})\.draft\.[0-9a-f]{16}(?:\.\w+)*")
SUFFIX = re.compile(r"(?:\.\w{1,12}){0,2}$")
OLD_DRAFT = 24 * 3600.0  # seconds after which a draft of another computer is abandoned


class BoundedFile(io.FileIO):
    """A file whose `read` reserves no more memory than the file has bytes."""

    def read(self, size: int | None = -1, /) -> bytes | None:  # type: ignore[override]
        left = max(0, os.fstat(self.fileno()).st_size - self.tell())
        return super().read(left if size is None or size < 0 else min(size, left))


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file next to `path`, then rename it to `path`.

    A process killed at any moment leaves either the old file or the new one. The temporary name
    keeps the suffix of `path`, because many writers derive the format from it.
    """
    with storage_errors(path):
        require_replaceable(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned_drafts(path.parent)
        temporary = path.with_name(
            f".{_host()}.draft.{secrets.token_hex(8)}{SUFFIX.findall(path.name)[0]}"
        )
        # locked until it is renamed: a draft without a lock belongs to a killed process
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        try:
            with suppress(OSError):  # not every network file system has locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            mode = os.fstat(handle).st_mode
            write(temporary)
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
            temporary.chmod(mode)  # some writers create files that only their owner can read
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):  # report the first error
                temporary.unlink()
            raise
        finally:
            os.close(handle)


@cache
def remove_abandoned_drafts(folder: Path) -> None:
    """Remove the drafts of killed processes from `folder`, once per process.

    Locks may not reach other computers that share the folder, so their drafts must be old too.
    """
    for entry in os.scandir(folder):
        match = DRAFT.fullmatch(entry.name)
        if match is None:
            continue
        with suppress(OSError):  # another process may remove it first
            age = time.time() - entry.stat(follow_symlinks=False).st_mtime
            if match["host"] == _host() or age > OLD_DRAFT:
                _remove_unlocked(entry.path)


def _remove_unlocked(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(handle)


@cache
def _host() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def is_partial(path: Path) -> bool:
    """Whether an interrupted process left this temporary file behind."""
    return DRAFT.fullmatch(path.name) is not None


def require_below(folder: Path, paths: Iterable[Path]) -> None:
    """Raise if a link or '..' on the way to one of `paths` leads out of `folder`."""
    root = os.path.realpath(folder)
    for parent in {path.parent for path in paths}:
        target = os.path.realpath(str(parent).replace("\0", "?"))
        if not Path(target).is_relative_to(root):
            raise InputError(
                f"{parent} leads out of {folder}, to {target}, so nothing is written there. Remove "
                "that link or entry."
            )


@contextmanager
def one_process(folder: Path) -> Iterator[None]:
    """Let one process at a time change the files of `folder` that it reads first."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every network file system has locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def append_text(path: Path, text: str) -> None:
    """Append to a file; a symbolic link in its place is an error."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    with storage_errors(path), open(os.open(path, flags, 0o666), "a", encoding="utf-8") as handle:
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


def require_writable(path: Path) -> None:
    """Raise if a file cannot be written at `path`. Creates nothing."""
    with storage_errors(path):
        require_replaceable(path)
        if not nearest_folder(path.parent).is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not may_create_in(path.parent):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def require_replaceable(path: Path) -> None:
    """Refuse folders, devices and pipes: a file must not take the place of `/dev/null`."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a device or a pipe, not a file. Choose another --out.")


def nearest_folder(folder: Path) -> Path:
    """`folder`, or what exists of the path to it."""
    return next(one for one in (folder, *folder.absolute().parents) if one.exists())


def may_create_in(folder: Path) -> bool:
    """Whether this user may create files in `folder`, which need not exist yet."""
    return os.access(nearest_folder(folder), os.W_OK | os.X_OK)


def write_text(path: Path, text: str) -> None:
    try:
        content = text.encode()
    except UnicodeEncodeError as error:
        name = ascii(text[max(0, error.start - 40) : error.end + 40])
        raise InputError(
            f"{path} cannot be written: the name in {name} is not valid UTF-8. Rename that file "
            "or folder."
        ) from error
    write_atomically(path, lambda draft: draft.write_bytes(content))


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


def file_status(path: Path) -> os.stat_result | None:
    """Size and time of a file, in one call; None if there is no such file."""
    try:
        status = path.stat()
    except PermissionError:
        raise
    except (OSError, ValueError):
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def read_bytes(path: Path, limit: int = MAX_BYTES) -> bytes:
    """The content of a text file of at most `limit` bytes.

    The byte order mark that some Windows editors add is removed.
    """
    status = file_status(path)
    if status is None:
        raise MissingFileError(
            f"{path} is not a file." if path.exists() else f"{path} does not exist."
        )
    if (size := status.st_size) > limit:
        raise InputError(f"{path} has {size} bytes, more than the {limit} that are read. {RESTORE}")
    return path.read_bytes().removeprefix(BOM_UTF8)


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
    """Format rows as CSV."""
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
