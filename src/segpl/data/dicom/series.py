"""Assemble the files of a DICOM series into one volume, and refuse what is not one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.dicom.header import frame_element, read_header
from segpl.errors import UnusableFileError, count_noun, errors_naming
from segpl.files import BoundedFile

MOST_FRAMES = 100_000
DIRECTION_TOLERANCE = 1e-3  # of the components of a unit vector
PIXEL_TOLERANCE = 1e-3  # relative, of the pixel spacing
SAME_POSITION = 1e-3  # mm
STEP_TOLERANCE = 0.1  # of the distance between slices, from a regular grid
SHIFT_TOLERANCE = 0.5  # pixels, across the stack

Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Plane:
    """One slice: a file, or one frame of an enhanced multi-frame file. Positions are in LPS mm."""

    file: Path
    frame: int
    size: tuple[int, int]  # rows, columns
    position: Vector  # center of the first pixel
    rows: Vector  # direction along a row
    columns: Vector  # direction along a column
    spacing: tuple[float, float]  # between rows, between columns
    thickness: float | None
    slope: float
    intercept: float
    inverted_from: int | None  # stored value that means 0, if low values are bright


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A volume with axes (column, row, slice), as in NIfTI."""

    planes: tuple[Plane, ...]
    affine: Vector  # 4x4 to RAS mm

    @property
    def shape(self) -> tuple[int, int, int]:
        rows, columns = self.planes[0].size
        return columns, rows, len(self.planes)

    def values(self) -> NDArray[np.float32]:
        """The voxels in the unit of the scanner, for example Hounsfield units."""
        from pydicom.pixels import iter_pixels

        volume = np.empty(self.shape, np.float32)
        order = sorted(enumerate(self.planes), key=lambda item: (item[1].file, item[1].frame))
        for file, group in groupby(order, key=lambda item: item[1].file):
            places = list(group)
            with errors_naming(file), BoundedFile(file) as content:
                frames = iter_pixels(content, indices=[plane.frame for _, plane in places])
                for (place, plane), frame in zip(places, frames, strict=True):
                    stored = frame.astype(np.float64).T
                    if plane.inverted_from is not None:
                        stored = plane.inverted_from - stored
                    volume[:, :, place] = stored * plane.slope + plane.intercept
        return volume


def open_series(files: Sequence[Path]) -> Series:
    """Read the headers of a series and sort its slices along their normal."""
    name = f"the DICOM series of {files[0]}"
    planes = [plane for path in files for plane in _planes(path)]
    _require_one_grid(name, planes)
    first = planes[0]
    normal = np.cross(first.rows, first.columns)
    planes.sort(key=lambda plane: float(plane.position @ normal))
    step = _slice_distance(name, planes, normal)
    affine = np.eye(4)
    affine[:3, 0] = first.rows * first.spacing[1]
    affine[:3, 1] = first.columns * first.spacing[0]
    affine[:3, 2] = normal * step
    affine[:3, 3] = planes[0].position
    affine[:2] *= -1  # LPS to RAS
    return Series(tuple(planes), affine)


def _planes(path: Path) -> list[Plane]:
    header = read_header(path)
    with errors_naming(path):
        _require_gray(path, header)
        if "PerFrameFunctionalGroupsSequence" not in header:
            if int(header.get("NumberOfFrames") or 1) > 1:
                raise UnusableFileError(
                    f"{path} contains several frames without positions, such as a video",
                    "Only stacks of slices, such as CT, MR and PET, are supported.",
                )
            return [_plane(path, header, 0, lambda tag, group: header.get(tag))]
        frames = header.PerFrameFunctionalGroupsSequence
        shared = (header.get("SharedFunctionalGroupsSequence") or [{}])[0]
        if not 0 < len(frames) == int(header.NumberOfFrames) <= MOST_FRAMES:
            raise UnusableFileError(
                f"{path} declares {header.NumberOfFrames} frames but describes {len(frames)}",
                "Export the series again.",
            )
        return [
            _plane(path, header, index, partial(frame_element, own, shared))
            for index, own in enumerate(frames)
        ]


