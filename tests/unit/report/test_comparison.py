from __future__ import annotations

import math

import pytest
from segpl.report.comparison.outcomes import Outcome, outcome_rows, seeds_table

from segpl.evaluate.scores import Score
from segpl.report.tables import as_markdown


def outcome(method: str, seed: int, *dice: float, seconds: float = 10.0) -> Outcome:
    """One case for each value; the IoU is always half the Dice."""
    scores = [
        Score(f"case{number}", "vessel", metric, value * share)
        for number, value in enumerate(dice)
        for metric, share in (("dice", 1.0), ("iou", 0.5))
    ]
    return Outcome(method, seed, scores, seconds, 100)


OUTCOMES = [
    outcome("supervised", 0, 0.6, 0.8),
    outcome("segpl", 0, 0.7, 0.7),
    outcome("supervised", 1, 0.4, 0.6),
    outcome("segpl", 1, 0.9, 0.7, seconds=20.0),
]


def test_mean_and_deviation_are_those_over_seeds():
    """By hand: supervised 0.7 and 0.5, segpl 0.7 and 0.8."""
    table = seeds_table(OUTCOMES, "supervised")
    assert table.columns == [
        "method",
        "IoU",
        "Dice",
        "Dice - supervised",
        "> supervised",
        "seconds",
    ]
    assert table.rows[0] == ["supervised", "0.300 ± 0.071", "0.600 ± 0.141", "", "", "10"]
    assert table.rows[1][:3] == ["segpl", "0.375 ± 0.035", "0.750 ± 0.071"]
    assert table.rows[1][5] == "15"


def test_difference_is_taken_at_equal_seeds():
    """By hand: 0.7 - 0.7 and 0.8 - 0.5, whatever the order of the seeds."""
    assert seeds_table(OUTCOMES, "supervised").rows[1][3] == "+0.150 ± 0.212"
    assert seeds_table(OUTCOMES[::-1], "supervised").rows[0][3] == "+0.150 ± 0.212"


def test_crowded_machine_is_told():
    assert "15 at a time" in seeds_table(OUTCOMES, "supervised", jobs=15).note
    assert "at a time" not in seeds_table(OUTCOMES, "supervised").note


def test_method_that_failed_on_a_seed_is_never_the_best():
    failed = Outcome("segpl", 2, error="diverged")
    hard = outcome("supervised", 2, 0.1, 0.1)
    assert seeds_table([*OUTCOMES, failed, hard], "supervised").best == {(0, 1), (0, 2)}


def test_pairs_are_of_the_same_seed_and_case():
    assert seeds_table(OUTCOMES, "supervised").rows[1][4] == "3 of 4"


def test_highest_mean_is_marked():
    assert seeds_table(OUTCOMES, "supervised").best == {(1, 1), (1, 2)}


def test_classes_of_a_case_are_averaged_first():
    scores = [Score("a", name, "dice", value) for name, value in (("x", 0.2), ("y", 0.4))]
    assert Outcome("segpl", 0, scores).mean("dice") == pytest.approx(0.3)


def test_failed_training_is_counted_and_hides_no_other():
    failed = Outcome("segpl", 2, error="diverged")
    table = seeds_table([*OUTCOMES, failed], "supervised")
    assert table.rows[1][:3] == ["segpl (1 failed)", "0.375 ± 0.035", "0.750 ± 0.071"]
    assert math.isnan(failed.mean("dice"))


def test_method_that_always_failed_has_no_numbers():
    table = seeds_table([OUTCOMES[0], Outcome("segpl", 0, error="diverged")], "supervised")
    assert table.rows[1] == ["segpl (1 failed)", "-", "-", "-", "-", "-"]
    assert table.best == {(0, 1), (0, 2)}


def test_rows_hold_every_training_with_its_error():
    header, first, *_, last = outcome_rows([*OUTCOMES, Outcome("cps", 0, error="no memory")])
    assert header == ["method", "seed", "iou", "dice", "seconds", "parameters", "error"]
    assert first == ["supervised", 0, "0.350000", "0.700000", "10.0", 100, ""]
    assert last == ["cps", 0, "nan", "nan", "0.0", 0, "no memory"]


def test_markdown_has_a_line_for_each_row_and_bold_means():
    lines = as_markdown(seeds_table(OUTCOMES, "supervised")).splitlines()
    assert lines[0] == "| method | IoU | Dice | Dice - supervised | > supervised | seconds |"
    assert lines[1] == "| --- | --- | --- | --- | --- | --- |"
    assert lines[3].startswith("| segpl | **0.375 ± 0.035** | **0.750 ± 0.071** | +0.150 ± 0.212 |")
    assert "2 seeds of the mean over 2 test cases" in lines[-1]
