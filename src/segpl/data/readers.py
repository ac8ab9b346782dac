"""Read scans and labels of any supported format into arrays on a grid.

Unusable files are rejected here, with their path, so that later stages can rely on the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unicodedata import normalize
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from segpl.data.case import Case
from segpl.data.dicom.header import is_dicom
from segpl.data.dicom.label import read_segments
from segpl.data.dicom.series import Series, open_series
from segpl.data.formats import OPENERS
from segpl.data.limits import MOST_COLORS, SPACING_RANGE, require_size
from segpl.data.open_file import OpenFile, Role
from segpl.errors import InputError, MissingFileError, UnusableFileError, count_noun, errors_naming

SUFFIXES: tuple[str, ...] = tuple(OPENERS)

MARK = "segpl prediction "

# tolerances in voxels
SPACING_TOLERANCE = 1e-3  # also for directions
ORIGIN_TOLERANCE = 1e-2  # some programs round the origin to 0.01 mm
INTEGER_TOLERANCE = 1e-4  # header scaling turns 1 into 0.9999999


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    shape: tuple[int, ...]  # spatial axes only
    spacing: tuple[float, ...]
    affine: NDArray[np.float64] | None  # 4x4 to RAS mm, as in NIfTI; None for pictures and arrays

    @property
    def stored_spacing(self) -> tuple[float, ...] | None:
        """Spacing in mm; None for pictures and arrays that store none."""
        is_stored = self.affine is not None or any(size != 1 for size in self.spacing)
        return self.spacing if is_stored else None


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    array: NDArray[np.float32]  # (C, *S)
    grid: Grid


@dataclass(frozen=True, slots=True, eq=False)
class Label:
    array: NDArray[np.int32]  # (*S)
    grid: Grid
    meanings: dict[int, str] = field(default_factory=dict)  # as in OpenFile, of what it contains
    comment: str = ""  # as in OpenFile

    @property
    def is_prediction(self) -> bool:
        """Whether `segpl predict` wrote the file and its voxels are unchanged."""
        is_marked = self.comment.startswith(MARK)  # the checksum takes time
        return is_marked and self.comment == prediction_mark(self.array)


def prediction_mark(labels: NDArray[Any]) -> str:
    """The comment in the file of a predicted mask; programs may keep it when they change voxels."""
    return f"{MARK}{crc32(np.ascontiguousarray(labels, np.int32).data):08x}"


def suffix_of(path: Path | str) -> str:
    """The suffix that selects the reader, '.nii.gz' rather than '.gz'; '' if unknown."""
    name = Path(path).name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def stem_of(path: Path | str) -> str:
    """The name without its suffix, in composed Unicode: macOS writes ü as u and two dots."""
    name = Path(path).name
    return normalize("NFC", name[: len(name) - len(suffix_of(path))])


def read_grid(path: Path, dims: int | None = None) -> tuple[Grid, int]:
    """Grid and number of channels, from the header only."""
    with errors_naming(path):
        return _grid(path, _open([path], "image"), dims)


def read_image(files: Sequence[Path], dims: int) -> Image:
    """Read one scan. Several files are its channels, in order, on the same grid, or its slices."""
    parts: list[NDArray[np.float32]] = []
    first: Grid | None = None
    for group in [files] if is_series(files) else [[path] for path in files]:
        path = group[0]
        with errors_naming(path):
            opened = _open(group, "image")
            grid, channels = _grid(path, opened, dims)
            if len(files) > 1 and channels != 1:
                raise UnusableFileError(
                    f"{path} has {len(opened.shape)} axes {opened.shape} instead of {dims}, "
                    f"although each of the {len(files)} files of the case is one channel",
                    "Store one channel per file, or all channels in one file.",
                )
            if first is not None and (difference := grid_difference(first, grid)):
                raise UnusableFileError(
                    f"{path} and {files[0].name} have different grids: {difference}",
                    "Resample the channels of the case to one grid.",
                )
            first = first or grid
            parts.append(_finite(path, _channels_first(path, opened, grid)))
    assert first is not None, "an image without a file"
    return Image(parts[0] if len(parts) == 1 else np.concatenate(parts), first)


def read_scan_grid(files: Sequence[Path], dims: int) -> Grid:
    """Grid of a scan of one or several files, from headers only."""
    with errors_naming(files[0]):
        return _grid(files[0], _open(files, "image"), dims)[0]


def read_image_part(files: Sequence[Path], dims: int, part: tuple[slice, ...]) -> NDArray[Any]:
    """A part of a scan (C, *S), without loading the rest if the format allows it."""
    parts = []
    for path in files:
        with errors_naming(path):
            opened = None if is_series(files) else _open([path], "image")
            if opened is None or opened.part is None:
                return read_image(files, dims).array[(slice(None), *part)]
            _grid(path, opened, dims)  # raises if it has other axes
            values = opened.part(part)
            parts.append(values[None] if values.ndim == dims else np.moveaxis(values, -1, 0))
    return np.nan_to_num(np.concatenate(parts).astype(np.float32))


def image_of(opened: OpenFile, path: Path, dims: int) -> Image:
    """An image that is already open; messages name it by its `path`."""
    grid, _ = _grid(path, opened, dims)
    return Image(_finite(path, _channels_first(path, opened, grid)), grid)


def read_label(path: Path, dims: int | None = None) -> Label:
    with errors_naming(path):
        opened = _open([path], "label")
        grid, channels = _grid(path, opened, dims)
        if channels != 1 and (opened.meanings or path.name.lower().endswith(".seg.nrrd")):
            raise UnusableFileError(
                f"{path} has {channels} layers because 3D Slicer segments overlap, but a voxel has "
                "only one class",
                "Remove the overlap, or export a label map from 3D Slicer.",
            )
        if channels != 1:
            raise UnusableFileError(
                f"{path} has {channels} channels {opened.shape}, but a label needs a single one",
                "Store class numbers in one channel. If each channel is a class, take the argmax. "
                "If they are time points, save each labeled one as a case.",
            )
        array = _integers(path, opened.values().reshape(grid.shape))
        present = np.unique(array).tolist() if opened.meanings else ()
        meanings = {n: opened.meanings[n] for n in present if n in opened.meanings}
        return Label(array, grid, meanings, opened.comment)


def read_case_label(case: Case, dims: int | None = None) -> Label:
    """Read the label of a case. Those of DICOM series are drawn on the grid of the images."""
    assert case.label is not None, f"{case.name} has no label"
    if case.masks:
        return _read_masks(case, dims)
    if case.segments is None:
        return read_label(case.label, dims)
    series = open_series(case.images)
    grid, _ = _grid(case.images[0], _opened(series), dims)
    return Label(read_segments(case.label, series, case.segments), grid)


def _read_masks(case: Case, dims: int | None) -> Label:
    """A label from one mask per class. Where masks overlap, the smallest one counts."""
    first: Grid | None = None
    sizes = np.zeros(len(case.masks) + 1, np.int64)  # voxels of each class in its mask
    for number, path in zip(case.mask_numbers, case.label_files, strict=True):
        mask = read_label(path, dims)
        if first is None:
            first = mask.grid
            array = np.zeros(first.shape, np.int32)
            sizes[0] = array.size
        mask = with_axes_of(mask, first)
        if difference := grid_difference(first, mask.grid):
            raise UnusableFileError(
                f"{path} and {case.label_files[0].name} have different grids: {difference}",
                "Resample the masks of the case to one grid.",
            )
        inside = mask.array != 0
        values = mask.array[inside]
        if values.size and values.min() != values.max():
            raise UnusableFileError(
                f"{path} contains several numbers, such as {values.min()} and {values.max()}, "
                "but is one of several masks of its case",
                "Store one structure per mask, or all structures in one file.",
            )
        sizes[number] = values.size
        known = array[inside]
        array[inside] = np.where(sizes[known] >= values.size, number, known)
    assert first is not None, "a label without a file"
    return Label(array, first)


def read_label_on(grid: Grid, case: Case) -> Label:
    """The label of a case with the axes of its image's grid; raises if it is on another grid."""
    label = with_axes_of(read_case_label(case, len(grid.shape)), grid)
    if difference := grid_difference(grid, label.grid):
        raise InputError(
            f"the label {case.label} is not on the grid of its image: {difference}. Resample "
            "the label to the image, or correct the wrong header."
        )
    return label


