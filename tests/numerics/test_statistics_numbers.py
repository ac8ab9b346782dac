"""Tests, intervals and agreement against scipy, enumeration and published examples."""

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
    holm,
    mann_whitney,
    wilcoxon,
)

# peak flow of 17 people measured by two meters, in l/min [BlandAltman1986]
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
    """Wilcoxon's p by enumerating all signs of the nonzero differences."""
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


@pytest.mark.parametrize("pairs", [1, 5, 50])
def test_exact_wilcoxon_p_without_ties_agrees_with_scipy(pairs):
    differences = rng(pairs).normal(0.3, 1, pairs)
    expected = stats.wilcoxon(differences, method="exact").pvalue
    assert wilcoxon(differences.tolist()) == pytest.approx(expected, rel=1e-6)


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
def test_wilcoxon_p_with_ties_and_zeros_agrees_with_enumeration(differences):
    assert wilcoxon(differences) == pytest.approx(enumerated(differences), rel=1e-9)


def test_five_equal_gains_have_p_0_0625():
    """Two of 2^5 signs are as extreme; a normal approximation gives 0.025."""
    assert wilcoxon([0.01] * 5) == pytest.approx(0.0625)


def test_zeros_raise_the_ranks_of_small_losses():
    """Losses of ranks 1 and 2: 5 of 64 signs are as extreme; of ranks 11 and 12: 8."""
    mixed = [-0.01, -0.02, 0.3, 0.4, 0.5, 0.6]
    assert wilcoxon(mixed) == pytest.approx(2 * 5 / 64)
    assert wilcoxon([*mixed, *[0.0] * 10]) == pytest.approx(2 * 8 / 64)


@pytest.mark.parametrize("zeros", [0, 7])
def test_wilcoxon_p_of_many_pairs_agrees_with_scipy(zeros):
    differences = [*rng(4).normal(0.2, 1, 80), *[0.0] * zeros]
    expected = stats.wilcoxon(differences, zero_method="pratt", method="asymptotic").pvalue
    assert wilcoxon(differences) == pytest.approx(expected, rel=1e-6)


def test_approximate_wilcoxon_p_is_close_to_the_exact_one():
    differences = rng(8).normal(0.25, 1, 51)
    exact = stats.wilcoxon(differences, method="exact").pvalue
    assert wilcoxon(differences.tolist()) == pytest.approx(exact, rel=0.03)


def test_wilcoxon_p_of_nothing_and_of_zeros():
    assert math.isnan(wilcoxon([]))
    assert wilcoxon([0.0, 0.0, 0.0]) == 1.0


def test_mann_whitney_p_agrees_with_enumeration():
    """4 of the 20 ways to choose 3 of 6 ranks are as extreme as 1, 2, 4."""
    assert mann_whitney([0.1, 0.2, 0.4], [0.3, 0.5, 0.6]) == pytest.approx(4 / 20)


def test_mann_whitney_p_of_many_images_agrees_with_scipy():
    first, second = rng(1).normal(0.7, 0.1, 60), rng(2).normal(0.66, 0.1, 60)
    expected = stats.mannwhitneyu(first, second, method="asymptotic").pvalue
    assert mann_whitney(first.tolist(), second.tolist()) == pytest.approx(expected)


def test_mann_whitney_p_of_nothing_and_of_equal_values():
    assert math.isnan(mann_whitney([], [0.5]))
    assert mann_whitney([0.5, 0.5], [0.5, 0.5, 0.5]) == 1.0


def test_bland_altman_reproduces_the_published_example():
    """Published: bias -2.1 (-22.0 to 17.8), std 38.8; limits with 2 instead of 1.96."""
    found = bland_altman(by_case(LARGE_METER), by_case(SMALL_METER))
    deviation = statistics.stdev(found.differences.values())
    assert deviation == pytest.approx(38.8, abs=0.05)
    assert found.bias.value == pytest.approx(-2.1, abs=0.05)
    assert (found.bias.low, found.bias.high) == pytest.approx((-22.0, 17.8), abs=0.1)
    assert found.lower.value == pytest.approx(-2.1 - 1.96 * 38.8, abs=0.1)
    assert found.upper.value == pytest.approx(-2.1 + 1.96 * 38.8, abs=0.1)
    # published: -114.3 to -45.1 around -79.7, with the standard error rounded to s * sqrt(3 / n)
    assert found.lower.high - found.lower.value == pytest.approx(34.6, abs=0.5)
    assert found.upper.value - found.upper.low == pytest.approx(34.6, abs=0.5)
    assert found.means[0] == 503


def test_limits_of_agreement_contain_95_percent_of_the_differences():
    differences = rng(3).normal(1, 2, 20_000)
    found = bland_altman(by_case(differences), by_case(np.zeros(20_000)))
    within = np.mean((differences > found.lower.value) & (differences < found.upper.value))
    assert within == pytest.approx(0.95, abs=0.01)


