"""The run folder: file names, locking, and the rules for writing into it. Imports no torch."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from segpl.errors import InputError, MissingFileError
from segpl.files import is_partial, require_below, storage_errors

ATTEMPTS = 100  # to create a folder that other processes remove
LOCK_SECONDS = 0.5  # between attempts to take a lock


class RunFile:
    """The path of one file of a run folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: RunFolder, kind: type[RunFolder]) -> Path:
        return folder.path / self.name


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    config = RunFile("config.toml")
    plan = RunFile("plan.json")
    split = RunFile("split.json")
    environment = RunFile("environment.json")
    summary = RunFile("summary.json")
    log = RunFile("log.csv")
    times = RunFile("times.csv")
    validation = RunFile("validation.csv")
    events = RunFile("tensorboard")
    last = RunFile("checkpoints/last.safetensors")
    best = RunFile("checkpoints/best.safetensors")
    postprocessing = RunFile("postprocessing.json")
    familiarity = RunFile("familiarity.json")
    folds = RunFile("folds.csv")
    lock = RunFile(".lock")
    OWN_FOLDERS = ("checkpoints", "tensorboard")  # no other files belong there

    def checkpoint(self, name: str) -> Path:
        return self.path / "checkpoints" / f"{name}.safetensors"

    def weights_hash(self, checkpoint: str) -> str:
        """A short hash of a checkpoint file; it changes when the folder is trained again."""
        return sha256(self.checkpoint(checkpoint).read_bytes()).hexdigest()[:12]

    def require_unused(self) -> None:
        """Raise if the folder contains anything: a new run never overwrites other files."""
        if self.config.exists():
            raise InputError(
                f"{self.path} already contains a run. Resume it with --resume, or choose another "
                "--out."
            )
        if self.path.exists() and (not self.path.is_dir() or not self.is_empty()):
            raise InputError(
                f"{self.path} exists and is not a segpl run, so nothing is written there. Choose "
                "another --out."
            )

    def is_empty(self) -> bool:
        """Whether the folder holds nothing but leftovers of a run killed as it started."""
        return all(is_partial(path) or path == self.lock for path in self.path.iterdir())

    @contextmanager
    def locked(
        self, on_wait: Callable[[], None] | None = None, *, doing: str = "training"
    ) -> Iterator[None]:
        """Keep other processes out of the folder. The lock of a killed process expires.

        If another process has the lock, call `on_wait` and wait; without `on_wait`, raise an error
        that says what the other process is `doing`.
        """
        require_below(self.path, (self.last, self.events / "events"))
        handle = self._take_lock()
        if handle is None and on_wait:
            on_wait()
        while handle is None:
            if on_wait is None:
                raise InputError(
                    f"another process is {doing} in {self.path}. Wait for it to finish, or choose "
                    "another --out."
                )
            time.sleep(LOCK_SECONDS)
            handle = self._take_lock()
        try:
            yield
        finally:
            if self._is_lock(handle):  # not if the folder was moved and another one is here
                self.lock.unlink()
                with suppress(OSError):  # it is not empty, or another process waits in it
                    self.path.rmdir()
            os.close(handle)

    def _take_lock(self) -> int | None:
        """The open lock file; None if another process has the lock."""
        handle = self._open_lock()
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if self._is_lock(handle):  # not if its owner removed it and there is a new one
                return handle
        os.close(handle)
        return None

    def _open_lock(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        with storage_errors(self.path):
            for _ in range(ATTEMPTS):
                # another process may remove the empty folder at any moment
                with suppress(FileNotFoundError, FileExistsError):
                    self.path.mkdir(parents=True, exist_ok=True)
                    return os.open(self.lock, flags, 0o666)
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def _is_lock(self, handle: int) -> bool:
        """Whether the lock file is the one that was opened as `handle`."""
        try:
            return os.path.samestat(os.fstat(handle), self.lock.stat())
        except FileNotFoundError:
            return False

    @contextmanager
    def undo_on_error(self) -> Iterator[None]:
        """Remove the files of a new run that fails before its first step.

        The same command then works again. Files of a run that is resumed stay.
        """
        is_new = not self.config.exists()
        try:
            yield
        except BaseException:
            if is_new:
                self.remove_description()
            raise

    def remove_description(self) -> None:
        if not self.path.is_dir():
            return
        files = (self.config, self.plan, self.split, self.environment, self.summary)
        for path in (*files, self.postprocessing):
            path.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def run_inside(self) -> Path | None:
        """A run one or two folders below; None without any."""
        places = (*self.path.glob("*/config.toml"), *self.path.glob("*/*/config.toml"))
        return min(places).parent if places else None

    def require_run(self) -> None:
        missing = [f.name for f in (self.config, self.plan, self.split) if not f.is_file()]
        if missing:
            inside = self.run_inside()
            raise MissingFileError(
                f"{self.path} is not a segpl run: {', '.join(missing)} missing. "
                + (f"Did you mean {inside}? " if inside and len(missing) > 1 else "")
                + "Give the folder that `segpl train --out` wrote, or restore the file."
            )