def with_axes_of(label: Label, grid: Grid) -> Label:
    """The label with its axes permuted and flipped to match `grid`.

    Programs may store the same voxels in another orientation. If the grids differ in any other
    way, the label is returned unchanged.
    """
    if (turns := axis_turns(label.grid, grid)) is None:
        return label
    from nibabel.orientations import apply_orientation

    array = np.ascontiguousarray(apply_orientation(label.array, turns))
    return replace(label, array=array, grid=grid)


def axis_turns(a: Grid, b: Grid) -> NDArray[np.float64] | None:
    """Nibabel's orientation that turns grid `a` into `b`; None if no reorientation does."""
    if a.affine is None or b.affine is None or len(a.shape) != 3:
        return None
    from nibabel.orientations import inv_ornt_aff, io_orientation

    turns: NDArray[np.float64] = io_orientation(np.linalg.solve(b.affine, a.affine))
    order = np.argsort(turns[:, 0])
    turned = Grid(
        tuple(a.shape[axis] for axis in order),
        tuple(a.spacing[axis] for axis in order),
        a.affine @ inv_ornt_aff(turns, a.shape),
    )
    return None if grid_difference(turned, b) else turns


def is_series(files: Sequence[Path]) -> bool:
    """Whether the files of a scan are the slices of a DICOM series."""
    return not suffix_of(files[0]) and is_dicom(files[0])


