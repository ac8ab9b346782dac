from __future__ import annotations

import math

import pytest
import torch

from segpl.threshold.logit_normal import LogitNormalFamily
from segpl.threshold.normal import Normal, NormalFamily


def prior(mean: float = 0.5, std: float = 0.1) -> Normal:
    return NormalFamily().prior(torch.tensor(mean), torch.tensor(std))


def test_cumulative_probability_is_that_of_torch():
    value = torch.linspace(-0.2, 1.2, 29)
    theirs = torch.distributions.Normal(0.6, 0.15).cdf(value)
    assert torch.allclose(prior(0.6, 0.15).cdf(value), theirs, atol=1e-6)


def test_first_number_counts_spreads_and_the_second_is_the_log_of_the_width():
    """Half of a log is limited to 0.493: 0.5 / sqrt(1 + (0.5 / 3)^2)."""
    numbers = torch.tensor([2.0, 0.5])
    posterior = NormalFamily().posterior(numbers, torch.tensor(0.5), torch.tensor(0.1))
    assert posterior.mean.item() == pytest.approx(0.7)
    assert posterior.std.item() == pytest.approx(0.1 * math.exp(0.493), rel=1e-3)


def test_spread_is_at_most_e_cubed_times_wider_or_narrower():
    numbers = torch.tensor([[0.0, 0.0], [1e4, -1e4]])
    posterior = NormalFamily().posterior(numbers, torch.tensor(0.5), torch.tensor(0.1))
    expected = [0.1 * math.exp(3), 0.1 * math.exp(-3)]
    assert posterior.std.tolist() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("log_variance", [-1000.0, 1000.0])
def test_spread_of_zero_or_beyond_all_floats_has_finite_cumulative_probabilities(log_variance):
    """The head of the paper has no limit."""
    logs = torch.tensor(log_variance, requires_grad=True)
    mean = torch.tensor(0.5, requires_grad=True)
    below = Normal(mean, logs).cdf(torch.tensor([0.0, 0.5, 1.0]))
    assert below.isfinite().all()
    assert all(grad.isfinite() for grad in torch.autograd.grad(below.sum(), [mean, logs]))


def test_prior_in_double_precision_leaves_a_posterior_in_single():
    numbers = torch.tensor([0.5, 0.1], dtype=torch.float64)
    divergence = prior(0.6).kl(NormalFamily().prior(*numbers))
    assert divergence.dtype == torch.float32
    assert divergence.item() == pytest.approx(0.5, rel=1e-6)


def test_prior_of_another_family_is_our_own_bug():
    other = LogitNormalFamily().prior(torch.tensor(0.5), torch.tensor(0.1))
    with pytest.raises(AssertionError, match="has a normal prior"):
        prior().kl(other)
