"""`segpl report --fill` predicts what is missing and never discards finished masks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import PICTURES, predict_jobs

from segpl.errors import InputError
from segpl.experiments import scoring
from segpl.predict.inputs import Job

CASES = ("a", "b")


class Run:
    """Predicts two small images; `fail_at` is the image at which the device is out of memory."""

    largest = ("vessel",)

    def __init__(self, path: Path, weights: str = "run@1", fail_at: int = 0) -> None:
        self.path, self.weights, self.fail_at = path, weights, fail_at
        self.split = SimpleNamespace(test=CASES)
        self.predicted = 0
        self.notes = 0  # about components; printed unless their classes are given

    def network(self, windows: torch.Tensor) -> torch.Tensor:
        self.predicted += 1
        if self.predicted == self.fail_at:
            raise InputError("the cpu is out of memory")
        return windows.sigmoid()

    def open_dataset(self) -> None:
        """Scores are not computed."""

    def predict(
        self, *, out: Path, overwrite: bool = False, largest: object = None, **_: object
    ) -> None:
        self.notes += largest is None
        jobs = [Job(name, (self.path / f"{name}.npy",)) for name in CASES]
        predict_jobs(jobs, self.network, PICTURES, out, run=self.weights, overwrite=overwrite)


@pytest.fixture
def fill(tmp_path, monkeypatch):
    """Fill a run that is built with these options; returns the run."""
    for name in CASES:
        np.save(tmp_path / f"{name}.npy", np.arange(16, dtype=np.float32).reshape(4, 4))
    monkeypatch.setattr(scoring, "evaluate_folders", lambda *_, **__: [])
    monkeypatch.setattr(scoring, "write_scores", lambda *_: None)

    def fill(**options: object) -> Run:
        run = Run(tmp_path, **options)
        monkeypatch.setattr(scoring, "load_run", lambda *_, **__: run)
        scoring.fill(tmp_path, quiet=True)
        return run

    return fill


def test_an_error_keeps_the_finished_masks_and_reaches_the_user(fill, tmp_path):
    with pytest.raises(InputError, match="out of memory"):
        fill(fail_at=2)
    assert (tmp_path / "predictions" / "a.npy").exists()
    assert fill().predicted == 3  # b, and both into the folder of samples


def test_masks_of_other_weights_are_replaced(fill):
    fill(weights="run@1")
    assert fill(weights="run@1").predicted == 0
    assert fill(weights="run@2").predicted == 4


def test_the_note_about_components_is_printed_once(fill):
    assert fill(weights="run@1").notes == 1
    assert fill(weights="run@2").notes == 1


def test_a_file_of_the_user_is_not_replaced(fill, tmp_path):
    (tmp_path / "predictions").mkdir()
    label = tmp_path / "predictions" / "a.npy"
    np.save(label, np.ones((4, 4), np.uint8))
    with pytest.raises(InputError, match="was not predicted by segpl"):
        fill()
    assert np.load(label).all()


def test_a_corrected_mask_of_other_weights_is_kept(fill, tmp_path):
    fill(weights="run@1")
    corrected = tmp_path / "predictions" / "a.npy"
    np.save(corrected, np.ones((4, 4), np.uint8))
    with pytest.raises(InputError, match=r"a\.npy has changed since it was predicted"):
        fill(weights="run@2")
    assert np.load(corrected).all()


def test_an_unreadable_image_keeps_its_mask(fill, tmp_path):
    fill(weights="run@1")
    (tmp_path / "b.npy").write_bytes(b"cut")
    with pytest.raises(InputError, match="1 of 2"):
        fill(weights="run@2")
    assert (tmp_path / "predictions" / "b.npy").exists()


def test_a_run_without_test_cases_is_treated_as_without_fill(tmp_path, monkeypatch):
    run = Run(tmp_path)
    run.split = SimpleNamespace(test=())
    shown = []
    monkeypatch.setattr(scoring, "load_run", lambda *_, **__: run)
    monkeypatch.setattr(scoring, "read_run", lambda path: path)
    monkeypatch.setattr(scoring, "predict_for_report", lambda record, **_: shown.append(record))
    assert scoring.fill_all([tmp_path], quiet=True) == []
    assert shown == [tmp_path]
    assert run.predicted == 0


def test_runs_that_could_not_be_filled_are_returned(fill, tmp_path, monkeypatch):
    monkeypatch.setattr(scoring, "load_run", lambda *_, **__: Run(tmp_path, fail_at=2))
    assert scoring.fill_all([tmp_path], quiet=True) == [tmp_path]
