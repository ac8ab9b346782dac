"""Scans and labels as arrays on a grid, whatever the format of their files.

A file that cannot be used is refused here with its path, so that no later stage has to guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.formats import OPENERS, Opened, Role, UnusableFileError
from segpl.errors import MissingFileError, UserError

SUFFIXES: tuple[str, ...] = tuple(OPENERS)

STRETCH = 1e-3  # of a voxel: how far two spacings or directions may differ and count as one
SHIFT = 1e-2  # of a voxel: the same for the origin, which some programs round to 0.01 mm


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    shape: tuple[int, ...]  # spatial axes only
    spacing: tuple[float, ...]
    affine: NDArray[np.float64] | None  # 4x4 to RAS mm, as in NIfTI; None for pictures and arrays


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    array: NDArray[np.float32]  # (C, *S)
    grid: Grid


@dataclass(frozen=True, slots=True, eq=False)
class Label:
    array: NDArray[np.int32]  # (*S)
    grid: Grid


def suffix_of(path: Path | str) -> str:
    """The suffix by which a reader is chosen, '.nii.gz' rather than '.gz'; '' if there is none."""
    name = Path(path).name.lower()
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), "")


def stem_of(path: Path | str) -> str:
    name = Path(path).name
    return name[: len(name) - len(suffix_of(path))]


def read_grid(path: Path, dims: int | None = None) -> tuple[Grid, int]:
    """Geometry and number of channels, from the header alone."""
    with _blaming(path):
        opened = _open(path, "image")
        return _grid(path, opened, dims)


def read_image(files: Sequence[Path], dims: int) -> Image:
    """One scan. Several files are its channels, in order, and share one grid."""
    parts: list[NDArray[np.float32]] = []
    first: Grid | None = None
    for path in files:
        with _blaming(path):
            opened = _open(path, "image")
            grid, channels = _grid(path, opened, dims)
            if len(files) > 1 and channels != 1:
                raise UnusableFileError(
                    f"{path} has {len(opened.shape)} axes {opened.shape} where {dims}D is "
                    f"expected, since each of the {len(files)} files of the case is one channel",
                    "Store one channel in each file, or all of them in one file.",
                )
            if first is not None and (difference := grid_difference(first, grid)):
                raise UnusableFileError(
                    f"{path} does not lie on the grid of {files[0].name}: {difference}",
                    "Resample the channels of the case to one grid.",
                )
            first = first or grid
            parts.append(_finite(path, _channels_first(opened, grid, channels)))
    assert first is not None, "an image without a file"
    return Image(parts[0] if len(parts) == 1 else np.concatenate(parts), first)


def read_label(path: Path, dims: int | None = None) -> Label:
    with _blaming(path):
        opened = _open(path, "label")
        grid, channels = _grid(path, opened, dims)
        if channels != 1:
            raise UnusableFileError(
                f"{path} has {channels} channels {opened.shape}, and a label needs one number "
                "for each voxel",
                "Store the class numbers in one volume; if a channel is a class, take its index.",
            )
        values = opened.values().reshape(grid.shape)
        _refuse_types_without_numbers(path, values)
        return Label(_whole(path, values), grid)


def grid_difference(a: Grid, b: Grid) -> str | None:
    """What differs between two grids, with both values; None if nothing does.

    A spacing or direction may be off by a thousandth of a voxel and an origin by a hundredth: files
    of one scan that went through different programs differ by that much. Where one of the files
    stores no geometry, only the shapes can be compared.
    """
    if a.shape != b.shape:
        return f"shape {a.shape} against {b.shape}"
    spacing = f"voxel spacing {_numbers(a.spacing)} against {_numbers(b.spacing)} mm"
    if a.affine is None and b.affine is None:
        stored = all(any(size != 1 for size in grid.spacing) for grid in (a, b))
        return None if not stored or np.allclose(a.spacing, b.spacing, rtol=STRETCH) else spacing
    if a.affine is None or b.affine is None:
        return None
    if not np.allclose(a.spacing, b.spacing, rtol=STRETCH, atol=0):
        return spacing
    axes = len(a.shape)
    turn = np.abs(a.affine - b.affine)[:3, :axes] / np.asarray(a.spacing)
    if (turn > STRETCH).any():
        if orientation_of(a) != orientation_of(b):
            return f"orientation {orientation_of(a)} against {orientation_of(b)}"
        angle = np.degrees(2 * np.arcsin(min(1.0, np.linalg.norm(turn, axis=0).max() / 2)))
        return f"axes turned by {angle:.2g} degrees against each other"
    shift = np.linalg.norm((b.affine - a.affine)[:3, 3]) / min(a.spacing)
    if shift > SHIFT:
        return f"origin {_numbers(a.affine[:3, 3])} against {_numbers(b.affine[:3, 3])} mm"
    return None


def orientation_of(grid: Grid) -> str | None:
    """Where each axis points, such as 'LPS'; None where the file does not say."""
    if grid.affine is None:
        return None
    from nibabel.orientations import aff2axcodes

    return "".join(code or "?" for code in aff2axcodes(grid.affine)[: len(grid.shape)])


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Turn whatever a format's own library raises into an error that names the file."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} does not exist.") from error
    except PermissionError as error:
        raise UnusableFileError(
            f"{path} may not be read", "Ask its owner for permission to read it."
        ) from error
    except Exception as error:
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise UnusableFileError(
            f"{path} is corrupt or truncated ({cause})",
            "Copy or download it again, or take the case out of the dataset.",
        ) from error


def _open(path: Path, role: Role) -> Opened:
    suffix = suffix_of(path)
    if not suffix:
        raise UnusableFileError(
            f"{path} is of no known format", f"Known suffixes: {', '.join(SUFFIXES)}."
        )
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist.")
    return OPENERS[suffix](path, role)


def _grid(path: Path, opened: Opened, dims: int | None) -> tuple[Grid, int]:
    """Which axes are space, and how many channels there are."""
    axes = len(opened.shape)
    spatial = dims or opened.dims or min(axes, 3)
    if opened.dims not in (None, spatial) or axes not in (spatial, spatial + 1):
        raise UnusableFileError(
            f"{path} has {axes} axes {opened.shape} where a {spatial}D image is expected",
            f"Store it with {spatial} axes, or {spatial + 1} if it has channels; if the rest of "
            "the dataset is of another kind, keep the two apart.",
        )
    if 0 in opened.shape:
        raise UnusableFileError(f"{path} is empty: its shape is {opened.shape}", "Replace it.")
    shape, channels = opened.shape, 1
    if axes > spatial and opened.channels_first:
        channels, *rest = shape
        shape = tuple(rest)
    elif axes > spatial:
        *rest, channels = shape
        shape = tuple(rest)
    return Grid(shape, _spacing(path, opened, spatial), opened.affine), channels


def _spacing(path: Path, opened: Opened, spatial: int) -> tuple[float, ...]:
    if opened.affine is not None:
        sizes = np.linalg.norm(opened.affine[:3, :spatial], axis=0)
    elif opened.spacing is not None:
        sizes = np.asarray(opened.spacing)
    else:
        sizes = np.ones(spatial)
    if len(sizes) != spatial or not (np.isfinite(sizes).all() and (sizes > 0).all()):
        raise UnusableFileError(
            f"{path} gives a voxel spacing of {_numbers(sizes)}, and {spatial} sizes above 0 mm "
            "are needed",
            "Write the right spacing into its header.",
        )
    if opened.affine is not None and not (
        np.isfinite(opened.affine).all()
        and np.linalg.matrix_rank(opened.affine[:3, :spatial] / sizes) == spatial
    ):
        raise UnusableFileError(
            f"{path} has an affine that does not place its voxels in space: "
            f"{opened.affine[:3].tolist()}",
            "Copy the affine of the original scan into its header.",
        )
    # headers hold float32: 0.699999988 is what remains of 0.7
    return tuple(round(float(size), 6) if size > 1e-3 else float(size) for size in sizes)


def _channels_first(opened: Opened, grid: Grid, channels: int) -> NDArray[Any]:
    values = opened.values()
    if len(opened.shape) == len(grid.shape):
        return values[None]
    return values if opened.channels_first else np.moveaxis(values, -1, 0)


def _finite(path: Path, values: NDArray[Any]) -> NDArray[np.float32]:
    _refuse_types_without_numbers(path, values)
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        array = np.ascontiguousarray(values, dtype=np.float32)
    finite = np.isfinite(array)
    if not finite.all():
        count = array.size - int(np.count_nonzero(finite))
        raise UnusableFileError(
            f"{path} holds {count} voxels that are NaN or infinite",
            "Replace them, such as by numpy.nan_to_num, or take the case out of the dataset.",
        )
    return array


def _whole(path: Path, values: NDArray[Any]) -> NDArray[np.int32]:
    if values.dtype.kind == "f":
        rounded = np.round(values)
        # header scaling turns 1 into 0.9999999
        broken = ~(np.abs(values - rounded) <= 1e-4)
        if broken.any():
            raise UnusableFileError(
                f"{path} holds values that are not whole numbers, such as "
                f"{float(values[broken].flat[0]):.4g}",
                "Save class numbers; if it was resampled, do so with nearest neighbors; if these "
                "are probabilities, threshold them first.",
            )
        values = rounded
    limits = np.iinfo(np.int32)
    if values.dtype.itemsize >= 4 and (values.min() < limits.min or values.max() > limits.max):
        raise UnusableFileError(
            f"{path} holds class numbers beyond {limits.max}", "Number the classes from 0."
        )
    return np.ascontiguousarray(values, dtype=np.int32)


def _refuse_types_without_numbers(path: Path, values: NDArray[Any]) -> None:
    if values.dtype.kind not in "buif":
        raise UnusableFileError(
            f"{path} holds values of type {values.dtype}, and one real number for each voxel "
            "is needed",
            "Save it as floats or integers, with channels on an axis of their own.",
        )


def _numbers(values: Sequence[float] | NDArray[np.float64]) -> str:
    return "(" + ", ".join(f"{value:.6g}" for value in values) + ")"
