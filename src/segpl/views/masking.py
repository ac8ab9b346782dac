"""Blocks of a crop that are hidden, and how well they are filled in again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BLOCKS = 8  # along each side
SMALLEST = 4  # voxels along a side of a block; what is thinner can be read off its neighbors


def blocks_along(sides: Sequence[int]) -> tuple[int, ...]:
    """Blocks along each axis of a crop: an eighth of each, or fewer that are large enough."""
    return tuple(max(1, min(BLOCKS, side // SMALLEST)) for side in sides)


def draw_hidden(
    count: int, sides: Sequence[int], share: float, generator: torch.Generator
) -> Tensor:
    """(B, 1, *S) bool: which voxels of `count` crops are hidden, in whole blocks.

    Exactly the same number of blocks of each crop, the nearest to `share`, but never none and
    never all of them where there are two or more.
    """
    device = generator.device
    blocks = blocks_along(sides)
    total = int(torch.Size(blocks).numel())
    hidden = min(max(round(share * total), 1), max(total - 1, 1))
    chances = torch.rand((count, total), generator=generator, device=device)
    chosen = chances.argsort(1).argsort(1) < hidden  # (B, total), by rank
    mask = chosen.reshape(count, 1, *blocks)
    for axis, (side, along) in enumerate(zip(sides, blocks, strict=True), start=2):
        # the block of each voxel; sides need be no multiple of it
        mask = mask.index_select(axis, torch.arange(side, device=device) * along // side)
    return mask


def without(image: Tensor, hidden: Tensor) -> Tensor:
    """Crops (B, C, *S) with 0, the mean of a normalized scan, where they are hidden."""
    return image.masked_fill(hidden, 0.0)


def hidden_error(prediction: Tensor, image: Tensor, hidden: Tensor) -> Tensor:
    r"""Squared error of what was hidden, and of nothing else [He2022].

    $$L = \frac{1}{C \sum_v h_v} \sum_v h_v \lVert \hat x_v - x_v \rVert^2$$

    with $h$ (B, 1, *S) bool, which is 0 beyond the scans too. Where nothing is hidden it is 0.
    """
    # chosen, not multiplied: what is not counted may be anything
    errors = torch.where(hidden, prediction.float() - image.float(), 0.0).square()  # (B, C, *S)
    return errors.sum() / (image.shape[1] * hidden.sum()).clamp(min=1)
