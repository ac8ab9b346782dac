"""Tests and intervals compared with scipy, enumeration and published examples."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest
from scipy import stats

from segpl.evaluate.statistics import (
    bland_altman,
    bootstrap_means,
    compare_with,
    estimate,
    mann_whitney,
    wilcoxon,
)

# peak flow of 17 people by two meters, first readings of each, in l/min [BlandAltman1986]
LARGE_METER = [
    *(494, 395, 516, 434, 476, 557, 413, 442, 650),
    *(433, 417, 656, 267, 478, 178, 423, 427),
]
SMALL_METER = [
    *(512, 430, 520, 428, 500, 600, 364, 380, 658),
    *(445, 432, 626, 260, 477, 259, 350, 451),
]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def by_case(values: object) -> dict[int, float]:
    return dict(enumerate(np.asarray(values, float).tolist()))


def grid(array: np.ndarray) -> dict[int, dict[int, float]]:
    return {seed: by_case(row) for seed, row in enumerate(array)}


def enumerated(differences: list[float]) -> float:
    """Wilcoxon's p from all signs of the differences that are not 0, one by one."""
    ranks = stats.rankdata(np.abs(differences))
    ranks = [rank for rank, size in zip(ranks, differences, strict=True) if size]
    found = sum(r for r, d in zip(ranks, [d for d in differences if d], strict=True) if d > 0)
    sums = [
        sum(rank for rank, sign in zip(ranks, signs, strict=True) if sign)
        for signs in itertools.product([0, 1], repeat=len(ranks))
    ]
    at_most = sum(each <= found for each in sums) / len(sums)
    at_least = sum(each >= found for each in sums) / len(sums)
    return min(1.0, 2 * min(at_most, at_least))


@pytest.mark.parametrize("pairs", [1, 2, 5, 13, 50])
def test_wilcoxon_without_ties_equals_the_exact_p_of_scipy(pairs):
    differences = rng(pairs).normal(0.3, 1, pairs)
    wanted = stats.wilcoxon(differences, method="exact").pvalue
    assert wilcoxon(differences.tolist()) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize(
    "differences",
    [
        [1, 1, 1, 1, 1],
        [1, -1, 2, 2, 3, -2],
        [0, 0, 1, 2, 2],
        [0, -1, -1, -3, -4, -4, -4, 2],
        [0, 0, 0, 5],
        [1, -1],
    ],
)
def test_wilcoxon_with_ties_and_zeros_equals_the_enumeration_of_all_signs(differences):
    assert wilcoxon(differences) == pytest.approx(enumerated(differences), rel=1e-12)


def test_five_equal_gains_have_the_p_computed_by_hand():
    """Two of 2^5 signs are as extreme: 0.0625, where a normal approximation says 0.025."""
    assert wilcoxon([0.01] * 5) == 0.0625


def test_small_losses_weigh_more_beside_cases_that_do_not_differ():
    """Losses of rank 1 and 2 of 6: 5 of 64 signs are as extreme; of rank 11 and 12 of 16: 8."""
    mixed = [-0.01, -0.02, 0.3, 0.4, 0.5, 0.6]
    assert wilcoxon(mixed) == pytest.approx(2 * 5 / 64)
    assert wilcoxon([*mixed, *[0.0] * 10]) == pytest.approx(2 * 8 / 64)


@pytest.mark.parametrize("zeros", [0, 7])
def test_wilcoxon_of_many_pairs_equals_scipy(zeros):
    differences = [*rng(4).normal(0.2, 1, 80), *[0.0] * zeros]
    wanted = stats.wilcoxon(differences, zero_method="pratt", method="asymptotic").pvalue
    assert wilcoxon(differences) == pytest.approx(wanted, rel=1e-9)


def test_exact_and_approximate_p_agree_at_the_boundary():
    differences = rng(8).normal(0.25, 1, 51)
    exact = stats.wilcoxon(differences, method="exact").pvalue
    assert wilcoxon(differences.tolist()) == pytest.approx(exact, rel=0.03)


def test_wilcoxon_of_no_pairs_and_of_zeros():
    assert math.isnan(wilcoxon([]))
    assert wilcoxon([0.0, 0.0, 0.0]) == 1.0


def test_mann_whitney_equals_the_enumeration_of_all_arrangements():
    """Of the 20 ways to choose 3 of 6 ranks, 1, 2, 4 and its mirror are among the 4 outermost."""
    assert mann_whitney([0.1, 0.2, 0.4], [0.3, 0.5, 0.6]) == pytest.approx(4 / 20)


def test_mann_whitney_of_many_images_equals_scipy():
    first, second = rng(1).normal(0.7, 0.1, 60), rng(2).normal(0.66, 0.1, 60)
    wanted = stats.mannwhitneyu(first, second, method="asymptotic").pvalue
    assert mann_whitney(first.tolist(), second.tolist()) == pytest.approx(wanted)


def test_mann_whitney_of_no_values_and_of_equal_values():
    assert math.isnan(mann_whitney([], [0.5]))
    assert mann_whitney([0.5, 0.5], [0.5, 0.5, 0.5]) == 1.0


