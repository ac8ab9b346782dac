from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from segpl.threshold.beta import BetaFamily, with_median
from segpl.threshold.beta_prior import Beta
from segpl.threshold.kumaraswamy import Kumaraswamy, of_complement

SHAPES = [
    (0.2, 0.2),
    (0.2, 200.0),
    (200.0, 0.2),
    (1.0, 1.0),
    (2.0, 5.0),
    (7.0, 0.8),
    (200.0, 200.0),
]
some_shapes = pytest.mark.parametrize(("a", "b"), SHAPES)


def kumaraswamy(a: float, b: float, dtype: torch.dtype = torch.float32) -> Kumaraswamy:
    return Kumaraswamy(*torch.tensor([a, b], dtype=torch.float64).log().to(dtype))


def beta(alpha: float, other: float, dtype: torch.dtype = torch.float32) -> Beta:
    return Beta(*torch.tensor([alpha, other], dtype=dtype))


def quantiles(a: float, b: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logs of a Kumaraswamy and of the rest at 24,000 quantiles, with the quantiles' weights."""
    logit = np.linspace(-60, 60, 24_001)
    rest = np.logaddexp(0, logit) / b  # -log(1 - x^a)
    log_value = np.log(-np.expm1(-np.minimum(rest, 600)))
    log_value = np.where(rest < 1, log_value, np.log1p(-np.exp(-np.maximum(rest, 1)))) / a
    minus = np.maximum(-log_value, 1e-300)
    weight = np.exp(-np.logaddexp(0, logit) - np.logaddexp(0, -logit))
    return log_value, np.log(-np.expm1(-minus)), weight / weight.sum()


@pytest.mark.parametrize("loglog", [-40.0, -15.1, -14.9, -3.0, -0.01, 0.01, 1.0, 2.7, 2.72, 4.0])
def test_complement_is_its_own_inverse(loglog):
    there = of_complement(torch.tensor(loglog))
    assert of_complement(there).item() == pytest.approx(loglog, rel=2e-5, abs=2e-6)


@pytest.mark.parametrize("value", [1e-6, 0.1, 0.5, 0.9, 0.999999])
def test_complement_of_a_probability_is_one_minus_it(value):
    loglog = torch.tensor(math.log(-math.log(value)), dtype=torch.float64)
    rest = (-of_complement(loglog).exp()).exp().item()
    assert rest == pytest.approx(1 - value, rel=1e-6)


@pytest.mark.parametrize("loglog", [-1e4, -15.0, 0.0, math.log(15), 30.0, 1e4])
def test_complement_has_a_slope_at_its_joints_and_far_out(loglog):
    at = torch.tensor(loglog, requires_grad=True)
    of_complement(at).backward()
    assert at.grad.isfinite()


@pytest.mark.parametrize("alpha", [2.0, 200.0, 1250.0])
def test_normalizer_of_a_narrow_prior_keeps_its_digits_in_float32(alpha):
    expected = special.betaln(alpha, 0.9 * alpha)
    ours = beta(alpha, 0.9 * alpha).log_normalizer.item()
    assert ours == pytest.approx(expected, rel=1e-7)


@some_shapes
def test_cumulative_probability_is_one_minus_the_power_of_one_minus_a_power(a, b):
    value = torch.linspace(0, 1, 101, dtype=torch.float64)
    expected = 1 - (1 - value**a) ** b
    assert torch.allclose(kumaraswamy(a, b).cdf(value.float()).double(), expected, atol=2e-5)


@some_shapes
def test_mean_and_std_are_the_closed_forms(a, b):
    """E[T^n] = b B(1 + n/a, b), in double precision."""
    first, second = (math.exp(math.log(b) + special.betaln(1 + n / a, b)) for n in (1, 2))
    ours = kumaraswamy(a, b)
    assert ours.mean.item() == pytest.approx(first, abs=1e-6)
    assert ours.std.item() == pytest.approx(math.sqrt(second - first**2), rel=1e-4, abs=1e-6)


@some_shapes
@pytest.mark.parametrize(("alpha", "other"), SHAPES)
def test_kl_is_the_mean_over_quantiles_of_the_log_of_the_densities(a, b, alpha, other):
    """To 1e-4 in float32; what is far apart, to 1e-5 of its size."""
    log_value, log_rest, weight = quantiles(a, b)
    log_q = math.log(a * b) + (a - 1) * log_value - (b - 1) / b
    log_p = (alpha - 1) * log_value + (other - 1) * log_rest - special.betaln(alpha, other)
    expected = float((weight * (log_q - log_p)).sum())
    ours = kumaraswamy(a, b).kl(beta(alpha, other)).item()
    assert ours == pytest.approx(expected, rel=1e-5, abs=1e-4)


@pytest.mark.parametrize(("a", "b"), [(1.0, 4.0), (4.0, 1.0), (0.3, 1.0)])
def test_kl_is_zero_where_a_kumaraswamy_is_a_beta(a, b):
    assert kumaraswamy(a, b).kl(beta(a, b)).item() == pytest.approx(0, abs=1e-5)


def test_kl_of_two_betas_is_that_of_torch():
    theirs = torch.distributions.kl_divergence(
        torch.distributions.Beta(3.0, 4.0), torch.distributions.Beta(9.0, 0.7)
    )
    assert beta(3.0, 4.0).kl(beta(9.0, 0.7)).item() == pytest.approx(theirs.item(), rel=1e-5)


@pytest.mark.parametrize(("alpha", "other"), [*SHAPES, (0.15, 3.0), (1250.0, 1250.0)])
def test_table_of_the_prior_is_the_incomplete_beta_function(alpha, other):
    value = torch.linspace(0, 1, 501)
    expected = stats.beta.cdf(value.double().numpy(), alpha, other)
    assert np.abs(beta(alpha, other).cdf(value).numpy() - expected).max() < 1e-4


@pytest.mark.parametrize("logit", [-5.0, 0.0, 4.0])
@pytest.mark.parametrize("log_a", [-1.0, 0.0, 3.0])
def test_half_of_the_mass_is_below_the_median(logit, log_a):
    distribution = with_median(torch.tensor(logit).double(), torch.tensor(log_a).double())
    median = torch.tensor(logit).double().sigmoid()
    assert distribution.cdf(median).item() == pytest.approx(0.5, abs=1e-6)


def test_prior_has_the_exponents_of_its_moments():
    """By hand: 0.5 +- 0.1 is 0.25 / 0.01 - 1 = 24 in all."""
    prior = BetaFamily().prior(torch.tensor(0.5), torch.tensor(0.1))
    assert prior.alpha.item() == pytest.approx(12, rel=1e-5)
    assert prior.beta.item() == pytest.approx(12, rel=1e-5)


def test_first_number_moves_the_threshold_and_the_second_widens_it():
    numbers = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.5]])
    posterior = BetaFamily().posterior(numbers, torch.tensor(0.5), torch.tensor(0.1))
    start, moved, widened = posterior.mean.tolist()
    assert moved - start == pytest.approx(0.1, abs=0.02)
    assert widened == pytest.approx(start, abs=0.02)
    assert posterior.std[2] / posterior.std[0] == pytest.approx(math.exp(0.5), rel=0.1)


def test_draw_is_differentiable_and_that_of_the_prior_is_not():
    log_a = torch.tensor(1.0, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    Kumaraswamy(log_a, torch.tensor(1.0)).sample(generator).backward()
    assert log_a.grad.item() != 0
    alpha = torch.tensor(2.0, requires_grad=True)
    assert not Beta(alpha, torch.tensor(2.0)).sample(generator).requires_grad