def test_interval_of_a_limit_has_its_nominal_coverage():
    hits = 0
    for trial in range(400):
        found = bland_altman(by_case(rng(trial).normal(0, 1, 25)), by_case(np.zeros(25)))
        hits += found.upper.low < 1.96 < found.upper.high
    assert hits / 400 == pytest.approx(0.95, abs=0.05)


def test_bland_altman_of_one_case_has_no_limits():
    found = bland_altman({"a": 0.8}, {"a": 0.5, "b": 0.1})
    assert found.bias.value == pytest.approx(0.3)
    assert math.isnan(found.bias.low)
    assert math.isnan(found.upper.value)


def test_mean_and_std_are_over_seeds():
    """By hand: the seeds have means 0.3 and 0.6; the second has one more case."""
    found = estimate({0: {"a": 0.2, "b": 0.4}, 1: {"a": 0.5, "b": 0.6, "c": 0.7}})
    assert found.mean == pytest.approx(0.45)
    assert found.std == pytest.approx(0.3 / math.sqrt(2))
    assert (found.seeds, found.cases) == (2, 3)


def test_interval_of_one_seed_agrees_with_scipy():
    values = rng(5).normal(0.7, 0.1, 30)
    found = estimate({0: by_case(values)})
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=10_000, rng=rng(7)
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.005)


def test_bootstrap_of_two_seeds_and_one_case_by_hand():
    """Seeds 0 and 1 give 0, 1/2 and 1 with probabilities 1/4, 1/2 and 1/4."""
    drawn = bootstrap_means({0: {"a": 0.0}, 1: {"a": 1.0}}, rng(), 20_000)
    frequencies = [float(np.mean(drawn == value)) for value in (0.0, 0.5, 1.0)]
    assert frequencies == pytest.approx([0.25, 0.5, 0.25], abs=0.02)


def test_shared_cases_are_resampled_for_all_seeds_at_once():
    """Seeds agree on each case, so the mean is 0, 1/2 or 1, never 1/4."""
    shared = {seed: {"a": 0.0, "b": 1.0} for seed in (0, 1)}
    assert set(bootstrap_means(shared, rng(), 2_000).tolist()) == {0.0, 0.5, 1.0}
    own = {seed: {(seed, "a"): 0.0, (seed, "b"): 1.0} for seed in (0, 1)}
    drawn = bootstrap_means(own, rng(), 20_000)
    # four tosses of a coin
    assert np.mean(drawn == 0.25) == pytest.approx(0.25, abs=0.02)
    assert drawn.var() == pytest.approx(1 / 16, rel=0.1)


def test_seeds_with_different_cases_resample_their_own():
    values = {0: {"a": 0.0}, 1: {"b": 1.0, "c": 1.0, "d": 1.0}}
    drawn = bootstrap_means(values, rng(), 20_000)
    frequencies = [float(np.mean(drawn == value)) for value in (0.0, 0.5, 1.0)]
    assert frequencies == pytest.approx([0.25, 0.5, 0.25], abs=0.02)


@pytest.mark.parametrize("is_shared", [True, False])
def test_interval_has_about_its_nominal_coverage(is_shared):
    """Both seeds and images vary; the interval covers new ones of both."""
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
    assert 0.85 <= hits / trials <= 0.995


def test_difference_of_methods_is_the_mean_of_the_paired_differences():
    first, second = rng(1).random((3, 6)), rng(2).random((3, 6))
    found = compare_with(grid(second), {"first": grid(first)})["first"]
    by_image = (first - second).mean(0)
    assert found.estimate.mean == pytest.approx((first - second).mean())
    assert (found.higher, found.lower) == ((by_image > 0).sum(), (by_image < 0).sum())
    assert found.p == pytest.approx(stats.wilcoxon(by_image, method="exact").pvalue)


def test_paired_test_detects_what_the_unpaired_test_misses():
    """Images differ far more than methods."""
    images = rng(1).random(20)
    gains = images + 0.01 + rng(2).normal(0, 0.002, 20)
    assert wilcoxon((gains - images).tolist()) < 1e-4
    assert mann_whitney(gains.tolist(), images.tolist()) > 0.5


@pytest.mark.parametrize(
    ("p_values", "expected"),
    [
        # sorted 0.005, 0.01, 0.03, 0.04: times 4, 3, 2, 1, and never below the one before
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.01, 0.02, 0.03, 0.04, 0.05], [0.05, 0.08, 0.09, 0.09, 0.09]),
        ([0.6, 0.9], [1.0, 1.0]),
        ([], []),
    ],
)
def test_holm_correction_by_hand(p_values, expected):
    assert holm(p_values) == pytest.approx(expected)


def test_holm_correction_ignores_nan():
    first, second, third = holm([0.01, math.nan, 0.02])
    assert (first, third) == pytest.approx((0.02, 0.02))
    assert math.isnan(second)
