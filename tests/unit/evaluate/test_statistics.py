from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segpl.evaluate.statistics import (
    Effect,
    Estimate,
    bland_altman,
    effect,
    mann_whitney,
    sentence,
    wilcoxon,
)

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


def compared(values, reference, **options) -> Effect:
    return effect(values, reference, np.random.default_rng(0), resamples=500, **options)


def found(mean: float, low: float, high: float, **changes: int) -> Effect:
    count = {"above": 18, "below": 2, "left_out": 0, "seeds": 5, "cases": 20} | changes
    known = Estimate(mean, 0.01, low, high, count["seeds"], count["cases"])
    return Effect(known, count["above"], count["below"], 0.01, count["left_out"])


@given(scores)
@settings(max_examples=40, deadline=None)
def test_swapped_methods_turn_every_sign_and_no_p(rows):
    first, second = table(rows, 0), table(rows, 1)
    one, other = compared(first, second), compared(second, first)
    assert other.estimate.mean == -one.estimate.mean
    ends = (-one.estimate.high, -one.estimate.low)
    assert (other.estimate.low, other.estimate.high) == pytest.approx(ends, abs=1e-12, nan_ok=True)
    assert (other.above, other.below, other.p) == (one.below, one.above, one.p)
    if one.estimate.mean:
        words = sentence(one).replace("better", "WORSE").replace("worse", "better")
        assert sentence(other) == words.replace("WORSE", "worse")


@given(scores, st.randoms())
@settings(max_examples=40, deadline=None)
def test_order_of_cases_and_seeds_changes_nothing(rows, random):
    def shuffled(mapping):
        return dict(random.sample(list(mapping.items()), len(mapping)))

    first, second = table(rows, 0), table(rows, 1)
    again = compared(
        shuffled({seed: shuffled(cases) for seed, cases in first.items()}),
        shuffled({seed: shuffled(cases) for seed, cases in second.items()}),
    )
    assert repr(again) == repr(compared(first, second))  # repr: nan is not equal to itself
    one, two = bland_altman(first[0], second[0]), bland_altman(shuffled(first[0]), second[0])
    assert repr(one.upper) == pytest.approx(repr(two.upper))


@given(scores)
@settings(max_examples=40, deadline=None)
def test_swapped_methods_mirror_their_agreement(rows):
    first, second = table(rows, 0)[0], table(rows, 1)[0]
    one, other = bland_altman(first, second), bland_altman(second, first)
    assert other.bias.value == pytest.approx(-one.bias.value)
    mirrored = (-one.lower.value, -one.lower.high, -one.lower.low)
    assert (other.upper.value, other.upper.low, other.upper.high) == pytest.approx(
        mirrored, nan_ok=True
    )
    assert mann_whitney([*first.values()], [*second.values()]) == pytest.approx(
        mann_whitney([*second.values()], [*first.values()])
    )


@given(st.lists(score, min_size=1, max_size=12))
def test_p_of_signed_ranks_is_a_chance(differences):
    assert 0 < wilcoxon(differences) <= 1


def test_same_generator_gives_the_same_interval():
    rows = [[(0.1, 0.2), (0.7, 0.4), (0.5, 0.5)]] * 2
    one, other = (compared(table(rows, 0), table(rows, 1)) for _ in range(2))
    assert one == other


def test_a_wider_confidence_gives_a_wider_interval():
    rows = [[(0.1, 0.2), (0.7, 0.4), (0.5, 0.5), (0.9, 0.6)]] * 2
    wide, narrow = (
        compared(table(rows, 0), table(rows, 1), confidence=confidence).estimate
        for confidence in (0.95, 0.5)
    )
    assert wide.low < narrow.low < narrow.high < wide.high


def test_only_pairs_of_equal_seed_and_case_are_compared():
    values = {0: {"a": 0.5, "b": 0.5}, 1: {"a": 0.9}, 2: {"a": 0.9}}
    reference = {0: {"a": 0.25, "c": 0.5}, 1: {"a": 0.65}}
    result = compared(values, reference)
    assert result.estimate.mean == pytest.approx(0.25)
    assert (result.estimate.seeds, result.estimate.cases) == (2, 1)
    assert result.left_out == 3
    assert "3 pairs of seed and case left out, where one of the two has no score" in sentence(
        result
    )