def grid_difference(a: Grid, b: Grid) -> str | None:
    """Describe the first difference between two grids; None if they agree.

    Small differences are tolerated, as between files that went through different programs. If one
    file stores no geometry, only the shapes are compared.
    """
    if a.shape != b.shape:
        return f"shape {a.shape} and {b.shape}"
    if (a.affine is None) != (b.affine is None) or not (a.stored_spacing and b.stored_spacing):
        return None
    if not np.allclose(a.spacing, b.spacing, rtol=SPACING_TOLERANCE, atol=0):
        return f"voxel spacing {_numbers(a.spacing)} and {_numbers(b.spacing)} mm"
    if a.affine is None or b.affine is None:
        return None
    turn = np.abs(a.affine - b.affine)[:3, : len(a.shape)] / np.asarray(a.spacing)
    if (turn > SPACING_TOLERANCE).any():
        if orientation_of(a) != orientation_of(b):
            return f"orientation {orientation_of(a)} and {orientation_of(b)}"
        angle = np.degrees(2 * np.arcsin(min(1.0, np.linalg.norm(turn, axis=0).max() / 2)))
        return f"axes rotated by {angle:.2g} degrees"
    shift = np.linalg.norm((b.affine - a.affine)[:3, 3]) / min(a.spacing)
    if shift > ORIGIN_TOLERANCE:
        return f"origin {_numbers(a.affine[:3, 3])} and {_numbers(b.affine[:3, 3])} mm"
    return None


def orientation_of(grid: Grid) -> str | None:
    """Direction of each axis, for example 'LPS'; None if the file does not say."""
    if grid.affine is None:
        return None
    from nibabel.orientations import aff2axcodes

    return "".join(code or "?" for code in aff2axcodes(grid.affine)[: len(grid.shape)])


def _open(files: Sequence[Path], role: Role) -> OpenFile:
    """The first file, or the series that all of them are."""
    path, suffix = files[0], suffix_of(files[0])
    if is_series(files):
        return _opened(open_series(files))
    if not suffix:
        raise UnusableFileError(
            f"{path} has no supported format", f"Supported suffixes: {', '.join(SUFFIXES)}."
        )
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist.")
    return OPENERS[suffix](path, role)


def _opened(series: Series) -> OpenFile:
    return OpenFile(series.shape, series.values, affine=series.affine, dims=3)


def _grid(path: Path, opened: OpenFile, dims: int | None) -> tuple[Grid, int]:
    """Separate spatial axes from channels."""
    axes = len(opened.shape)
    spatial = dims or opened.dims or min(axes, 3)
    if opened.dims not in (None, spatial) or axes not in (spatial, spatial + 1):
        what, remedy = f"has {axes} axes", f"Store {spatial} axes, or {spatial + 1} with channels. "
        if opened.dims:
            what, remedy = f"is {opened.dims}D", ""
        raise UnusableFileError(
            f"{path} {what} (shape {opened.shape}), but a {spatial}D image is expected",
            f"{remedy}Keep 2D and 3D images in separate datasets.",
        )
    if 0 in opened.shape:
        raise UnusableFileError(f"{path} is empty: its shape is {opened.shape}", "Replace it.")
    require_size(str(path), opened.shape)
    shape, channels = opened.shape, 1
    if axes > spatial and opened.channels_first:
        channels, shape = shape[0], shape[1:]
    elif axes > spatial:
        channels, shape = shape[-1], shape[:-1]
    return Grid(shape, _voxel_size(path, opened, spatial), opened.affine), channels


