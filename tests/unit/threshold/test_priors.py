from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import Recorded

from segpl.threshold.histogram import threshold_grid
from segpl.threshold.priors import (
    BOOTSTRAP_RESAMPLES,
    MIN_LEARNED_STD,
    PRIORS,
    ConfidencePrior,
    FixedPrior,
    LabeledPrior,
    StepPredictions,
    best_thresholds,
    resample_counts,
)
from segpl.types import IGNORE

every_prior = pytest.mark.parametrize("name", sorted(PRIORS))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def scene(outputs, sides=(12, 12), images=4, *, best=0.3, seed=0):
    """Labels, and probabilities whose best threshold is `best`, with 10 percent noise."""
    draw = generator(seed)
    classes = max(outputs, 2)
    label = torch.randint(classes, (images, *sides), generator=draw)
    channels = torch.arange(outputs).view(1, -1, *[1] * len(sides)) if outputs > 1 else 1
    target = (label.unsqueeze(1) == channels).float()
    noise = torch.rand(target.shape, generator=draw)
    probability = torch.where(target == 1, best + (1 - best) * noise, best * noise)
    flipped = torch.rand(target.shape, generator=draw) < 0.1
    return torch.where(flipped, torch.rand(target.shape, generator=draw), probability), label


def feed(prior, labeled, label, unlabeled=None, weight=None, seed=0):
    unlabeled = labeled if unlabeled is None else unlabeled
    weight = torch.ones_like(unlabeled[:, :1]) if weight is None else weight
    prior.update(StepPredictions(labeled, label, unlabeled, weight), generator(seed))
    return prior.mean.item(), prior.std.item()


def dice_by_hand(probability, label, threshold):
    """Hard Dice of the foreground channels, smoothed by one voxel."""
    channels = [0] if probability.shape[1] == 1 else range(1, probability.shape[1])
    known = label != IGNORE
    overlap = total = 0.0
    for channel in channels:
        predicted = (probability[:, channel] > threshold) & known
        truth = (label == max(channel, 1)) & known
        overlap += (predicted & truth).sum().item()
        total += predicted.sum().item() + truth.sum().item()
    return (2 * overlap + 1) / (total + 1)


@pytest.mark.parametrize(("outputs", "sides"), [(1, (12, 12)), (3, (6, 5, 4))])
def test_single_crop_gives_the_threshold_of_its_best_dice(outputs, sides):
    """Resampling a single crop changes nothing: the std is the minimum."""
    probability, label = scene(outputs, sides, images=1)
    label[:, :4], probability[:, :, :4] = IGNORE, 0.5  # would raise the threshold
    scores = np.array([dice_by_hand(probability, label, t) for t in threshold_grid(100)])
    expected = threshold_grid(100)[scores > scores.max() - 1e-12].mean().item()
    mean, std = feed(LabeledPrior(0.9, 0.2), probability, label)
    assert mean == pytest.approx(expected, abs=1e-5)
    assert std == pytest.approx(MIN_LEARNED_STD)


def test_bootstrap_agrees_with_resampling_in_numpy():
    """Ten crops of two kinds that disagree; standard errors are 0.01 to 0.02."""
    low = scene(1, (8, 8), images=5, best=0.3)
    high = scene(1, (8, 8), images=5, best=0.7, seed=1)
    probability, label = torch.cat([low[0], high[0]]), torch.cat([low[1], high[1]])
    grid = threshold_grid(100)
    above = probability.flatten(1).unsqueeze(-1) > grid  # (10, voxels, G)
    truth = (label == 1).flatten(1).unsqueeze(-1)
    sums = [x.sum(1).numpy() for x in (above, above & truth, truth)]
    best = []
    draws = np.random.default_rng(0)
    for _ in range(2000):
        chosen = draws.integers(10, size=10)
        count, hits, positives = (x[chosen].sum(0) for x in sums)
        dice = (2 * hits + 1) / (count + positives + 1)
        best.append(grid[torch.from_numpy(dice >= dice.max())].mean().item())
    mean, std = feed(LabeledPrior(0.9, 0.2), probability, label)
    assert np.std(best) > 0.03, "the two kinds must disagree to test the std"
    assert mean == pytest.approx(np.mean(best), abs=4 * np.std(best) / 10)
    assert std == pytest.approx(np.std(best), rel=0.35)


