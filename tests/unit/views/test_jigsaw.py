from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from mutations import Mutation

from segpl.errors import InputError
from segpl.views.jigsaw import Jigsaw, distant_permutations, rearrange_tiles

counts_of_tiles = pytest.mark.parametrize("tiles", [2, 8, 27])


def distances(orders: np.ndarray) -> np.ndarray:
    """Hamming distance of every pair of orders."""
    return np.array([(a != b).sum() for a, b in itertools.combinations(orders, 2)])


def crops(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=seeded())


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@counts_of_tiles
def test_orders_are_distinct_permutations_starting_with_the_identity(tiles):
    orders = distant_permutations(tiles, 10)
    assert list(orders[0]) == list(range(tiles))
    assert all(sorted(order) == list(range(tiles)) for order in orders)
    assert distances(orders).min() > 0


def test_orders_do_not_depend_on_the_run():
    """They are the classes of a head stored in checkpoints; 27 tiles have too many to list."""
    first, second = (distant_permutations.__wrapped__(27, 6) for _ in range(2))
    assert (first == second).all()


def test_each_further_order_is_as_far_from_the_others_as_possible():
    orders = distant_permutations(4, 10)
    everything = list(itertools.permutations(range(4)))
    for count in range(1, 10):
        reach = [min((np.array(o) != k).sum() for k in orders[:count]) for o in everything]
        own = min((orders[count] != k).sum() for k in orders[:count])
        assert own == max(reach)


def test_position_n_shows_tile_order_n():
    """By hand: position 0 shows tile 3, position 1 tile 0, and so on, row by row."""
    image = torch.arange(16.0).view(1, 1, 4, 4)
    found = rearrange_tiles(image, torch.tensor([[3, 0, 1, 2]]), (2, 2))
    expected = [[10, 11, 0, 1], [14, 15, 4, 5], [2, 3, 8, 9], [6, 7, 12, 13]]
    assert found[0, 0].tolist() == expected


@pytest.mark.parametrize(
    ("sides", "cuts"), [((6, 9), (2, 3)), ((4, 6, 8), (2, 2, 2)), ((4, 8, 3), (2, 2, 1))]
)
def test_rearranging_agrees_with_copying_slices(sides, cuts):
    image = crops(2, 3, *sides)
    order = torch.rand((2, int(np.prod(cuts))), generator=seeded(1)).argsort(1)
    expected = torch.zeros_like(image)
    boxes = [
        tuple(
            slice(s // c * n, s // c * (n + 1)) for n, s, c in zip(place, sides, cuts, strict=True)
        )
        for place in itertools.product(*map(range, cuts))
    ]
    for crop in range(2):
        for place, tile in enumerate(order[crop].tolist()):
            expected[(crop, slice(None), *boxes[place])] = image[(crop, slice(None), *boxes[tile])]
    assert torch.equal(rearrange_tiles(image, order, cuts), expected)


def test_rearranging_keeps_its_input_and_memory_format():
    image = crops(2, 3, 8, 8).to(memory_format=torch.channels_last)
    before = image.clone()
    shuffled = Jigsaw(2, tiles=2, count=4)(image, torch.tensor([1, 2]))
    assert torch.equal(image, before)
    assert shuffled.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("sides", "tiles", "cuts"),
    [
        ((16, 16), 2, (2, 2)),
        ((16, 16, 3), 2, (2, 2, 1)),
        ((12, 11), 3, (3, 1)),
        ((8, 7, 8), 2, (2, 1, 2)),
    ],
)
def test_thin_axis_is_not_cut(sides, tiles, cuts):
    assert Jigsaw(len(sides), tiles=tiles, count=4).cuts(sides) == cuts


def test_crop_too_small_to_cut_is_rejected():
    with pytest.raises(
        InputError, match=r"crops of \(7, 7\) are too small for a puzzle with method\.tiles=2"
    ):
        Jigsaw(2, tiles=2, count=4)(crops(1, 1, 7, 7), torch.zeros(1, dtype=torch.int64))


@pytest.mark.parametrize("sides", [(8, 8), (8, 8, 8), (8, 8, 3)])
def test_index_of_a_crop_selects_its_order(sides):
    puzzle, image = Jigsaw(len(sides), tiles=2, count=6), crops(3, 2, *sides)
    number = torch.tensor([5, 0, 3])
    shuffled = puzzle(image, number)
    orders = torch.from_numpy(distant_permutations(int(np.prod(puzzle.cuts(sides))), 6))
    assert torch.equal(shuffled, rearrange_tiles(image, orders[number], puzzle.cuts(sides)))
    assert torch.equal(shuffled[1], image[1])
    for crop in (0, 2):
        assert not torch.equal(shuffled[crop], image[crop])
        assert torch.equal(shuffled[crop].flatten().sort()[0], image[crop].flatten().sort()[0])


def test_draw_returns_a_random_permutation_of_all_orders_per_crop():
    numbers = Jigsaw(2, tiles=2, count=10).draw(crops(4, 1, 8, 8), seeded())
    assert numbers.shape == (4, 10)
    assert torch.equal(numbers.sort(1)[0], torch.arange(10).expand(4, 10))
    assert len({tuple(row) for row in numbers.tolist()}) == 4


def test_draw_depends_only_on_the_generator():
    puzzle, image = Jigsaw(2, tiles=2, count=10), crops(4, 1, 8, 8)
    first, same, other = (puzzle.draw(image, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_draw_covers_only_the_existing_orders():
    assert Jigsaw(2, tiles=2, count=10).draw(crops(3, 1, 8, 3), seeded()).shape == (3, 2)


def test_orders_are_not_part_of_a_checkpoint():
    assert not Jigsaw(3, tiles=2, count=4).state_dict()


MUTATIONS = [
    Mutation(
        "leaves the tiles in place",
        "pieces = pieces[rows, order].reshape",
        "pieces = pieces.reshape",
        "test_position_n_shows_tile_order_n",
        file="views/jigsaw.py",
    ),
    Mutation(
        "applies the inverse order",
        "pieces[rows, order]",
        "pieces[rows, order.argsort(1)]",
        "test_position_n_shows_tile_order_n",
        file="views/jigsaw.py",
    ),
    Mutation(
        "uses one order for all images",
        "pieces[rows, order]",
        "pieces[rows, order[:1]]",
        "test_rearranging_agrees_with_copying_slices",
        {"sides": (6, 9), "cuts": (2, 3)},
        file="views/jigsaw.py",
    ),
    Mutation(
        "chooses orders that are close to each other",
        "int(distance.argmax())",
        "int(np.where(distance > 0, distance, 99).argmin())",
        "test_each_further_order_is_as_far_from_the_others_as_possible",
        file="views/jigsaw.py",
    ),
    Mutation(
        "is off by one in the index of an order",
        "self.orders(sides)[number]",
        "self.orders(sides)[number - 1]",
        "test_index_of_a_crop_selects_its_order",
        {"sides": (8, 8)},
        file="views/jigsaw.py",
    ),
    Mutation(
        "draws global random numbers",
        "generator=generator, device",
        "device",
        "test_draw_depends_only_on_the_generator",
        file="views/jigsaw.py",
    ),
]


def test_remainder_of_a_side_stays_in_place():
    image = crops(1, 1, 9, 8)
    shuffled = rearrange_tiles(image, torch.tensor([[3, 2, 1, 0]]), (2, 2))
    assert torch.equal(shuffled[..., 8:, :], image[..., 8:, :])
    assert not torch.equal(shuffled[..., :8, :], image[..., :8, :])
