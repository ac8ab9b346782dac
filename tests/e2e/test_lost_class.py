"""A training of three classes whose pseudo-labels forget one of them."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import PLAIN, make_dataset
from PIL import Image

from segpl.methods.segpl import SegPL
from segpl.types import PseudoLabels

OPTIONS = (
    *PLAIN,
    *("--method", "segpl", "--steps", 10, "--set", "train.log_every=1"),
    *("--set", "method.alpha=1.0", "--set", "method.ramp_begin=0", "--set", "method.ramp_end=0"),
)
LOST = range(2, 8)  # steps whose pseudo-labels hold none of one class


@pytest.fixture(params=[1, 2])
def forgotten(request, monkeypatch) -> int:
    """Pseudo-labels with a tenth of both classes, and at times nothing of one: its number."""
    calls: list[None] = []

    def label(self, output, generator):
        target = torch.zeros_like(output.logits.detach())  # (B, 3, *S)
        rows = -(-target.shape[2] // 10)
        target[:, 1, :rows] = 1.0
        target[:, 2, -rows:] = 1.0
        if len(calls) in LOST:
            target[:, request.param] = 0.0
        calls.append(None)
        return PseudoLabels(target, torch.ones_like(target))

    monkeypatch.setattr(SegPL, "label", label)
    return int(request.param)


@pytest.fixture
def data(tmp_path) -> Path:
    return make_dataset(tmp_path / "data", dims=2, classes=3)


def share_of(data: Path, number: int) -> float:
    """Of one class in the labeled pictures, read from the files themselves."""
    labels = [np.asarray(Image.open(path)) for path in (data / "labeled" / "lbls").iterdir()]
    return float(np.mean([(label == number).mean() for label in labels]))


def column(run: Path, name: str) -> list[float]:
    with (run / "log.csv").open(newline="") as handle:
        return [float(row[name]) for row in csv.DictReader(handle)]


@pytest.mark.parametrize("guard", ["warn", "pause"])
def test_class_that_pseudo_labels_forget_is_named_and_guarded(
    train, data, tmp_path, guard, forgotten
):
    """Lines 3 to 8 have lost it: the fifth of them is line 7, and line 9 has it again."""
    answer = train(data, *OPTIONS, "--set", f"train.guard={guard}", "--out", tmp_path / "run")
    words = " ".join((answer.out + answer.err).split())
    name, other = f"class-{forgotten}", f"class-{3 - forgotten}"
    found = f"0.00% against {share_of(data, forgotten):.2%}"
    assert f"step 7: the pseudo-labels have lost class '{name}': {found}" in words
    assert f"'{other}'" not in words
    assert words.count("warning:") == (1 if guard == "warn" else 2)
    is_lost = [value == 0 for value in column(tmp_path / "run", f"pseudo_foreground_{forgotten}")]
    assert is_lost == [step in LOST for step in range(10)]
    assert min(column(tmp_path / "run", f"pseudo_foreground_{3 - forgotten}")) > 0.1
    paused = [7, 8] if guard == "pause" else []
    weights = column(tmp_path / "run", "pseudo.weight")
    assert weights == [0.0 if step in paused else 1.0 for step in range(10)]


def test_binary_training_has_no_column_for_its_one_class(train, pictures, tmp_path):
    train(pictures, "--method", "segpl", "--out", tmp_path / "run")
    header = (tmp_path / "run" / "log.csv").read_text().splitlines()[0].split(",")
    assert "pseudo_foreground" in header
    assert "pseudo_foreground_1" not in header
