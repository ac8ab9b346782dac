from __future__ import annotations

import math

import pytest
import torch
from mutations import Mutation
from recorded import Recorded

from segpl.losses import dice_loss
from segpl.threshold.exact import dice_of_thresholds, grid_posterior
from segpl.threshold.histogram import threshold_grid
from segpl.threshold.rules import binarize, select

AXES = {"batch": (0, 1), "image": (1,), "class": (0,), "image-class": ()}
every_scope = pytest.mark.parametrize("scope", AXES)
both_kinds = pytest.mark.parametrize("selects", [False, True])
FLAT = torch.full((100,), -math.log(100))


def brute_force(probability, weight, scope, *, selects=False):
    """Apply the rule at one threshold after the other, in float64."""
    axes = tuple(range(2, probability.dim()))
    columns = []
    for threshold in threshold_grid(100):
        pseudo = (select if selects else binarize)(probability, threshold)
        label, counts = pseudo.target.double(), weight.double() * pseudo.weight.double()
        overlap = (counts * probability.double() * label).sum(axes)
        total = (counts * (probability.double() + label)).sum(axes)
        columns.append((2 * overlap + 1) / (total + 1))
    dice = torch.stack(columns, -1)  # (B, K, G)
    return dice.mean(AXES[scope], keepdim=True) if AXES[scope] else dice


def exact_posterior(probability, weight, prior_log, *, temperature, **options):
    dice = dice_of_thresholds(probability, weight, **options)
    return grid_posterior(dice, prior_log, temperature=temperature)


def some(shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    logits = 6 * torch.randn(shape, generator=generator) - 3
    weight = (torch.rand(shape, generator=generator) > 0.2).float()
    return logits.sigmoid(), weight * torch.rand(shape, generator=generator)


@every_scope
@both_kinds
def test_dice_of_every_threshold_agrees_with_brute_force(scope, selects):
    probability, weight = some((2, 3, 5, 4, 6))
    ours = dice_of_thresholds(probability, weight, scope=scope, selects=selects)
    expected = brute_force(probability, weight, scope, selects=selects)
    assert ours.shape == expected.shape
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=1e-4)


@both_kinds
@every_scope
def test_dice_is_one_minus_the_training_loss(scope, selects):
    """E-step and M-step must use the same Dice, whatever the scope."""
    probability, weight = some((2, 3, 12, 12))
    ours = dice_of_thresholds(probability, weight, scope=scope, selects=selects)[0, 0, 60]
    pseudo = (select if selects else binarize)(probability, threshold_grid(100)[60])
    per_image, per_class = 0 not in AXES[scope], 1 not in AXES[scope]
    part = (slice(0, 1 if per_image else None), slice(0, 1 if per_class else None))
    loss = dice_loss(probability.logit()[part], pseudo.target[part], (weight * pseudo.weight)[part])
    assert ours.item() == pytest.approx(1 - loss.item(), abs=1e-4)


@pytest.mark.parametrize(("scope", "selects"), [("image", False), ("class", True)])
def test_posterior_agrees_with_bayes_rule_by_brute_force(scope, selects):
    probability, weight = some((2, 3, 9, 7))
    prior = torch.softmax(-((threshold_grid(100).double() - 0.6) ** 2) / 0.02, -1)
    dice = brute_force(probability, weight, scope, selects=selects)
    joint = prior * torch.exp(-(1 - dice) / 0.05)
    expected = joint / joint.sum(-1, keepdim=True)
    ours = exact_posterior(
        probability, weight, prior.log(), scope=scope, temperature=0.05, selects=selects
    )
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.exp().double(), expected, rtol=0, atol=1e-4)


def test_posterior_at_a_high_temperature_is_the_prior():
    probability, weight = some((2, 1, 9, 9))
    prior_log = torch.randn(100, generator=torch.Generator().manual_seed(0)).log_softmax(0)
    for temperature in (1e6, math.inf):
        posterior = exact_posterior(
            probability, weight, prior_log, scope="image", temperature=temperature
        )
        torch.testing.assert_close(posterior, prior_log.expand(2, 1, 100), atol=1e-4, rtol=0)


def test_posterior_at_a_low_temperature_is_the_best_threshold():
    probability, weight = some((2, 1, 9, 9))
    dice = brute_force(probability, weight, "image")
    posterior = exact_posterior(probability, weight, FLAT, scope="image", temperature=1e-6)
    best = dice >= dice.amax(-1, keepdim=True) - 1e-5  # ties up to rounding
    torch.testing.assert_close((posterior.exp() * best).sum(-1), torch.ones(2, 1))


@pytest.mark.parametrize("excluded", [False, True])
def test_prior_decides_between_equally_good_thresholds(excluded):
    """For p = 0.3 and 0.9, all thresholds in (0.3, 0.9) give the same, better label."""
    probability = torch.tensor([0.3] * 20 + [0.9] * 20).view(1, 1, 40)
    grid = threshold_grid(100)
    prior = torch.softmax(8 * grid, -1)
    better = (grid > 0.3) & (grid < 0.9)
    rivals = grid < 0.3 if excluded else better
    if excluded:
        prior = torch.where(better, 0.0, prior)
    posterior = exact_posterior(
        probability, torch.ones(1, 1, 40), prior.log(), scope="batch", temperature=1e-8
    )
    expected = torch.where(rivals, prior, 0.0)
    torch.testing.assert_close(
        posterior.exp().flatten(), expected / expected.sum(), atol=1e-5, rtol=0
    )


def test_each_class_uses_its_own_prior():
    probability, weight = some((2, 3, 6, 6))
    prior_log = torch.full((1, 3, 100), -math.inf)
    for channel, index in enumerate((10, 50, 90)):
        prior_log[0, channel, index] = 0
    posterior = exact_posterior(probability, weight, prior_log, scope="class", temperature=0.1)
    assert posterior.argmax(-1).tolist() == [[10, 50, 90]]


def test_posterior_neither_synchronizes_nor_allocates_more_than_the_image():
    probability, weight = some((2, 2, 48, 48))
    with Recorded() as recorded:
        exact_posterior(probability, weight, FLAT, scope="image-class", temperature=0.1)
    assert recorded.synchronizations() == []
    assert recorded.largest <= probability.numel()


def test_posterior_is_computed_in_float32_under_bfloat16_autocast():
    probability, weight = some((2, 1, 9, 9))
    rounded = probability.bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        half = exact_posterior(
            rounded, weight.bfloat16(), FLAT.bfloat16(), scope="batch", temperature=0.1
        )
    single = exact_posterior(
        rounded.float(), weight.bfloat16().float(), FLAT, scope="batch", temperature=0.1
    )
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, single, rtol=1e-4, atol=1e-4)


MUTATIONS = [
    Mutation(
        "counts excluded voxels of a selecting threshold",
        "torch.where(found, mass + weight, mass)",
        "(mass + weight)",
        "test_dice_of_every_threshold_agrees_with_brute_force",
        {"scope": "image", "selects": True},
        file="threshold/exact.py",
    ),
]


def test_posterior_has_no_gradient():
    probability = torch.rand(1, 1, 8, requires_grad=True)
    posterior = exact_posterior(
        probability, torch.ones(1, 1, 8), FLAT, scope="batch", temperature=1.0
    )
    assert not posterior.requires_grad
