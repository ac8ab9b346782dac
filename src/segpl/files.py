"""Files that are either whole or absent, whatever interrupts the writing."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from segpl.errors import InputError, MissingFileError, StorageError


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place in one move.

    A process killed at any moment leaves the old file or the new one, never a part. The temporary
    name keeps the suffix of `path`, since many writers choose the format by it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{os.getpid()}.draft.{path.name}")
    try:
        write(draft)
        with draft.open("rb") as handle:
            os.fsync(handle.fileno())
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageError(
                f"no space left on the disk while writing {path}. What was there before is "
                "untouched. Free some space, or write elsewhere with --out or SEGPL_CACHE."
            ) from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise StorageError(f"{path} may not be written: {error.strerror}.") from error
        raise
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    def write(draft: Path) -> None:
        draft.write_text(text, encoding="utf-8")

    write_whole(path, write)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def read_json(path: Path) -> Any:
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist.")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid JSON: {error}.") from error
