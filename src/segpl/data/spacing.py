"""The grid that every image is brought to: its axes, and how far apart its voxels are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from segpl.data.geometry import resampled_shape
from segpl.data.inspect import Fingerprint

ROOM = 2.0  # times the voxels of a patch that the median image may hold
FURTHEST = 2.0  # times its median spacing that an axis is made coarser, at most
SMALLEST_CHORD = 6.0  # voxels of mean chord that the thinnest class keeps along an axis
STEP = 1.02  # times as coarse, until the image is small enough
ALIKE = 1.05  # times the finest spacing: axes up to here are coarsened with it


def turned(fingerprint: Fingerprint, orientation: str | None) -> Fingerprint:
    """What is known of each axis, in the order of axes that `orientation` asks for."""
    stored = fingerprint.orientation
    if orientation is None or stored is None:
        return fingerprint
    lines = [{"R", "L"}, {"A", "P"}, {"S", "I"}]

    def line(letter: str) -> int:
        return next(index for index, ends in enumerate(lines) if letter in ends)

    order = [[line(letter) for letter in stored].index(line(letter)) for letter in orientation]
    return replace(
        fingerprint,
        shape=tuple(fingerprint.shape[axis] for axis in order),
        spacing=tuple(fingerprint.spacing[axis] for axis in order),
        chords={
            number: tuple(along[axis] for axis in order)
            for number, along in fingerprint.chords.items()
        },
    )


def target_spacing(prints: Sequence[Fingerprint]) -> tuple[float, ...]:
    middle = np.median([p.spacing for p in prints], axis=0)
    return tuple(round(float(value), 6) for value in middle)


def median_shape(prints: Sequence[Fingerprint], spacing: Sequence[float]) -> tuple[int, ...]:
    """The median image after resampling."""
    shapes = [resampled_shape(p.shape, p.spacing, spacing) for p in prints]
    return tuple(int(side) for side in np.median(shapes, axis=0))


def coarsened(
    prints: Sequence[Fingerprint],
    spacing: Sequence[float],
    voxels: int,
    *,
    flat: int | None = None,
) -> tuple[float, ...]:
    """A spacing at which a patch of `voxels` shows enough of the median image, as far as may be.

    While that image, or its slice across the axis `flat`, holds more than `ROOM` patches, the
    finest axes are made coarser, together, so that equal axes stay equal. They stop before one of
    them is coarser than `coarsest` allows.
    """
    steps, ends = list(spacing), coarsest(prints, spacing)

    def size() -> int:
        sides = median_shape(prints, steps)
        return math.prod(side for axis, side in enumerate(sides) if axis != flat)

    while size() > ROOM * voxels:
        finest = [axis for axis, step in enumerate(steps) if step <= ALIKE * min(steps)]
        factor = min(STEP, *(ends[axis] / steps[axis] for axis in finest))
        if factor < 1 + 1e-6:
            break
        steps = [step * factor if axis in finest else step for axis, step in enumerate(steps)]
    return tuple(round(step, 6) for step in steps)


def coarsest(prints: Sequence[Fingerprint], spacing: Sequence[float]) -> tuple[float, ...]:
    """How coarse each axis may become: `spacing` itself where no label tells what would be lost."""
    thinnest = thinnest_chords(prints)
    if not thinnest:
        return tuple(spacing)
    return tuple(
        max(step, min(FURTHEST * step, chord / SMALLEST_CHORD))
        for step, chord in zip(spacing, thinnest, strict=True)
    )


def thinnest_chords(prints: Sequence[Fingerprint]) -> tuple[float, ...]:
    """Mean chord in mm of the thinnest class along each axis, of each class in its median case.

    Empty where no label was looked at.
    """
    numbers = {number for p in prints for number in p.chords}
    by_class = [
        [median(lengths) for lengths in zip(*known, strict=True)]
        for known in ([p.chords[n] for p in prints if n in p.chords] for n in sorted(numbers))
    ]
    return tuple(min(lengths) for lengths in zip(*by_class, strict=True))