def test_bland_altman_of_two_meters_gives_the_numbers_of_the_paper():
    """Printed there: bias -2.1 (-22.0 to 17.8), deviation 38.8; limits with 2 for 1.96."""
    found = bland_altman(by_case(LARGE_METER), by_case(SMALL_METER))
    deviation = statistics.stdev(found.differences.values())
    assert deviation == pytest.approx(38.8, abs=0.05)
    assert found.bias == pytest.approx(-2.1, abs=0.05)
    assert found.reach == pytest.approx((17.8 + 22.0) / 2, abs=0.1)
    assert found.lower == pytest.approx(-2.1 - 1.96 * 38.8, abs=0.1)
    assert found.upper == pytest.approx(-2.1 + 1.96 * 38.8, abs=0.1)
    assert found.means[0] == 503


def test_limits_of_agreement_hold_95_of_100_differences():
    differences = rng(3).normal(1, 2, 20_000)
    found = bland_altman(by_case(differences), by_case(np.zeros(20_000)))
    within = np.mean((differences > found.lower) & (differences < found.upper))
    assert within == pytest.approx(0.95, abs=0.005)


def test_agreement_of_one_case_has_no_limits():
    found = bland_altman({"a": 0.8}, {"a": 0.5, "b": 0.1})
    assert found.bias == pytest.approx(0.3)
    assert math.isnan(found.reach)
    assert math.isnan(found.upper)


def test_mean_is_over_seeds_not_over_scores():
    """By hand: seeds have 0.3 and 0.6; the second has one case more."""
    found = estimate({0: {"a": 0.2, "b": 0.4}, 1: {"a": 0.5, "b": 0.6, "c": 0.7}})
    assert found.mean == pytest.approx(0.45)
    assert (found.seeds, found.cases) == (2, 3)


def test_bootstrap_of_one_seed_agrees_with_scipy():
    values = rng(5).normal(0.7, 0.1, 30)
    found = estimate({0: by_case(values)})
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=10_000, rng=rng(7)
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.002)


def test_bootstrap_of_two_seeds_has_the_probabilities_computed_by_hand():
    """Both seeds of 0 and 1: 0, 1/2 and 1 in a quarter, half and quarter of the draws."""
    drawn = bootstrap_means({0: {"a": 0.0}, 1: {"a": 1.0}}, rng(), 20_000)
    shares = [float(np.mean(drawn == value)) for value in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.015)


def test_shared_cases_are_resampled_for_all_seeds_at_once():
    """Seeds agree on each case: the mean is 0, 1/2 or 1, never 1/4, however seeds are drawn."""
    shared = {seed: {"a": 0.0, "b": 1.0} for seed in (0, 1)}
    assert set(bootstrap_means(shared, rng()).tolist()) == {0.0, 0.5, 1.0}
    own = {seed: {(seed, "a"): 0.0, (seed, "b"): 1.0} for seed in (0, 1)}
    drawn = bootstrap_means(own, rng(), 20_000)
    # four draws of one coin
    assert np.mean(drawn == 0.25) == pytest.approx(0.25, abs=0.015)
    assert drawn.var() == pytest.approx(1 / 16, rel=0.05)


def test_seeds_with_different_cases_resample_their_own():
    values = {0: {"a": 0.0}, 1: {"b": 1.0, "c": 1.0, "d": 1.0}}
    drawn = bootstrap_means(values, rng(), 20_000)
    shares = [float(np.mean(drawn == value)) for value in (0.0, 0.5, 1.0)]
    assert shares == pytest.approx([0.25, 0.5, 0.25], abs=0.015)


@pytest.mark.parametrize("is_shared", [True, False])
def test_interval_covers_the_truth_about_as_often_as_stated(is_shared):
    """Networks and images both differ; the interval is for new ones of both."""
    generator, hits, trials = rng(9), 0, 250
    for _ in range(trials):
        array = generator.normal(0, 0.01, (10, 1)) + generator.normal(0, 0.02, (10, 15))
        if is_shared:
            array += generator.normal(0, 0.03, (1, 15))
            values = grid(array)
        else:
            array += generator.normal(0, 0.03, (10, 15))
            values = {
                seed: {(seed, case): float(value) for case, value in enumerate(row)}
                for seed, row in enumerate(array)
            }
        found = estimate(values, samples=600)
        hits += found.low <= 0 <= found.high
    assert 0.89 <= hits / trials <= 0.985


def test_difference_of_methods_is_the_mean_of_the_differences():
    first, second = rng(1).random((3, 6)), rng(2).random((3, 6))
    found = compare_with(grid(second), {"a": grid(first)})["a"]
    by_image = (first - second).mean(0)
    assert found.estimate.mean == pytest.approx((first - second).mean())
    assert (found.higher, found.lower) == ((by_image > 0).sum(), (by_image < 0).sum())
    assert found.corrected == pytest.approx(stats.wilcoxon(by_image, method="exact").pvalue)


def test_paired_test_detects_what_the_unpaired_test_misses():
    """Images differ by far more than the methods."""
    images = rng(1).random(20)
    gains = images + 0.01 + rng(2).normal(0, 0.002, 20)
    assert wilcoxon((gains - images).tolist()) < 1e-4
    assert mann_whitney(gains.tolist(), images.tolist()) > 0.5
