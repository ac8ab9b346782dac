"""RandAugment for images and volumes: strong views of an image [Cubuk2020]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from segpl.views.geometry import (
    GEOMETRY,
    Matrix,
    affine_grids,
    sample_entries,
    wide_axes,
)
from segpl.views.intensity import INTENSITY, change_intensities


@dataclass(frozen=True, slots=True)
class ViewRecipe:
    """The operations for one image: first the geometry, then the intensity."""

    motion: Matrix | None  # None: no geometric change
    changes: tuple[tuple[str, float], ...]  # name and amount


def draw_recipe(
    sides: Sequence[int],
    rng: np.random.Generator,
    *,
    operations: int,
    magnitude: float,
    geometry: bool,
) -> ViewRecipe:
    """Draw `operations` operations, all equally likely.

    Each has its own amount, uniform between `-magnitude` and `magnitude`. A patch with a single
    wide axis gets no geometric operation.
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
    image: Tensor,
    labels: Tensor,
    recipes: Sequence[ViewRecipe],
    generator: torch.Generator,
    own: slice = slice(None),
) -> tuple[Tensor, Tensor]:
    """Apply one recipe each to images (B, C, *S) and their labels (B, J, *S) in [0, 1].

    Both are interpolated linearly and are 0 outside the image. Intensity operations change only
    the image. `recipes` are those of a batch, and the images its crops in `own`.
    """
    with torch.autocast(image.device.type, enabled=False):
        image, labels = image.float(), labels.float()
        motions = {n: one.motion for n, one in enumerate(recipes[own]) if one.motion is not None}
        if motions:
            grid = affine_grids(list(motions.values()), image)  # (M, *S, D)
            image = sample_entries(image, list(motions), grid)
            # interpolation weights sum to 1 only up to rounding
            labels = sample_entries(labels, list(motions), grid).clamp(max=1)
        changes = [recipe.changes for recipe in recipes]
        return change_intensities(image, changes, generator, own), labels
