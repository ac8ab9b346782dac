"""How many voxels a label has of each class, and how thick the class is along each axis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def counts_of(numbers: NDArray[np.int32]) -> dict[int, int]:
    """How often each number occurs, of those that do."""
    if numbers.min() >= 0 and numbers.max() < 65536:
        counts = np.bincount(numbers.reshape(-1))  # many times faster than sorting
        return {int(number): int(counts[number]) for number in np.flatnonzero(counts)}
    found, counts = np.unique(numbers, return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


def mean_chords(label: NDArray[np.int32]) -> dict[int, tuple[float, ...]]:
    r"""Voxels that a line along each axis crosses of each number but 0 before it leaves it.

    $$c_{ka} = n_k / r_{ka}$$

    with $n_k$ the voxels of number $k$ and $r_{ka}$ its runs along axis $a$: those of its voxels
    whose predecessor along the axis is of another number. It is what a coarser grid would lose.
    """
    sides = [
        np.flatnonzero(label.any(axis=tuple(other for other in range(label.ndim) if other != axis)))
        for axis in range(label.ndim)
    ]
    if not len(sides[0]):
        return {}
    box = label[tuple(slice(side[0], side[-1] + 1) for side in sides)]  # runs of 0 are not asked
    runs = [_runs(np.moveaxis(box, axis, 0)) for axis in range(box.ndim)]
    return {
        number: tuple(count / along[number] for along in runs)
        for number, count in counts_of(box).items()
        if number
    }


def _runs(label: NDArray[np.int32]) -> dict[int, int]:
    """How many runs along the first axis each number has."""
    begun = label[1:][label[1:] != label[:-1]]  # (N,)
    return counts_of(np.concatenate([label[0].reshape(-1), begun]))


def in_millimetres(
    chords: dict[int, tuple[float, ...]], spacing: Sequence[float]
) -> dict[int, tuple[float, ...]]:
    return {
        number: tuple(math.prod(pair) for pair in zip(along, spacing, strict=True))
        for number, along in chords.items()
    }
