from __future__ import annotations

import pytest

from segpl.experiments import progress
from segpl.experiments.progress import Pace, scores_so_far


def test_time_left_is_the_mean_duration_of_the_runs_times_those_that_remain(monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    pace = Pace(6)
    assert pace.left == ""
    now, pace.done = 220.0, 2
    assert pace.left == ", about 0:04:00 left"


@pytest.mark.parametrize(("name", "row"), [("cps", ["cps", "1 of 3", "0.800"])])
def test_table_starts_with_the_first_result(name, row):
    assert scores_so_far({name: [0.8]}, {"cps": 3, "segpl": 3}).rows == [row]


def test_better_methods_come_first():
    table = scores_so_far({"a": [0.1, 0.3], "b": [0.9]}, {"a": 2, "b": 2})
    assert [row[:2] for row in table.rows] == [["b", "1 of 2"], ["a", "2 of 2"]]