def test_a_value_that_is_not_finite_leaves_its_pair_out_and_is_counted():
    result = compared(
        {0: {"a": math.nan, "b": math.inf, "c": 0.5}}, {0: {"a": 0.1, "b": 0.1, "c": 0.25}}
    )
    assert result.estimate.mean == 0.25
    assert result.left_out == 2


def test_differences_by_rounding_alone_are_none():
    result = compared({0: {"a": 0.1 + 0.2}}, {0: {"a": 0.3}})
    assert (result.estimate.mean, result.above, result.below) == (0.0, 0, 0)


def test_a_certain_gain_is_told_with_its_interval_and_cases():
    words = "better by 1.3 Dice (95 % interval 0.4 to 2.1), 18 of 20 cases"
    assert sentence(found(0.013, 0.004, 0.021)) == words


def test_a_certain_loss_is_told_with_the_cases_that_lost():
    words = "worse by 1.3 Dice (95 % interval 0.4 to 2.1), 17 of 20 cases"
    assert sentence(found(-0.013, -0.021, -0.004, above=3, below=17)) == words


def test_less_of_a_distance_is_better():
    result = found(-1.5, -2.0, -1.0, above=2, below=18)
    words = "better by 1.5 mm of HD95 (95 % interval 1.0 to 2.0), 18 of 20 cases"
    assert sentence(result, name="mm of HD95", scale=1, higher_is_better=False) == words


def test_an_interval_that_holds_zero_tells_no_difference():
    words = "no difference can be told: 0.3 Dice better (95 % interval -0.4 to 1.1), 12 of 20 cases"
    assert sentence(found(0.003, -0.004, 0.011, above=12, below=8)) == words
    assert sentence(found(0.003, 0.0, 0.011)).startswith("no difference can be told")


def test_a_corrected_p_above_the_level_tells_no_difference():
    gain = found(0.013, 0.004, 0.021)
    assert sentence(gain, holm=0.049).startswith("better by 1.3 Dice")
    assert sentence(gain, holm=0.05).startswith("no difference can be told: 1.3 Dice better")


def test_equal_scores_are_called_the_same():
    rows = [[(0.5, 0.5), (0.75, 0.75)]] * 6
    result = compared(table(rows, 0), table(rows, 1))
    assert sentence(result) == "no difference: the same Dice in all 2 cases"
    assert result.p == 1


def test_seeds_that_cancel_out_in_every_case_are_not_called_the_same():
    values = {seed: {"a": 0.5 + shift} for seed, shift in enumerate((0.25, -0.25))}
    result = compared(values, {seed: {"a": 0.5} for seed in values})
    assert sentence(result).startswith("no difference can be told: 0.0 Dice")


@pytest.mark.parametrize(
    ("seeds", "words"),
    [
        (1, "; one seed, so that another training may differ by more"),
        (2, "; only 2 seeds"),
        (4, "; only 4 seeds"),
        (5, "18 of 20 cases"),
    ],
)
def test_few_seeds_are_told(seeds, words):
    assert sentence(found(0.013, 0.004, 0.021, seeds=seeds)).endswith(words)


def test_one_case_of_one_seed_is_no_test():
    result = compared({0: {"a": 0.75}}, {0: {"a": 0.5}})
    assert sentence(result).startswith("no difference can be told from one case: 25.0 Dice better")


def test_nothing_in_common_compares_nothing():
    result = compared({0: {"a": 0.75}}, {1: {"a": 0.5}})
    assert sentence(result).startswith("nothing can be compared: there is no case")
    assert math.isnan(result.estimate.mean)
    assert math.isnan(result.p)


@pytest.mark.parametrize(
    ("mean", "words"), [(0.0004, "0.04 Dice"), (0.00001, "0.001 Dice"), (0.0, "0.0 Dice")]
)
def test_a_small_difference_is_not_rounded_away(mean, words):
    assert words in sentence(found(mean, -0.001, 0.001))


def test_no_minus_is_set_before_a_zero():
    assert "interval 0.0 to 1.1" in sentence(found(0.003, -0.0001, 0.011))
