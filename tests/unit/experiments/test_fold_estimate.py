"""The estimate from the scores of folds, and its wording."""

from __future__ import annotations

import pytest

from segpl.evaluate.fold_scores import FoldScore
from segpl.experiments.folds import FoldEstimate, mean_by_step

SCORES = {"a": 0.9, "b": 0.7, "c": 0.8}


def estimate(
    scores: dict[str, float] = SCORES,
    *,
    by_step: dict[int, float] | None = None,
    trained_on: tuple[int, ...] = (2, 2, 2),
    subjects: int = 3,
) -> FoldEstimate:
    rows = [FoldScore(9, fold, case, "x", dice) for fold, (case, dice) in enumerate(scores.items())]
    return FoldEstimate(tuple(rows), by_step or {9: 0.8}, trained_on, subjects)


def several() -> FoldEstimate:
    rows = [FoldScore(9, 0, "a", "x", 0.9), FoldScore(9, 0, "a", "y", 0.5)]
    rows += [FoldScore(9, 1, "b", "x", 0.7), FoldScore(9, 1, "b", "y", 0.3)]
    return FoldEstimate(tuple(rows), {9: 0.6}, (1, 1), 2)


def test_a_case_counts_with_the_mean_of_its_classes():
    assert several().cases == pytest.approx({"a": 0.7, "b": 0.5})
    assert several().mean == pytest.approx(0.6)


def test_first_sentence_has_mean_range_and_labels_per_fold():
    assert estimate().sentences[0] == (
        "Expected Dice on similar scans: 0.80 (range 0.70 to 0.90 over 3 cases; each fold trained "
        "on 2 labels)."
    )


def test_several_classes_have_their_own_scores():
    assert several().sentences[1] == "By class: x 0.80, y 0.40."


def test_one_label_per_fold_is_singular():
    assert "each fold trained on 1 label)." in estimate(trained_on=(1, 1, 1)).sentences[0]
    assert "each fold trained on 1 to 2 labels)." in estimate(trained_on=(1, 2)).sentences[0]


def test_subjects_are_shown_if_they_differ_from_cases():
    assert "over 3 cases of 2 subjects; each" in estimate(subjects=2).sentences[0]


@pytest.mark.parametrize("by_step", [{3: 0.7, 9: 0.8}, {3: 0.805, 9: 0.8}])
def test_last_step_within_the_margin_needs_no_note(by_step):
    assert len(estimate(by_step=by_step).sentences) == 2


def test_a_better_earlier_step_is_noted():
    said = estimate(by_step={3: 0.78, 6: 0.86, 9: 0.8}).sentences[2]
    assert "higher at step 6 (0.86) than at the last step, 9 (0.80). Fewer --steps may" in said


def test_table_ends_with_mean_deviation_and_range():
    table = estimate().table
    assert table.columns == ["case", "fold", "x"]
    assert table.rows == [
        ["a", "0", "0.900"],
        ["b", "1", "0.700"],
        ["c", "2", "0.800"],
        ["mean", "", "0.800"],
        ["std", "", "0.100"],
        ["min", "", "0.700"],
        ["max", "", "0.900"],
    ]


def test_several_classes_have_columns_and_a_mean():
    table = several().table
    assert table.columns == ["case", "fold", "x", "y", "mean"]
    assert table.rows[0] == ["a", "0", "0.900", "0.500", "0.700"]
    assert table.rows[2] == ["mean", "", "0.800", "0.400", "0.600"]


def test_steps_that_not_all_folds_have_scored_are_left_out():
    """The first fold was trained before --steps was raised, and scored more often."""
    rows = [FoldScore(3, 0, "a", "x", 1.0)]
    rows += [FoldScore(step, fold, "ab"[fold], "x", 0.6) for step in (6, 9) for fold in (0, 1)]
    assert mean_by_step(rows, 2) == pytest.approx({6: 0.6, 9: 0.6})


def test_mean_is_over_cases():
    assert estimate().mean == pytest.approx(0.8)
