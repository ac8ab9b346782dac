"""The loss on the grid of the image and on coarser ones."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from segpl.errors import InputError
from segpl.losses import (
    LOSSES,
    coarser,
    cross_entropy,
    dice_cross_entropy,
    labeled_loss,
    loss_over_levels,
    supervised_loss,
)
from segpl.types import IGNORE, NetOutput


def output_of(logits: Tensor, *coarse: Tensor) -> NetOutput:
    return NetOutput(logits, logits, logits, coarse)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def labels(*shape: int, classes: int = 3) -> Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(7))


def same_everywhere(distance: float, *shape: int) -> Tensor:
    return torch.full(shape, distance)


def test_three_grids_count_as_4_2_and_1_of_7():
    """By hand: with logits of 0, 1 and 2 against class 1, softplus of their negatives."""
    label = torch.ones(1, 8, dtype=torch.int64)
    grids = [same_everywhere(float(z), 1, 1, 8 >> z) for z in range(3)]
    parts = [0.693147, 0.313262, 0.126928]
    expected = (4 * parts[0] + 2 * parts[1] + 1 * parts[2]) / 7
    loss = labeled_loss(output_of(*grids), label, cross_entropy)
    assert loss.item() == pytest.approx(expected, abs=1e-5)


def test_each_grid_has_the_labels_of_every_second_and_every_fourth_voxel():
    """By hand: one channel, 8 voxels; certain where right, and wrong only where not looked at."""
    label = torch.tensor([[1, 0, 0, 1, 1, 0, 0, 1]])  # at 0, 2, 4, 6: 1 0 1 0; at 0, 4: 1 1
    half = torch.tensor([[[30.0, -30.0, 30.0, -30.0]]])
    quarter = torch.tensor([[[30.0, 30.0]]])
    fine = (label * 60.0 - 30.0).unsqueeze(1)
    assert labeled_loss(output_of(fine, half, quarter), label, cross_entropy).item() < 1e-6
    flipped = labeled_loss(output_of(fine, -half, quarter), label, cross_entropy).item()
    assert flipped == pytest.approx(30 * 2 / 7)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("outputs", [1, 3])
def test_several_grids_are_the_weighted_mean_of_the_losses_of_each(loss, outputs):
    label = labels(2, 4, 8, 8, classes=max(2, outputs))
    label[:, :, :2] = IGNORE
    # an axis that is kept, then all halved
    grids = [random(2, outputs, *sides) for sides in [(4, 8, 8), (4, 4, 4), (2, 2, 2)]]
    there = [label, label[:, :, ::2, ::2], label[:, ::2, ::4, ::4]]
    parts = [supervised_loss(*pair, loss).item() for pair in zip(grids, there, strict=True)]
    found = labeled_loss(output_of(*grids), label, loss).item()
    assert found == pytest.approx((parts[0] + parts[1] / 2 + parts[2] / 4) / 1.75, rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_without_coarser_grids_it_is_the_loss_to_the_bit(loss):
    logits, label = random(2, 3, 8, 8), labels(2, 8, 8)
    assert torch.equal(
        labeled_loss(output_of(logits), label, loss), supervised_loss(logits, label, loss)
    )


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("outputs", [1, 3])
def test_ignored_voxels_of_a_coarse_grid_change_nothing(loss, outputs):
    label = labels(1, 8, 8, classes=max(2, outputs))
    label[:, :4] = IGNORE
    logits, half = random(1, outputs, 8, 8), random(1, outputs, 4, 4).requires_grad_()
    labeled_loss(output_of(logits, half), label, loss).backward()
    assert half.grad[:, :, :2].eq(0).all()
    assert half.grad[:, :, 2:].ne(0).all()


def test_label_that_is_ignored_everywhere_costs_nothing_on_any_grid():
    label = torch.full((1, 8, 8), IGNORE)
    half = random(1, 1, 4, 4).requires_grad_()
    loss = labeled_loss(output_of(random(1, 1, 8, 8), half), label, dice_cross_entropy)
    loss.backward()
    assert loss.item() == 0
    assert half.grad.eq(0).all()


def test_soft_targets_and_weights_are_taken_at_the_same_voxels():
    target, weight = random(2, 3, 8, 8).sigmoid(), random(2, 3, 8, 8, seed=1).sigmoid()
    fine, half = random(2, 3, 8, 8, seed=2), random(2, 3, 4, 4, seed=3)
    found = loss_over_levels(output_of(fine, half), target, weight, cross_entropy)
    there = target[..., ::2, ::2], weight[..., ::2, ::2]
    expected = (
        2 * cross_entropy(fine, target, weight).item() + cross_entropy(half, *there).item()
    ) / 3
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_voxel_of_a_coarse_grid_is_the_one_that_a_strided_convolution_is_centered_on():
    """A kernel that reads its center alone is what `coarser` does."""
    values = random(1, 1, 8, 6)
    kernel = torch.zeros(1, 1, 3, 3)
    kernel[..., 1, 1] = 1
    strided = torch.nn.functional.conv2d(values, kernel, stride=(2, 1), padding=1)
    assert torch.equal(coarser(values, (4, 6)), strided)


def test_label_with_a_channel_axis_is_refused():
    label = torch.zeros(2, 1, 4, 4, dtype=torch.int64)
    with pytest.raises(InputError, match=r"drop it with label\.squeeze\(1\)"):
        labeled_loss(output_of(torch.zeros(2, 1, 4, 4)), label, cross_entropy)
