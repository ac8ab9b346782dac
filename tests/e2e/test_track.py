"""TensorBoard events match `log.csv`, and are written only on request."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import make_dataset

from segpl.cli.main import main
from segpl.data.sampler import Sampler

Curves = dict[str, dict[int, float]]
TRACK = ("--set", "train.track=true", "--method", "segpl")


@pytest.fixture
def pictures(tmp_path) -> Path:
    return make_dataset(tmp_path / "pictures", dims=2, labeled=4)


def events(run: Path) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    reader = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    reader.Reload()
    curves: Curves = {}
    for name in reader.Tags()["scalars"]:
        found = reader.Scalars(name)
        curves[name] = {event.step: event.value for event in found}
        assert len(curves[name]) == len(found), f"{name} has a step twice"
    return curves


def tables(run: Path) -> Curves:
    """The columns of `log.csv` and the mean of `validation.csv`, rounded to float32."""
    with (run / "log.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    curves = {
        name: {int(row["step"]): float(np.float32(row[name])) for row in rows}
        for name in rows[0]
        if name != "step"
    }
    scores: dict[int, list[float]] = {}
    if (run / "validation.csv").exists():
        with (run / "validation.csv").open(newline="") as handle:
            for row in csv.DictReader(handle):
                scores.setdefault(int(row["step"]), []).append(float(row["dice"]))
        curves["validation_dice"] = {
            step: float(np.float32(np.mean(values))) for step, values in scores.items()
        }
    return curves


def test_events_match_the_log_and_the_validation(train, pictures, tmp_path):
    pytest.importorskip("tensorboard", reason="needs segpl[track]")
    train(pictures, *TRACK, "--validation", 1, "--out", tmp_path / "run")
    found = events(tmp_path / "run")
    assert found == tables(tmp_path / "run")
    assert {"total", "supervised", "pseudo.weight", "validation_dice"} <= found.keys()
    assert list(found["total"]) == [2, 4, 6]


def test_resumed_run_has_no_step_twice(segpl, train, pictures, tmp_path, monkeypatch):
    """Interrupted after step 7, with rows up to 6 and a checkpoint at 4."""
    pytest.importorskip("tensorboard", reason="needs segpl[track]")
    run, options = tmp_path / "run", (*TRACK, "--validation", 1, "--steps", 10)

    def stopping(sampler, step, original=Sampler.batch):
        if step == 7:
            raise KeyboardInterrupt
        return original(sampler, step)

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "batch", stopping)
        with pytest.raises(AssertionError, match="stopped at step 7"):
            train(pictures, *options, "--out", run)
    assert list(events(run)["total"]) == [2, 4, 6]
    train(pictures, *options, "--out", run, "--resume")
    assert events(run) == tables(run)
    assert list(events(run)["total"]) == [2, 4, 6, 8, 10]
    assert len(list((run / "tensorboard").iterdir())) == 2


def test_events_do_not_change_the_log(train, pictures, tmp_path):
    pytest.importorskip("tensorboard", reason="needs segpl[track]")
    train(pictures, *TRACK, "--out", tmp_path / "with")
    train(pictures, "--method", "segpl", "--out", tmp_path / "without")
    logs = [(tmp_path / name / "log.csv").read_bytes() for name in ("with", "without")]
    assert logs[0] == logs[1]
    assert not (tmp_path / "without" / "tensorboard").exists()


def test_missing_tensorboard_is_rejected_before_training(segpl, pictures, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    answer = segpl("train", pictures, *TRACK, "--steps", 2, "--out", tmp_path / "run")
    assert answer.code == 1
    assert "pip install segpl[track]" in answer.err
    assert not (tmp_path / "run").exists()


def test_tracking_can_be_turned_on_and_off_when_resuming(finished, monkeypatch):
    """A run without tracking does not need TensorBoard."""
    pytest.importorskip("tensorboard", reason="needs segpl[track]")
    assert not (finished / "tensorboard").exists()
    resume = ("train", "--out", finished, "--resume")
    assert main([*map(str, resume), "--set", "train.track=true", "--steps", "8"]) == 0
    assert list(events(finished)["total"]) == [8]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorboard", None)
        assert main([*map(str, resume), "--set", "train.track=false", "--steps", "10"]) == 0
    assert list(events(finished)["total"]) == [8]
