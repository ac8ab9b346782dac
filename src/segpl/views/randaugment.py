"""RandAugment for images and volumes: the strong view of an image [Cubuk2020]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from segpl.views.geometry import GEOMETRY, Matrix, warp, wide_axes
from segpl.views.intensity import INTENSITY


@dataclass(frozen=True, slots=True)
class ViewRecipe:
    """What is done to one image: first it is moved, then its intensity changes."""

    motion: Matrix | None  # None: it stays where it is
    changes: tuple[tuple[str, float], ...]  # name and amount


def draw_recipe(
    sides: Sequence[int],
    rng: np.random.Generator,
    *,
    operations: int,
    magnitude: float,
    geometry: bool,
) -> ViewRecipe:
    """As many operations as asked for, all equally likely, each with an amount of its own.

    An amount lies between `-magnitude` and `magnitude`. A patch with a single wide axis is not
    moved.
    """
    axes = wide_axes(sides)
    names = [*INTENSITY, *(GEOMETRY if geometry and len(axes) > 1 else ())]
    motion: Matrix | None = None
    changes = []
    for _ in range(operations):
        name = names[int(rng.integers(len(names)))]
        amount = magnitude * float(rng.uniform(-1, 1))
        if name in INTENSITY:
            changes.append((name, amount))
        else:
            step = GEOMETRY[name](amount, rng.permutation(axes).tolist(), sides)
            motion = step if motion is None else motion @ step
    return ViewRecipe(motion, tuple(changes))


def strong_view(
    image: Tensor, labels: Tensor, recipes: Sequence[ViewRecipe], generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Images (B, C, *S), and what is known of their voxels (B, J, *S), by one recipe each.

    Labels move with their image, each voxel's from the nearest one, and are 0 where the view looks
    beyond its image. Intensity is changed in the image alone.
    """
    with torch.autocast(image.device.type, enabled=False):
        motions = [recipe.motion for recipe in recipes]
        labels = moved(labels.float(), motions, "nearest")
        images = list(moved(image.float(), motions, "bilinear"))
        for index, recipe in enumerate(recipes):
            for name, amount in recipe.changes:
                images[index] = INTENSITY[name](images[index], amount, generator)
    return torch.stack(images), labels


def moved(
    values: Tensor, motions: Sequence[Matrix | None], mode: Literal["bilinear", "nearest"]
) -> Tensor:
    """Values (B, C, *S), those with a motion resampled together, the others as they were."""
    chosen = {index: motion for index, motion in enumerate(motions) if motion is not None}
    if not chosen:
        return values
    views = warp(torch.stack([values[i] for i in chosen]), list(chosen.values()), mode=mode)
    parts = list(values)
    for place, index in enumerate(chosen):
        parts[index] = views[place]
    return torch.stack(parts)
