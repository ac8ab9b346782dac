"""The strong view of unlabeled images that an M-step learns on."""

from __future__ import annotations

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
    """Augmented images, their labels, and (B, 1, *S) where they show the scan.

    Spatial operations transform images, labels and weights alike.
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
    image, is_inside = unlabeled.image, unlabeled.inside
    if is_inside is None:
        is_inside = torch.ones_like(image[:, 0], dtype=torch.bool)
    inside = is_inside.unsqueeze(1).to(pseudo.target.dtype)  # (B, 1, *S)
    known = torch.cat([pseudo.target, pseudo.weight * inside, inside], 1)  # (B, 2K + 1, *S)
    strong, known = strong_view(image, known, recipes, batch.generator)
    # padding stays as it was
    strong = torch.where(is_inside.unsqueeze(1), strong, image)
    known = known * inside
    outputs = pseudo.target.shape[1]
    moved = PseudoLabels(known[:, :outputs], known[:, outputs:-1], on_grid=not settings.geometry)
    return strong, moved, known[:, -1:]
