"""What the cache contains, and how to remove parts of it.

Only files written by `data/cache.py` are removed, in folders named with the hash of their source.
Links are never followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from segpl.data.cache import CacheRecord, cache_root, short_hash
from segpl.data.known_cases import fingerprints_file
from segpl.errors import UserError
from segpl.files import is_partial, storage_errors
from segpl.records import read_record

ENTRY = re.compile(r".*-[0-9a-f]{12}")
VARIANT = re.compile(r"[0-9a-f]{12}")  # one per plan
CACHED_FILE = re.compile(r".+\.(?:(?:image|label)\.(?:npy|json)|foreground\.npy)")


@dataclass(frozen=True, slots=True)
class CachedFolder:
    """Prepared cases whose images are in one folder."""

    folder: Path
    exists: bool
    files: tuple[Path, ...]  # in the cache
    cases: int
    size: int  # bytes
    last_used: float  # seconds since 1970

    def remove(self) -> None:
        folders = {folder for file in self.files for folder in (file.parent, file.parent.parent)}
        for file in self.files:
            with storage_errors(file):
                file.unlink(missing_ok=True)
        for folder in sorted(folders, key=lambda path: -len(path.parts)):
            with suppress(OSError):  # not empty
                folder.rmdir()


@dataclass(frozen=True, slots=True)
class CachedDataset:
    path: Path
    folders: tuple[CachedFolder, ...]  # of its images

    @property
    def cases(self) -> int:
        return sum(one.cases for one in self.folders)

    @property
    def size(self) -> int:
        return sum(one.size for one in self.folders)

    @property
    def last_used(self) -> float:
        return max(one.last_used for one in self.folders)

    @property
    def state(self) -> str:
        missing = sum(not one.exists for one in self.folders)
        if missing in (0, len(self.folders)):
            return "no longer exists" if missing else ""
        return f"{missing} of {len(self.folders)} folders no longer exist"


def cached_folders() -> list[CachedFolder]:
    """The folders of images whose prepared cases are in the cache."""
    found = []
    for entry in _subfolders(cache_root(), ENTRY):
        files = [file for part in _subfolders(entry, VARIANT) for file in _cached_files(part)]
        if source := _images_folder(entry, files):
            found.append(_summarize(source, files))
    return found


def group_folders(folders: Iterable[CachedFolder]) -> list[CachedDataset]:
    """The folders of each dataset together."""
    groups: dict[Path, list[CachedFolder]] = {}
    for one in folders:
        groups.setdefault(inspected_dataset(one.folder), []).append(one)
    return [CachedDataset(path, tuple(found)) for path, found in groups.items()]


def inspected_dataset(folder: Path) -> Path:
    """The inspected dataset that contains a folder of images; the folder itself if unknown."""
    places = (folder, *folder.parents)
    return next((one for one in places if fingerprints_file(one).exists()), folder)


def folder_size(folder: Path) -> int:
    """Bytes of all files in `folder`."""
    parts = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sum(state.st_size for state in _states(parts).values())


def _states(files: Iterable[Path]) -> dict[Path, os.stat_result]:
    """Size and times of the files that exist: a training run may rename its drafts meanwhile."""
    states = {}
    for file in files:
        with suppress(FileNotFoundError):
            states[file] = file.lstat()
    return states


def _summarize(folder: Path, files: list[Path]) -> CachedFolder:
    states = _states(files)
    # this list itself reads the records, which must not count as use
    arrays = [state for file, state in states.items() if file.suffix == ".npy"]
    return CachedFolder(
        folder,
        folder.is_dir(),
        tuple(files),
        len({file.name for file in files if file.name.endswith(".image.npy")}),
        sum(state.st_size for state in states.values()),
        max((max(state.st_atime, state.st_mtime) for state in arrays), default=0.0),
    )


def _subfolders(folder: Path, name: re.Pattern[str]) -> Iterator[Path]:
    entries = list(os.scandir(folder)) if folder.is_dir() else []
    for entry in entries:
        if name.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            yield Path(entry.path)


def _cached_files(folder: Path) -> Iterator[Path]:
    for entry in os.scandir(folder):
        path = Path(entry.path)
        is_ours = CACHED_FILE.fullmatch(entry.name) or is_partial(path)
        if is_ours and entry.is_file(follow_symlinks=False):
            yield path


def _images_folder(entry: Path, files: Iterable[Path]) -> Path | None:
    """The folder of the images, from the first readable record; None if there is none."""
    for file in files:
        if not file.name.endswith(".image.json"):
            continue
        with suppress(UserError, IndexError):
            source = Path(read_record(file, CacheRecord).sources[0][0]).parent
            if entry.name.endswith(f"-{short_hash(str(source))}"):
                return source
    return None