def _voxel_size(path: Path, opened: OpenFile, spatial: int) -> tuple[float, ...]:
    if opened.affine is not None:
        sizes = np.linalg.norm(opened.affine[:3, :spatial], axis=0)
    elif opened.spacing is not None:
        sizes = np.asarray(opened.spacing)
    else:
        sizes = np.ones(spatial)
    low, high = SPACING_RANGE
    if len(sizes) != spatial or not ((sizes >= low) & (sizes <= high)).all():
        raise UnusableFileError(
            f"{path} has a voxel spacing of {_numbers(sizes)} mm, but must have {spatial} sizes "
            f"between {low:g} and {high:g} mm",
            "Correct the spacing in its header.",
        )
    if opened.affine is not None and not (
        np.isfinite(opened.affine).all()
        and np.linalg.matrix_rank(opened.affine[:3, :spatial] / sizes) == spatial
    ):
        raise UnusableFileError(
            f"{path} has a singular affine: {opened.affine[:3].tolist()}",
            "Copy the affine of the original scan into its header.",
        )
    # headers store float32: 0.7 becomes 0.699999988
    return tuple(round(float(size), 6) if size > 1e-3 else float(size) for size in sizes)


def _channels_first(path: Path, opened: OpenFile, grid: Grid) -> NDArray[Any]:
    shape = opened.shape
    if len(shape) == len(grid.shape):
        return opened.values()[None]
    if opened.channels_first and len(shape) == 3 and min(shape[:-1]) > MOST_COLORS >= shape[-1]:
        raise UnusableFileError(
            f"{path} has the shape {shape}, with channels last",
            "Save them first: numpy.moveaxis(array, -1, 0).",
        )
    values = opened.values()
    return values if opened.channels_first else np.moveaxis(values, -1, 0)


def _finite(path: Path, values: NDArray[Any]) -> NDArray[np.float32]:
    _reject_non_numeric(path, values)
    with np.errstate(over="ignore"):  # overflow of float32 gives infinity, which is rejected
        array = np.asarray(values, dtype=np.float32)
    count = array.size - sum(int(np.count_nonzero(np.isfinite(part))) for part in slices(array))
    if count:
        raise UnusableFileError(
            f"{path} contains {count_noun(count, 'NaN or infinite value')}",
            "Replace them, for example with numpy.nan_to_num, or remove the case.",
        )
    return array


def slices(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Slices of an image (C, *S), to keep temporary arrays small."""
    slowest = 1 + int(np.argmax(np.abs(array.strides[1:])))  # NIfTI stores the first axis fastest
    return (row for channel in np.moveaxis(array, slowest, 1) for row in channel)


def _integers(path: Path, values: NDArray[Any]) -> NDArray[np.int32]:
    _reject_non_numeric(path, values)
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):  # infinity is rejected
            rounded = np.round(values)
            is_fraction = ~(np.abs(values - rounded) <= INTEGER_TOLERANCE)
        if is_fraction.any():
            raise UnusableFileError(
                f"{path} contains values that are not integers, for example "
                f"{float(values[is_fraction].flat[0]):.4g}",
                "Save class numbers. Resample labels with nearest-neighbor interpolation; "
                "threshold probabilities first.",
            )
        values = rounded
    limits = np.iinfo(np.int32)
    if values.dtype.itemsize >= 4 and (values.min() < limits.min or values.max() > limits.max):
        raise UnusableFileError(
            f"{path} contains class numbers beyond {limits.max}", "Number the classes from 0."
        )
    return np.ascontiguousarray(values, dtype=np.int32)


def _reject_non_numeric(path: Path, values: NDArray[Any]) -> None:
    if values.dtype.kind not in "buif":
        raise UnusableFileError(
            f"{path} contains values of type {values.dtype}, but real numbers are needed",
            "Save it as floats or integers, with channels on their own axis.",
        )


def _numbers(values: Sequence[float] | NDArray[np.float64]) -> str:
    return "(" + ", ".join(f"{value:.6g}" for value in values) + ")"
