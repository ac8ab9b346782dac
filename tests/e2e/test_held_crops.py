"""Crops of validation cases reach a method that wants them, and change nothing else."""

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
    """Those that a training was given."""
    seen: list[Batch] = []
    honest = SegPL.step

    def step(self, batch, progress):
        seen.append(batch)
        return honest(self, batch, progress)

    monkeypatch.setattr(SegPL, "step", step)
    return seen


def test_crops_of_validation_cases_come_only_where_they_are_wanted(
    train, data, tmp_path, batches, monkeypatch
):
    train(data, *OPTIONS, "--out", tmp_path / "plain")
    assert [batch.validation for batch in batches] == [None] * 6
    batches.clear()
    monkeypatch.setattr(SegPL, "needs_validation", True)
    train(data, *OPTIONS, "--out", tmp_path / "held")
    assert all(batch.validation.image.shape == batch.labeled.image.shape for batch in batches)
    assert all(batch.validation.label.shape == batch.labeled.label.shape for batch in batches)


def test_method_that_does_not_look_at_them_trains_to_the_same_weights(
    train, data, tmp_path, monkeypatch
):
    train(data, *OPTIONS, "--out", tmp_path / "plain")
    monkeypatch.setattr(SegPL, "needs_validation", True)
    train(data, *OPTIONS, "--out", tmp_path / "held")
    one, other = (tmp_path / name for name in ("plain", "held"))
    assert (one / "log.csv").read_text() == (other / "log.csv").read_text()
    weights = [load_file(run / "checkpoints" / "last.safetensors") for run in (one, other)]
    assert weights[0].keys() == weights[1].keys()
    assert all(weights[0][key].equal(weights[1][key]) for key in weights[0])


def test_wanting_them_without_a_validation_case_is_refused_before_any_preprocessing(
    segpl, data, tmp_path, cache_folder, monkeypatch
):
    monkeypatch.setattr(SegPL, "needs_validation", True)
    answer = segpl("train", *SHORT, data, "--method", "segpl", "--out", tmp_path / "run")
    assert answer.code == 1
    assert "validation cases, and there are none" in answer.err
    assert "--validation N" in answer.err
    assert not (tmp_path / "run").exists()
    assert not cache_folder.exists()
