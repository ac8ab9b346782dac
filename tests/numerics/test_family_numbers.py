"""Every family of thresholds against sums over fine cells, large samples and difference quotients.

A new family gets these tests unasked.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from segpl.threshold.base import FAMILIES, Distribution
from segpl.threshold.parameters import clip_moments

UNCONFINED = {"normal"}  # families with draws outside of (0, 1)
CONFINED = [name for name in FAMILIES.names if name not in UNCONFINED]
PRIORS = [(0.5, 0.1), (0.9, 0.1), (0.3, 0.05), (0.7, 0.2)]
every_family = pytest.mark.parametrize("name", FAMILIES.names)
confined_family = pytest.mark.parametrize("name", CONFINED)
some_priors = pytest.mark.parametrize(("mean", "std"), PRIORS)
double = torch.float64


def some_numbers(name: str, *shape: int, seed: int = 0, size: float = 0.7) -> Tensor:
    """Numbers of a posterior that is not its prior."""
    generator = torch.Generator().manual_seed(seed)
    count = FAMILIES.get(name).parameters
    noise = torch.randn(count, generator=generator, dtype=double) * size
    return noise.view(count, *[1] * len(shape)).expand(count, *shape)


def pair(name: str, mean: float, std: float, numbers: Tensor) -> tuple[Distribution, Distribution]:
    family = FAMILIES.get(name)()
    moments = torch.tensor(mean, dtype=double), torch.tensor(std, dtype=double)
    return family.posterior(numbers, *moments), family.prior(*moments)


def edges(name: str, distribution: Distribution) -> Tensor:
    """Of 20,000 cells that hold all the mass, finest at the ends of (0, 1).

    The hundredths are among them: a distribution may jump there in density.
    """
    if name in UNCONFINED:
        steps = torch.linspace(-8, 8, 20_001, dtype=double)
        return distribution.mean + distribution.std * steps
    ends = torch.linspace(-30, 30, 15_001, dtype=double).sigmoid()
    return torch.cat([ends, torch.linspace(0, 1, 5_001, dtype=double)]).sort().values


@every_family
@some_priors
@pytest.mark.parametrize("seed", [0, 1])
def test_kl_is_the_sum_over_fine_cells_of_the_two_cumulative_probabilities(name, mean, std, seed):
    posterior, prior = pair(name, mean, std, some_numbers(name, seed=seed))
    grid = edges(name, posterior)
    q, p = (distribution.cdf(grid).diff() for distribution in (posterior, prior))
    seen = q > 1e-13  # the rest is rounding of numbers near 1
    expected = (q[seen] * (q[seen] / p[seen].clamp(min=1e-18)).log()).sum()
    # the cumulative probability may be a table, with a density that is flat between its entries
    tolerance = {"rel": 6e-3, "abs": 5e-4}
    assert posterior.kl(prior).item() == pytest.approx(expected.item(), **tolerance)


@every_family
@some_priors
def test_mean_and_std_are_integrals_of_the_cumulative_probability(name, mean, std):
    r"""By parts: E[T] = high - int F, and E[T^2] = high^2 - 2 int v F."""
    for distribution in pair(name, mean, std, some_numbers(name)):
        grid = edges(name, distribution)
        below = distribution.cdf(grid)
        first = grid[-1] - torch.trapezoid(below, grid)
        second = grid[-1] ** 2 - 2 * torch.trapezoid(grid * below, grid)
        assert distribution.mean.item() == pytest.approx(first.item(), abs=2e-4)
        assert distribution.std.item() == pytest.approx((second - first**2).sqrt().item(), abs=4e-4)


@every_family
def test_draws_follow_the_cumulative_probability_and_have_the_mean_and_std(name):
    """Kolmogorov's distance of 1,000 draws exceeds 0.0617 once in a thousand times."""
    count = 1_000
    shape = torch.zeros(count, dtype=double)
    family = FAMILIES.get(name)()
    moments = shape + 0.7, shape + 0.15
    posterior = family.posterior(some_numbers(name, count), *moments)
    for one in (posterior, family.prior(*moments)):
        draws = one.sample(torch.Generator().manual_seed(0))
        assert draws.shape == (count,)
        ordered = draws.sort().values
        ranks = torch.arange(1, count + 1, dtype=double) / count
        assert (one.cdf(ordered) - ranks).abs().max().item() < 0.0617
        std = one.std[0].item()
        assert draws.mean().item() == pytest.approx(one.mean[0].item(), abs=4 * std / count**0.5)
        assert draws.std().item() == pytest.approx(std, rel=0.1)


