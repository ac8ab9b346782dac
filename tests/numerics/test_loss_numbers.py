"""Losses against values worked out by hand and against other libraries."""

from __future__ import annotations

import math

import pytest
import torch
from monai.losses import DiceLoss
from torch.distributions import Bernoulli

from segpl.losses import (
    LOSSES,
    cross_entropy,
    dice_cross_entropy,
    dice_loss,
    entropy_loss,
    foreground_fraction,
    squared_error,
    supervised_loss,
    targets_of,
    voxelwise_entropy,
)
from segpl.types import IGNORE


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def logit(*probabilities: float) -> torch.Tensor:
    """(1, 1, N) logits of the given probabilities."""
    return torch.logit(torch.tensor([[probabilities]], dtype=torch.float64))


def row(*values: float) -> torch.Tensor:
    return torch.tensor([[values]], dtype=torch.float64)


def test_dice_excludes_voxels_of_weight_zero():
    """Without the second voxel: overlap 0.9, sums 1.2 and 1, so (1.8 + 1) / (2.2 + 1)."""
    loss = dice_loss(logit(0.9, 0.6, 0.2, 0.1), row(1, 1, 0, 0), row(1, 0, 1, 1))
    assert loss.item() == pytest.approx(1 - 2.8 / 3.2)


@pytest.mark.parametrize(("dims", "channels"), [(2, 1), (3, 3)])
def test_dice_agrees_with_monai(dims, channels):
    """MONAI adds `smooth_nr` and `smooth_dr` where we add EPSILON = 1 voxel to both."""
    logits = noise(2, channels, *[6] * dims)
    target = (noise(2, channels, *[6] * dims, seed=1) > 0.5).float()
    theirs = DiceLoss(sigmoid=True, smooth_nr=1.0, smooth_dr=1.0)(logits, target)
    assert dice_loss(logits, target, torch.ones_like(target)).item() == pytest.approx(
        theirs.item(), rel=1e-4
    )


def test_cross_entropy_is_a_weighted_mean():
    loss = cross_entropy(logit(0.8, 0.3, 0.5), row(1, 0, 1), row(1, 0, 1))
    assert loss.item() == pytest.approx(-(math.log(0.8) + math.log(0.5)) / 2)


@pytest.mark.parametrize("channels", [1, 3])
def test_cross_entropy_agrees_with_torch(channels):
    logits = noise(2, channels, 5, 6, 7)
    target = (noise(2, channels, 5, 6, 7, seed=1) > 0).float()
    theirs = torch.nn.BCEWithLogitsLoss()(logits, target)
    loss = cross_entropy(logits, target, torch.ones_like(target))
    assert loss.item() == pytest.approx(theirs.item(), rel=1e-4)


def test_dice_cross_entropy_is_the_mean_of_both():
    arguments = logit(0.9, 0.6, 0.2), row(1, 1, 0), row(1, 1, 1)
    expected = (dice_loss(*arguments) + cross_entropy(*arguments)) / 2
    assert dice_cross_entropy(*arguments).item() == pytest.approx(expected.item())


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_multi_class_loss_is_the_mean_of_the_one_vs_rest_losses(loss):
    logits = noise(2, 3, 4, 5, 6)
    label = torch.randint(0, 3, (2, 4, 5, 6), generator=torch.Generator().manual_seed(1))
    label[:, 0] = IGNORE
    binary = []
    for number in range(3):
        one = torch.where(label == IGNORE, IGNORE, (label == number).long())
        binary.append(supervised_loss(logits[:, number : number + 1], one, loss).item())
    together = supervised_loss(logits, label, loss).item()
    assert together == pytest.approx(sum(binary) / 3, rel=1e-4)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("outputs", [1, 3])
def test_padding_with_ignored_voxels_does_not_change_the_loss(loss, outputs):
    logits = noise(2, outputs, 4, 4)
    label = torch.randint(0, 2, (2, 4, 4), generator=torch.Generator().manual_seed(1))
    wider = torch.nn.functional.pad(logits, (1, 2, 3, 0), value=7.0)
    padded = torch.nn.functional.pad(label, (1, 2, 3, 0), value=IGNORE)
    plain = supervised_loss(logits, label, loss).item()
    assert supervised_loss(wider, padded, loss).item() == pytest.approx(plain, rel=1e-4)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_gradient_agrees_with_finite_differences(loss):
    target = (noise(1, 2, 3, 3, seed=1) > 0).double()
    weight = torch.ones_like(target)
    weight[..., 0] = 0
    logits = noise(1, 2, 3, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda values: loss(values, target, weight), [logits])


