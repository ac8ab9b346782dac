from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from segpl.views.masking import blocks_along, draw_hidden, hidden_error, without


def drawn(count: int, sides: tuple[int, ...], share: float = 0.6, seed: int = 0) -> torch.Tensor:
    return draw_hidden(count, sides, share, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("sides", "blocks"),
    [
        ((128, 64), (8, 8)),
        ((32, 32, 32), (8, 8, 8)),
        ((24, 16), (6, 4)),
        ((30, 9), (7, 2)),
        ((64, 64, 3), (8, 8, 1)),
    ],
)
def test_blocks_are_an_eighth_of_each_side_and_at_least_four_voxels(sides, blocks):
    assert blocks_along(sides) == blocks


@pytest.mark.parametrize("sides", [(64, 64), (32, 32, 32)])
def test_share_is_the_same_for_every_crop(sides):
    hidden = drawn(5, sides)
    assert hidden.shape == (5, 1, *sides)
    shares = hidden.flatten(1).float().mean(1)
    total = 8 ** len(sides)
    assert shares.tolist() == pytest.approx([round(0.6 * total) / total] * 5)


def test_voxels_are_hidden_in_whole_blocks():
    blocks = drawn(3, (32, 64)).reshape(3, 8, 4, 8, 8).float().mean((2, 4))
    assert set(blocks.unique().tolist()) == {0.0, 1.0}


def test_side_that_is_no_multiple_is_cut_into_blocks_of_four_or_five_voxels():
    hidden = drawn(40, (30, 4))[:, 0, :, 0]  # (B, 30)
    ends = (hidden[:, 1:] != hidden[:, :-1]).any(0).nonzero()[:, 0] + 1
    starts = [0, *ends.tolist(), 30]
    assert {last - first for first, last in pairwise(starts)} == {4, 5}


def test_thin_side_is_hidden_or_shown_as_a_whole():
    hidden = drawn(4, (32, 32, 3))
    assert (hidden == hidden[..., :1]).all()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.99, 1.0])
def test_something_is_hidden_and_something_is_shown_whatever_the_share(share):
    hidden = drawn(2, (16, 16), share).flatten(1)
    assert hidden.any(1).all()
    assert not hidden.all(1).any()


def test_crops_differ_and_the_generator_decides():
    hidden = drawn(2, (32, 32))
    assert not torch.equal(hidden[0], hidden[1])
    assert torch.equal(hidden, drawn(2, (32, 32)))
    assert not torch.equal(hidden, drawn(2, (32, 32), seed=1))


def test_hidden_voxels_are_zero_in_every_channel_and_others_stay():
    image = torch.rand(2, 3, 16, 16) + 1
    hidden = drawn(2, (16, 16))
    seen = without(image, hidden)
    everywhere = hidden.expand_as(image)
    assert (seen[everywhere] == 0).all()
    assert torch.equal(seen[~everywhere], image[~everywhere])


def test_error_of_two_channels_is_the_number_on_paper():
    """Hidden are two of three voxels with errors 1, 2 and 3, 0: (1 + 4 + 9 + 0) / (2 * 2)."""
    image = torch.zeros(1, 2, 3, 1)
    answer = torch.tensor([[1.0, 3.0, 50.0], [2.0, 0.0, 50.0]]).reshape(1, 2, 3, 1)
    hidden = torch.tensor([True, True, False]).reshape(1, 1, 3, 1)
    assert hidden_error(answer, image, hidden).item() == pytest.approx(14 / 4)


def test_voxels_that_are_shown_neither_count_nor_have_a_gradient():
    image, hidden = torch.rand(2, 1, 16, 16), drawn(2, (16, 16))
    answer = torch.where(hidden, 0.5, torch.nan).requires_grad_()
    loss = hidden_error(answer, image, hidden)
    loss.backward()
    assert loss.isfinite()
    assert torch.equal(answer.grad != 0, hidden)


def test_where_nothing_is_hidden_it_costs_nothing():
    image = torch.rand(1, 1, 4, 4)
    assert hidden_error(image + 1, image, torch.zeros(1, 1, 4, 4, dtype=torch.bool)).item() == 0
