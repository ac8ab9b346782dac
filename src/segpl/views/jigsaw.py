"""Jigsaw puzzles: crops with their tiles in another order."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from segpl.errors import InputError

MIN_TILE = 4  # voxels; an axis whose tiles would be smaller is not cut
MAX_ENUMERATED = 8  # tiles; 8! = 40,320 orders can still be enumerated
CANDIDATES = 20_000  # random orders to choose from if there are too many to enumerate


@cache
def distant_permutations(tiles: int, count: int) -> np.ndarray:
    """Return at most `count` permutations of `tiles` tiles, (P, T); the first is the identity.

    Each further permutation maximizes the smallest Hamming distance to those already chosen. Ties
    go to the first candidate.
    """
    if tiles <= MAX_ENUMERATED:
        known = np.array(list(itertools.permutations(range(tiles))))
    else:
        # a fixed seed: the classes must not change with the seed of the training run
        draw = np.random.default_rng(tiles)
        orders = draw.permuted(np.tile(np.arange(tiles), (CANDIDATES, 1)), axis=1)
        known = np.concatenate([np.arange(tiles)[None], orders])
    chosen = [0]
    distance = np.full(len(known), tiles)
    while len(chosen) < min(count, len(known)):
        distance = np.minimum(distance, (known != known[chosen[-1]]).sum(1))
        chosen.append(int(distance.argmax()))
    return known[chosen]


def rearrange_tiles(image: Tensor, order: Tensor, cuts: tuple[int, ...]) -> Tensor:
    """Put tile `order[b, n]` of crop b at position n, for crops (B, C, *S) and `order` (B, T).

    `cuts` is the number of tiles per axis; positions are in row-major order. Voxels beyond a
    multiple of the tile size stay in place at the end of the axis.
    """
    dims = len(cuts)
    sizes = [side // cut for side, cut in zip(image.shape[2:], cuts, strict=True)]
    core = (slice(None), slice(None), *(slice(s * c) for s, c in zip(sizes, cuts, strict=True)))
    grid = itertools.chain(*zip(cuts, sizes, strict=True))  # cut, size, cut, size...
    pieces = image[core].reshape(*image.shape[:2], *grid)
    places, voxels = range(2, 2 + 2 * dims, 2), range(3, 3 + 2 * dims, 2)
    pieces = pieces.permute(0, *places, 1, *voxels)  # (B, *cuts, C, *sizes)
    pieces = pieces.flatten(1, dims)  # (B, T, C, *sizes)
    rows = torch.arange(len(order), device=order.device).unsqueeze(1)  # (B, 1)
    pieces = pieces[rows, order].reshape(len(order), *cuts, -1, *sizes)
    pairs = itertools.chain(*zip(range(1, 1 + dims), range(2 + dims, 2 + 2 * dims), strict=True))
    result = image.clone()
    result[core] = pieces.permute(0, 1 + dims, *pairs).reshape(image[core].shape)
    return result


class Jigsaw(nn.Module):
    """Puzzles with `tiles` tiles per axis and at most `count` distant orders.

    An axis too thin for tiles of 4 voxels is not cut. The first order is the original image.
    """

    def __init__(self, dims: int, *, tiles: int, count: int) -> None:
        super().__init__()
        self.tiles = tiles
        for axes in range(1, dims + 1):  # buffers move to the device with the module
            orders = torch.from_numpy(distant_permutations(tiles**axes, count))
            self.register_buffer(f"orders_{axes}", orders, persistent=False)

    def cuts(self, sides: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of tiles per axis of a crop."""
        cuts = tuple(self.tiles if side >= MIN_TILE * self.tiles else 1 for side in sides)
        if set(cuts) == {1}:
            raise InputError(
                f"crops of {sides} are too small for a puzzle with method.tiles={self.tiles}: one "
                f"side needs at least {MIN_TILE * self.tiles} voxels, {MIN_TILE} per tile. Enlarge "
                "the patch in plan.json" + (" or lower method.tiles." if self.tiles > 2 else ".")
            )
        return cuts

    def orders(self, sides: tuple[int, ...]) -> Tensor:
        """Return the tile orders (P, T) for crops of these sides."""
        axes = sum(cut > 1 for cut in self.cuts(sides))
        orders: Tensor = self.get_buffer(f"orders_{axes}")
        return orders

    def draw(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Return a random permutation of the order indices for every crop, (B, P)."""
        count = len(self.orders(tuple(image.shape[2:])))
        chances = torch.rand((len(image), count), generator=generator, device=image.device)
        return chances.argsort(1)

    def forward(self, image: Tensor, number: Tensor) -> Tensor:
        """Rearrange crops (B, C, *S), each by the order with index `number` (B,)."""
        sides = tuple(image.shape[2:])
        return rearrange_tiles(image, self.orders(sides)[number], self.cuts(sides))