def test_binary_targets_mark_class_one_and_known_voxels():
    target, weight = targets_of(torch.tensor([[0, 1, IGNORE]]), 1)
    assert target.tolist() == [[[0.0, 1.0, 0.0]]]
    assert weight.tolist() == [[[1.0, 1.0, 0.0]]]


def test_every_class_has_its_own_target_channel():
    target, weight = targets_of(torch.tensor([[0, 2, 1, IGNORE]]), 3)
    assert target.tolist() == [[[1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 0, 0]]]
    assert weight.tolist() == [[[1, 1, 1, 0]] * 3]


def test_foreground_fraction_counts_known_voxels():
    """One of three known voxels is class 1."""
    assert foreground_fraction(*targets_of(torch.tensor([[0, 1, IGNORE, 0]]), 1)).item() == (
        pytest.approx(1 / 3)
    )


def test_foreground_of_many_classes_is_all_but_the_first():
    """Two of three known voxels are class 1 or 2."""
    assert foreground_fraction(*targets_of(torch.tensor([[0, 1, 2, IGNORE]]), 3)).item() == (
        pytest.approx(2 / 3)
    )


def test_squared_error_is_a_mean_over_the_counted_voxels_of_each_channel():
    """By hand: 0.25 in the first channel, (0.25 + 0.04) / 2 in the second."""
    logits = torch.zeros((1, 2, 2))
    target = torch.tensor([[[1.0, 0.7], [0.0, 0.7]]])
    weight = torch.tensor([[[1.0, 0.0], [1.0, 1.0]]])
    expected = (0.25 + (0.25 + 0.04) / 2) / 2
    assert squared_error(logits, target, weight).item() == pytest.approx(expected)
    assert squared_error(logits, target, torch.zeros_like(weight)).item() == 0


@pytest.mark.parametrize(
    ("probability", "nats"), [(0.0, 0), (0.2, 0.500402), (0.5, math.log(2)), (1.0, 0)]
)
def test_voxelwise_entropy_is_that_of_a_binary_variable(probability, nats):
    """By hand: -0.2 ln 0.2 - 0.8 ln 0.8 = 0.500402."""
    assert voxelwise_entropy(torch.tensor(probability)).item() == pytest.approx(nats, abs=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
def test_entropy_agrees_with_torch(channels):
    logits = 3 * noise(2, channels, 5, 6, 7)
    theirs = Bernoulli(logits=logits).entropy().mean()
    assert entropy_loss(logits, torch.ones_like(logits)).item() == pytest.approx(
        theirs.item(), rel=1e-4
    )


def test_entropy_is_a_weighted_mean():
    expected = Bernoulli(torch.tensor([0.1, 0.3])).entropy().mean()
    value = entropy_loss(logit(0.1, 0.5, 0.3), row(1, 0, 1))
    assert value.item() == pytest.approx(expected.item(), rel=1e-4)


def test_entropy_without_any_voxel_is_zero():
    assert entropy_loss(noise(1, 1, 4), torch.zeros(1, 1, 4)).item() == 0


def test_entropy_of_saturated_logits_is_zero_with_a_finite_gradient():
    logits = torch.tensor([[[-1e4, -200.0, 200.0, 1e4]]], requires_grad=True)
    value = entropy_loss(logits, torch.ones(1, 1, 4))
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-30)
    assert logits.grad.isfinite().all()


def test_entropy_of_large_logits_does_not_cancel():
    """At a logit of 30 the entropy is 31 e^-30, far below the resolution of float32 near 1."""
    value = entropy_loss(torch.tensor([[[30.0, -30.0]]]), torch.ones(1, 1, 2))
    assert value.item() == pytest.approx(31 * math.exp(-30), rel=1e-4)


def test_gradient_of_the_entropy_agrees_with_finite_differences():
    weight = torch.ones(1, 2, 3, 3, dtype=torch.float64)
    weight[..., 0] = 0
    logits = 3 * noise(1, 2, 3, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda values: entropy_loss(values, weight), [logits])
