"""Over what a threshold is shared: the shape of its distribution's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from segpl.threshold.base import Distribution

# scope -> whether images and whether classes have thresholds of their own
SCOPES: dict[str, tuple[bool, bool]] = {
    "batch": (False, False),
    "image": (True, False),
    "class": (False, True),
    "image-class": (True, True),
    "voxel": (True, False),
}
SUMMARIES = {
    "batch": "one threshold for all images of a batch, as in the paper",
    "image": "one for each image",
    "class": "one for each channel",
    "image-class": "one for each channel of each image",
    "voxel": "one for each voxel, from a coarse map",
}
MODES = {2: "bilinear", 3: "trilinear"}


def thresholds_per_location(scope: str, outputs: int) -> int:
    """Thresholds that a head has to describe at every place."""
    return outputs if SCOPES[scope][1] else 1


def pool_to_scope(numbers: Tensor, scope: str, sides: Sequence[int]) -> Tensor:
    """Numbers (n, B, k, *coarse) of a head, as a threshold's distribution takes them.

    They come back as (n, b, k, 1...), b being B or 1. With the scope `voxel` they are (n, B, 1,
    *sides): the coarse places are joined by straight lines, so that neighboring voxels have nearly
    the same threshold, and those a place apart are as independent as the head makes them.
    """
    own_image, _ = SCOPES[scope]
    if scope == "voxel":
        count, images = numbers.shape[:2]
        return joined(numbers.flatten(0, 1), sides).unflatten(0, (count, images))  # type: ignore[no-untyped-call, no-any-return]  # torch gives it no types
    places = tuple(range(3, numbers.dim()))
    return numbers.mean(places if own_image else (1, *places), keepdim=True)


def joined(coarse: Tensor, sides: Sequence[int]) -> Tensor:
    """Values (B, C, *coarse) at every voxel, (B, C, *sides), along straight lines."""
    return F.interpolate(coarse, tuple(sides), mode=MODES[len(sides)])


@dataclass(frozen=True, slots=True)
class CoarseDraws(Distribution):
    """Thresholds of voxels that are drawn at coarse places, and joined by straight lines.

    A draw for each voxel on its own would be noise that no neighbor shares. Everything but the
    draw is that of the voxels' own distributions; between places a draw spreads less than these.
    """

    voxels: Distribution  # (B, 1, *sides)
    places: Distribution  # (B, 1, *coarse)
    sides: tuple[int, ...]

    @property
    def mean(self) -> Tensor:
        return self.voxels.mean

    @property
    def std(self) -> Tensor:
        return self.voxels.std

    def sample(self, generator: torch.Generator) -> Tensor:
        return joined(self.places.sample(generator), self.sides)

    def cdf(self, value: Tensor) -> Tensor:
        return self.voxels.cdf(value)

    def kl(self, prior: Distribution) -> Tensor:
        return self.voxels.kl(prior)
