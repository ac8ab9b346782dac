"""Paired tests against scipy, and corrections against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from segpl.evaluate.paired import PairedDifference, holm, paired_difference


def by_seed(values: object) -> dict[int, float]:
    return dict(enumerate(np.asarray(values, float).tolist()))


@pytest.mark.parametrize("pairs", [2, 3, 6, 20])
@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_difference_is_that_of_the_paired_t_test_of_scipy(pairs, confidence):
    rng = np.random.default_rng(pairs)
    reference = rng.normal(0.7, 0.1, pairs)
    values = reference + rng.normal(0.02, 0.05, pairs)
    ours = paired_difference(by_seed(values), by_seed(reference), confidence=confidence)
    theirs = stats.ttest_rel(values, reference)
    interval = theirs.confidence_interval(confidence)
    assert ours.p == pytest.approx(theirs.pvalue, rel=1e-9)
    assert (ours.low, ours.high) == pytest.approx((interval.low, interval.high), rel=1e-9)
    assert ours.mean == pytest.approx((values - reference).mean())
    assert (ours.pairs, ours.better) == (pairs, int((values > reference).sum()))


def test_two_pairs_give_the_interval_on_paper():
    """Differences 0.1 and 0.3: mean 0.2, standard error 0.1, Student's quantile 12.706."""
    found = paired_difference({0: 0.6, 1: 0.9}, {0: 0.5, 1: 0.6})
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, -1.0706, 1.4706), abs=1e-4)
    assert found.p == pytest.approx(2 * math.atan(1 / 2) / math.pi)  # the t with one degree: Cauchy


def test_pairs_are_of_equal_keys_whatever_their_order():
    found = paired_difference({3: 0.5, 1: 0.2, 7: 0.9}, {1: 0.1, 3: 0.5, 4: 0.0})
    assert (found.pairs, found.better) == (2, 1)
    assert found.mean == pytest.approx(0.05)


def test_equal_values_differ_by_nothing():
    same = by_seed([0.61, 0.72, 0.83])
    assert paired_difference(same, same) == PairedDifference(3, 0, 0.0, 0.0, 0.0, 1.0)


def test_the_same_gain_everywhere_is_certain():
    found = paired_difference(by_seed([0.5, 0.75]), by_seed([0.25, 0.5]))
    assert found == PairedDifference(2, 2, 0.25, 0.25, 0.25, 0.0)


def test_differences_that_differ_by_rounding_alone_give_no_warning():
    found = paired_difference(by_seed([0.3, 0.8, 1.0]), by_seed([0.2, 0.7, 0.9]))
    assert found.p < 1e-9


def test_one_pair_has_a_difference_and_no_test():
    found = paired_difference({0: 0.5}, {0: 0.25})
    assert (found.pairs, found.better, found.mean) == (1, 1, 0.25)
    assert all(map(math.isnan, (found.low, found.high, found.p)))


def test_no_pair_has_nothing():
    found = paired_difference({0: 0.5}, {1: 0.25})
    assert found.pairs == 0
    assert math.isnan(found.mean)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        # sorted 0.005, 0.01, 0.03, 0.04: times 4, 3, 2, 1, and never below the one before
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.01, 0.02, 0.03, 0.04, 0.05], [0.05, 0.08, 0.09, 0.09, 0.09]),
        ([0.6, 0.9], [1.0, 1.0]),
        ([0.03], [0.03]),
        ([], []),
    ],
)
def test_holm_gives_the_numbers_on_paper(given, wanted):
    assert holm(given) == pytest.approx(wanted)


def test_what_was_not_tested_counts_for_no_comparison():
    first, second, third = holm([0.01, math.nan, 0.02])
    assert (first, third) == pytest.approx((0.02, 0.02))
    assert math.isnan(second)
