"""Augmentation of batches of crops, on the device that holds them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from segpl.errors import require_range
from segpl.views.geometry import (
    Matrix,
    affine_grids,
    replace_entries,
    rotate,
    sample_entries,
    sample_labels,
    sample_mask,
    wide_axes,
)
from segpl.views.intensity import Changes

THICK = 2.0  # no rotation across slices this many times as far apart as the finest voxels
SCALES = (0.7, 1.4)  # range of the random scaling
# tissue contrast first, then the scanner: blur after noise would remove the noise
SCANNER = ("gamma", "contrast", "brightness", "blur", "low-resolution", "noise")
BLURRING = ("blur", "low-resolution")


@dataclass(frozen=True, slots=True)
class AugmentSettings:
    """Augmentation of training crops. All zeros: none, as in the paper."""

    affine: float = 0.5  # probability of a random rotation (up to 30 degrees) and scaling
    scanner: float = 0.3  # probability of each intensity change of labeled crops
    blur: float = 1.0  # strength of blur and low resolution in `scanner`; 0 disables both
    mirror: float = 0.5  # probability of mirroring left and right, or each axis in 2D

    def __post_init__(self) -> None:
        require_range(self, 0, 1, *(field.name for field in fields(self)), section="augment")


@dataclass(frozen=True, slots=True)
class Geometry:
    """How to mirror, rotate and scale the crops of a batch."""

    flips: tuple[tuple[int, ...], ...]  # mirrored spatial axes of each crop
    motions: dict[int, Matrix]  # of the crops that move, by index

    def select(self, own: slice) -> Geometry:
        """The geometry of some of the crops."""
        chosen = range(len(self.flips))[own]
        moved = {n: self.motions[crop] for n, crop in enumerate(chosen) if crop in self.motions}
        return Geometry(self.flips[own], moved)


def draw_geometry(
    crops: int,
    sides: Sequence[int],
    settings: AugmentSettings,
    rng: np.random.Generator,
    mirror_axes: Sequence[int] = (),
    spacing: Sequence[float] = (),
) -> Geometry:
    """Draw the geometry of `crops` crops whose sides are `sides`.

    Only the spatial axes in `mirror_axes` are mirrored. Without a `spacing`, voxels are isotropic.
    """
    flips: tuple[tuple[int, ...], ...] = ((),) * crops
    if settings.mirror:
        flips = tuple(
            tuple(axis for axis in mirror_axes if rng.random() < settings.mirror)
            for _ in range(crops)
        )
    motions = {}
    if settings.affine and len(rotation_axes(sides, spacing)) > 1:
        motions = {
            n: random_motion(sides, rng, spacing)
            for n in range(crops)
            if rng.random() < settings.affine
        }
    return Geometry(flips, motions)


def transform(
    image: Tensor, label: Tensor, geometry: Geometry, classes: int
) -> tuple[Tensor, Tensor]:
    """Mirror, rotate and scale images (B, C, *S) and labels (B, *S) together.

    The host never waits for the device. Images are interpolated linearly, and their border is
    repeated outside the crop. Labels are interpolated by `sample_labels` and are IGNORE outside.
    A boolean label is a mask and is False outside.
    """
    image = mirror(image, geometry.flips)
    if not geometry.motions:
        return image, transform_labels(label, geometry, classes)
    grid = affine_grids(list(geometry.motions.values()), image)  # (M, *S, D)
    view = sample_entries(image, list(geometry.motions), grid, beyond="border")
    return view, transform_labels(label, geometry, classes, grid)


def transform_labels(
    label: Tensor, geometry: Geometry, classes: int, grid: Tensor | None = None
) -> Tensor:
    """Transform labels (B, *S) like their images; `grid` (M, *S, D): of the motions, if known."""
    label = mirror(label.unsqueeze(1), geometry.flips).squeeze(1)
    if not geometry.motions:
        return label
    chosen = torch.stack([label[n] for n in geometry.motions])  # (M, *S)
    if grid is None:
        grid = affine_grids(list(geometry.motions.values()), chosen.unsqueeze(1).float())
    if label.dtype == torch.bool:
        views = sample_mask(chosen, grid)
    else:
        views = sample_labels(chosen, grid, classes)
    return replace_entries(label, views, list(geometry.motions))


def mirror(values: Tensor, flips: Sequence[Sequence[int]]) -> Tensor:
    """Reverse the spatial axes that `flips` lists for each crop (B, C, *S)."""
    if not any(flips):
        return values
    return torch.stack(
        [crop.flip([1 + axis for axis in axes]) for crop, axes in zip(values, flips, strict=True)]
    )


def rotation_axes(sides: Sequence[int], spacing: Sequence[float]) -> list[int]:
    """Wide axes, except those across thick slices: rotation would mix distant tissue there."""
    axes = wide_axes(sides)
    if not spacing:
        return axes
    finest = min(spacing[axis] for axis in axes)
    return [axis for axis in axes if spacing[axis] <= THICK * finest]


def random_motion(
    sides: Sequence[int], rng: np.random.Generator, spacing: Sequence[float] = ()
) -> Matrix:
    r"""A random rotation in every plane of `rotation_axes` and one scaling along these axes.

    $M = S^{-1} R\, S$ in voxels, with $S$ the spacing. Angles are uniform up to $30 / \sqrt{n}$
    degrees in each of $n$ planes, so that the total rotation is about as large in 3D as in 2D. The
    logarithm of the scale is uniform.
    """
    axes = rotation_axes(sides, spacing)
    planes = list(combinations(axes, 2))
    motion = np.eye(len(sides) + 1)
    for plane in planes:
        motion = motion @ rotate(rng.uniform(-1, 1) / math.sqrt(len(planes)), plane, sides)
    scale = math.exp(rng.uniform(*np.log(SCALES)))
    motion[:, axes] /= scale  # an enlarged view covers less of the crop
    if spacing:
        motion[:-1, :-1] *= np.outer(1 / np.array(spacing), spacing)
    return motion


def draw_scanner(
    crops: int, channels: int, settings: AugmentSettings, rng: np.random.Generator
) -> list[Changes]:
    """For each crop, draw each change in `SCANNER` with probability `settings.scanner`.

    The strength is drawn per channel, since channels may be different scans.
    """
    strengths = {name: settings.blur if name in BLURRING else 1.0 for name in SCANNER}
    return [
        [
            (name, most * rng.uniform(-1, 1, channels))
            for name, most in strengths.items()
            if rng.random() < settings.scanner
        ]
        for _ in range(crops)
    ]
