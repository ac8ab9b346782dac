from __future__ import annotations

import math

import pytest
from segpl.report.comparison.outcomes import Outcome
from segpl.report.runs import validation_by_case

HEADER = "step,case,class,dice,dice_largest\n"


def test_validation_is_that_of_the_last_step_with_classes_averaged(tmp_path):
    path = tmp_path / "validation.csv"
    path.write_text(
        f"{HEADER}10,a,x,0.9,0\n10,b,x,0.9,0\n"
        '20,a,x,0.2,0\n20,a,y,0.4,0\n20,"b, c",x,0.5,0\n20,"b, c",y,0.7,0\n'
    )
    assert validation_by_case(path) == {"a": pytest.approx(0.3), "b, c": pytest.approx(0.6)}


def test_run_without_validation_cases_has_no_validation_scores(tmp_path):
    assert validation_by_case(tmp_path / "validation.csv") == {}


def test_outcome_averages_over_validation_cases():
    assert Outcome("segpl", 0, validation={"a": 0.2, "b": 0.6}).validation_mean == 0.4
    assert math.isnan(Outcome("segpl", 0).validation_mean)
