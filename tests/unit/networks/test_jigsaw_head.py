from __future__ import annotations

import pytest
import torch
from mutations import Mutation

from segpl.networks.heads import JigsawHead
from segpl.views.jigsaw import Jigsaw


def make(dims: int, tiles: int = 2) -> JigsawHead:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return JigsawHead(dims, 5, tiles=tiles, orders=6)


def features(*sides: int) -> torch.Tensor:
    return torch.randn((2, 5, *sides), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("sides", [(16, 3), (2, 2), (16, 16, 3)])
def test_every_image_has_a_score_for_every_order(sides):
    assert make(len(sides), 3)(features(*sides)).shape == (2, 6)


@pytest.mark.parametrize("dims", [2, 3])
def test_scores_depend_on_the_order_of_the_tiles(dims):
    """Global pooling would lose the order."""
    head, given = make(dims), features(*[16] * dims)
    other = Jigsaw(dims, tiles=2, count=4)(given, torch.tensor([1, 2]))
    assert (head(given) - head(other)).abs().max() > 0.01


MUTATIONS = [
    Mutation(
        "pools over all positions",
        "side = 2 * tiles",
        "side = 1",
        "test_scores_depend_on_the_order_of_the_tiles",
        {"dims": 2},
        file="networks/heads.py",
    ),
]
