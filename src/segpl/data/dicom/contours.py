"""Fill the contours of an RTSTRUCT file on the slices of its series."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.dicom.series import Series
from segpl.errors import UnusableFileError

PLANE_TOLERANCE = 0.3  # slices between a contour and its slice


def drawn_contours(
    path: Path, header: Any, series: Series
) -> Iterator[tuple[str, tuple[NDArray[np.intp], ...]]]:
    """Structure name and voxels (column, row, slice) of each structure on each slice.

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
            column, row = np.nonzero(inside(polygons, series.shape[:2]))
            yield name, (column, row, np.full_like(row, place))


def inside(polygons: list[NDArray[np.float64]], shape: tuple[int, int]) -> NDArray[np.bool_]:
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
