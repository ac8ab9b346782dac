"""What the scores of folds are taken to say, and not more."""

from __future__ import annotations

import pytest

from segpl.experiments.folds import Estimate, HeldOut, csv_of, means_by_step

SCORES = {"a": 0.9, "b": 0.7, "c": 0.8}


def estimate(
    scores: dict[str, float] = SCORES,
    *,
    earlier: dict[int, float] | None = None,
    trained_on: tuple[int, ...] = (2, 2, 2),
    subjects: int = 3,
) -> Estimate:
    rows = [HeldOut(9, fold, case, "x", dice) for fold, (case, dice) in enumerate(scores.items())]
    return Estimate(tuple(rows), earlier or {9: 0.8}, trained_on, subjects)


def several() -> Estimate:
    rows = [HeldOut(9, 0, "a", "x", 0.9), HeldOut(9, 0, "a", "y", 0.5)]
    rows += [HeldOut(9, 1, "b", "x", 0.7), HeldOut(9, 1, "b", "y", 0.3)]
    return Estimate(tuple(rows), {9: 0.6}, (1, 1), 2)


def test_mean_and_spread_are_those_of_the_cases():
    assert estimate().mean == pytest.approx(0.8)
    assert estimate().std == pytest.approx(0.1)


def test_a_case_counts_by_the_mean_of_its_classes():
    assert several().cases == pytest.approx({"a": 0.7, "b": 0.5})
    assert several().mean == pytest.approx(0.6)


def test_the_sentence_gives_the_range_of_cases_and_the_labels_of_a_training():
    assert estimate().words[0] == (
        "Expected on new scans of this kind: Dice 0.80 (0.70 to 0.90 over 3 cases, trained on 2 "
        "each)."
    )


def test_folds_of_different_size_are_told():
    assert "trained on 1 to 2 each" in estimate(trained_on=(1, 2, 2)).words[0]


def test_cases_of_fewer_subjects_are_told():
    assert "over 3 cases of 2 subjects, trained" in estimate(subjects=2).words[0]


def test_the_range_is_never_called_a_bound():
    assert "a new scan may lie outside of the range" in estimate().words[1]


@pytest.mark.parametrize("earlier", [{3: 0.7, 9: 0.8}, {3: 0.805, 9: 0.8}])
def test_an_end_as_good_as_any_step_before_needs_no_word(earlier):
    assert len(estimate(earlier=earlier).words) == 2


def test_a_better_step_before_the_end_is_told():
    said = estimate(earlier={3: 0.78, 6: 0.86, 9: 0.8}).words[2]
    assert "higher at step 6 (0.86) than at the end, step 9 (0.80): fewer --steps may" in said


def test_the_table_ends_with_mean_spread_and_range():
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


def test_several_classes_have_a_column_each_and_their_mean():
    table = several().table
    assert table.columns == ["case", "fold", "x", "y", "mean"]
    assert table.rows[0] == ["a", "0", "0.900", "0.500", "0.700"]
    assert table.rows[2] == ["mean", "", "0.800", "0.400", "0.600"]


def test_the_file_has_a_row_for_each_case_and_class():
    lines = csv_of(several()).splitlines()
    assert lines[:3] == ["fold,case,class,dice", "0,a,x,0.9", "0,a,y,0.5"]
    assert len(lines) == 5


def test_a_step_that_one_fold_alone_has_scored_is_compared_with_nothing():
    """The first fold was trained before --steps was raised, and scored more often."""
    rows = [HeldOut(3, 0, "a", "x", 1.0)]
    rows += [HeldOut(step, fold, "ab"[fold], "x", 0.6) for step in (6, 9) for fold in (0, 1)]
    assert means_by_step(rows, 2) == pytest.approx({6: 0.6, 9: 0.6})
