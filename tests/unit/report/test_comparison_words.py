from __future__ import annotations

import numpy as np
import pytest
from segpl.report.comparison.outcomes import Outcome
from segpl.report.comparison.words import comparison_words

from segpl.evaluate.scores import Score

BASE = np.random.default_rng(0).uniform(0.5, 0.7, (6, 12))  # seeds, cases
NOISE = np.random.default_rng(1).normal(0, 0.01, (6, 12))
NOISE -= NOISE.mean()


def outcomes(method: str, array: np.ndarray) -> list[Outcome]:
    return [
        Outcome(method, seed, [Score(f"c{n}", "x", "dice", float(v)) for n, v in enumerate(row)])
        for seed, row in enumerate(array)
    ]


SUPERVISED = outcomes("supervised", BASE)
GOOD = outcomes("good", BASE + 0.05 + NOISE)
BAD = outcomes("bad", BASE - 0.05 + NOISE)
SAME = outcomes("same", BASE + NOISE)


def line(lines: list[str], method: str) -> str:
    return next(text for text in lines if text.startswith(f"{method} against supervised: "))


def test_each_method_has_a_line_that_says_what_it_is_worth():
    lines = comparison_words([*SUPERVISED, *GOOD, *BAD, *SAME], "supervised")
    assert len(lines) == 4
    assert line(lines, "good").startswith("good against supervised: better by 5.0 Dice (95 % ")
    assert "12 of 12 cases; p < 0.001, by Holm 0.001." in line(lines, "good")
    assert line(lines, "bad").startswith("bad against supervised: worse by ")
    assert "no difference can be told: 0.0" in line(lines, "same")
    assert "corrected by Holm for 3 methods" in lines[-1]


def test_one_method_needs_no_correction():
    lines = comparison_words([*SUPERVISED, *GOOD], "supervised")
    assert "Holm" not in " ".join(lines)
    assert line(lines, "good").endswith("12 of 12 cases; p < 0.001.")


def test_what_is_told_depends_on_how_many_methods_there_are():
    """Six cases that all gain: p is 1/32, and 1/16 for the better of two."""
    few = [outcomes(name, BASE[:, :6] + gain) for name, gain in (("a", 0.05), ("b", 0.04))]
    base = outcomes("supervised", BASE[:, :6])
    assert "better by 5.0" in comparison_words([*base, *few[0]], "supervised")[0]
    both = comparison_words([*base, *few[0], *few[1]], "supervised")
    assert "no difference can be told: 5.0 Dice better" in both[0]
    assert "p 0.031, by Holm 0.062" in both[0]


@pytest.mark.parametrize(("cases", "is_told"), [(5, True), (6, False)])
def test_too_few_cases_for_any_difference_are_told(cases, is_told):
    lines = comparison_words(
        [*outcomes("supervised", BASE[:, :cases]), *outcomes("a", BASE[:, :cases] + 0.1)],
        "supervised",
    )
    assert (f"With {cases} cases p never is: hold more out" in lines[-1]) is is_told


def test_seeds_with_images_of_their_own_have_more_cases():
    shared, own = (
        comparison_words([*SUPERVISED, *GOOD], "supervised", own_cases=own_cases)[0]
        for own_cases in (False, True)
    )
    assert "12 of 12 cases" in shared
    assert "72 of 72 cases" in own


def test_failed_training_leaves_its_pairs_out_and_hides_no_other():
    failed = [*GOOD[:5], Outcome("good", 5, error="diverged")]
    lines = comparison_words([*SUPERVISED, *failed, *BAD], "supervised")
    assert "12 pairs of seed and case left out" in line(lines, "good")
    assert "better by" in line(lines, "good")
    assert "left out" not in line(lines, "bad")


def test_method_that_always_failed_is_said_to_compare_with_nothing():
    failed = [Outcome("good", seed, error="diverged") for seed in range(6)]
    lines = comparison_words([*SUPERVISED, *failed], "supervised")
    assert lines[0].startswith("good against supervised: nothing can be compared")
    assert "p " not in lines[0].split("left out")[0]


def test_words_about_one_method_do_not_depend_on_the_order_of_the_others():
    first = comparison_words([*SUPERVISED, *GOOD, *SAME], "supervised")
    second = comparison_words([*SAME, *SUPERVISED[::-1], *GOOD], "supervised")
    assert line(first, "good") == line(second, "good")


def test_baseline_alone_needs_no_words():
    assert comparison_words(SUPERVISED, "supervised") == []
