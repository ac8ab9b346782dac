"""The folder of one training: everything that is needed to use it, judge it and repeat it."""

from __future__ import annotations

import fcntl
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import segpl
from segpl.errors import InputError, MissingFileError
from segpl.files import is_partial, storage_errors


@dataclass(frozen=True, slots=True)
class Paths:
    """Files that a training writes."""

    log: Path
    times: Path
    validation: Path
    last: Path
    best: Path
    events: Path  # a folder


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def split(self) -> Path:
        return self.path / "split.json"

    @property
    def environment(self) -> Path:
        return self.path / "environment.json"

    @property
    def summary(self) -> Path:
        return self.path / "summary.json"

    @property
    def postprocessing(self) -> Path:
        return self.path / "postprocessing.json"

    @property
    def agreement(self) -> Path:
        return self.path / "agreement.json"

    @property
    def folds(self) -> Path:
        return self.path / "folds.csv"

    @property
    def lock(self) -> Path:
        return self.path / ".lock"

    @property
    def training(self) -> Paths:
        return Paths(
            log=self.path / "log.csv",
            times=self.path / "times.csv",
            validation=self.path / "validation.csv",
            last=self.checkpoint("last"),
            best=self.checkpoint("best"),
            events=self.path / "tensorboard",
        )

    def checkpoint(self, name: str) -> Path:
        return self.path / "checkpoints" / f"{name}.safetensors"

    def weights(self, checkpoint: str) -> str:
        """Which weights a checkpoint holds: those of a folder that is trained anew are others."""
        return sha256(self.checkpoint(checkpoint).read_bytes()).hexdigest()[:12]

    def refuse_if_taken(self) -> None:
        """A new run never writes into a folder that holds anything."""
        if self.config.exists():
            raise InputError(
                f"{self.path} belongs to another run. Go on with it by --resume, or choose another "
                "--out."
            )
        if self.path.exists() and (not self.path.is_dir() or self.holds_something()):
            raise InputError(
                f"{self.path} exists and is no run of segpl: nothing is written into it. Choose "
                "another --out."
            )

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep a second process from training in the same folder; a killed one lets go."""
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            handle = self.lock.open("w")
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise InputError(
                    f"another process is training in {self.path}. Wait for it, or choose another "
                    "--out."
                ) from error
            try:
                yield
            finally:
                self.lock.unlink(missing_ok=True)
                if not any(self.path.iterdir()):
                    self.path.rmdir()

    def holds_something(self) -> bool:
        """Whether anything but what a run killed in its first moment leaves is there."""
        return not all(is_partial(p) or p == self.lock for p in self.path.iterdir())

    @contextmanager
    def beginning(self) -> Iterator[None]:
        """Leave nothing behind of a run that fails before its first step; one that was, stays."""
        is_new = not self.config.exists()
        try:
            yield
        except BaseException:
            if is_new:
                self.withdraw()
            raise

    def withdraw(self) -> None:
        """Remove what a run that never began has written, so that the command can be repeated."""
        if not self.path.is_dir():
            return
        for path in (self.config, self.plan, self.split, self.environment, self.summary):
            path.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()

    def require(self) -> None:
        missing = [f.name for f in (self.config, self.plan, self.split) if not f.is_file()]
        if missing:
            raise MissingFileError(
                f"{self.path} is no run of segpl: it has no {', '.join(missing)}. "
                "Give the folder that --out named in training."
            )


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions, machine and state of the source, to explain a number a year later."""
    packages = ("torch", "monai", "numpy", "nibabel", "scipy", "safetensors")
    return {
        "segpl": segpl.__version__,
        "python": sys.version.split()[0],
        "packages": {name: installed(name) for name in packages},
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "git": git_state(Path(__file__).parent),
        "command": sys.argv,
    }


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the checkout that segpl runs from; None where it was installed as a package."""

    def git(*arguments: str) -> str | None:
        try:
            result = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return result.stdout.strip() if result.returncode == 0 else None

    # an installed package may lie inside somebody else's repository
    if git("ls-files", "--error-unmatch", Path(__file__).name) is None:
        return None
    return {"commit": git("rev-parse", "HEAD"), "changed": bool(git("status", "--porcelain"))}
