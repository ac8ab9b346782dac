"""What a file may claim: its size, its voxel spacing, and the other files that it names.

Everything is checked before memory is taken.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from segpl.errors import UnusableFileError

MOST_VALUES = 10**9  # of one image, over all channels; a CT of 512 x 512 x 2000 has half of it
MOST_COLORS = 4  # with transparency; more channels of a 2D image are probably slices
SPACING_RANGE = (1e-6, 1e4)  # mm: from 1 nm to 10 m
MOST_UNPACKED = 1400  # times the size of a compressed file: deflate reaches 1032, LZW 1320
MOST_TEXT = 2**22  # bytes of a text header
MOST_PADDING = 2**20  # bytes of padding or metadata after the values


def require_size(what: str, shape: Sequence[int]) -> None:
    """Reject images of `MOST_VALUES` or more."""
    values = math.prod(shape)
    if values >= MOST_VALUES:
        sides = " x ".join(str(side) for side in shape if side > 1)
        raise UnusableFileError(
            f"{what} is too large: {sides} are {values:,} values, but the limit is {MOST_VALUES:,}",
            "Check its header; crop or downsample the scan if the size is right.",
        )


def require_resampled(
    what: str, old: Sequence[float], new: Sequence[float], shape: Sequence[int]
) -> None:
    """Reject an image (*S, C) that is too large, or vanishes, at the spacing of the plan."""
    spacings = " to ".join(" x ".join(f"{size:.3g}" for size in one) for one in (old, new))
    require_size(f"{what}, resampled from {spacings} mm,", shape)
    if math.prod(shape[:-1]) == 1 and tuple(old) != tuple(new):
        raise UnusableFileError(
            f"{what}, resampled from {spacings} mm, would be a single voxel",
            "Correct the voxel spacing in its header.",
        )


def require_stored(path: Path, size: int, *, is_packed: bool) -> None:
    """Reject a file that cannot contain the `size` bytes that its header describes."""
    found = path.stat().st_size
    if size > (found * MOST_UNPACKED + MOST_PADDING if is_packed else found):
        how = " compressed" if is_packed else ""
        raise UnusableFileError(
            f"{path} is corrupt or truncated: its header describes {size:,} bytes, but the file "
            f"has only {found:,}{how}",
            "Copy or download it again, or remove the case from the dataset.",
        )


def reject_surplus(path: Path, surplus: int, size: int) -> None:
    """Reject a compressed file that continues after the `size` bytes of its header and values."""
    if surplus > MOST_PADDING:
        raise UnusableFileError(
            f"{path} unpacks to more than the {size:,} bytes that its header describes",
            "Copy or download it again, or remove the case from the dataset.",
        )


def require_inside(path: Path, name: str) -> None:
    """Reject a header that reads its voxels from anything but one file in its own folder."""
    if not is_inside(name) or name.startswith("LIST") or "%" in name:
        raise UnusableFileError(
            f"{path} reads its voxels from {name!r}, but only a single file in the same folder is "
            "allowed",
            "Convert it to .nii.gz.",
        )


def is_inside(name: str) -> bool:
    """Whether a file named in another file lies next to it or below, judged by the name alone.

    Symbolic links are followed: only the owner of the folder can create them.
    """
    path = PurePosixPath(name)
    return not (path.is_absolute() or ".." in path.parts or set(name) & set("\\:\0"))
