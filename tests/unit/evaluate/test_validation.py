from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tiny import PICTURES

from segpl.errors import InputError
from segpl.evaluate.validation import (
    VALIDATION_COLUMNS,
    ValidationRow,
    append_validation,
    dice_by_class,
    read_validation,
)
from segpl.types import IGNORE

THREE = replace(PICTURES, classes={"background": 0, "a": 1, "b": 2})
HEADER = ",".join(VALIDATION_COLUMNS) + "\n"
ROWS = [
    ValidationRow(10, "a", "x", 0.9, 0.9),
    ValidationRow(20, "a", "x", 0.2, 0.3),
    ValidationRow(20, "b, c", "y", 0.7, 0.7),
]


def test_components_extend_across_ignored_voxels(tmp_path):
    """The prediction is one component across an unlabeled gap."""
    label = np.array([[1, 1, IGNORE, 1, 1, 1]], np.int16)
    answer = np.ones((1, 1, 6), np.float32)
    assert dice_by_class(answer, label, PICTURES, ["vessel"]) == {"vessel": 1.0}


def test_ignored_voxels_do_not_count():
    label = np.array([[1, 1, IGNORE, 0]], np.int16)
    answer = np.array([[[0.9, 0.1, 0.9, 0.2]]], np.float32)
    assert dice_by_class(answer, label, PICTURES) == {"vessel": pytest.approx(2 / 3)}


def test_the_largest_channel_decides_the_class():
    """Class a: one voxel of one, and one too many; class b: one of two."""
    label = np.array([[0, 1, 2, 2]], np.int16)
    answer = np.zeros((3, 1, 4), np.float32)
    for place, winner in enumerate((0, 1, 1, 2)):
        answer[winner, 0, place] = 0.3
    expected = {"a": pytest.approx(2 / 3), "b": pytest.approx(2 / 3)}
    assert dice_by_class(answer, label, THREE) == expected


def test_an_absent_class_that_is_not_found_scores_one():
    empty = np.zeros((1, 4), np.int16)
    assert dice_by_class(np.zeros((1, 1, 4), np.float32), empty, PICTURES) == {"vessel": 1.0}


def test_rows_are_read_as_they_were_written(tmp_path):
    path = tmp_path / "validation.csv"
    append_validation(path, ROWS[:1])
    append_validation(path, ROWS[1:])
    assert path.read_text().startswith(HEADER)
    assert read_validation(path) == ROWS


def test_run_without_validation_cases_has_no_rows(tmp_path):
    assert read_validation(tmp_path / "validation.csv") == []


@pytest.mark.parametrize(
    "text", ["", "step,case\n1,a\n", f"{HEADER}1,a,x\n", f"{HEADER}1,a,x,high,0.5\n"]
)
def test_damaged_file_is_an_error(tmp_path, text):
    path = tmp_path / "validation.csv"
    path.write_text(text)
    with pytest.raises(
        InputError, match=r"step,case,class,dice,dice_largest.* edited or truncated"
    ):
        read_validation(path)