def test_resamples_draw_only_from_the_stored_crops():
    counts = resample_counts(64, torch.tensor(10), generator())
    assert counts.shape == (BOOTSTRAP_RESAMPLES, 64)
    assert (counts.sum(1) == 10).all()
    assert (counts[:, 10:] == 0).all()
    assert (counts[:, :10].sum(0) > 0).all()


@pytest.mark.parametrize("fill", [0, IGNORE])
def test_labels_without_foreground_keep_the_given_values(fill):
    """Otherwise the Dice would push the threshold above every probability."""
    label = torch.full((3, 8, 8), fill)
    prior = LabeledPrior(0.6, 0.2)
    assert feed(prior, torch.rand(3, 1, 8, 8, generator=generator()), label) == pytest.approx(
        (0.6, 0.2)
    )


def test_resample_without_foreground_returns_the_given_mean():
    """One of two crops has foreground: about a quarter of the resamples miss it."""
    above = torch.tensor([[4.0, 2.0], [3.0, 1.0]])
    hits = torch.tensor([[2.0, 2.0], [0.0, 0.0]])
    positives = torch.tensor([2.0, 0.0])
    best = best_thresholds(
        above, hits, positives, torch.tensor(2), torch.tensor(0.123), generator()
    )
    assert best.unique().tolist() == pytest.approx([0.123, 0.75])
    assert 0.1 < (best < 0.2).float().mean().item() < 0.4


def test_new_crops_replace_the_oldest():
    prior = LabeledPrior(0.5, 0.1, crops=6)
    for seed in range(3):
        feed(prior, *scene(1, best=0.2, seed=seed))
    for seed in range(3, 5):
        mean, _ = feed(prior, *scene(1, best=0.8, seed=seed))
    assert mean == pytest.approx(0.8, abs=0.05)
    assert prior.seen.item() == 20
    expected = torch.stack([(scene(1, seed=4)[1] == 1).sum((1, 2))[i] for i in range(4)]).float()
    assert torch.equal(prior.positives[torch.arange(16, 20) % 6], expected)


def test_batch_larger_than_the_memory_keeps_its_last_crops():
    probability, label = scene(1, images=7)
    whole, last = LabeledPrior(0.5, 0.1, crops=3), LabeledPrior(0.5, 0.1, crops=3)
    assert feed(whole, probability, label) == feed(last, probability[-3:], label[-3:])


def test_confidence_is_the_mean_over_predicted_foreground():
    """By hand: 0.6 and 0.9 count, 0.4 is background, 0.99 has no weight."""
    unlabeled = torch.tensor([0.6, 0.9, 0.4, 0.99]).view(1, 1, 2, 2)
    weight = torch.tensor([1.0, 1.0, 1.0, 0.0]).view(1, 1, 2, 2)
    mean, std = feed(ConfidencePrior(0.5, 0.1, rate=1.0), *scene(1), unlabeled, weight)
    assert (mean, std) == pytest.approx((0.75, 0.1))


def test_confidence_uses_the_largest_foreground_channel():
    """By hand: voxel 1 has 0.8 for class 2; voxel 2 is background."""
    unlabeled = torch.tensor([[[0.99, 0.99], [0.6, 0.2], [0.8, 0.3]]]).unsqueeze(-1)
    mean, _ = feed(ConfidencePrior(0.5, 0.1, rate=1.0), *scene(3), unlabeled)
    assert mean == pytest.approx(0.8)


