"""Boxes of one crop pasted into another, with what is known of their voxels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Box = tuple[slice, ...]

SHARES = (0.1, 0.5)  # least and most of a crop that a box takes
ASPECT = 0.25  # spread of the logarithm of a box's side, as a part of the crop's


@dataclass(frozen=True, slots=True)
class TrainingCrops:
    """Images with a target and a weight for every voxel."""

    image: Tensor  # (B, C, *S)
    target: Tensor  # (B, K, *S)
    weight: Tensor  # (B, K, *S)

    def select(self, indices: Sequence[int]) -> TrainingCrops:
        """These images, in this order, some perhaps more than once."""
        parts = (self.image, self.target, self.weight)
        # a list of places on the host, as an index, would be copied to the device and waited for
        return TrainingCrops(*(torch.stack([part[index] for index in indices]) for part in parts))

    def concat(self, other: TrainingCrops) -> TrainingCrops:
        return TrainingCrops(
            torch.cat([self.image, other.image]),
            torch.cat([self.target, other.target]),
            torch.cat([self.weight, other.weight]),
        )

    def paste(self, source: TrainingCrops, mask: Tensor) -> TrainingCrops:
        """These images with those of `source` where `mask` (B, 1, *S) is true, labels alike."""
        return TrainingCrops(
            torch.where(mask, source.image, self.image),
            torch.where(mask, source.target, self.target),
            torch.where(mask, source.weight, self.weight),
        )


def draw_box(sides: Sequence[int], rng: np.random.Generator) -> Box:
    """A box somewhere inside, of a share of the volume that is drawn evenly from SHARES."""
    share = rng.uniform(*SHARES)
    box = [slice(0)] * len(sides)
    # wide sides last: they make up for what a thin one loses in rounding to whole voxels
    for left, axis in zip(range(len(sides), 0, -1), np.argsort(sides), strict=True):
        side = sides[axis]
        stretch = rng.normal(0, ASPECT) if left > 1 else 0.0
        length = min(side, max(1, round(side * share ** (1 / left) * np.exp(stretch))))
        share = min(1.0, share * side / length)
        start = int(rng.integers(side - length + 1))
        box[axis] = slice(start, start + length)
    return tuple(box)


def box_mask(boxes: Sequence[Box], sides: Sequence[int], device: torch.device) -> Tensor:
    """(B, 1, *S) bool: true inside each image's box."""
    mask = torch.zeros((len(boxes), 1, *sides), dtype=torch.bool, device=device)
    for index, box in enumerate(boxes):
        mask[index, 0][box] = True
    return mask
