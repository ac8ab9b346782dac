from __future__ import annotations

import math

import pytest
import torch

from segpl.threshold.normal import Normal, NormalFamily


def prior(mean: float = 0.5, std: float = 0.1) -> Normal:
    return NormalFamily().prior(torch.tensor(mean), torch.tensor(std))


def test_cdf_agrees_with_torch():
    value = torch.linspace(-0.2, 1.2, 29)
    theirs = torch.distributions.Normal(0.6, 0.15).cdf(value)
    assert torch.allclose(prior(0.6, 0.15).cdf(value), theirs, atol=1e-5)


def test_offsets_are_a_shift_in_stds_and_a_log_scale():
    """soft_clip turns 0.5 into 0.5 / sqrt(1 + (0.5 / 3)^2) = 0.493."""
    offsets = torch.tensor([2.0, 0.5])
    posterior = NormalFamily().posterior(offsets, torch.tensor(0.5), torch.tensor(0.1))
    assert posterior.mean.item() == pytest.approx(0.7)
    assert posterior.std.item() == pytest.approx(0.1 * math.exp(0.493), rel=1e-3)


@pytest.mark.parametrize("log_variance", [-1000.0, 1000.0])
def test_cdf_is_finite_for_any_log_variance(log_variance):
    """The head of SegPL-VI is unbounded."""
    logs = torch.tensor(log_variance, requires_grad=True)
    mean = torch.tensor(0.5, requires_grad=True)
    below = Normal(mean, logs).cdf(torch.tensor([0.0, 0.5, 1.0]))
    assert below.isfinite().all()
    assert all(grad.isfinite() for grad in torch.autograd.grad(below.sum(), [mean, logs]))


def test_kl_to_a_float64_prior_is_float32():
    moments = torch.tensor([0.5, 0.1], dtype=torch.float64)
    divergence = prior(0.6).kl(NormalFamily().prior(*moments))
    assert divergence.dtype == torch.float32
    assert divergence.item() == pytest.approx(0.5, rel=1e-5)


def test_std_changes_at_most_by_a_factor_of_e_cubed():
    offsets = torch.tensor([[0.0, 0.0], [1e4, -1e4]])
    posterior = NormalFamily().posterior(offsets, torch.tensor(0.5), torch.tensor(0.1))
    expected = [0.1 * math.exp(3), 0.1 * math.exp(-3)]
    assert posterior.std.tolist() == pytest.approx(expected, rel=1e-3)


def test_small_divergence_keeps_its_precision():
    """KL of two normals with one mean: (exp(r) - r - 1) / 2 for variances with log ratio r."""
    wide = Normal(torch.tensor(0.5), torch.tensor(-4.0))
    near = Normal(torch.tensor(0.5), torch.tensor(-4.0 + 2**-10))
    expected = (math.expm1(2**-10) - 2**-10) / 2  # 4.8e-7
    assert near.kl(wide).item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("mean", "std"), [(0.7, 0.05), (-0.5, 1.5)])
def test_kl_agrees_with_torch(mean, std):
    theirs = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, std), torch.distributions.Normal(0.4, 0.2)
    )
    assert prior(mean, std).kl(prior(0.4, 0.2)).item() == pytest.approx(theirs.item(), rel=1e-4)


def test_sample_is_the_mean_plus_noise_times_the_std():
    """The derivative is 1 in the mean and half the deviation in the log variance."""
    mean = torch.tensor(0.4, requires_grad=True)
    log_variance = torch.tensor(-2.0, requires_grad=True)
    draw = Normal(mean, log_variance).sample(torch.Generator().manual_seed(0))
    draw.backward()
    assert mean.grad.item() == 1
    assert log_variance.grad.item() == pytest.approx(0.5 * (draw - mean).item())
