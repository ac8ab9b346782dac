from __future__ import annotations

import pytest
import torch

from segpl.threshold.base import Distribution
from segpl.threshold.rules import (
    DATA_DRIVEN_RULES,
    RULES,
    SELECTING_RULES,
    SOFT_RULES,
    binarize,
    select,
)
from segpl.types import PseudoLabels


def test_probability_above_the_threshold_is_foreground():
    pseudo = binarize(torch.tensor([[[0.1, 0.5, 0.50001, 0.9]]]), 0.5)
    assert pseudo.target.tolist() == [[[0, 0, 1, 1]]]


class Uniform(Distribution):
    """Uniform from `low` to `high`."""

    def __init__(self, low: torch.Tensor, high: torch.Tensor) -> None:
        self.low, self.high = low, high

    @property
    def mean(self) -> torch.Tensor:
        return (self.low + self.high) / 2

    @property
    def std(self) -> torch.Tensor:
        return (self.high - self.low) / 12**0.5

    def sample(self, generator: torch.Generator) -> torch.Tensor:
        drawn = torch.rand(self.low.shape, generator=generator)
        return self.low + drawn * (self.high - self.low)

    def cdf(self, value: torch.Tensor) -> torch.Tensor:
        return ((value - self.low) / (self.high - self.low)).clamp(0, 1)

    def kl(self, prior: Distribution) -> torch.Tensor:
        raise NotImplementedError


P = torch.tensor([[[0.05, 0.3, 0.5, 0.6, 0.75, 0.95]]])


def flat(low: float = 0.5, high: float = 1.0) -> Uniform:
    return Uniform(torch.tensor(low, requires_grad=True), torch.tensor(high, requires_grad=True))


def apply(
    rule: str, threshold: Uniform, probability: torch.Tensor = P, seed: int = 0
) -> PseudoLabels:
    return RULES[rule](probability, threshold, torch.Generator().manual_seed(seed))


def test_select_keeps_confident_voxels_of_both_classes():
    """By hand at T = 0.72: the confidence is 0.95, 0.7, 0.5, 0.6, 0.75, 0.95."""
    pseudo = select(P, 0.72)
    assert pseudo.target.tolist() == [[[0, 0, 0, 1, 1, 1]]]
    assert pseudo.weight.tolist() == [[[1, 0, 0, 0, 1, 1]]]


def test_marginal_target_is_the_cdf_at_the_probability():
    assert apply("marginal", flat()).target.tolist()[0][0] == pytest.approx(
        [0, 0, 0, 0.2, 0.5, 0.9]
    )
    assert apply("marginal", flat()).weight.eq(1).all()


def test_marginal_weight_is_the_cdf_at_the_confidence():
    pseudo = apply("marginal-select", flat())
    assert pseudo.weight.tolist()[0][0] == pytest.approx([0.9, 0.4, 0, 0.2, 0.5, 0.9])
    assert pseudo.target.tolist() == [[[0, 0, 0, 1, 1, 1]]]


@pytest.mark.parametrize(
    ("drawn", "mean"), [("binarize", "marginal"), ("select", "marginal-select")]
)
def test_marginal_rule_is_the_mean_of_the_sampling_rule(drawn, mean):
    one = flat()
    many = Uniform(one.low.expand(4000, 1, 1), one.high.expand(4000, 1, 1))  # one per image
    sampled, expected = apply(drawn, many, P.expand(4000, 1, 6)), apply(mean, one)
    for part in ("target", "weight"):
        average = getattr(sampled, part).mean(0, keepdim=True)
        assert torch.allclose(average, getattr(expected, part), atol=0.05)


@pytest.mark.parametrize("rule", RULES)
def test_only_data_driven_rules_pass_a_gradient_to_the_threshold(rule):
    threshold = flat()
    pseudo = apply(rule, threshold)
    has_gradient = pseudo.target.requires_grad or pseudo.weight.requires_grad
    assert has_gradient == (rule in DATA_DRIVEN_RULES)
    if has_gradient:
        (gradient,) = torch.autograd.grad((pseudo.target + pseudo.weight).sum(), [threshold.low])
        assert gradient.abs() > 0


@pytest.mark.parametrize("rule", RULES)
def test_soft_and_selecting_rules_are_listed(rule):
    """`bpl-mix` makes all other targets hard; the exact E-step asks which rules select."""
    pseudo = apply(rule, flat())
    is_soft = (pseudo.target * (1 - pseudo.target)).any()
    assert bool(is_soft) == (rule in SOFT_RULES)
    assert bool((pseudo.weight < 1).any()) == (rule in SELECTING_RULES)


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_passes_a_gradient_to_the_probability(rule):
    probability = P.clone().requires_grad_()
    pseudo = apply(rule, flat(), probability)
    for part in (pseudo.target, pseudo.weight):
        if part.requires_grad:
            assert torch.autograd.grad(part.sum(), [probability], allow_unused=True) == (None,)


@pytest.mark.parametrize("rule", RULES)
def test_each_image_uses_its_own_threshold(rule):
    threshold = Uniform(
        torch.tensor([0.1, 0.8]).view(2, 1, 1), torch.tensor([0.2, 0.9]).view(2, 1, 1)
    )
    both = apply(rule, threshold, torch.full((2, 1, 4), 0.6))
    assert not torch.equal(both.target[0] + both.weight[0], both.target[1] + both.weight[1])
