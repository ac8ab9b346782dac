"""Read DICOM-SEG and RTSTRUCT files as class numbers on the grid of their series."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.dicom.contours import drawn_contours
from segpl.data.dicom.header import read_header
from segpl.data.dicom.index import CONTOURS
from segpl.data.dicom.segmentation import segment_voxels
from segpl.data.dicom.series import Series
from segpl.errors import UnusableFileError, errors_naming

SegmentVoxels = tuple[NDArray[np.intp], ...]  # indices along each axis


@dataclass(frozen=True, slots=True)
class SegmentNumbers:
    """Class numbers by segment name; upper and lower case are the same."""

    numbers: tuple[tuple[str, int], ...]
    is_chosen: bool  # by labels.json: others are ignored, and in overlaps the last one wins


def read_segments(path: Path, series: Series, classes: SegmentNumbers) -> NDArray[np.int32]:
    """Class numbers (column, row, slice) of a label file; 0 outside of all segments."""
    numbers = {name.casefold(): number for name, number in classes.numbers}
    order = {number: place for place, (_, number) in enumerate(classes.numbers)}
    parts: list[tuple[int, str, SegmentVoxels]] = []
    for name, voxels in _parts(path, series):
        number = numbers.get(name.casefold(), 0)
        if number:
            parts.append((number, name, voxels))
    label = np.zeros(series.shape, np.int32)
    for number, name, voxels in sorted(parts, key=lambda part: order[part[0]]):
        taken = label[voxels]
        if not classes.is_chosen and ((taken != 0) & (taken != number)).any():
            other = int(taken[(taken != 0) & (taken != number)][0])
            names = {value: key for key, value in classes.numbers}
            raise UnusableFileError(
                f"in {path} the segments '{names[other]}' and '{name}' overlap, but a voxel has "
                "one class",
                "Write labels.json into the dataset folder with the classes to learn, for example "
                f'{{"{names[other]}": 1, "{name}": 2}}: other segments are ignored, and where '
                "classes overlap the last one wins.",
            )
        label[voxels] = number
    return label


def _parts(path: Path, series: Series) -> Iterator[tuple[str, SegmentVoxels]]:
    """Name and voxels of each segment, or of parts of it."""
    header = read_header(path)
    with errors_naming(path):
        if header.get("SOPClassUID") == CONTOURS:
            yield from drawn_contours(path, header, series)
        else:
            yield from segment_voxels(path, header, series)
