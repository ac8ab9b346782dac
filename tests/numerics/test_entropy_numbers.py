"""The entropy of predictions against numbers worked out by hand, and against torch."""

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


def test_entropy_of_an_undecided_voxel_is_one_bit():
    assert entropy_loss(logit(0.5), torch.ones(1, 1, 1)).item() == pytest.approx(math.log(2))


def test_entropy_of_two_voxels_is_the_number_on_paper():
    """At 0.75, 2 log 2 - 0.75 log 3; at 0.5, log 2."""
    expected = (2 * math.log(2) - 0.75 * math.log(3) + math.log(2)) / 2
    assert entropy_loss(logit(0.75, 0.5), torch.ones(1, 1, 2)).item() == pytest.approx(expected)


def test_entropy_is_the_same_for_an_answer_and_its_opposite():
    weight = torch.ones(1, 1, 1)
    one, other = (entropy_loss(logit(p), weight).item() for p in (0.2, 0.8))
    assert one == pytest.approx(other)


@pytest.mark.parametrize("channels", [1, 3])
def test_entropy_agrees_with_torch(channels):
    logits = noise(2, channels, 5, 6, 7)
    theirs = Bernoulli(logits=logits).entropy().mean()
    assert entropy_loss(logits, torch.ones_like(logits)).item() == pytest.approx(theirs.item())


def test_entropy_is_the_mean_over_voxels_that_count():
    weight = torch.tensor([[[1.0, 0.0, 1.0]]])
    expected = Bernoulli(torch.tensor([0.1, 0.3])).entropy().mean()
    value = entropy_loss(logit(0.1, 0.5, 0.3), weight)
    assert value.item() == pytest.approx(expected.item())


def test_entropy_without_any_voxel_is_zero():
    assert entropy_loss(noise(1, 1, 4), torch.zeros(1, 1, 4)).item() == 0


def test_entropy_of_certain_answers_is_zero_with_a_finite_gradient():
    logits = torch.tensor([[[-1e4, -200.0, 200.0, 1e4]]], requires_grad=True)
    value = entropy_loss(logits, torch.ones(1, 1, 4))
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-30)
    assert logits.grad.isfinite().all()


def test_entropy_of_nearly_certain_answers_does_not_cancel():
    """At a logit of 30 the entropy is 31 e^-30, far below what single precision adds to 1."""
    value = entropy_loss(torch.tensor([[[30.0, -30.0]]]), torch.ones(1, 1, 2))
    assert value.item() == pytest.approx(31 * math.exp(-30), rel=1e-5)


def test_gradient_of_the_entropy_agrees_with_finite_differences():
    weight = torch.ones(1, 2, 3, 3, dtype=torch.float64)
    weight[..., 0] = 0
    logits = noise(1, 2, 3, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda values: entropy_loss(values, weight), [logits])


def test_gradient_of_an_undecided_voxel_is_zero():
    """The entropy is flat at its top: it does not choose for the network."""
    logits = torch.zeros(1, 1, 1, requires_grad=True)
    entropy_loss(logits, torch.ones(1, 1, 1)).backward()
    assert logits.grad.item() == 0
