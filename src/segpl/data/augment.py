"""Augmentation of batches of crops, on the device where they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import combinations
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from segpl.errors import InputError
from segpl.types import IGNORE
from segpl.views.geometry import Matrix, places, rotate, sampled, wide_axes
from segpl.views.intensity import INTENSITY

THICK = 2.0  # times as far apart as voxels of the finest axis
SIZES = (0.7, 1.4)  # of a body in a scaled crop, times its own
# what the body is like, then what the scanner shows of it; a blur after the noise would remove it
SCANNER = ("gamma", "contrast", "brightness", "blur", "low-resolution", "noise")
BLURRING = ("blur", "low-resolution")  # those that leave less detail


@dataclass(frozen=True, slots=True)
class AugmentSettings:
    """Changes of crops; the paper has none."""

    flip: float = 0.0  # chance of mirroring each axis
    rotate: float = 0.0  # chance of a turn by a multiple of 90 degrees, in planes of equal sides
    intensity: float = 0.0  # spread of random brightness, contrast and noise; 0.1 is mild
    affine: float = 0.5  # chance of a turn by any angle up to 30 degrees and another size
    scanner: float = 0.3  # chance of each change of intensity in `SCANNER`, of labeled crops
    blur: float = 1.0  # how far `scanner` may go in blur and low resolution; 0: in neither
    mirror: float = 0.5  # chance of exchanging left and right; any axis where these are not known

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(
                    f"augment.{name} is {getattr(self, name)}: it must lie from 0, which is off, "
                    "to 1."
                )


def augment(
    image: Tensor,
    label: Tensor | None,
    settings: AugmentSettings,
    rng: np.random.Generator,
    generator: torch.Generator,
    mirrors: Sequence[int] = (),
    spacing: Sequence[float] = (),
) -> tuple[Tensor, Tensor | None]:
    """Images (B, C, *S) and labels (B, *S), changed alike where the change is geometric.

    `mirrors` are the axes that `mirror` is about; without a `spacing` voxels are cubes.

    Choices of geometry are drawn on the host and cost no synchronisation. What `scanner` asks for
    is not done here but by `scanned`, as it is for labeled crops alone.
    """
    if settings.flip or settings.rotate or settings.mirror:
        image, label = turn(image, label, settings, rng, mirrors)
    if settings.affine:
        image, label = reposed(image, label, settings.affine, rng, spacing)
    if settings.intensity:
        image = change_intensity(image, settings.intensity, generator)
    return image, label


def turn(
    image: Tensor,
    label: Tensor | None,
    settings: AugmentSettings,
    rng: np.random.Generator,
    mirrors: Sequence[int] = (),
) -> tuple[Tensor, Tensor | None]:
    dims = image.dim() - 2
    planes = [
        (a, b)
        for a in range(dims)
        for b in range(a + 1, dims)
        if image.shape[2 + a] == image.shape[2 + b]
    ]
    images, labels = [], []
    for index in range(image.shape[0]):
        axes = [a for a in range(dims) if rng.random() < settings.flip]
        if settings.mirror:
            drawn = {a for a in mirrors if rng.random() < settings.mirror}
            axes = sorted(drawn.symmetric_difference(axes))  # mirrored twice is not at all
        plane = planes[int(rng.integers(len(planes)))] if planes else None
        turns = int(rng.integers(1, 4)) if plane and rng.random() < settings.rotate else 0
        images.append(move(image[index], axes, plane, turns, channels=1))
        if label is not None:
            labels.append(move(label[index], axes, plane, turns, channels=0))
    return torch.stack(images), torch.stack(labels) if label is not None else None


def move(
    array: Tensor, axes: list[int], plane: tuple[int, int] | None, turns: int, *, channels: int
) -> Tensor:
    array = torch.flip(array, [a + channels for a in axes])
    if plane and turns:
        array = torch.rot90(array, turns, (plane[0] + channels, plane[1] + channels))
    return array


def change_intensity(image: Tensor, spread: float, generator: torch.Generator) -> Tensor:
    """Brightness and contrast of each channel, then noise on each voxel."""
    size = (*image.shape[:2], *[1] * (image.dim() - 2))  # (B, C, 1...)

    def normal(shape: tuple[int, ...] | torch.Size) -> Tensor:
        return torch.randn(shape, generator=generator, device=image.device, dtype=image.dtype)

    contrast = (spread * normal(size)).exp()
    noise = 0.5 * spread * normal(image.shape)
    return image * contrast + spread * normal(size) + noise


def reposed(
    image: Tensor,
    label: Tensor | None,
    chance: float,
    rng: np.random.Generator,
    spacing: Sequence[float] = (),
) -> tuple[Tensor, Tensor | None]:
    """Some crops turned and scaled, in one resampling of all of them.

    Images are interpolated in straight lines, and repeat their border where a view looks beyond
    its crop; labels (B, *S) are those of the nearest voxel, and IGNORE, or False, there. An image
    of whole numbers holds labels too: between two classes there is no third.
    """
    sides = image.shape[2:]
    if len(turning_axes(sides, spacing)) < 2:
        return image, label
    motions = {
        n: draw_motion(sides, rng, spacing) for n in range(len(image)) if rng.random() < chance
    }
    if not motions:
        return image, label
    chosen = torch.stack([image[n] for n in motions]).float()  # (M, C, *S)
    grid = places(list(motions.values()), chosen)  # (M, *S, D)
    mode: Literal["bilinear", "nearest"] = "bilinear" if image.is_floating_point() else "nearest"
    image = with_views(image, sampled(chosen, grid, mode=mode, beyond="border"), list(motions))
    if label is not None:
        beyond = 0 if label.dtype == torch.bool else IGNORE
        # counted from the value of the outside, which then is the 0 that sampling puts there
        chosen = torch.stack([label[n] for n in motions]).float()[:, None] - beyond
        views = sampled(chosen, grid, mode="nearest")[:, 0] + beyond
        label = with_views(label, views, list(motions))
    return image, label


def with_views(values: Tensor, views: Tensor, indices: Sequence[int]) -> Tensor:
    """`values` with a view in the place of each of some entries."""
    parts = list(values)
    for index, view in zip(indices, views.to(values.dtype), strict=True):
        parts[index] = view
    return torch.stack(parts)


def turning_axes(sides: Sequence[int], spacing: Sequence[float]) -> list[int]:
    """Wide axes whose slices are not thick: a turn across those would mix what lies far apart."""
    axes = wide_axes(sides)
    if not spacing:
        return axes
    finest = min(spacing[axis] for axis in axes)
    return [axis for axis in axes if spacing[axis] <= THICK * finest]


def draw_motion(
    sides: Sequence[int], rng: np.random.Generator, spacing: Sequence[float] = ()
) -> Matrix:
    r"""A turn of the body in every plane of `turning_axes`, and one size along these axes.

    $M = S^{-1} R\, S$ in voxels, with $S$ the spacing. Angles are uniform up to $30 / \sqrt{n}$
    degrees in each of $n$ planes, so that the whole turn is about as large in a volume as in an
    image. The logarithm of the size is uniform.
    """
    axes = turning_axes(sides, spacing)
    planes = list(combinations(axes, 2))
    motion = np.eye(len(sides) + 1)
    for plane in planes:
        motion = motion @ rotate(rng.uniform(-1, 1) / math.sqrt(len(planes)), plane, sides)
    size = math.exp(rng.uniform(*np.log(SIZES)))
    # a view in which a body is larger looks at less of the crop
    motion[:, axes] /= size
    if spacing:
        motion[:-1, :-1] *= np.outer(1 / np.array(spacing), spacing)
    return motion


def scanned(
    image: Tensor,
    chance: float,
    rng: np.random.Generator,
    generator: torch.Generator,
    blur: float = 1.0,
) -> Tensor:
    """Images (B, C, *S) as other scanners might show them: each change of `SCANNER` by chance.

    Amounts are drawn on the host, for every channel its own, as channels may be different scans;
    those of `BLURRING` are `blur` times as large.
    """
    views: dict[int, Tensor] = {}
    for index in range(len(image)):
        for name in SCANNER:
            if rng.random() < chance:
                view = views.get(index, image[index].float())  # (C, *S)
                amounts = rng.uniform(-1, 1, len(view)) * (blur if name in BLURRING else 1)
                parts = [
                    INTENSITY[name](channel[None], float(amount), generator)
                    for channel, amount in zip(view, amounts, strict=True)
                ]
                views[index] = torch.cat(parts)
    return with_views(image, torch.stack(list(views.values())), list(views)) if views else image