def test_confidence_is_a_moving_average():
    unlabeled = torch.full((1, 1, 4, 4), 0.9)
    prior = ConfidencePrior(0.5, 0.1, rate=0.25)
    assert feed(prior, *scene(1), unlabeled)[0] == pytest.approx(0.6)
    assert feed(prior, *scene(1), unlabeled)[0] == pytest.approx(0.675)


def test_clipping_does_not_change_the_moving_average():
    prior = ConfidencePrior(0.5, 0.1, rate=0.5)
    for _ in range(40):
        mean, _ = feed(prior, *scene(1), torch.ones(1, 1, 4, 4))
    assert mean == pytest.approx(0.95)
    assert feed(prior, *scene(1), torch.full((1, 1, 4, 4), 0.94))[0] == pytest.approx(0.95)
    # 0.97 before clipping
    assert feed(prior, *scene(1), torch.full((1, 1, 4, 4), 0.61))[0] == pytest.approx(0.79)


def test_images_without_foreground_keep_the_confidence():
    prior = ConfidencePrior(0.7, 0.1, rate=0.5)
    assert feed(prior, *scene(1), torch.full((1, 1, 4, 4), 0.1))[0] == pytest.approx(0.7)
    weight = torch.zeros(1, 1, 4, 4)
    assert feed(prior, *scene(1), torch.ones(1, 1, 4, 4), weight)[0] == pytest.approx(0.7)


@every_prior
def test_resumed_prior_continues_exactly(name):
    whole, first, second = (PRIORS[name](0.5, 0.1) for _ in range(3))
    for seed in range(3):
        feed(whole, *scene(1, seed=seed), seed=seed)
        feed(first, *scene(1, seed=seed), seed=seed)
    second.load_state_dict(first.state_dict())
    assert feed(second, *scene(1, seed=9), seed=9) == feed(whole, *scene(1, seed=9), seed=9)


@every_prior
def test_update_neither_synchronizes_nor_leaves_a_gradient(name):
    prior = PRIORS[name](0.5, 0.1)
    probability, label = scene(3)
    probability.requires_grad_()
    draw = generator()
    with Recorded() as recorded:
        prior.update(
            StepPredictions(probability, label, probability, torch.ones(4, 1, 12, 12)), draw
        )
    assert recorded.synchronizations() == []
    assert not prior.mean.requires_grad
    assert not prior.std.requires_grad


@every_prior
def test_half_precision_training_gives_the_values_of_float32(name):
    probability, label = scene(1)
    rounded = probability.bfloat16()
    expected = feed(PRIORS[name](0.5, 0.1), rounded.float(), label)
    prior = PRIORS[name](0.5, 0.1)
    with torch.autocast("cpu", torch.bfloat16):
        assert feed(prior, rounded, label) == pytest.approx(expected, abs=1e-5)
    assert prior.mean.dtype == torch.float32


@every_prior
@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    values=st.lists(
        st.floats(0, 1, width=32) | st.sampled_from([0.0, 1.0]), min_size=8, max_size=8
    ),
    labels=st.lists(st.sampled_from([IGNORE, 0, 1]), min_size=8, max_size=8),
    kept=st.sampled_from([0.0, 1e-30, 1.0]),
)
def test_any_probabilities_and_labels_give_a_usable_prior(name, values, labels, kept):
    probability = torch.tensor(values).view(2, 1, 2, 2)
    label = torch.tensor(labels).view(2, 2, 2)
    weight = torch.full((2, 1, 2, 2), kept)
    mean, std = feed(PRIORS[name](0.5, 0.1), probability, label, probability, weight)
    assert 0 < mean < 1
    assert 0.999 * MIN_LEARNED_STD <= std < 1


def test_resamples_of_a_full_memory_draw_from_all_crops():
    counts = resample_counts(16, torch.tensor(1000), generator())
    assert (counts.sum(1) == 16).all()
    assert (counts.sum(0) > 0).all()


def test_fixed_prior_never_changes():
    assert feed(FixedPrior(0.7, 0.2), *scene(1)) == pytest.approx((0.7, 0.2))
