from __future__ import annotations

import math

import pytest
import torch

from segpl.threshold.categorical import Categorical, CategoricalFamily


def of_weights(*weights: float) -> Categorical:
    return Categorical(torch.tensor(weights).log())


def test_cdf_is_linear_within_each_cell():
    """By hand: cells of 1/4 with weights 0.1, 0.2, 0.3 and 0.4."""
    value = torch.tensor([0.0, 0.125, 0.25, 0.5, 0.6, 1.0])
    expected = [0, 0.05, 0.1, 0.3, 0.3 + 0.4 * 0.3, 1]
    assert of_weights(0.1, 0.2, 0.3, 0.4).cdf(value).tolist() == pytest.approx(expected)


def test_samples_carry_no_gradient():
    logits = torch.zeros(5, requires_grad=True)
    assert not Categorical(logits).sample(torch.Generator().manual_seed(0)).requires_grad


def test_offset_of_a_cell_scales_only_its_weight():
    family = CategoricalFamily()
    offsets = torch.zeros(family.parameters)
    offsets[30] = math.log(5)
    moments = torch.tensor(0.5), torch.tensor(0.2)
    ratio = family.posterior(offsets, *moments).weights / family.prior(*moments).weights
    assert (ratio[30] / ratio[31]).item() == pytest.approx(5, rel=1e-4)
    assert ratio[31].item() == pytest.approx(ratio[0].item(), rel=1e-4)


def test_std_is_at_least_the_width_of_a_cell():
    prior = CategoricalFamily().prior(torch.tensor(0.503), torch.tensor(0.0001))
    assert prior.std.item() == pytest.approx(0.01, rel=0.01)
    assert prior.mean.item() == pytest.approx(0.503, abs=1e-3)


def test_std_includes_that_of_a_uniform_cell():
    """A cell of 1/4 alone: the standard deviation is 1/4 over the square root of 12."""
    assert of_weights(0, 1, 0, 0).std.item() == pytest.approx(0.25 / 12**0.5)


def test_cells_are_sampled_in_proportion_to_their_weights():
    """The standard error is below 0.005."""
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])
    distribution = Categorical(weights.log().expand(10_000, 4))
    draws = distribution.sample(torch.Generator().manual_seed(0))
    frequencies = torch.histc(draws, 4, 0, 1) / 10_000
    assert frequencies.tolist() == pytest.approx(weights.tolist(), abs=0.03)
    assert draws.unique().numel() > 9_000  # uniform within the cell
