"""Recognize DICOM files and read their headers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from segpl.errors import UnusableFileError, errors_naming
from segpl.files import BoundedFile

PREAMBLE = 128  # bytes before the marker
MARKER = b"DICM"
META = 2  # group of the elements that describe the file
DEFLATED = "1.2.840.10008.1.2.1.99"


def is_dicom(path: Path) -> bool:
    """Whether a file contains the DICOM marker, whatever its name."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(PREAMBLE + len(MARKER))[PREAMBLE:] == MARKER
    except OSError:
        return False


def walk_visible(root: Path) -> Iterator[tuple[Path, list[str], list[str]]]:
    """`os.walk` in a stable order, without hidden entries; links are followed once."""
    seen: set[str] = set()
    for place, folders, names in os.walk(root, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if name[0] != ".")
        yield Path(place), folders, sorted(name for name in names if name[0] != ".")


def files_below(root: Path) -> Iterator[Path]:
    return (folder / name for folder, _, names in walk_visible(root) for name in names)


def read_header(path: Path) -> Any:
    """The elements of a file without its pixels. They are decoded when they are used."""
    try:
        import pydicom
        from pydicom.filereader import read_dataset
    except ImportError as error:
        raise UnusableFileError(
            f"{path} is a DICOM file, and reading it needs packages that are not installed",
            "Install them with: pip install segpl[dicom]",
        ) from error
    with errors_naming(path), BoundedFile(path) as file:
        file.seek(PREAMBLE + len(MARKER))
        meta = read_dataset(file, False, True, stop_when=lambda tag, *_: tag.group != META)
        if meta.get("TransferSyntaxUID") == DEFLATED:
            # the whole file would be unpacked before its size is known
            raise UnusableFileError(
                f"{path} has the deflated transfer syntax, which is not supported",
                "Convert it, for example with `gdcmconv --raw`.",
            )
        file.seek(0)
        return pydicom.dcmread(file, stop_before_pixels=True)


def frame_element(own: Any, shared: Any, tag: str, group: str) -> Any:
    """An element of a frame in an enhanced file, or of all its frames; None without it."""
    for groups in (own, shared):
        if group in groups and tag in groups[group][0]:
            return groups[group][0].get(tag)
    return None
