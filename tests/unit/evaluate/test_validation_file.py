from __future__ import annotations

import pytest

from segpl.errors import InputError
from segpl.evaluate.validation import (
    VALIDATION_COLUMNS,
    ValidationRow,
    append_validation,
    read_validation,
)

HEADER = ",".join(VALIDATION_COLUMNS) + "\n"
ROWS = [
    ValidationRow(10, "a", "x", 0.9, 0.9),
    ValidationRow(20, "a", "x", 0.2, 0.3),
    ValidationRow(20, "b, c", "y", 0.7, 0.7),
]


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
