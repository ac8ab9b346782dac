from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from segpl.engine.events import EventLog, require_tensorboard
from segpl.errors import InputError, StorageError

tensorboard = pytest.importorskip("tensorboard", reason="needs segpl[track]")


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of every name, as TensorBoard shows them."""
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


def test_names_steps_and_values_come_back(tmp_path):
    write(tmp_path / "events", range(1, 4))
    assert read(tmp_path / "events") == {
        "total": [(1, 1.0), (2, 2.0), (3, 3.0)],
        "pseudo.weight": [(1, -1.0), (2, -2.0), (3, -3.0)],
    }


def test_each_row_is_on_the_disk_before_the_next(tmp_path):
    log = EventLog(tmp_path, after=0)
    for step in range(1, 4):
        log.add(step, {"total": 0.5})
        assert len(read(tmp_path)["total"]) == step


def test_numbers_that_are_not_finite_come_back_as_they_are(tmp_path):
    EventLog(tmp_path, after=0).add(1, {"hidden_dice": math.nan, "total": math.inf, "lr": 1e-3})
    found = read(tmp_path)
    assert math.isnan(found["hidden_dice"][0][1])
    assert found["total"] == [(1, math.inf)]
    assert found["lr"] == [(1, float(np.float32(1e-3)))]


def test_events_after_the_step_that_a_training_goes_on_from_are_taken_back(tmp_path):
    write(tmp_path, range(1, 8))
    write(tmp_path, range(5, 10), after=4, shift=0.5)
    found = read(tmp_path)["total"]
    assert [step for step, _ in found] == list(range(1, 10))
    assert dict(found)[4] == 4.0
    assert dict(found)[5] == 5.5


def test_events_of_a_training_that_died_before_its_first_checkpoint_are_taken_back(tmp_path):
    write(tmp_path, range(1, 4))
    write(tmp_path, range(1, 3), shift=0.5)
    assert read(tmp_path)["total"] == [(1, 1.5), (2, 2.5)]


@pytest.mark.parametrize("torn", [1, 9, 20])
def test_a_torn_last_record_hides_nothing_that_comes_after(tmp_path, torn):
    path = write(tmp_path, range(1, 6)).path
    assert path is not None
    path.write_bytes(path.read_bytes()[:-torn])
    write(tmp_path, range(5, 8), after=4)
    assert [step for step, _ in read(tmp_path)["total"]] == list(range(1, 8))


def test_files_are_read_in_the_order_of_the_starts(tmp_path):
    """More than ten starts, and none of them knows the time."""
    for start in range(12):
        write(tmp_path, range(start + 1, start + 2), after=start, shift=0.25)
    assert read(tmp_path)["total"] == [(step, step + 0.25) for step in range(1, 13)]
    assert len(list(tmp_path.iterdir())) == 12


def test_a_log_without_rows_leaves_no_file(tmp_path):
    EventLog(tmp_path / "events", after=3)
    assert not (tmp_path / "events").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "events").write_text("in the way")
    with pytest.raises(StorageError, match=r"events cannot be written"):
        EventLog(tmp_path / "events", after=0).add(1, {"total": 1.0})


def test_missing_package_is_named_with_the_extra_that_brings_it(monkeypatch):
    require_tensorboard()
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(InputError, match=r"pip install segpl\[track\]"):
        require_tensorboard()
