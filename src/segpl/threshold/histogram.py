"""Sums over the voxels above every threshold of a grid, in one pass over the voxels.

Each voxel falls into the cell given by the number of thresholds below its probability. Cumulative
sums over cells, from the top down, are sums over {p > T}. No tensor has the size voxels x
thresholds.
"""

from __future__ import annotations

import torch
from torch import Tensor

GRID_POINTS = 100  # thresholds in the grid, G
# Sums use integer multiples of 2^-32. Unlike float sums they do not depend on the order of
# additions, so atomic adds give the same bits in every run. 2^31 voxels of weight 1 fit.
UNIT = 2.0**-32
# Atomic adds to one address are serialized on a GPU, and most voxels of a scan share a cell.
MAX_COPIES = 128


def threshold_grid(points: int, device: torch.device | str = "cpu") -> Tensor:
    r"""Centers of `points` equal parts of (0, 1): $T_i = (i + 1/2) / G$."""
    return (torch.arange(points, device=device, dtype=torch.float32) + 0.5) / points  # (G,)


def count_thresholds_below(probability: Tensor, points: int) -> Tensor:
    r"""Number of grid thresholds below each probability, from 0 to `points`.

    $$c(p) = |\{i : T_i < p\}|, \quad p > T_i \iff c(p) > i$$

    A binary search gives exactly the same result as comparing with every threshold.
    """
    return torch.bucketize(probability.contiguous(), threshold_grid(points, probability.device))


def histogram_copies(device: torch.device, voxels: int, cells: int) -> int:
    """Number of private histograms, a power of 2; together no larger than the image."""
    if device.type != "cuda":
        return 1
    most = max(1, min(MAX_COPIES, voxels // cells))
    return 1 << (most.bit_length() - 1)


def private_addresses(cell: Tensor, copies: int) -> Tensor:
    """Return addresses (voxels,) in `copies` private histograms.

    Each histogram receives every `copies`-th voxel, so that voxels processed at the same time add
    to different, adjacent addresses.
    """
    address = cell.flatten()  # (B K *S,)
    if copies == 1:
        return address
    copy = torch.arange(len(address), device=address.device) & (copies - 1)
    return copy.add_(address, alpha=copies)


def sums_at_addresses(quantity: Tensor, address: Tensor, cells: int, copies: int) -> Tensor:
    """Sum a quantity in [-1, 1] over the voxels of each cell, (cells,) in units of 2^-32.

    Anything smaller than the unit is truncated.
    """
    parts = (quantity.flatten() * (1 / UNIT)).long()  # (B K *S,)
    sums = torch.zeros(cells * copies, dtype=torch.int64, device=address.device)
    return sums.scatter_add_(0, address, parts).view(cells, copies).sum(1)


def bin_sums(quantity: Tensor, cell: Tensor, cells: int) -> Tensor:
    """`sums_at_addresses` for one quantity, given the cell of each voxel."""
    copies = histogram_copies(cell.device, cell.numel(), cells)
    return sums_at_addresses(quantity, private_addresses(cell, copies), cells, copies)


@torch.no_grad()
def sums_above(probability: Tensor, *quantities: Tensor) -> tuple[Tensor, ...]:
    r"""Sum each quantity $a$ in [0, 1] over the voxels above every threshold of the grid.

    $$A(T_i) = \sum_{v : p_v > T_i} a_v$$

    All tensors are (B, K, *S) or broadcast to it. Each result is (B, K, G).
    """
    probability = probability.float()
    images, channels = probability.shape[:2]
    own = GRID_POINTS + 1  # cells of a channel
    cells = images * channels * own

    first = torch.arange(0, cells, own, device=probability.device)  # cell of each channel
    cell = count_thresholds_below(probability, GRID_POINTS)  # (B, K, *S)
    cell += first.view(images, channels, *[1] * (probability.dim() - 2))
    copies = histogram_copies(probability.device, probability.numel(), cells)
    address = private_addresses(cell, copies)

    def above(quantity: Tensor) -> Tensor:
        expanded = quantity.float().expand_as(probability)  # (B, K, *S)
        sums = sums_at_addresses(expanded, address, cells, copies).view(images, channels, own)
        # cell c lies above T_0 ... T_(c-1), cell 0 above none
        return sums[..., 1:].flip(-1).cumsum(-1).flip(-1).to(torch.float32) * UNIT  # (B, K, G)

    return tuple(above(quantity) for quantity in quantities)
