from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from segpl.engine.events import EventLog, require_tensorboard
from segpl.errors import InputError, StorageError

tensorboard = pytest.importorskip("tensorboard", reason="needs segpl[track]")
event_file_writer = pytest.importorskip("tensorboard.summary.writer.event_file_writer")


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Steps and values by name, as TensorBoard shows them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    reader.Reload()
    return {
        name: [(event.step, event.value) for event in reader.Scalars(name)]
        for name in reader.Tags()["scalars"]
    }


def write(folder: Path, steps: range, *, after: int = 0, shift: float = 0.0) -> EventLog:
    log = EventLog(folder, after=after)
    for step in steps:
        log.add(step, {"total": step + shift, "pseudo.weight": -step})
    return log


def test_tensorboard_reads_names_steps_and_values(tmp_path):
    write(tmp_path / "events", range(1, 4))
    assert read(tmp_path / "events") == {
        "total": [(1, 1.0), (2, 2.0), (3, 3.0)],
        "pseudo.weight": [(1, -1.0), (2, -2.0), (3, -3.0)],
    }


def test_each_row_is_written_at_once(tmp_path):
    log = EventLog(tmp_path, after=0)
    for step in range(1, 4):
        log.add(step, {"total": 0.5})
        assert len(read(tmp_path)["total"]) == step


def test_non_finite_values_are_kept(tmp_path):
    EventLog(tmp_path, after=0).add(1, {"hidden_dice": math.nan, "total": math.inf, "lr": 1e-3})
    found = read(tmp_path)
    assert math.isnan(found["hidden_dice"][0][1])
    assert found["total"] == [(1, math.inf)]
    assert found["lr"] == [(1, float(np.float32(1e-3)))]


def test_resumed_run_discards_later_events(tmp_path):
    write(tmp_path, range(1, 8))
    write(tmp_path, range(5, 7), after=4, shift=0.5)
    kept = [(step, float(step)) for step in range(1, 5)]
    assert read(tmp_path)["total"] == [*kept, (5, 5.5), (6, 6.5)]
    write(tmp_path, range(1, 3), shift=0.5)  # started again
    assert read(tmp_path)["total"] == [(1, 1.5), (2, 2.5)]


@pytest.mark.parametrize("torn", [1, 9, 20])
def test_truncated_record_does_not_hide_later_ones(tmp_path, torn):
    """A killed run may leave half a record."""
    write(tmp_path, range(1, 6))
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:-torn])
    write(tmp_path, range(5, 8), after=4)
    assert [step for step, _ in read(tmp_path)["total"]] == list(range(1, 8))


def test_files_are_read_in_the_order_they_were_created(tmp_path, monkeypatch):
    """With more than ten files, and a clock that runs backward."""
    for start in range(12):
        monkeypatch.setattr(event_file_writer.time, "time", lambda start=start: 1e9 - start)
        write(tmp_path, range(start + 1, start + 3), after=start, shift=0.25)
    assert read(tmp_path)["total"] == [(step, step + 0.25) for step in range(1, 14)]
    assert len(list(tmp_path.iterdir())) == 12


def test_log_without_rows_writes_no_file(tmp_path):
    EventLog(tmp_path / "events", after=3)
    assert not (tmp_path / "events").exists()


def test_unwritable_path_is_named(tmp_path):
    (tmp_path / "events").write_text("in the way")
    with pytest.raises(StorageError, match=r"events cannot be written"):
        EventLog(tmp_path / "events", after=0).add(1, {"total": 1.0})


def test_missing_package_names_the_extra(monkeypatch):
    require_tensorboard()
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InputError, match=r"pip install segpl\[track\]"):
        require_tensorboard()
