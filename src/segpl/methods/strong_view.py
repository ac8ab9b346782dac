"""The harder view of unlabeled images that an M-step learns on."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from segpl.methods.base import mask_padding
from segpl.types import Batch, PseudoLabels, Unlabeled
from segpl.views.randaugment import ViewRecipe, draw_recipe, strong_view


class StrongSettings(Protocol):
    @property
    def operations(self) -> int: ...
    @property
    def magnitude(self) -> float: ...
    @property
    def geometry(self) -> bool: ...


def recipes_for(
    unlabeled: Unlabeled, rng: np.random.Generator, settings: StrongSettings, *, geometry: bool
) -> list[ViewRecipe]:
    return [
        draw_recipe(
            unlabeled.image.shape[2:],
            rng,
            operations=settings.operations,
            magnitude=settings.magnitude,
            geometry=geometry,
        )
        for _ in unlabeled.image
    ]


def changed(unlabeled: Unlabeled, batch: Batch, settings: StrongSettings, purpose: str) -> Tensor:
    """Images (B, C, *S) with intensities changed as in a strong view, and nothing moved."""
    recipes = recipes_for(unlabeled, batch.choices(purpose), settings, geometry=False)
    view, _ = strong_view(unlabeled.image, unlabeled.image[:, :0], recipes, batch.generator)
    inside = mask_padding(unlabeled, torch.ones_like(view[:, :1]))  # (B, 1, *S)
    return torch.where(inside > 0, view, unlabeled.image)


def strengthened(
    unlabeled: Unlabeled, pseudo: PseudoLabels, batch: Batch, settings: StrongSettings
) -> tuple[Tensor, PseudoLabels, Tensor]:
    """Strong views, the labels moved with them, and (B, 1, *S) where they show their scan.

    Without motions, the labels stay on the grid of the crops.
    """
    recipes = recipes_for(
        unlabeled, batch.choices("strong view"), settings, geometry=settings.geometry
    )
    inside = mask_padding(unlabeled, torch.ones_like(pseudo.target[:, :1]))  # (B, 1, *S)
    known = torch.cat([pseudo.target, pseudo.weight * inside, inside], 1)  # (B, 2K + 1, *S)
    strong, known = strong_view(unlabeled.image, known, recipes, batch.generator)
    # a crop that is larger than its scan keeps its frame of filling
    strong = torch.where(inside > 0, strong, unlabeled.image)
    known = known * inside
    outputs = pseudo.target.shape[1]
    moved = PseudoLabels(known[:, :outputs], known[:, outputs:-1], on_grid=not settings.geometry)
    return strong, moved, known[:, -1:]
