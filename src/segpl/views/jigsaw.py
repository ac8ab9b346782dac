"""A jigsaw puzzle of a crop: its tiles in another order, and which order that is."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from segpl.errors import InputError

SMALLEST = 4  # voxels; a side that would leave less of a tile is not cut
ENUMERABLE = 8  # tiles of which all orders can be listed; 8! are 40 320
SAMPLED = 20_000  # orders to choose from where there are too many to list


@cache
def distant_permutations(tiles: int, count: int) -> np.ndarray:
    """At most `count` orders of `tiles` tiles, (P, T), the first of which moves nothing.

    Each next one is the order that is farthest from all before it: the number of tiles in other
    places than in the nearest of them is greatest, and of equals the first is taken.
    """
    if tiles <= ENUMERABLE:
        known = np.array(list(itertools.permutations(range(tiles))))
    else:
        # a seed of its own: the classes of a puzzle must not change with the training's seed
        draw = np.random.default_rng(tiles)
        orders = draw.permuted(np.tile(np.arange(tiles), (SAMPLED, 1)), axis=1)
        known = np.concatenate([np.arange(tiles)[None], orders])
    chosen = [0]
    distance = np.full(len(known), tiles)
    while len(chosen) < min(count, len(known)):
        distance = np.minimum(distance, (known != known[chosen[-1]]).sum(1))
        chosen.append(int(distance.argmax()))
    return known[chosen]


def rearrange_tiles(image: Tensor, order: Tensor, cuts: tuple[int, ...]) -> Tensor:
    """Crops (B, C, *S) with tile `order[b, n]` of crop b in place n; `order` is (B, T).

    `cuts` is the number of tiles along each axis, and places are counted as in memory. What a side
    has beyond a multiple of its cuts stays where it is, at the end.
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
    """Puzzles of `tiles` tiles along each axis, in at most `count` orders far from each other.

    An axis too thin for tiles of 4 voxels is not cut. The first order is the whole picture.
    """

    def __init__(self, dims: int, *, tiles: int, count: int) -> None:
        super().__init__()
        self.tiles = tiles
        for axes in range(1, dims + 1):  # buffers, so that no step copies them to the device
            orders = torch.from_numpy(distant_permutations(tiles**axes, count))
            self.register_buffer(f"orders_{axes}", orders, persistent=False)

    def cuts(self, sides: tuple[int, ...]) -> tuple[int, ...]:
        """Tiles along each axis of a crop."""
        cuts = tuple(self.tiles if side >= SMALLEST * self.tiles else 1 for side in sides)
        if set(cuts) == {1}:
            raise InputError(
                f"crops of {sides} make no puzzle of method.tiles={self.tiles}: one side must have "
                f"{SMALLEST * self.tiles} voxels, {SMALLEST} for each tile. Enlarge the patch in "
                "plan.json" + (", or lower method.tiles." if self.tiles > 2 else ".")
            )
        return cuts

    def orders(self, sides: tuple[int, ...]) -> Tensor:
        """The orders (P, T) that crops of these sides are put into."""
        axes = sum(cut > 1 for cut in self.cuts(sides))
        orders: Tensor = self.get_buffer(f"orders_{axes}")
        return orders

    def draw(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """For every crop the numbers of all orders in a random row, (B, P)."""
        count = len(self.orders(tuple(image.shape[2:])))
        chances = torch.rand((len(image), count), generator=generator, device=image.device)
        return chances.argsort(1)

    def forward(self, image: Tensor, number: Tensor) -> Tensor:
        """Crops (B, C, *S), each in the order of its `number` (B,)."""
        sides = tuple(image.shape[2:])
        return rearrange_tiles(image, self.orders(sides)[number], self.cuts(sides))
