"""The strong view of unlabeled images that an M-step learns on."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from segpl.types import Batch, PseudoLabels, Unlabeled
from segpl.views.randaugment import draw_recipe, strong_view


class StrongViewSettings(Protocol):
    @property
    def operations(self) -> int: ...
    @property
    def magnitude(self) -> float: ...
    @property
    def geometry(self) -> bool: ...


def make_strong_view(
    unlabeled: Unlabeled, pseudo: PseudoLabels, batch: Batch, settings: StrongViewSettings
) -> tuple[Tensor, PseudoLabels, Tensor]:
    r"""Augmented images, labels, and the fraction (b, 1, *S) of each voxel inside the scan.

    Images and fractions are those of the b crops of this process, labels those of the batch.

    A voxel of a moved view interpolates its neighbors $i$ with coefficients $a_i$. Its loss
    interpolates theirs, $\sum_i a_i w_i L(p, y_i)$, so weight and target are

    $$w = \sum_i a_i w_i, \quad y = \frac{1}{w} \sum_i a_i w_i y_i$$

    Hard labels give soft targets near their surface; see `harden`.
    """
    rng = batch.choices("strong view")
    recipes = [
        draw_recipe(
            unlabeled.image.shape[2:],
            rng,
            operations=settings.operations,
            magnitude=settings.magnitude,
            geometry=settings.geometry,
        )
        for _ in unlabeled.image
    ]
    shares = batch.shares
    image, target = unlabeled.image[shares.own], pseudo.target[shares.own]
    is_inside = torch.ones_like(image[:, 0], dtype=torch.bool)
    if unlabeled.inside is not None:
        is_inside = unlabeled.inside[shares.own]
    inside = is_inside.unsqueeze(1).to(target.dtype)  # (B, 1, *S)
    weight = pseudo.weight[shares.own] * inside
    known = torch.cat([weight * target, weight, inside], 1)  # (B, 2K + 1, *S)
    strong, known = strong_view(image, known, recipes, batch.generator, shares.own)
    # padding stays as it was
    strong, known = torch.where(is_inside.unsqueeze(1), strong, image), known * inside
    shown = known[:, -1:]
    weighted, weight = shares.gather(known[:, :-1]).chunk(2, 1)
    target = weighted / weight.clamp(min=torch.finfo(weight.dtype).tiny)
    return strong, PseudoLabels(target, weight, on_grid=not settings.geometry), shown


def harden(pseudo: PseudoLabels) -> PseudoLabels:
    """Round targets to 0 or 1: predicting a soft target does not minimize the soft Dice loss."""
    return replace(pseudo, target=(pseudo.target > 0.5).to(pseudo.target.dtype))
