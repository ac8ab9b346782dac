"""A run with three classes whose pseudo-labels lose one of them."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PLAIN, make_dataset
from PIL import Image

from segpl.errors import percent
from segpl.methods.segpl import SegPL

OPTIONS = (
    *PLAIN,
    *("--method", "segpl", "--steps", 10, "--set", "train.log_every=1"),
    *("--set", "method.alpha=1.0", "--set", "method.ramp_begin=0", "--set", "method.ramp_end=0"),
)
LOST = range(2, 8)  # steps whose pseudo-labels lack class 2


@pytest.fixture(autouse=True)
def losing_labels(monkeypatch) -> None:
    """Pseudo-labels with a tenth of each class, and without class 2 during LOST."""
    original, calls = SegPL.label, []

    def label(self, batch, progress):
        (made,) = original(self, batch, progress)
        target = torch.zeros_like(made.target)  # (B, 3, *S)
        rows = -(-target.shape[2] // 10)
        target[:, 1, :rows] = 1.0
        target[:, 2, -rows:] = 1.0
        if len(calls) in LOST:
            target[:, 2] = 0.0
        calls.append(None)
        return (replace(made, target=target, weight=torch.ones_like(target)),)

    monkeypatch.setattr(SegPL, "label", label)


@pytest.fixture
def data(tmp_path) -> Path:
    return make_dataset(tmp_path / "data", dims=2, classes=3)


def share_of(data: Path, number: int) -> float:
    """Share of one class in the labeled pictures, read from the files."""
    labels = [np.asarray(Image.open(path)) for path in (data / "labeled" / "lbls").iterdir()]
    return float(np.mean([(label == number).mean() for label in labels]))


def column(run: Path, name: str) -> list[float]:
    with (run / "log.csv").open(newline="") as handle:
        return [float(row[name]) for row in csv.DictReader(handle)]


@pytest.mark.parametrize("guard", ["warn", "pause"])
def test_lost_class_is_named_and_guarded(train, data, tmp_path, guard):
    """Lines 3 to 8 lack the class: the fifth of them is line 7, and line 9 has it again."""
    answer = train(data, *OPTIONS, "--set", f"train.guard={guard}", "--out", tmp_path / "run")
    words = " ".join((answer.out + answer.err).split())
    found = f"(0.00 %, compared with {percent(share_of(data, 2))} in the labels)"
    assert f"step 7: the pseudo-labels have lost class 'class-2' {found}" in words
    assert "'class-1'" not in words
    assert words.count("warning:") == (1 if guard == "warn" else 2)
    is_lost = [value == 0 for value in column(tmp_path / "run", "pseudo_foreground_2")]
    assert is_lost == [step in LOST for step in range(10)]
    assert min(column(tmp_path / "run", "pseudo_foreground_1")) > 0.1
    paused = [7, 8] if guard == "pause" else []
    weights = column(tmp_path / "run", "pseudo.weight")
    assert weights == [0.0 if step in paused else 1.0 for step in range(10)]


def test_binary_run_has_no_column_per_class(finished):
    header = (finished / "log.csv").read_text().splitlines()[0].split(",")
    assert "pseudo_foreground" in header
    assert "pseudo_foreground_1" not in header
