from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal as TorchNormal
from torch.distributions import SigmoidTransform, TransformedDistribution

from segpl.threshold.logit_normal import LogitNormal, LogitNormalFamily
from segpl.threshold.normal import Normal


def logit_normal(location: float, scale: float) -> LogitNormal:
    logs = torch.tensor(2 * math.log(scale), dtype=torch.float64)
    return LogitNormal(Normal(torch.tensor(location, dtype=torch.float64), logs))


CASES = [(2.0, 1.0), (-1.0, 3.0), (0.5, 0.05)]
some_cases = pytest.mark.parametrize(("location", "scale"), CASES)


@some_cases
def test_cdf_agrees_with_torch(location, scale):
    value = torch.linspace(0.01, 0.99, 33, dtype=torch.float64)
    base = TorchNormal(torch.tensor(location).double(), torch.tensor(scale).double())
    theirs = TransformedDistribution(base, SigmoidTransform()).cdf(value)
    assert torch.allclose(logit_normal(location, scale).cdf(value), theirs, atol=1e-7)


def test_gradient_of_a_sample_is_the_slope_of_the_sigmoid():
    location = torch.tensor(0.4, requires_grad=True)
    draw = LogitNormal(Normal(location, torch.tensor(-1.0))).sample(
        torch.Generator().manual_seed(0)
    )
    draw.backward()
    assert location.grad.item() == pytest.approx((draw * (1 - draw)).item(), rel=1e-4)


def test_extreme_samples_stay_inside_the_unit_interval():
    family = LogitNormalFamily()
    offsets = torch.tensor([[-1e4, 1e4], [0.0, 0.0]])
    draws = family.posterior(offsets, torch.tensor(0.5), torch.tensor(0.1)).sample(
        torch.Generator().manual_seed(0)
    )
    assert 0 < draws[0].item() < 1e-6
    assert 1 - 1e-6 < draws[1].item() < 1
