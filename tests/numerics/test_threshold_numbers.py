"""The normal threshold against torch.distributions, integrals and large samples."""

from __future__ import annotations

import math

import pytest
import torch

from segpl.threshold.normal import Normal

CASES = [(0.7, 0.05, 0.4, 0.2), (-0.5, 1.5, 0.5, 1.0)]
some_pairs = pytest.mark.parametrize(("mean", "std", "prior_mean", "prior_std"), CASES)


def normal(mean: float, std: float) -> Normal:
    return Normal(torch.tensor(mean).double(), torch.tensor(2 * math.log(std)).double())


@some_pairs
def test_kl_agrees_with_torch_distributions(mean, std, prior_mean, prior_std):
    theirs = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, std), torch.distributions.Normal(prior_mean, prior_std)
    )
    ours = normal(mean, std).kl(normal(prior_mean, prior_std))
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-4, abs=1e-5)


@some_pairs
def test_kl_agrees_with_numerical_integration(mean, std, prior_mean, prior_std):
    grid = torch.linspace(mean - 12 * std, mean + 12 * std, 200_001, dtype=torch.float64)

    def log_density(center: float, width: float) -> torch.Tensor:
        scaled = (grid - center) / width
        return -0.5 * scaled**2 - math.log(width) - 0.5 * math.log(2 * math.pi)

    q, p = log_density(mean, std), log_density(prior_mean, prior_std)
    integral = torch.trapezoid(q.exp() * (q - p), grid)
    ours = normal(mean, std).kl(normal(prior_mean, prior_std))
    assert ours.item() == pytest.approx(integral.item(), rel=1e-5, abs=1e-8)


def test_kl_at_one_std_from_the_prior_is_one_half():
    """By hand: with equal stds, the KL is (mu - mu_beta)^2 / (2 sigma_beta^2)."""
    assert normal(0.6, 0.1).kl(normal(0.5, 0.1)).item() == pytest.approx(0.5)


def test_kl_to_itself_is_zero_and_grows_symmetrically():
    at, below, above = (normal(mean, 0.1).kl(normal(0.5, 0.1)).item() for mean in (0.5, 0.4, 0.6))
    assert at == pytest.approx(0, abs=1e-12)
    assert below == pytest.approx(above)
    assert below > 0


def test_samples_have_the_mean_and_std_of_the_distribution():
    """Standard errors are 0.0004 and 0.0003."""
    count = 100_000
    q = Normal(torch.full((count,), 0.4), torch.full((count,), 2 * math.log(0.13)))
    draws = q.sample(torch.Generator().manual_seed(0))
    assert draws.mean().item() == pytest.approx(0.4, abs=0.004)
    assert draws.std().item() == pytest.approx(0.13, abs=0.004)


def test_sample_is_the_mean_plus_noise_times_the_std():
    """The derivative is 1 in the mean and half the deviation in the log variance."""
    mean = torch.tensor(0.4, requires_grad=True)
    log_variance = torch.tensor(-2.0, requires_grad=True)
    draw = Normal(mean, log_variance).sample(torch.Generator().manual_seed(0))
    draw.backward()
    assert mean.grad.item() == 1
    assert log_variance.grad.item() == pytest.approx(0.5 * (draw - mean).item())


def test_same_generator_state_gives_the_same_sample():
    q = normal(0.5, 0.1)
    first, second = (q.sample(torch.Generator().manual_seed(7)) for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, q.sample(torch.Generator().manual_seed(8)))
