"""The entropy loss against values worked out by hand and against torch."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Bernoulli

from segpl.losses import entropy_loss


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def logit(*probabilities: float) -> torch.Tensor:
    """(1, 1, N) logits of the given probabilities."""
    return torch.logit(torch.tensor([[probabilities]], dtype=torch.float64))


def test_entropy_at_one_half_is_one_bit():
    assert entropy_loss(logit(0.5), torch.ones(1, 1, 1)).item() == pytest.approx(math.log(2))


def test_entropy_of_two_voxels_by_hand():
    """At 0.75, 2 log 2 - 0.75 log 3; at 0.5, log 2."""
    expected = (2 * math.log(2) - 0.75 * math.log(3) + math.log(2)) / 2
    assert entropy_loss(logit(0.75, 0.5), torch.ones(1, 1, 2)).item() == pytest.approx(expected)


def test_entropy_is_symmetric():
    weight = torch.ones(1, 1, 1)
    one, other = (entropy_loss(logit(p), weight).item() for p in (0.2, 0.8))
    assert one == pytest.approx(other)


@pytest.mark.parametrize("channels", [1, 3])
def test_entropy_agrees_with_torch(channels):
    logits = noise(2, channels, 5, 6, 7)
    theirs = Bernoulli(logits=logits).entropy().mean()
    assert entropy_loss(logits, torch.ones_like(logits)).item() == pytest.approx(
        theirs.item(), rel=1e-4
    )


def test_entropy_is_a_weighted_mean():
    weight = torch.tensor([[[1.0, 0.0, 1.0]]])
    expected = Bernoulli(torch.tensor([0.1, 0.3])).entropy().mean()
    value = entropy_loss(logit(0.1, 0.5, 0.3), weight)
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
    logits = noise(1, 2, 3, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda values: entropy_loss(values, weight), [logits])


def test_gradient_at_one_half_is_zero():
    """At its maximum, the entropy prefers neither class."""
    logits = torch.zeros(1, 1, 1, requires_grad=True)
    entropy_loss(logits, torch.ones(1, 1, 1)).backward()
    assert logits.grad.item() == 0
