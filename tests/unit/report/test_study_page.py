from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from segpl.evaluate.scores import Score
from segpl.report.comparison import Outcome
from segpl.report.questions import Question
from segpl.report.study_page import StudyResults, study_rows, study_text


def outcomes(**values: list[float]) -> list[Outcome]:
    return [
        Outcome(label, seed, [Score("t", "x", "dice", value)], 9.0, validation={"v": value / 2})
        for label, of_label in values.items()
        for seed, value in enumerate(of_label)
    ]


RESULTS = StudyResults(
    title="Thresholds",
    made="Made by `segpl study a.toml --out FOLDER` from 4 trainings.",
    conditions={"one": "2 seeds.", "two": "2 seeds."},
    variants={"segpl": ("segpl", {}), "low": ("segpl", {"threshold": 0.4})},
    questions=[
        Question("first", "Is it?", "segpl", ("low",), curves=("kl",)),
        Question("second", "Is it here?", "low", ("segpl",), only=("two",)),
        Question("third", "Is it there?", "low", ("segpl",), only=("three",)),
    ],
    final=["segpl", "low"],
    outcomes={
        "one": outcomes(segpl=[0.5, 0.6], low=[0.6, 0.7]),
        "two": outcomes(segpl=[0.5, 0.6], low=[0.5, 0.6]),
    },
    pictures={"first": "images/first.png"},
)


def part(page: str, heading: str) -> str:
    return page.split(f"## {heading}\n")[1].split("\n## ")[0]


def test_page_begins_with_how_it_was_made():
    first, second = study_text(RESULTS).splitlines()[:3:2]
    assert first == "# Thresholds"
    assert second.startswith("Made by `segpl study a.toml --out FOLDER` from 4 trainings. A pair")


def test_every_question_has_a_table_for_each_dataset_that_it_is_asked_on():
    page = study_text(RESULTS)
    assert part(page, "Is it?").count("| method | Dice on validation |") == 2
    here = part(page, "Is it here?")
    assert "**one**" not in here
    assert "**two**" in here
    assert "No difference from `low` can be told." in here
    assert "Not answered yet" in part(page, "Is it there?")


def test_questions_are_answered_on_validation_and_corrected_for_each_other():
    """By hand: differences 0.05 and 0.15 have t 2, and p of Cauchy's distribution is 0.295."""
    outcomes_of_three = outcomes(segpl=[0.4, 0.6], low=[0.5, 0.9], high=[0.4, 0.6])
    questions = [
        Question("first", "Is it?", "segpl", ("low",)),
        Question("second", "Is it here?", "segpl", ("high",)),
    ]
    results = replace(RESULTS, questions=questions, outcomes={"one": outcomes_of_three})
    row = next(line for line in study_text(results).splitlines() if line.startswith("| low"))
    assert row.startswith(
        "| low | 0.350 ± 0.141 | +0.100 [-0.535, +0.735] | 0.295 | 0.590 | 2 of 2 |"
    )


def test_curves_are_shown_beside_their_question_and_their_absence_is_told():
    page = study_text(RESULTS)
    assert "](images/first.png)" in part(page, "Is it?")
    assert "images" not in part(page, "Is it here?")
    assert "No log has `kl`." in part(study_text(replace(RESULTS, pictures={})), "Is it?")


def test_test_cases_stand_apart_and_are_held_against_the_first():
    last = part(study_text(RESULTS), "On the test cases")
    assert last.startswith("\nNothing was chosen on these cases")
    assert "| segpl | 0.550 ± 0.071 |" in last
    assert "| low | 0.650 ± 0.071 | +0.100 [" in last
    assert "On the test cases" not in study_text(replace(RESULTS, final=[]))


def test_tables_have_a_blank_line_around_them():
    """Without one GitHub shows a table as plain text."""
    lines = study_text(RESULTS).splitlines()
    for before, line, after in zip(lines, lines[1:], lines[2:], strict=False):
        if line.startswith("|"):
            assert before == "" or before.startswith("|")
            assert after == "" or after.startswith("|")
    assert not any(one == two == "" for one, two in pairwise(lines))


def test_rows_have_every_training_of_every_dataset():
    failed = Outcome("low", 2, error="no memory")
    header, first, *_, last = study_rows({"one": RESULTS.outcomes["one"], "two": [failed]})
    assert header == [
        *("dataset", "method", "seed", "validation dice", "test dice", "seconds", "error")
    ]
    assert first == ["one", "segpl", 0, "0.250000", "0.500000", "9.0", ""]
    assert last == ["two", "low", 2, "nan", "nan", "0.0", "no memory"]