def _plane(path: Path, header: Any, frame: int, find: Callable[[str, str], Any]) -> Plane:
    """`find` returns an element, given the functional group that holds it in enhanced files."""
    position = find("ImagePositionPatient", "PlanePositionSequence")
    orientation = find("ImageOrientationPatient", "PlaneOrientationSequence")
    spacing = find("PixelSpacing", "PixelMeasuresSequence")
    if position is None or orientation is None or spacing is None:
        raise UnusableFileError(
            f"{path} has no position, orientation or pixel spacing (radiographs and "
            "screenshots have none)",
            "Only stacks of slices, such as CT, MR and PET, are supported.",
        )
    thickness = find("SpacingBetweenSlices", "PixelMeasuresSequence")
    thickness = thickness or find("SliceThickness", "PixelMeasuresSequence")
    slope = find("RescaleSlope", "PixelValueTransformationSequence")
    is_signed = header.get("PixelRepresentation") == 1
    inverted_from = -1 if is_signed else 2 ** int(header.get("BitsStored", 16)) - 1
    is_inverted = header.get("PhotometricInterpretation") == "MONOCHROME1"
    directions = np.array(orientation, np.float64).reshape(2, 3)
    plane = Plane(
        path,
        frame,
        (int(header.Rows), int(header.Columns)),
        np.array(position, np.float64).reshape(3),
        directions[0],
        directions[1],
        (float(spacing[0]), float(spacing[1])),
        float(thickness) if thickness else None,
        1.0 if slope is None else float(slope),
        float(find("RescaleIntercept", "PixelValueTransformationSequence") or 0),
        inverted_from if is_inverted else None,
    )
    numbers = np.concatenate([plane.position, directions.ravel(), plane.spacing])
    lengths = np.linalg.norm(directions, axis=1)
    if (
        not (np.isfinite(numbers).all() and min(plane.spacing) > 0)
        or np.abs(lengths - 1).max() > DIRECTION_TOLERANCE
        or abs(directions[0] @ directions[1]) > DIRECTION_TOLERANCE
    ):
        raise UnusableFileError(
            f"{path} has an impossible position, orientation {list(orientation)} or pixel spacing "
            f"{list(spacing)}",
            "Export the series again.",
        )
    return plane


def _require_gray(path: Path, header: Any) -> None:
    kind = header.get("PhotometricInterpretation")
    if header.get("SamplesPerPixel", 1) != 1 or kind not in ("MONOCHROME1", "MONOCHROME2"):
        raise UnusableFileError(
            f"{path} is a color image ({kind})", "Only gray-scale series are supported."
        )
    if "ModalityLUTSequence" in header:
        raise UnusableFileError(
            f"{path} uses a Modality LUT, which is not supported",
            "Export the series with rescale slope and intercept.",
        )


def _require_one_grid(name: str, planes: Sequence[Plane]) -> None:
    first = planes[0]
    for plane in planes:
        if plane.size != first.size:
            sizes = [" x ".join(map(str, one.size)) for one in (first, plane)]
            what = f"{sizes[0]} and {sizes[1]} pixels"
        elif not np.allclose(plane.spacing, first.spacing, rtol=PIXEL_TOLERANCE, atol=0):
            what = f"pixel spacings {first.spacing} and {plane.spacing} mm"
        elif not (
            np.allclose(plane.rows, first.rows, atol=DIRECTION_TOLERANCE)
            and np.allclose(plane.columns, first.columns, atol=DIRECTION_TOLERANCE)
        ):
            what = "different orientations"
        else:
            continue
        raise UnusableFileError(
            f"{name} mixes {what}: {_place(first)} and {_place(plane)}",
            "Localizers and merged exports look like this. Remove the slices that do not belong to "
            "the scan, or the series.",
        )


def _slice_distance(name: str, planes: Sequence[Plane], normal: Vector) -> float:
    """Distance between neighboring slices, which must be the same everywhere."""
    if len(planes) == 1:
        thickness = planes[0].thickness
        if not thickness:
            raise UnusableFileError(
                f"{name} has one slice without a thickness", "Remove the series."
            )
        return thickness
    offsets = np.array([plane.position @ normal for plane in planes])
    steps = np.diff(offsets)

    def between(place: int) -> str:
        return f"{_place(planes[place])} and {_place(planes[place + 1])}"

    if steps.min() < SAME_POSITION:
        count = int((steps < SAME_POSITION).sum())
        raise UnusableFileError(
            f"{name} has {count_noun(count, 'duplicate slice')}: {between(int(steps.argmin()))} "
            "have the same position",
            "Keep one file per position. A series with several echoes, phases or b-values must be "
            "split into one series for each.",
        )
    typical = float(np.median(steps))
    if steps.max() > (2 - STEP_TOLERANCE) * typical:
        raise UnusableFileError(
            f"{name} has a gap: {between(int(steps.argmax()))} are {steps.max():.4g} mm apart, but "
            f"other slices {typical:.4g} mm: slices are missing",
            "Export the series again with all slices.",
        )
    step = float(offsets[-1] - offsets[0]) / len(steps)
    errors = np.abs(offsets - offsets[0] - step * np.arange(len(planes)))
    if errors.max() > STEP_TOLERANCE * step:
        raise UnusableFileError(
            f"{name} has non-uniform spacing: its slices are {steps.min():.4g} to "
            f"{steps.max():.4g} mm apart, for example {between(int(steps.argmax()))}",
            "Resample the series to a uniform spacing.",
        )
    shifts = np.array([plane.position - planes[0].position for plane in planes])
    shift = np.linalg.norm(shifts - np.outer(shifts @ normal, normal), axis=1).max()
    if shift > SHIFT_TOLERANCE * min(planes[0].spacing):
        angle = np.degrees(np.arctan2(shift, offsets[-1] - offsets[0]))
        raise UnusableFileError(
            f"{name} has a gantry tilt of {angle:.3g} degrees: {_place(planes[-1])} is shifted by "
            f"{shift:.3g} mm within its plane relative to {_place(planes[0])}",
            "Correct the tilt first, for example with dcm2niix, and use the result.",
        )
    return step


def _place(plane: Plane) -> str:
    return plane.file.name + (f" (frame {plane.frame + 1})" if plane.frame else "")
