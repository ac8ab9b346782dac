"""Crops of validation cases reach methods that need them, and change nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import SHORT, make_dataset
from safetensors.torch import load_file

from segpl.methods.segpl import SegPL
from segpl.types import Batch

OPTIONS = ("--method", "segpl", "--validation", 1, "--test", 0)


@pytest.fixture
def data(tmp_path) -> Path:
    return make_dataset(tmp_path / "data", dims=2, labeled=3, unlabeled=1, test=0)


@pytest.fixture
def batches(monkeypatch) -> list[Batch]:
    """The batches that the method gets."""
    seen: list[Batch] = []
    original = SegPL.step

    def step(self, batch, progress):
        seen.append(batch)
        return original(self, batch, progress)

    monkeypatch.setattr(SegPL, "step", step)
    return seen


def test_validation_crops_only_come_on_request_and_do_not_change_the_training(
    train, data, tmp_path, batches, monkeypatch
):
    one, other = tmp_path / "without", tmp_path / "with"
    train(data, *OPTIONS, "--out", one)
    assert [batch.validation for batch in batches] == [None] * 6
    batches.clear()
    monkeypatch.setattr(SegPL, "needs_validation", True)
    train(data, *OPTIONS, "--out", other)
    assert all(batch.validation.image.shape == batch.labeled.image.shape for batch in batches)
    assert all(batch.validation.label.shape == batch.labeled.label.shape for batch in batches)
    assert (one / "log.csv").read_text() == (other / "log.csv").read_text()
    weights = [load_file(run / "checkpoints" / "last.safetensors") for run in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    assert all(weights[0][key].equal(weights[1][key]) for key in weights[0])


def test_missing_validation_cases_are_refused_before_preprocessing(
    segpl, data, tmp_path, cache_folder, monkeypatch
):
    monkeypatch.setattr(SegPL, "needs_validation", True)
    answer = segpl("train", *SHORT, data, "--method", "segpl", "--out", tmp_path / "run")
    assert answer.code == 1
    assert "calibrates on validation cases, but there are none" in answer.err
    assert "--validation N" in answer.err
    assert not (tmp_path / "run").exists()
    assert not cache_folder.exists()
