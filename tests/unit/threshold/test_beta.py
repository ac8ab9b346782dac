from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import special, stats

from segpl.threshold.beta import BetaFamily, kumaraswamy_with_median
from segpl.threshold.beta_prior import Beta
from segpl.threshold.kumaraswamy import Kumaraswamy, complement

SHAPES = [
    (0.2, 200.0),
    (200.0, 0.2),
    (2.0, 5.0),
    (200.0, 200.0),
]
some_shapes = pytest.mark.parametrize(("a", "b"), SHAPES)


def kumaraswamy(a: float, b: float, dtype: torch.dtype = torch.float32) -> Kumaraswamy:
    return Kumaraswamy(*torch.tensor([a, b], dtype=torch.float64).log().to(dtype))


def beta(alpha: float, other: float, dtype: torch.dtype = torch.float32) -> Beta:
    return Beta(*torch.tensor([alpha, other], dtype=dtype))


@pytest.mark.parametrize("alpha", [2.0, 1250.0])
def test_normalizer_of_a_narrow_prior_is_accurate_in_float32(alpha):
    expected = special.betaln(alpha, 0.9 * alpha)
    ours = beta(alpha, 0.9 * alpha).log_normalizer.item()
    assert ours == pytest.approx(expected, rel=1e-5)


@some_shapes
def test_cdf_is_the_closed_form(a, b):
    value = torch.linspace(0, 1, 101, dtype=torch.float64)
    expected = 1 - (1 - value**a) ** b
    assert torch.allclose(kumaraswamy(a, b).cdf(value.float()).double(), expected, atol=2e-4)


@some_shapes
def test_mean_and_std_agree_with_the_closed_forms(a, b):
    """E[T^n] = b B(1 + n/a, b), in double precision."""
    first, second = (math.exp(math.log(b) + special.betaln(1 + n / a, b)) for n in (1, 2))
    ours = kumaraswamy(a, b)
    assert ours.mean.item() == pytest.approx(first, abs=1e-4)
    assert ours.std.item() == pytest.approx(math.sqrt(second - first**2), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(("alpha", "other"), [*SHAPES, (0.15, 3.0), (1250.0, 1250.0)])
def test_cdf_table_of_the_prior_agrees_with_scipy(alpha, other):
    value = torch.linspace(0, 1, 501)
    expected = stats.beta.cdf(value.double().numpy(), alpha, other)
    assert np.abs(beta(alpha, other).cdf(value).numpy() - expected).max() < 2e-4


def test_first_offset_shifts_the_threshold_and_the_second_widens_it():
    offsets = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 0.5]])
    posterior = BetaFamily().posterior(offsets, torch.tensor(0.5), torch.tensor(0.1))
    start, shifted, widened = posterior.mean.tolist()
    assert shifted - start == pytest.approx(0.1, abs=0.02)
    assert widened == pytest.approx(start, abs=0.02)
    assert posterior.std[2] / posterior.std[0] == pytest.approx(math.exp(0.5), rel=0.1)


def test_posterior_samples_are_differentiable():
    log_a = torch.tensor(1.0, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    Kumaraswamy(log_a, torch.tensor(1.0)).sample(generator).backward()
    assert log_a.grad.item() != 0


def quantiles(a: float, b: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log T and log(1 - T) of a Kumaraswamy at 24,000 quantiles, and their weights."""
    logit = np.linspace(-60, 60, 24_001)
    rest = np.logaddexp(0, logit) / b  # -log(1 - x^a)
    log_value = np.log(-np.expm1(-np.minimum(rest, 600)))
    log_value = np.where(rest < 1, log_value, np.log1p(-np.exp(-np.maximum(rest, 1)))) / a
    minus = np.maximum(-log_value, 1e-300)
    weight = np.exp(-np.logaddexp(0, logit) - np.logaddexp(0, -logit))
    return log_value, np.log(-np.expm1(-minus)), weight / weight.sum()


@pytest.mark.parametrize("loglog", [-1e4, -15.0, 0.0, math.log(15), 1e4])
def test_complement_has_a_finite_gradient_everywhere(loglog):
    at = torch.tensor(loglog, requires_grad=True)
    complement(at).backward()
    assert at.grad.isfinite()


@some_shapes
@pytest.mark.parametrize(("alpha", "other"), SHAPES)
def test_kl_agrees_with_a_sum_over_quantiles(a, b, alpha, other):
    log_value, log_rest, weight = quantiles(a, b)
    log_q = math.log(a * b) + (a - 1) * log_value - (b - 1) / b
    log_p = (alpha - 1) * log_value + (other - 1) * log_rest - special.betaln(alpha, other)
    expected = float((weight * (log_q - log_p)).sum())
    ours = kumaraswamy(a, b).kl(beta(alpha, other)).item()
    assert ours == pytest.approx(expected, rel=1e-4, abs=1e-3)


@pytest.mark.parametrize(("logit", "log_a"), [(-5.0, -1.0), (0.0, 0.0), (4.0, 3.0)])
def test_half_of_the_mass_is_below_the_median(logit, log_a):
    distribution = kumaraswamy_with_median(
        torch.tensor(logit).double(), torch.tensor(log_a).double()
    )
    median = torch.tensor(logit).double().sigmoid()
    assert distribution.cdf(median).item() == pytest.approx(0.5, abs=1e-6)
