"""Read the frames of a DICOM-SEG file onto the grid of its series."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.dicom.series import Series
from segpl.errors import UnusableFileError

GRID_TOLERANCE = 0.05  # voxels


def segment_voxels(
    path: Path, header: Any, series: Series
) -> Iterator[tuple[str, tuple[NDArray[np.intp], ...]]]:
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

    def find(group: str, tag: str) -> NDArray[np.float64]:
        groups = own if group in own else shared
        return np.array(groups[group][0][tag].value, np.float64)

    rows, columns = find("PlaneOrientationSequence", "ImageOrientationPatient").reshape(2, 3)
    spacing = find("PixelMeasuresSequence", "PixelSpacing")
    frame = np.zeros((4, 3))
    frame[:3, 0] = rows * spacing[1]
    frame[:3, 1] = columns * spacing[0]
    frame[:3, 2] = find("PlanePositionSequence", "ImagePositionPatient")
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
) -> tuple[NDArray[np.intp], ...]:
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
