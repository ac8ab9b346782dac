"""Read DICOM-SEG and RTSTRUCT files as class numbers on the grid of their series."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.dicom.header import frame_element, read_header
from segpl.data.dicom.index import CONTOURS
from segpl.data.dicom.series import Series
from segpl.errors import UnusableFileError, errors_naming

PLANE_TOLERANCE = 0.3  # slices between a contour and its slice
GRID_TOLERANCE = 0.05  # voxels
SegmentVoxels = tuple[NDArray[np.intp], ...]  # indices along each axis


@dataclass(frozen=True, slots=True)
class SegmentNumbers:
    """Class numbers by segment name; upper and lower case are the same."""

    numbers: tuple[tuple[str, int], ...]
    is_chosen: bool  # by labels.json: others are ignored, and overlaps get the highest number


def read_segments(path: Path, series: Series, classes: SegmentNumbers) -> NDArray[np.int32]:
    """Class numbers (column, row, slice) of a label file; 0 outside of all segments."""
    numbers = {name.casefold(): number for name, number in classes.numbers}
    order = {number: place for place, (_, number) in enumerate(classes.numbers)}
    header = read_header(path)
    segments = _drawn_contours if header.get("SOPClassUID") == CONTOURS else _segment_voxels
    parts: list[tuple[int, str, SegmentVoxels]] = []
    with errors_naming(path):
        for name, voxels in segments(path, header, series):
            if number := numbers.get(name.casefold(), 0):
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
                "classes overlap, the one with the highest number wins.",
            )
        label[voxels] = number
    return label


def _drawn_contours(path: Path, header: Any, series: Series) -> Iterator[tuple[str, SegmentVoxels]]:
    """Name and voxels (column, row, slice) of each structure on each slice.

    A voxel is inside if its center is. Contours of one structure on one slice are combined by
    exclusive or, so that a contour within another one is a hole.
    """
    names = {
        int(item.ROINumber): str(item.ROIName).strip() for item in header.StructureSetROISequence
    }
    to_index = np.linalg.inv(series.affine) @ np.diag([-1.0, -1.0, 1.0, 1.0])  # LPS to index
    for structure in header.get("ROIContourSequence") or ():
        name = names[int(structure.ReferencedROINumber)]
        slices: dict[int, list[NDArray[np.float64]]] = defaultdict(list)
        for contour in structure.get("ContourSequence") or ():
            if not str(contour.ContourGeometricType).startswith("CLOSED_PLANAR"):
                continue  # points and lines enclose nothing
            points = np.array(contour.ContourData, np.float64).reshape(-1, 3)
            index = points @ to_index[:3, :3].T + to_index[:3, 3]
            place = round(float(index[:, 2].mean()))
            if np.abs(index[:, 2] - place).max() > PLANE_TOLERANCE or not (
                0 <= place < series.shape[2]
            ):
                raise UnusableFileError(
                    f"a contour of '{name}' in {path} does not lie on a slice of its series",
                    "Export the contours on the slices of the images.",
                )
            slices[place].append(index[:, :2])
        for place, polygons in slices.items():
            column, row = np.nonzero(_inside(polygons, series.shape[:2]))
            yield name, (column, row, np.full_like(row, place))


def _inside(polygons: list[NDArray[np.float64]], shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Pixels (column, row) whose center lies inside an odd number of polygons, by scan lines.

    A line along a row enters or leaves at each crossing with an edge. An edge contains its lower
    end and not its upper one, so that a corner counts once.
    """
    columns, rows = shape
    crossings = np.zeros((columns + 1, rows), np.int64)
    for polygon in polygons:
        for (x0, y0), (x1, y1) in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
            low, high = sorted((y0, y1))
            row = np.arange(max(0, int(np.ceil(low))), min(rows, int(np.ceil(high))))
            x = x0 + (row - y0) * ((x1 - x0) / (y1 - y0)) if row.size else np.empty(0)
            np.add.at(crossings, (np.clip(np.ceil(x), 0, columns).astype(int), row), 1)
    odd: NDArray[np.bool_] = np.cumsum(crossings[:columns], axis=0) % 2 == 1
    return odd


def _segment_voxels(path: Path, header: Any, series: Series) -> Iterator[tuple[str, SegmentVoxels]]:
    """Segment name and voxels (column, row, slice) of each frame that is not empty."""
    from pydicom.pixels import iter_pixels

    names = {
        int(item.SegmentNumber): str(item.SegmentLabel).strip() for item in header.SegmentSequence
    }
    planes = header.PerFrameFunctionalGroupsSequence
    size = (int(header.Columns), int(header.Rows))
    if not set(size) <= set(series.shape) or len(planes) > len(names) * max(series.shape):
        raise _other_grid(path, f"{size[0]} x {size[1]} pixels in {header.NumberOfFrames} frames")
    shared = header.SharedFunctionalGroupsSequence[0]
    is_map = header.SegmentationType == "LABELMAP"
    # a fraction of half or more counts
    low = int(header.MaximumFractionalValue) / 2 if header.SegmentationType == "FRACTIONAL" else 1
    for groups, frame in zip(planes, iter_pixels(path), strict=True):
        to_index = _to_index(path, groups, shared, series)
        if is_map:
            for number in np.unique(frame[frame != 0]):
                yield names[int(number)], _placed(path, frame == number, to_index, series)
        else:
            own = groups if "SegmentIdentificationSequence" in groups else shared
            number = int(own.SegmentIdentificationSequence[0].ReferencedSegmentNumber)
            yield names[number], _placed(path, frame >= low, to_index, series)


def _to_index(path: Path, own: Any, shared: Any, series: Series) -> NDArray[np.float64]:
    """Matrix (3, 3) from (column, row, 1) of a frame to an index of the series."""
    find = partial(frame_element, own, shared)
    orientation = np.array(find("ImageOrientationPatient", "PlaneOrientationSequence"), np.float64)
    spacing = find("PixelSpacing", "PixelMeasuresSequence")
    frame = np.zeros((4, 3))
    frame[:3, :2] = orientation.reshape(2, 3).T * (float(spacing[1]), float(spacing[0]))
    frame[:3, 2] = find("ImagePositionPatient", "PlanePositionSequence")
    frame[3, 2] = 1
    frame[:2] *= -1  # LPS to RAS
    to_index: NDArray[np.float64] = (np.linalg.inv(series.affine) @ frame)[:3]
    steps = np.abs(to_index[:, :2])
    if np.abs(steps - np.round(steps)).max() * max(series.shape) > 0.5 or not np.allclose(
        steps.sum(0), 1, atol=GRID_TOLERANCE
    ):
        raise _other_grid(path, "another orientation or pixel spacing")
    return to_index


def _placed(
    path: Path, mask: NDArray[np.bool_], to_index: NDArray[np.float64], series: Series
) -> SegmentVoxels:
    row, column = np.nonzero(mask)
    exact = to_index @ np.stack([column, row, np.ones_like(row)])  # (3, voxels)
    index = np.round(exact).astype(np.intp)
    if index.size and np.abs(exact - index).max() > 0.1:
        raise _other_grid(path, "positions between the slices or pixels of the series")
    if (index < 0).any() or (index >= np.array(series.shape)[:, None]).any():
        raise _other_grid(path, "voxels outside of the series")
    return tuple(index)


def _other_grid(path: Path, what: str) -> UnusableFileError:
    return UnusableFileError(
        f"{path} is not on the grid of its series: it has {what}",
        "Export the segmentation on the grid of the images.",
    )
