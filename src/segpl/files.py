"""Write files atomically: an interrupted write never leaves a partial file."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import os
import platform
import re
import secrets
import stat
import time
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from segpl.errors import InputError, MissingFileError, StorageError, UserError

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
BAD_PATH = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)

MAX_BYTES = 2**28  # of a text file
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
    """Raise if a link or '..' on the way to one of `paths` points outside `folder`."""
    root = os.path.realpath(folder)
    for parent in {path.parent for path in paths}:
        target = os.path.realpath(str(parent).replace("\0", "?"))
        if not Path(target).is_relative_to(root):
            raise InputError(
                f"{parent} points outside {folder}, to {target}, so nothing is written there. "
                "Remove that link or entry."
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
