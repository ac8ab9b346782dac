from __future__ import annotations

import math

import numpy as np
import pytest
from records import collect, make_record

from segpl.errors import InputError
from segpl.evaluate.statistics import Difference, Estimate
from segpl.report.comparison import comparison_table, describe, how_compared
from segpl.report.sections.questions import Question, answer_question, question_section

BASE = np.random.default_rng(0).uniform(0.5, 0.7, 12)


def difference(mean: float, low: float, high: float, p: float = 0.01, **changes: int) -> Difference:
    count = {"higher": 18, "lower": 2, "left_out": 0, "seeds": 5, "cases": 20} | changes
    known = Estimate(mean, low, high, count["seeds"], count["cases"])
    return Difference(known, count["higher"], count["lower"], p, count["left_out"])


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (
            difference(0.013, 0.004, 0.021),
            "a scores 0.013 Dice higher than b (95 % CI +0.004 to +0.021; higher in 18 of 20 "
            "cases; "
            "p = 0.010).",
        ),
        (
            difference(-0.013, -0.021, -0.004, 0.0001, higher=3, lower=17),
            "a scores 0.013 Dice lower than b (95 % CI -0.021 to -0.004; lower in 17 of 20 cases; "
            "p < 0.001).",
        ),
        (
            difference(0.003, -0.004, 0.011, higher=12),
            "No significant difference between a and b: +0.003 Dice (95 % CI -0.004 to +0.011; "
            "higher in 12 of 20 cases; p = 0.010).",
        ),
        (
            difference(0.0, math.nan, math.nan, math.nan, higher=0, lower=0, cases=0, seeds=0),
            "a and b have no scored case of the same seed in common.",
        ),
        (
            difference(0.0, 0.0, 0.0, 1.0, higher=0, lower=0, cases=2),
            "a and b have the same Dice in 2 cases.",
        ),
    ],
)
def test_sentence_states_size_interval_cases_and_p(found, sentence):
    assert describe("a", "b", found) == sentence


def test_corrected_p_of_0_05_is_not_significant():
    assert describe("a", "b", difference(0.013, 0.004, 0.021, 0.049)).startswith("a scores")
    assert describe("a", "b", difference(0.013, 0.004, 0.021, 0.05)).startswith("No significant")


def test_small_differences_are_not_rounded_to_zero():
    assert "+0.0004 Dice" in describe("a", "b", difference(0.0004, -0.001, 0.001))


def test_pairs_without_scores_are_counted():
    text = describe("a", "b", difference(0.013, 0.004, 0.021, left_out=3))
    assert text.endswith("Left out: 3 pairs of seed and case without two scores.")


def test_note_warns_of_few_seeds_and_few_cases():
    assert "only one seed" in how_compared([difference(0.1, 0.0, 0.2, seeds=1)])
    assert "only 3 seeds" in how_compared([difference(0.1, 0.0, 0.2, seeds=3)])
    assert "seeds the" not in how_compared([difference(0.1, 0.0, 0.2, seeds=5)])
    few = difference(0.1, 0.0, 0.2, cases=5)
    assert "With 5 cases, p cannot reach 0.05" in how_compared([few])
    assert "cannot reach" not in how_compared([difference(0.1, 0.0, 0.2, cases=6)])
    # six cases reach 2 / 64, which Holm doubles for two comparisons
    assert "With 6 cases, p cannot reach" in how_compared([difference(0.1, 0.0, 0.2, cases=6)] * 2)


def test_table_shows_means_over_seeds_and_paired_differences():
    """By hand: seed means 0.5 and 0.7 against 0.4 and 0.6, every case 0.1 higher."""
    reference = {0: {"x": 0.3, "y": 0.5}, 1: {"x": 0.5, "y": 0.7}}
    better = {
        seed: {case: v + 0.1 for case, v in cases.items()} for seed, cases in reference.items()
    }
    table = comparison_table("b", {"b": reference, "a": better}, cases="test", failed=["a, seed 2"])
    assert table.rows == [
        ["b", "0.500 ± 0.141", "", "", "", ""],
        ["a", "0.600 ± 0.141", "+0.100", "+0.100 to +0.100", "2 of 2", "0.500"],
    ]
    assert "2 seeds, 2 test cases" in table.note
    assert "left out: a, seed 2." in table.note


def question(**changes: object) -> Question:
    given = {"id": "q", "text": "Is it?", "reference": "segpl", "variants": ("cps",)}
    return Question(**given | changes)  # type: ignore[arg-type]


RUNS = [
    make_record(method, seed, dice, validation=list(BASE + shift))
    for seed in range(5)
    for method, shift, dice in (("segpl", 0.0, [0.9, 0.8]), ("cps", 0.1, [0.4, 0.3]))
]


def test_questions_are_answered_on_validation_cases_unless_they_ask_for_test_cases():
    found = collect(*RUNS)
    answer = answer_question(question(), found, dataset="heart")
    assert answer.title == "Is it? (heart)"
    assert answer.sentences[0].startswith("cps scores 0.100 Dice higher than segpl")
    test = answer_question(question(cases="test"), found)
    assert test.sentences == (
        "No significant difference between cps and segpl: -0.500 Dice (95 % CI -0.500 to -0.500; "
        "lower in 2 of 2 cases; p = 0.500).",
    )


def test_page_warns_against_choosing_by_test_scores():
    answers = [
        answer_question(question(cases=kind), collect(*RUNS)) for kind in ("validation", "test")
    ]
    section = question_section(answers)
    assert section.text[0].startswith("Each question is answered on the cases that its heading")
    assert "must not be used to choose" in section.text[0]
    alone = question_section(answers[:1]).text[0]
    assert alone.startswith("Each question is answered on the validation cases, at the last step")
    assert question_section(answers[1:]).text == (
        "Each question is answered on the test cases, at the last step of training.",
    )
    assert [entry.title for entry in section.tables] == [
        "Is it?, on validation cases",
        "Is it?, on test cases",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"variants": ()}, "name at least one"),
        ({"variants": ("a", "a")}, "each once"),
        ({"variants": ("segpl",)}, "both the reference and a variant"),
    ],
)
def test_question_without_a_comparison_is_rejected(changes, words):
    with pytest.raises(InputError, match=words):
        question(**changes)
