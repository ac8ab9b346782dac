"""Paste boxes of one crop into another, together with their targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Box = tuple[slice, ...]

BOX_VOLUMES = (0.1, 0.5)  # smallest and largest box, as a fraction of the crop
BOX_LOG_STD = 0.25  # standard deviation of the log of a box's relative side length


@dataclass(frozen=True, slots=True)
class TrainingCrops:
    """Images with a target and a weight per voxel."""

    image: Tensor  # (B, C, *S)
    target: Tensor  # (B, K, *S)
    weight: Tensor  # (B, K, *S)

    def concat(self, other: TrainingCrops) -> TrainingCrops:
        return TrainingCrops(
            torch.cat([self.image, other.image]),
            torch.cat([self.target, other.target]),
            torch.cat([self.weight, other.weight]),
        )

    def paste(self, index: int, box: Box, source: TrainingCrops, other: int) -> None:
        """Replace a box of image `index` with that of image `other` in `source`, in place."""
        inside = (slice(None), *box)
        self.image[index][inside] = source.image[other][inside]
        self.target[index][inside] = source.target[other][inside]
        self.weight[index][inside] = source.weight[other][inside]


def draw_box(sides: Sequence[int], rng: np.random.Generator) -> Box:
    """Draw a box inside the crop whose volume is uniform in BOX_VOLUMES."""
    volume = rng.uniform(*BOX_VOLUMES)
    box = [slice(0)] * len(sides)
    # longest axis last: it compensates for the rounding of the short ones
    for left, axis in zip(range(len(sides), 0, -1), np.argsort(sides), strict=True):
        side = sides[axis]
        stretch = rng.normal(0, BOX_LOG_STD) if left > 1 else 0.0
        length = min(side, max(1, round(side * volume ** (1 / left) * np.exp(stretch))))
        volume = min(1.0, volume * side / length)
        start = int(rng.integers(side - length + 1))
        box[axis] = slice(start, start + length)
    return tuple(box)
