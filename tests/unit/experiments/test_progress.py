from __future__ import annotations

from segpl.experiments import progress
from segpl.experiments.progress import Pace, RunStatus, status_table


def test_time_left_is_the_mean_duration_of_the_runs_times_those_that_remain(monkeypatch):
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    pace = Pace(6)
    assert pace.left == ""
    now, pace.done = 220.0, 2
    assert pace.left == ", about 4m left"
    pace.done = 6
    assert pace.left == ""


def test_table_counts_states_ranks_methods_and_ends_with_errors():
    runs = [
        RunStatus("a, seed 0", "a", "done", 0.1),
        RunStatus("a, seed 1", "a", "done", 0.3),
        RunStatus("b, seed 0", "b", "done", 0.9),
        RunStatus("b, seed 1", "b", "running"),
        RunStatus("c, seed 0", "c", "failed", error="no memory"),
        RunStatus("c, seed 1", "c"),
    ]
    table = status_table(runs, ", about 4m left")
    assert table.rows == [
        ["b", "1", "1", "", "0.900"],
        ["a", "", "2", "", "0.200 ± 0.141"],
        ["c", "", "", "1", "-"],
    ]
    counts, error = table.note.splitlines()
    assert counts == "3 of 6 runs done, 1 running, 1 failed, about 4m left."
    assert error == "c, seed 0: no memory"
