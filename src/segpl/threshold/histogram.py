"""Sums over the voxels above every threshold of a grid, in one pass over the voxels.

A voxel is put into the cell that says how many thresholds lie below its probability; sums over
cells from the top down are then sums over {p > T}. Nothing of the size voxels x thresholds exists.
"""

from __future__ import annotations

import torch
from torch import Tensor

from segpl.errors import InputError
from segpl.threshold.scopes import SCOPES

GRID_POINTS = 100  # thresholds of the grid, G
# Sums are of whole numbers of 2^-32: their order does not matter, as it does with floats, so that
# atomic adds give the same bits in every run. 2^31 voxels of weight 1 fit.
UNIT = 2.0**-32
# On a GPU adds to one address wait for each other, and most voxels of a scan are in one cell.
COPIES = 128


def threshold_grid(points: int, device: torch.device | str = "cpu") -> Tensor:
    r"""The middle of each of `points` equal parts of (0, 1): $T_i = (i + 1/2) / G$."""
    return (torch.arange(points, device=device, dtype=torch.float32) + 0.5) / points  # (G,)


def count_thresholds_below(probability: Tensor, points: int) -> Tensor:
    r"""How many thresholds of the grid lie below each probability, from 0 to `points`.

    $$c(p) = |\{i : T_i < p\}|, \quad p > T_i \iff c(p) > i$$

    A search in the grid is one pass; nearly equal numbers come out as by comparison.
    """
    return torch.bucketize(probability.contiguous(), threshold_grid(points, probability.device))


def copies_for(device: torch.device, voxels: int, cells: int) -> int:
    """Private copies of a histogram, a power of 2; together they are no larger than the image."""
    if device.type != "cuda":
        return 1
    most = max(1, min(COPIES, voxels // cells))
    return 1 << (most.bit_length() - 1)


def places_of(cell: Tensor, copies: int) -> Tensor:
    """Addresses (voxels,) in `copies` private copies of a histogram.

    Each copy is fed by every `copies`-th voxel: neighbors, which run at the same time, add to
    different addresses next to each other.
    """
    place = cell.flatten()  # (B K *S,)
    if copies == 1:
        return place
    return (torch.arange(len(place), device=place.device) & (copies - 1)).add_(place, alpha=copies)


def sums_at(quantity: Tensor, place: Tensor, cells: int, copies: int) -> Tensor:
    """Sums (cells,) of a quantity in [-1, 1] over the voxels of each cell, in units of 2^-32.

    What is finer than the unit is cut off.
    """
    parts = (quantity.flatten() * (1 / UNIT)).long()  # (B K *S,)
    sums = torch.zeros(cells * copies, dtype=torch.int64, device=place.device)
    return sums.scatter_add_(0, place, parts).view(cells, copies).sum(1)


def bin_sums(quantity: Tensor, cell: Tensor, cells: int) -> Tensor:
    """`sums_at` of one quantity, by the cells of its voxels."""
    copies = copies_for(cell.device, cell.numel(), cells)
    return sums_at(quantity, places_of(cell, copies), cells, copies)


def scope_axes(scope: str) -> tuple[bool, bool]:
    """Whether images and whether classes have a threshold of their own."""
    if scope not in SCOPES or scope == "voxel":
        known = ", ".join(name for name in SCOPES if name != "voxel")
        raise InputError(
            f"scope '{scope}' has no histogram: the voxels that share a threshold are counted "
            f"together. Use one of: {known}."
        )
    return SCOPES[scope]


def scope_total(quantity: Tensor, scope: str) -> Tensor:
    """Sum over the voxels that share a threshold, (b, k, 1); b is B or 1, and k is K or 1."""
    own_image, own_class = scope_axes(scope)
    by_channel = quantity.flatten(2).sum(2, keepdim=True)  # (B, K, 1)
    axes = [axis for axis, own in enumerate((own_image, own_class)) if not own]
    return by_channel.sum(axes, keepdim=True) if axes else by_channel


@torch.no_grad()
def sums_above(
    probability: Tensor, *quantities: Tensor, scope: str, points: int = GRID_POINTS
) -> tuple[Tensor, ...]:
    r"""For each quantity $a$ in [0, 1], its sum over the voxels above every threshold of the grid.

    $$A(T_i) = \sum_{v : p_v > T_i} a_v$$

    All are (B, K, *S), or broadcast to it; each answer is (b, k, G), b being B or 1 and k being K
    or 1 by the scope. Weights give weighted counts, weights times probabilities their mass.
    """
    own_image, own_class = scope_axes(scope)
    probability = probability.float()
    images, channels = probability.shape[:2]
    groups = (images if own_image else 1, channels if own_class else 1)
    cells = groups[0] * groups[1] * (points + 1)

    first = torch.arange(0, cells, points + 1, device=probability.device)  # cell of each group
    cell = count_thresholds_below(probability, points)  # (B, K, *S)
    cell += first.view(*groups, *[1] * (probability.dim() - 2))
    copies = copies_for(probability.device, probability.numel(), cells)
    place = places_of(cell, copies)

    def above(quantity: Tensor) -> Tensor:
        spread = quantity.float().expand_as(probability)  # (B, K, *S)
        sums = sums_at(spread, place, cells, copies).view(*groups, points + 1)
        # cell c is above T_0 ... T_(c-1), and cell 0 above none
        return sums[..., 1:].flip(-1).cumsum(-1).flip(-1).to(torch.float32) * UNIT  # (b, k, G)

    return tuple(above(quantity) for quantity in quantities)