@every_family
def test_start_has_the_mean_and_std_of_the_prior_that_were_asked_for(name):
    """In float32, for means from 0.02 to 0.98 and all spreads that leave the ends nearly empty."""
    family = FAMILIES.get(name)()
    grid = torch.linspace(0.02, 0.98, 25).unsqueeze(1)
    mean, std = clip_moments(grid, grid.new_tensor([0.012, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5]))
    mean = mean.expand_as(std)
    start = family.posterior(torch.zeros(family.parameters, *std.shape), mean, std)
    for one in (start, family.prior(mean, std)):
        assert (one.mean - mean).abs().max().item() < 1e-4
        assert (one.std / std - 1).abs().max().item() < 2e-3


@every_family
@some_priors
def test_kl_at_the_start_is_next_to_nothing_and_grows_from_there(name, mean, std):
    """Exactly 0 where the posterior can be the prior; a Kumaraswamy is near a Beta."""
    count = FAMILIES.get(name).parameters
    start, prior = pair(name, mean, std, torch.zeros(count, dtype=double))
    same = type(start) is type(prior)
    assert -1e-9 <= start.kl(prior).item() < (1e-9 if same else 0.05)
    posterior, prior = pair(name, mean, std, some_numbers(name))
    assert posterior.kl(prior).item() > 0.05


@every_family
def test_kl_to_the_prior_is_never_negative_beyond_rounding(name):
    for seed in range(10):
        family = FAMILIES.get(name)()
        mean, std = torch.tensor(0.6), torch.tensor(0.1)
        numbers = some_numbers(name, seed=seed, size=0.1).float()
        divergence = family.posterior(numbers, mean, std).kl(family.prior(mean, std))
        assert divergence.item() > -1e-5


@every_family
def test_gradients_of_cdf_and_kl_are_difference_quotients(name):
    numbers = some_numbers(name).clone().requires_grad_()
    value = torch.tensor([0.11, 0.433, 0.62, 0.877], dtype=double)

    def by_cdf(numbers: Tensor) -> Tensor:
        return pair(name, 0.6, 0.1, numbers.unsqueeze(-1))[0].cdf(value)

    def by_kl(numbers: Tensor) -> Tensor:
        posterior, prior = pair(name, 0.6, 0.1, numbers)
        return posterior.kl(prior)

    for function in (by_cdf, by_kl):
        assert torch.autograd.gradcheck(function, numbers, atol=1e-4, fast_mode=True)


@every_family
@pytest.mark.parametrize("moment", ["mean", "std"])
def test_gradients_of_moments_are_difference_quotients(name, moment):
    numbers = some_numbers(name).clone().requires_grad_()

    def function(numbers: Tensor) -> Tensor:
        return getattr(pair(name, 0.6, 0.1, numbers)[0], moment)

    assert torch.autograd.gradcheck(function, numbers, atol=1e-4, fast_mode=True)


@every_family
def test_descent_on_the_kl_finds_the_prior(name):
    numbers = some_numbers(name).clone().requires_grad_()
    optimizer = torch.optim.Adam([numbers], lr=0.05)
    for _ in range(150):
        optimizer.zero_grad()
        posterior, prior = pair(name, 0.6, 0.1, numbers)
        posterior.kl(prior).backward()
        optimizer.step()
    assert posterior.mean.item() == pytest.approx(0.6, abs=0.01)
    assert posterior.std.item() == pytest.approx(0.1, abs=0.01)


EXTREME = st.sampled_from([-50.0, -8.0, -1.0, 0.0, 1.0, 8.0, 50.0])
SHARE = st.floats(min_value=0.001, max_value=0.999)


