from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from segpl.report.comparison.outcomes import Outcome
from segpl.report.comparison.questions import Question
from segpl.report.comparison.study import StudyResults, study_rows, study_text

from segpl.evaluate.scores import Score


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
    results = replace(
        RESULTS, questions=questions, outcomes={"one": outcomes_of_three}, conditions={"one": ""}
    )
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
    assert last.startswith("\nNo question of this study was answered on these cases. The last step")
    assert "| segpl | 0.550 ± 0.071 |" in last
    assert "| low | 0.650 ± 0.071 | +0.100 [" in last
    assert "On the test cases" not in study_text(replace(RESULTS, final=[]))


def logs(column: str, **values: list[float]) -> dict[tuple[str, int], dict[str, float]]:
    return {
        (label, seed): {column: value}
        for label, of_label in values.items()
        for seed, value in enumerate(of_label)
    }


MEASURED = replace(
    RESULTS,
    questions=[Question("first", "Is it?", "segpl", ("low",), measure="kl")],
    logged={"one": logs("kl", segpl=[1.0, 2.0], low=[1.5, 2.7])},
)


def test_measured_column_takes_the_place_of_the_dice():
    asked = part(study_text(MEASURED), "Is it?")
    assert "| method | last `kl` |" in asked
    assert "| low | 2.100 ± 0.849 | +0.600 [" in asked
    assert "Dice" not in asked


def test_column_that_no_log_has_is_told_in_place_of_a_table():
    asked = part(study_text(MEASURED), "Is it?")
    assert asked.split("**two**")[1].split("\n\n")[:2] == ["", "No log has `kl`."]
    unknown = part(study_text(replace(MEASURED, logged={})), "Is it?")
    assert unknown.count("No log has `kl`.") == 2
    assert "|" not in unknown


def test_rows_have_what_is_measured():
    header, first, *_ = study_rows(MEASURED)
    assert header[4:6] == ["test dice", "last kl"]
    assert first[4:6] == ["0.500000", "1.000000"]
    assert study_rows(MEASURED)[-1][5] == "nan"


def test_question_without_tables_shows_its_curves_and_takes_no_part_in_the_correction():
    drawn = replace(RESULTS.questions[0], has_tables=False)
    kept = Question("second", "Is it here?", "low", ("segpl",), only=("two",))
    page = study_text(replace(RESULTS, questions=[drawn, kept]))
    asked = part(page, "Is it?")
    assert "|" not in asked.replace('<a id="second"></a>', "")
    assert "can be told" not in asked
    assert "](images/first.png)" in asked
    assert "- **one**: 2 seeds. No comparison of a question is corrected here.\n" in page
    assert "- **two**: 2 seeds. p Holm of the questions is corrected for 1 comparison here." in page
    unseen = study_text(replace(RESULTS, questions=[replace(drawn, only=("three",))], pictures={}))
    assert "Not answered yet" in part(unseen, "Is it?")


def test_primary_questions_are_corrected_for_each_other_alone():
    """By hand: p is 0.295, as above; two comparisons of primary questions make it 0.590."""
    four = outcomes(
        segpl=[0.4, 0.6], low=[0.5, 0.9], high=[0.4, 0.6], cold=[0.4, 0.7], base=[0.1, 0.2]
    )
    questions = [
        Question("first", "Is it?", "segpl", ("low",), is_primary=True),
        Question("second", "Is it here?", "segpl", ("high",), is_primary=True),
        Question("third", "And this?", "segpl", ("cold", "base")),
        Question("fourth", "Elsewhere?", "segpl", ("cold", "base"), only=("two",), is_primary=True),
    ]
    results = replace(
        RESULTS, questions=questions, outcomes={"one": four}, conditions={"one": "a."}
    )
    page = study_text(results)
    first, third = part(page, "Is it?"), part(page, "And this?")
    assert "| 0.295 | 0.590 | 2 of 2 |" in first
    assert first.startswith("\nA primary question.\n\n**one**")
    assert "p Holm" not in third
    assert "Not corrected, descriptive: " in third
    assert "A primary question" not in third
    assert "- **one**: a. p Holm of the questions is corrected for 2 comparisons here." in page
    assert "comparisons that the primary questions make on a dataset" in page
    assert "primary" not in study_text(RESULTS)


def test_dataset_without_a_primary_question_has_nothing_corrected():
    questions = [
        Question("first", "Is it?", "segpl", ("low",)),
        Question("second", "Is it here?", "segpl", ("low",), only=("two",), is_primary=True),
    ]
    page = study_text(replace(RESULTS, questions=questions))
    assert "p Holm" not in part(page, "Is it?")
    assert "| p Holm |" in part(page, "Is it here?")
    assert "- **one**: 2 seeds. No comparison of a question is corrected here." in page


def test_note_of_a_question_stands_below_its_text():
    noted = replace(RESULTS.questions[0], note="Since *x*.\n")
    page = study_text(replace(RESULTS, questions=[noted]))
    assert part(page, "Is it?").startswith("\nSince *x*.\n\n**one**")


def test_fitted_methods_are_told_on_their_dataset_and_on_validation_cases_alone():
    page = study_text(replace(RESULTS, fitted={"one": ["low"]}))
    one, two = part(page, "Is it?").split("**two**")
    assert "Fitted to the labels of these cases" in one
    assert "Fitted" not in two
    assert "Fitted" not in part(page, "On the test cases")


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
    shown = {"one": RESULTS.outcomes["one"], "two": [failed]}
    header, first, *_, last = study_rows(replace(RESULTS, outcomes=shown))
    assert header == [
        *("dataset", "method", "seed", "validation dice", "test dice", "seconds", "error")
    ]
    assert first == ["one", "segpl", 0, "0.250000", "0.500000", "9.0", ""]
    assert last == ["two", "low", 2, "nan", "nan", "0.0", "no memory"]
