from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segpl.evaluate.statistics import Difference, compare_with, estimate, holm, smallest_p, wilcoxon

score = st.integers(0, 100).map(lambda number: number / 100)
scores = st.integers(1, 3).flatmap(
    lambda seeds: st.integers(1, 6).flatmap(
        lambda cases: st.lists(
            st.lists(st.tuples(score, score), min_size=cases, max_size=cases),
            min_size=seeds,
            max_size=seeds,
        )
    )
)


def table(rows: list[list[tuple[float, float]]], column: int) -> dict[int, dict[str, float]]:
    return {
        seed: {f"case{case}": pair[column] for case, pair in enumerate(row)}
        for seed, row in enumerate(rows)
    }


def compared(values, reference) -> Difference:
    return compare_with(reference, {"a": values})["a"]


@given(scores)
@settings(max_examples=20, deadline=None)
def test_swapping_the_methods_flips_the_sign_and_keeps_p(rows):
    first, second = table(rows, 0), table(rows, 1)
    one, other = compared(first, second), compared(second, first)
    assert other.estimate.mean == -one.estimate.mean
    ends = (-one.estimate.high, -one.estimate.low)
    assert (other.estimate.low, other.estimate.high) == pytest.approx(ends, abs=1e-12, nan_ok=True)
    assert (other.higher, other.lower, other.corrected) == (one.lower, one.higher, one.corrected)
    assert one.is_significant == other.is_significant


@given(scores, st.randoms())
@settings(max_examples=20, deadline=None)
def test_the_order_of_cases_and_seeds_does_not_matter(rows, random):
    def shuffled(mapping):
        return dict(random.sample(list(mapping.items()), len(mapping)))

    first, second = table(rows, 0), table(rows, 1)
    again = compared(
        shuffled({seed: shuffled(cases) for seed, cases in first.items()}),
        shuffled({seed: shuffled(cases) for seed, cases in second.items()}),
    )
    assert repr(again) == repr(compared(first, second))  # repr: nan is not equal to itself


@given(st.lists(score, min_size=1, max_size=12))
def test_p_is_a_probability_and_never_below_the_smallest_possible(differences):
    assert smallest_p(len(differences)) - 1e-12 <= wilcoxon(differences) <= 1


def test_only_pairs_of_equal_seed_and_case_are_compared():
    values = {0: {"a": 0.5, "b": 0.5}, 1: {"a": 0.9}, 2: {"a": 0.9}}
    reference = {0: {"a": 0.25, "c": 0.5}, 1: {"a": 0.65}}
    found = compared(values, reference)
    assert found.estimate.mean == pytest.approx(0.25)
    assert (found.estimate.seeds, found.estimate.cases, found.left_out) == (2, 1, 3)


def test_values_that_are_not_finite_are_left_out_and_counted():
    reference = {0: {"a": 0.1, "b": 0.1, "c": 0.25}}
    found = compared({0: {"a": math.nan, "b": math.inf, "c": 0.5}}, reference)
    assert (found.estimate.mean, found.left_out) == (0.25, 2)


def test_rounding_errors_are_not_differences():
    found = compared({0: {"a": 0.1 + 0.2}}, {0: {"a": 0.3}})
    assert (found.estimate.mean, found.higher, found.lower) == (0.0, 0, 0)


def test_significance_needs_an_interval_without_zero_and_a_small_corrected_p():
    reference = {0: dict.fromkeys(range(8), 0.5)}
    better = {0: {case: 0.5 + (case + 1) / 100 for case in range(8)}}
    found = compared(better, reference)
    assert found.is_significant
    wide = replace(found.estimate, low=-0.01)
    assert not replace(found, estimate=wide).is_significant
    few = {0: {case: better[0][case] for case in range(5)}}  # p = 2 / 32
    assert not compared(few, reference).is_significant
    # p = 2 / 256 is below 0.05, but not after the correction for seven comparisons
    many = compare_with(reference, {str(number): better for number in range(7)})
    assert not any(found.is_significant for found in many.values())


def test_methods_without_a_common_case_have_no_difference():
    found = compared({0: {"a": 0.75}}, {1: {"a": 0.5}})
    assert math.isnan(found.estimate.mean)
    assert math.isnan(found.corrected)
    assert not found.is_significant


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        # sorted 0.005, 0.01, 0.03, 0.04: times 4, 3, 2, 1, and never below the one before
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.6, 0.9], [1.0, 1.0]),
        ([0.03], [0.03]),
        ([], []),
    ],
)
def test_holm_matches_values_computed_by_hand(values, wanted):
    assert holm(values) == pytest.approx(wanted)


def test_holm_ignores_comparisons_without_p():
    first, second, third = holm([0.01, math.nan, 0.02])
    assert (first, third) == pytest.approx((0.02, 0.02))
    assert math.isnan(second)


def test_interval_of_equal_scores_is_that_score_even_if_a_draw_misses_all_cases_of_a_seed():
    found = estimate({0: {"a": 0.5}, 1: {"a": 0.5, "b": 0.5, "c": 0.5}})
    assert (found.mean, found.low, found.high) == (0.5, 0.5, 0.5)


def test_one_missing_pair_does_not_make_shared_cases_independent():
    """Every seed finds the same cases hard, so three seeds tell no more about them than one."""
    complete = {seed: {f"case{n:02}": n / 20 for n in range(20)} for seed in range(3)}
    missing = {**complete, 1: {case: v for case, v in complete[1].items() if case != "case10"}}
    before, after = estimate(complete), estimate(missing)
    assert after.high - after.low == pytest.approx(before.high - before.low, rel=0.1)


def test_seeds_with_their_own_cases_resample_them_independently():
    shared = {seed: {f"case{n:02}": n / 20 for n in range(20)} for seed in range(4)}
    own = {seed: {(seed, case): v for case, v in cases.items()} for seed, cases in shared.items()}
    before, after = estimate(shared), estimate(own)
    assert after.high - after.low < 0.7 * (before.high - before.low)
