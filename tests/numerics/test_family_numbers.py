"""Every threshold family against numerical integration, large samples and finite differences.

A new family is tested automatically.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import Recorded
from torch import Tensor

from segpl.threshold.base import FAMILIES, Distribution, Prior
from segpl.threshold.parameters import clip_moments

UNBOUNDED = {"normal"}  # families with samples outside (0, 1)
BOUNDED = [name for name in FAMILIES.names if name not in UNBOUNDED]
PRIORS = [(0.9, 0.1), (0.3, 0.05), (0.7, 0.2)]
every_family = pytest.mark.parametrize("name", FAMILIES.names)
bounded_family = pytest.mark.parametrize("name", BOUNDED)
some_priors = pytest.mark.parametrize(("mean", "std"), PRIORS)
double = torch.float64


def some_offsets(name: str, *shape: int, seed: int = 0, size: float = 0.7) -> Tensor:
    """Offsets of a posterior that differs from its prior."""
    generator = torch.Generator().manual_seed(seed)
    count = FAMILIES.get(name).parameters
    noise = torch.randn(count, generator=generator, dtype=double) * size
    return noise.view(count, *[1] * len(shape)).expand(count, *shape)


def pair(name: str, mean: float, std: float, offsets: Tensor) -> tuple[Distribution, Prior]:
    family = FAMILIES.get(name)()
    moments = torch.tensor(mean, dtype=double), torch.tensor(std, dtype=double)
    return family.posterior(offsets, *moments), family.prior(*moments)


def edges(name: str, distribution: Prior) -> Tensor:
    """Edges of 20,000 cells that cover all mass, finest at the ends of (0, 1).

    They include the multiples of 0.01, where the density may jump.
    """
    if name in UNBOUNDED:
        steps = torch.linspace(-8, 8, 20_001, dtype=double)
        return distribution.mean + distribution.std * steps
    ends = torch.linspace(-30, 30, 15_001, dtype=double).sigmoid()
    return torch.cat([ends, torch.linspace(0, 1, 5_001, dtype=double)]).sort().values


@every_family
@some_priors
def test_kl_agrees_with_a_sum_over_fine_cells(name, mean, std):
    posterior, prior = pair(name, mean, std, some_offsets(name))
    grid = edges(name, posterior)
    q, p = (distribution.cdf(grid).diff() for distribution in (posterior, prior))
    seen = q > 1e-13  # the rest is rounding error of a CDF near 1
    expected = (q[seen] * (q[seen] / p[seen].clamp(min=1e-18)).log()).sum()
    # the CDF may be a table, with a constant density between its entries
    tolerance = {"rel": 6e-3, "abs": 5e-4}
    assert posterior.kl(prior).item() == pytest.approx(expected.item(), **tolerance)


@every_family
@some_priors
def test_mean_and_std_agree_with_integrals_of_the_cdf(name, mean, std):
    r"""By parts: E[T] = high - int F, and E[T^2] = high^2 - 2 int v F."""
    for distribution in pair(name, mean, std, some_offsets(name)):
        grid = edges(name, distribution)
        below = distribution.cdf(grid)
        first = grid[-1] - torch.trapezoid(below, grid)
        second = grid[-1] ** 2 - 2 * torch.trapezoid(grid * below, grid)
        assert distribution.mean.item() == pytest.approx(first.item(), abs=2e-4)
        assert distribution.std.item() == pytest.approx((second - first**2).sqrt().item(), abs=4e-4)


@every_family
def test_samples_follow_the_cdf_and_have_the_mean_and_std(name):
    """The Kolmogorov distance of 400 samples exceeds 0.0975 with probability 0.001."""
    count = 400
    shape = torch.zeros(count, dtype=double)
    family = FAMILIES.get(name)()
    moments = shape + 0.7, shape + 0.15
    posterior = family.posterior(some_offsets(name, count), *moments)
    draws = posterior.sample(torch.Generator().manual_seed(0))
    assert draws.shape == (count,)
    ordered = draws.sort().values
    ranks = torch.arange(1, count + 1, dtype=double) / count
    assert (posterior.cdf(ordered) - ranks).abs().max().item() < 0.0975
    mean, std = posterior.mean[0].item(), posterior.std[0].item()
    assert draws.mean().item() == pytest.approx(mean, abs=4 * std / count**0.5)
    assert draws.std().item() == pytest.approx(std, rel=0.15)


@every_family
def test_prior_and_anchor_have_the_given_mean_and_std(name):
    """In float32, for means from 0.02 to 0.98 and all possible stds."""
    family = FAMILIES.get(name)()
    grid = torch.linspace(0.02, 0.98, 9).unsqueeze(1)
    mean, std = clip_moments(grid, grid.new_tensor([0.012, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5]))
    mean = mean.expand_as(std)
    start = family.posterior(torch.zeros(family.parameters, *std.shape), mean, std)
    for one in (start, family.prior(mean, std)):
        assert (one.mean - mean).abs().max().item() < 5e-4
        assert (one.std / std - 1).abs().max().item() < 5e-3


@every_family
@some_priors
def test_kl_is_small_at_the_anchor_and_grows_from_there(name, mean, std):
    """Zero if the posterior can be the prior; a Kumaraswamy is only close to a Beta."""
    count = FAMILIES.get(name).parameters
    start, prior = pair(name, mean, std, torch.zeros(count, dtype=double))
    same = type(start) is type(prior)
    assert -1e-9 <= start.kl(prior).item() < (1e-9 if same else 0.05)
    posterior, prior = pair(name, mean, std, some_offsets(name))
    assert posterior.kl(prior).item() > 0.05


@every_family
def test_gradients_of_cdf_and_kl_agree_with_finite_differences(name):
    offsets = some_offsets(name).clone().requires_grad_()
    value = torch.tensor([0.11, 0.433, 0.62, 0.877], dtype=double)

    def by_cdf(offsets: Tensor) -> Tensor:
        return pair(name, 0.6, 0.1, offsets.unsqueeze(-1))[0].cdf(value)

    def by_kl(offsets: Tensor) -> Tensor:
        posterior, prior = pair(name, 0.6, 0.1, offsets)
        return posterior.kl(prior)

    for function in (by_cdf, by_kl):
        assert torch.autograd.gradcheck(function, offsets, atol=1e-4, fast_mode=True)


@every_family
@pytest.mark.parametrize("moment", ["mean", "std"])
def test_gradients_of_moments_agree_with_finite_differences(name, moment):
    offsets = some_offsets(name).clone().requires_grad_()

    def function(offsets: Tensor) -> Tensor:
        return getattr(pair(name, 0.6, 0.1, offsets)[0], moment)

    assert torch.autograd.gradcheck(function, offsets, atol=1e-4, fast_mode=True)


EXTREME = st.sampled_from([-50.0, -8.0, -1.0, 0.0, 1.0, 8.0, 50.0])
FRACTION = st.floats(min_value=0.001, max_value=0.999)


@every_family
@settings(max_examples=15, deadline=None, derandomize=True)
@given(mean=FRACTION, std=FRACTION, data=st.data())
def test_everything_is_finite_for_any_offsets_in_float32(name, mean, std, data):
    family = FAMILIES.get(name)()
    drawn = data.draw(st.lists(EXTREME, min_size=family.parameters, max_size=family.parameters))
    offsets = torch.tensor(drawn).unsqueeze(-1).requires_grad_()
    moments = torch.tensor(mean), torch.tensor(std)
    posterior, prior = family.posterior(offsets, *moments), family.prior(*moments)
    value = torch.tensor([0.0, 1e-30, 1e-6, 0.3, 0.5, 0.999999, 1.0]).requires_grad_()
    below = posterior.cdf(value)
    draw = posterior.sample(torch.Generator().manual_seed(0))
    answers = [below, posterior.kl(prior), posterior.mean, posterior.std, draw]
    for answer in answers:
        assert answer.dtype == torch.float32
        assert answer.isfinite().all()
        if answer.requires_grad:
            inputs = [offsets, value]
            grads = torch.autograd.grad(answer.sum(), inputs, retain_graph=True, allow_unused=True)
            assert all(grad.isfinite().all() for grad in grads if grad is not None)
    assert below.diff().min().item() >= -1e-5
    assert posterior.kl(prior).item() > -1e-3
    assert posterior.std.item() > 0
    if name not in UNBOUNDED:
        assert 0 < draw.item() < 1
        assert 0 <= posterior.mean.item() <= 1
        assert below[0].item() == 0
        assert below[-1].item() == 1


@bounded_family
def test_cdf_of_the_prior_rises_from_0_to_1(name):
    mean, std = torch.rand(2, 50, 1, generator=torch.Generator().manual_seed(0))
    below = FAMILIES.get(name)().prior(mean, std).cdf(torch.linspace(0, 1, 501))
    assert below.shape == (50, 501)
    assert below[:, 0].eq(0).all()
    assert below[:, -1].eq(1).all()
    assert below.diff().min().item() >= -1e-5


@every_family
def test_half_precision_probabilities_give_float32_results(name):
    family = FAMILIES.get(name)()
    offsets = some_offsets(name).float()
    posterior = family.posterior(offsets, torch.tensor(0.5), torch.tensor(0.1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        below = posterior.cdf(torch.rand(2, 1, 4, 4).bfloat16())
        divergence = posterior.kl(family.prior(torch.tensor(0.5), torch.tensor(0.1)))
    assert below.dtype == divergence.dtype == torch.float32
    assert divergence.item() == pytest.approx(
        pair(name, 0.5, 0.1, offsets)[0].kl(pair(name, 0.5, 0.1, offsets)[1]).item(), rel=1e-3
    )


@every_family
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (3, 2, 1, 1), (3, 1, 4, 5)])
def test_each_threshold_uses_its_own_offsets(name, shape):
    """One for all, per image and class, and per voxel, compared with one at a time."""
    family = FAMILIES.get(name)()
    generator = torch.Generator().manual_seed(0)
    offsets = torch.randn((family.parameters, *shape), generator=generator)
    probability = torch.rand((3, 2, 4, 5), generator=generator)
    moments = torch.tensor(0.5), torch.tensor(0.2)
    posterior, prior = family.posterior(offsets, *moments), family.prior(*moments)
    below = posterior.cdf(probability)
    assert posterior.mean.shape == posterior.std.shape == posterior.kl(prior).shape == shape
    assert posterior.sample(generator).shape == shape
    all_offsets = offsets.expand(family.parameters, *probability.shape)
    for index in [(0, 0, 0, 0), (2, 1, 3, 4), (1, 0, 2, 1), (2, 0, 0, 3)]:
        alone = family.posterior(all_offsets[(slice(None), *index)], *moments)
        assert below[index].item() == pytest.approx(alone.cdf(probability[index]).item(), abs=1e-4)
        own = tuple(i % size for i, size in zip(index, shape, strict=True))
        assert posterior.mean[own].item() == pytest.approx(alone.mean.item(), abs=1e-4)


@every_family
def test_nothing_synchronizes_with_the_device(name):
    family = FAMILIES.get(name)()
    offsets = some_offsets(name).float().requires_grad_()
    mean, std = torch.tensor(0.6), torch.tensor(0.1)
    with Recorded() as recorded:
        posterior, prior = family.posterior(offsets, mean, std), family.prior(mean, std)
        posterior.sample(torch.Generator().manual_seed(0))
        loss = posterior.cdf(torch.rand(2, 1, 8, 8)).mean() + posterior.kl(prior).mean()
        (loss + posterior.mean + posterior.std).backward()
    assert recorded.synchronizations() == []
