"""The target spacing of all images, and their shapes after resampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from segpl.data.fingerprint import Fingerprint
from segpl.data.geometry import resampled_shape
from segpl.data.plan import BODY_AXES

PATCHES_PER_IMAGE = 2.0  # the median image may have this many times the voxels of a patch
MOST_COARSENING = 2.0  # times the median spacing of an axis
SMALLEST_CHORD = 6.0  # mean chord in voxels that the thinnest class keeps along each axis
STEP = 1.02  # factor of one coarsening step
SIMILAR = 1.05  # axes within this factor of the finest spacing are coarsened together


def reorient_fingerprint(item: Fingerprint, orientation: str | None) -> Fingerprint:
    """Permute shape, spacing and chords to the axes of `orientation`."""
    if orientation is None or item.orientation is None:
        return item
    axis_of = {letter: axis for axis, ends in enumerate(BODY_AXES) for letter in ends}
    stored = [axis_of[letter] for letter in item.orientation]
    order = [stored.index(axis_of[letter]) for letter in orientation]
    shape = tuple(item.shape[axis] for axis in order)
    spacing = tuple(item.spacing[axis] for axis in order)
    chords = {n: tuple(along[axis] for axis in order) for n, along in item.chords.items()}
    return replace(item, shape=shape, spacing=spacing, chords=chords)


def median_spacing(prints: Sequence[Fingerprint]) -> tuple[float, ...]:
    middle = np.median([p.spacing for p in prints], axis=0)
    return tuple(round(float(value), 6) for value in middle)


def median_shape(prints: Sequence[Fingerprint], spacing: Sequence[float]) -> tuple[int, ...]:
    """Median shape after resampling."""
    shapes = [resampled_shape(p.shape, p.spacing, spacing) for p in prints]
    return tuple(int(side) for side in np.median(shapes, axis=0))


def coarsen(
    prints: Sequence[Fingerprint], spacing: Sequence[float], voxels: int
) -> tuple[float, ...]:
    """Coarsen `spacing` until a patch of `voxels` covers enough of the median image.

    While that image has more than `PATCHES_PER_IMAGE` patches, the finest axes are coarsened
    together, so that equal axes stay equal, up to `coarsest_spacing`.
    """
    steps, limits = list(spacing), coarsest_spacing(prints, spacing)
    while math.prod(median_shape(prints, steps)) > PATCHES_PER_IMAGE * voxels:
        finest = [axis for axis, step in enumerate(steps) if step <= SIMILAR * min(steps)]
        factor = min(STEP, *(limits[axis] / steps[axis] for axis in finest))
        if factor < 1 + 1e-6:
            break
        steps = [step * factor if axis in finest else step for axis, step in enumerate(steps)]
    return tuple(round(step, 6) for step in steps)


def coarsest_spacing(prints: Sequence[Fingerprint], spacing: Sequence[float]) -> tuple[float, ...]:
    """The coarsest allowed spacing: `spacing` itself if no label shows what would be lost."""
    thinnest = thinnest_chords(prints)
    if not thinnest:
        return tuple(spacing)
    return tuple(
        max(step, min(MOST_COARSENING * step, chord / SMALLEST_CHORD))
        for step, chord in zip(spacing, thinnest, strict=True)
    )


def thinnest_chords(prints: Sequence[Fingerprint]) -> tuple[float, ...]:
    """Mean chord in mm of the thinnest class along each axis; empty if no label was read.

    The chord of a class is its median over the cases.
    """
    numbers = {number for p in prints for number in p.chords}
    by_class = [
        [median(lengths) for lengths in zip(*known, strict=True)]
        for known in ([p.chords[n] for p in prints if n in p.chords] for n in sorted(numbers))
    ]
    return tuple(min(lengths) for lengths in zip(*by_class, strict=True))