@every_family
@settings(max_examples=40, deadline=None, derandomize=True)
@given(mean=SHARE, std=SHARE, data=st.data())
def test_nothing_is_infinite_for_any_numbers_in_float32(name, mean, std, data):
    family = FAMILIES.get(name)()
    drawn = data.draw(st.lists(EXTREME, min_size=family.parameters, max_size=family.parameters))
    numbers = torch.tensor(drawn).unsqueeze(-1).requires_grad_()
    moments = torch.tensor(mean), torch.tensor(std)
    posterior, prior = family.posterior(numbers, *moments), family.prior(*moments)
    value = torch.tensor([0.0, 1e-30, 1e-6, 0.3, 0.5, 0.999999, 1.0]).requires_grad_()
    below = posterior.cdf(value)
    draw = posterior.sample(torch.Generator().manual_seed(0))
    answers = [below, posterior.kl(prior), posterior.mean, posterior.std, draw]
    for answer in answers:
        assert answer.dtype == torch.float32
        assert answer.isfinite().all()
        if answer.requires_grad:
            inputs = [numbers, value]
            grads = torch.autograd.grad(answer.sum(), inputs, retain_graph=True, allow_unused=True)
            assert all(grad.isfinite().all() for grad in grads if grad is not None)
    assert below.diff().min().item() >= -1e-6
    assert posterior.kl(prior).item() > -1e-3
    assert posterior.std.item() > 0
    if name not in UNCONFINED:
        assert 0 < draw.item() < 1
        assert 0 <= posterior.mean.item() <= 1
        assert below[0].item() == 0
        assert below[-1].item() == 1


@confined_family
def test_cumulative_probability_of_the_prior_goes_from_0_to_1(name):
    mean, std = torch.rand(2, 50, 1, generator=torch.Generator().manual_seed(0))
    below = FAMILIES.get(name)().prior(mean, std).cdf(torch.linspace(0, 1, 501))
    assert below.shape == (50, 501)
    assert below[:, 0].eq(0).all()
    assert below[:, -1].eq(1).all()
    assert below.diff().min().item() >= -1e-6


@every_family
def test_probabilities_in_half_precision_are_answered_in_float32(name):
    family = FAMILIES.get(name)()
    numbers = some_numbers(name).float()
    posterior = family.posterior(numbers, torch.tensor(0.5), torch.tensor(0.1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        below = posterior.cdf(torch.rand(2, 1, 4, 4).bfloat16())
        divergence = posterior.kl(family.prior(torch.tensor(0.5), torch.tensor(0.1)))
    assert below.dtype == divergence.dtype == torch.float32
    assert divergence.item() == pytest.approx(
        pair(name, 0.5, 0.1, numbers)[0].kl(pair(name, 0.5, 0.1, numbers)[1]).item(), rel=1e-3
    )


@every_family
@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1), (3, 1, 1, 1), (1, 2, 1, 1), (3, 2, 1, 1), (3, 1, 4, 5)]
)
def test_each_threshold_is_that_of_its_own_numbers(name, shape):
    """One for all, for each image, each class, both, and each voxel: against one at a time."""
    family = FAMILIES.get(name)()
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randn((family.parameters, *shape), generator=generator)
    probability = torch.rand((3, 2, 4, 5), generator=generator)
    moments = torch.tensor(0.5), torch.tensor(0.2)
    posterior, prior = family.posterior(numbers, *moments), family.prior(*moments)
    below = posterior.cdf(probability)
    assert posterior.mean.shape == posterior.std.shape == posterior.kl(prior).shape == shape
    assert posterior.sample(generator).shape == shape
    all_numbers = numbers.expand(family.parameters, *probability.shape)
    for place in [(0, 0, 0, 0), (2, 1, 3, 4), (1, 0, 2, 1), (2, 0, 0, 3)]:
        alone = family.posterior(all_numbers[(slice(None), *place)], *moments)
        assert below[place].item() == pytest.approx(alone.cdf(probability[place]).item(), abs=1e-5)
        own = tuple(index % size for index, size in zip(place, shape, strict=True))
        assert posterior.mean[own].item() == pytest.approx(alone.mean.item(), abs=1e-5)


class Waits(TorchDispatchMode):
    """Operations that make the host wait for a device."""

    NAMES = ("_local_scalar_dense", "nonzero", "bincount", "masked_select", "unique")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += [name for name in self.NAMES if name in str(func)]
        return func(*args, **(kwargs or {}))


@every_family
def test_nothing_waits_for_the_device(name):
    family = FAMILIES.get(name)()
    numbers = some_numbers(name).float().requires_grad_()
    mean, std = torch.tensor(0.6), torch.tensor(0.1)
    with Waits() as waits:
        posterior, prior = family.posterior(numbers, mean, std), family.prior(mean, std)
        posterior.sample(torch.Generator().manual_seed(0))
        loss = posterior.cdf(torch.rand(2, 1, 8, 8)).mean() + posterior.kl(prior).mean()
        (loss + posterior.mean + posterior.std).backward()
    assert waits.seen == []
