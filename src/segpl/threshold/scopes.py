"""Scopes: which voxels share a threshold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from segpl.resize import resize_linear
from segpl.threshold.base import Distribution, Prior

# scope -> whether images and whether classes have separate thresholds
SCOPES: dict[str, tuple[bool, bool]] = {
    "batch": (False, False),
    "image": (True, False),
    "class": (False, True),
    "image-class": (True, True),
    "voxel": (True, False),
}
SUMMARIES = {
    "batch": "one threshold for the whole batch, as in the paper",
    "image": "one per image",
    "class": "one per class",
    "image-class": "one per class and image",
    "voxel": "one per voxel, interpolated from a coarse map",
}


def thresholds_per_location(scope: str, outputs: int) -> int:
    """Return the number of thresholds that a head predicts at every location."""
    return outputs if SCOPES[scope][1] else 1


def pool_to_scope(offsets: Tensor, scope: str, sides: Sequence[int]) -> Tensor:
    """Pool the output (n, B, k, *coarse) of a head to the shape of a threshold's distribution.

    Returns (n, b, k, 1...) with b in {B, 1}. For the scope `voxel` it returns (n, B, 1, *sides),
    interpolated linearly from the coarse grid: neighboring voxels have similar thresholds.
    """
    per_image, _ = SCOPES[scope]
    if scope == "voxel":
        count, images = offsets.shape[:2]
        return resize_linear(offsets.flatten(0, 1), sides).unflatten(0, (count, images))  # type: ignore[no-untyped-call, no-any-return]  # torch lacks the annotation
    locations = tuple(range(3, offsets.dim()))
    return offsets.mean(locations if per_image else (1, *locations), keepdim=True)


@dataclass(frozen=True, slots=True)
class CoarseDraws(Distribution):
    """Voxel thresholds sampled on a coarse grid and interpolated linearly.

    Independent samples per voxel would be white noise. Everything except `sample` uses the voxels'
    own distributions. Between coarse locations, samples vary less than these distributions.
    """

    voxels: Distribution  # (B, 1, *sides)
    locations: Distribution  # (B, 1, *coarse)
    sides: tuple[int, ...]

    @property
    def mean(self) -> Tensor:
        return self.voxels.mean

    @property
    def std(self) -> Tensor:
        return self.voxels.std

    def sample(self, generator: torch.Generator) -> Tensor:
        return resize_linear(self.locations.sample(generator), self.sides)

    def cdf(self, value: Tensor) -> Tensor:
        return self.voxels.cdf(value)

    def kl(self, prior: Prior) -> Tensor:
        return self.voxels.kl(prior)
