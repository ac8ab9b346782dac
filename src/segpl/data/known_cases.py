"""Stored fingerprints of inspected cases: later runs do not read unchanged files again.

    <cache>/inspected/<hash of the dataset's folder>.json

A fingerprint is valid while the paths, sizes and modification times of its files are unchanged.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from segpl.data.cache import cache_root, short_hash
from segpl.data.case import Case
from segpl.data.fingerprint import Fingerprint
from segpl.errors import StorageError, UserError
from segpl.files import write_atomically
from segpl.records import read_record

FINGERPRINT_VERSION = 4  # increase it when the fingerprint of the same files changes


class KnownCases:
    """The fingerprints of a dataset. Only cases without problems are stored."""

    def __init__(self, dataset: Path) -> None:
        self.path = fingerprints_file(dataset)
        self.is_changed = False
        self.entries: dict[str, tuple[str, Fingerprint]] = {}  # with the digest of the files
        with suppress(UserError):  # missing or damaged
            self.entries = read_record(self.path, dict[str, tuple[str, Fingerprint]])

    def get(self, case: Case, digest: str) -> Fingerprint | None:
        known, found = self.entries.get(_key(case), ("", None))
        return found if known == digest else None

    def add(self, case: Case, digest: str, found: Fingerprint) -> None:
        self.entries[_key(case)] = (digest, found)
        self.is_changed = True

    def save(self) -> None:
        """Write new fingerprints. If the disk is full, the next run reads the files again."""
        import msgspec

        if self.is_changed:
            # NumPy numbers become Python numbers
            content = msgspec.json.encode(self.entries, enc_hook=lambda number: number.item())
            with suppress(StorageError):
                write_atomically(self.path, lambda draft: draft.write_bytes(content))


def fingerprints_file(dataset: Path) -> Path:
    return cache_root() / "inspected" / f"{short_hash(str(dataset.resolve()))}.json"


def _key(case: Case) -> str:
    """A case has different fingerprints with and without its label."""
    return f"{'labeled' if case.label else 'unlabeled'} {case.name}"


def source_digest(case: Case, ignore: int | None) -> str:
    """Hash of everything the fingerprint depends on, except the number of spatial axes.

    Compute it before reading the files.
    """
    meaning = (FINGERPRINT_VERSION, ignore, case.segments, case.mask_numbers)
    text = hashlib.sha256(repr(meaning).encode())
    for path in (*case.images, *case.label_files):
        try:
            status = os.stat(path)
        except OSError:
            continue  # reported when the case is read
        file = (os.path.abspath(path), status.st_size, status.st_mtime_ns)
        text.update(repr(file).encode("utf-8", "surrogateescape"))
    return text.hexdigest()
