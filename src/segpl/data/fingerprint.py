"""Fingerprint of a case: its grid, its intensities, and the size of the classes in its label."""

from __future__ import annotations

import math
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import and_

import numpy as np
from numpy.typing import NDArray

from segpl.data.masks import Mask, bounding_box
from segpl.data.readers import Image, Label, orientation_of, slices

SAMPLE = 2000  # foreground intensities kept per case and channel
PERCENTILE_VOXELS = 200_000  # voxels from which percentiles are computed


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    minimum: float
    maximum: float
    low: float  # 0.5th percentile
    median: float
    high: float  # 99.5th percentile
    zeros: float  # fraction of voxels that are exactly 0


@dataclass(frozen=True, slots=True)
class Fingerprint:
    case: str
    shape: tuple[int, ...]
    spacing: tuple[float, ...]
    orientation: str | None  # for example "LPS"; None if the file does not say
    channels: tuple[ChannelStatistics, ...]
    voxels: dict[int, int] | None  # number in the label -> count; None: label not read
    # for each channel, a sample of intensities where the label is neither 0 nor ignored
    foreground: tuple[tuple[float, ...], ...]
    # number in the label -> mean chord in mm along each stored axis; empty if the label was not
    # read or the voxel size is unknown
    chords: dict[int, tuple[float, ...]] = field(default_factory=dict)
    # number in the label -> its color or name, if the label file stores one
    meanings: dict[int, str] = field(default_factory=dict)
    checksum: int = 0  # of all voxels in their order in memory: equal for copies of a file
    border: float = 0.0  # fraction of the outermost voxels that are foreground
    # number in the label -> mean and standard deviation of its position along each stored axis
    positions: dict[int, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    lone_slices: int = 0  # slices with foreground along an axis, if no two of them are adjacent


def fingerprint(case: str, image: Image, label: Label | None, ignore: int | None) -> Fingerprint:
    fits = label is not None and label.array.shape == image.grid.shape
    profiles = slice_counts(label.array) if label else []
    mask = foreground_mask(label.array, ignore) if label else None
    return Fingerprint(
        case,
        image.grid.shape,
        image.grid.spacing,
        orientation_of(image.grid),
        tuple(channel_statistics(channel) for channel in image.array),
        count_numbers(label.array) if label else None,
        _foreground_sample(case, image, mask) if mask is not None and fits else (),
        _chords_in_mm(label, image, ignore) if label and fits else {},
        label.meanings if label else {},
        checksum(image.array),
        0.0 if mask is None else border_share(mask),
        mean_positions(profiles),
        max((lone_slices(along, ignore) for along in profiles), default=0),
    )


def foreground_mask(label: NDArray[np.int32], ignore: int | None) -> Mask:
    mask: Mask = label != 0
    if ignore is not None:
        mask &= label != ignore
    return mask


def border_share(mask: Mask) -> float:
    """The fraction of the outermost voxels that a mask covers."""
    inner = mask[tuple(slice(1, -1) if side > 2 else slice(None) for side in mask.shape)]
    covered = np.count_nonzero(mask) - np.count_nonzero(inner)
    return float(covered / max(1, mask.size - inner.size))


def checksum(image: NDArray[np.float32]) -> int:
    """Equal for copies of an image."""
    value = 0
    for part in slices(image):
        value = zlib.crc32(np.ascontiguousarray(part).data, value)
    return value


def channel_statistics(channel: NDArray[np.float32]) -> ChannelStatistics:
    step = max(1, channel.size // PERCENTILE_VOXELS)
    while any(math.gcd(step, size) > 1 for size in channel.shape):
        step += 1  # a step that shares a factor with a side would miss whole columns
    low, middle, high = np.percentile(channel.reshape(-1)[::step], (0.5, 50, 99.5))
    return ChannelStatistics(
        minimum=float(channel.min()),
        maximum=float(channel.max()),
        low=float(low),
        median=float(middle),
        high=float(high),
        zeros=1 - int(np.count_nonzero(channel)) / channel.size,
    )


def _foreground_sample(case: str, image: Image, mask: Mask) -> tuple[tuple[float, ...], ...]:
    positions = np.flatnonzero(mask)
    if len(positions) > SAMPLE:
        rng = np.random.default_rng(zlib.crc32(case.encode()))  # the same in every run
        positions = positions[rng.choice(len(positions), SAMPLE, replace=False, shuffle=False)]
    channels = image.array.reshape(len(image.array), -1)
    return tuple(tuple(channel[positions].tolist()) for channel in channels)


def _chords_in_mm(label: Label, image: Image, ignore: int | None) -> dict[int, tuple[float, ...]]:
    spacing = image.grid.stored_spacing
    if spacing is None:
        return {}
    return {
        number: tuple(length * size for length, size in zip(lengths, spacing, strict=True))
        for number, lengths in mean_chords(label.array).items()
        if number != ignore
    }


def count_numbers(numbers: NDArray[np.integer]) -> dict[int, int]:
    """How often each number occurs."""
    if numbers.size and numbers.min() >= 0 and numbers.max() < 65536:
        counts = np.bincount(numbers.reshape(-1))  # many times faster than sorting
        return {int(number): int(counts[number]) for number in np.flatnonzero(counts)}
    found, counts = np.unique(numbers, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def mean_chords(label: NDArray[np.int32]) -> dict[int, tuple[float, ...]]:
    r"""Mean chord length of each nonzero number along each axis, in voxels.

    $$c_{ka} = n_k / r_{ka}$$

    with $n_k$ the voxels of number $k$ and $r_{ka}$ its runs along axis $a$. A class is lost on a
    grid that is coarser than its chords.
    """
    box = label[bounding_box(label)]
    if not box.size:
        return {}
    runs = [_count_runs(np.moveaxis(box, axis, 0)) for axis in range(box.ndim)]
    return {
        number: tuple(count / along[number] for along in runs)
        for number, count in count_numbers(box).items()
        if number
    }


def _count_runs(label: NDArray[np.int32]) -> dict[int, int]:
    """Runs of each number along the first axis."""
    starts = label[1:][label[1:] != label[:-1]]  # (N,)
    return count_numbers(np.concatenate([label[0].reshape(-1), starts]))


Profile = list[dict[int, int]]  # voxels of each number in every slice along an axis


def slice_counts(label: NDArray[np.int32]) -> list[Profile]:
    """The profile of a label along each axis."""
    box = bounding_box(label)
    found: list[Profile] = []
    for axis, used in enumerate(box):
        parts = np.moveaxis(label[box], axis, 0)
        found.append([{} for _ in range(used.start or 0)] + [count_numbers(part) for part in parts])
    return found


def mean_positions(profiles: Sequence[Profile]) -> dict[int, tuple[tuple[float, float], ...]]:
    """Mean and standard deviation of the position of each nonzero number along each axis."""
    found: dict[int, tuple[tuple[float, float], ...]] = {}
    for along in profiles:
        sums: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0])
        for place, part in enumerate(along):
            for number in part.keys() - {0}:
                for power, total in enumerate(sums[number]):
                    sums[number][power] = total + part[number] * place**power
        for number, (count, first, second) in sums.items():
            mean = first / count
            # a voxel has an extent, too
            spread = math.sqrt(second / count - mean**2 + 1 / 12)
            found[number] = (*found.get(number, ()), (mean, spread))
    return found


def lone_slices(along: Profile, ignore: int | None) -> int:
    """How many slices have foreground, or 0 if two of them are adjacent."""
    used = [bool(part.keys() - {0, ignore}) for part in along]
    return 0 if any(map(and_, used, used[1:])) else sum(used)
