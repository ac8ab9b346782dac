"""Volumes of thick slices, which are learned slice by slice, from the command line to masks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import read_volume, write_volume

SHAPE, SPACING = (40, 44, 5), (0.4, 0.4, 8.0)
HARDER = ("affine", "scanner", "mirror")


@pytest.fixture
def thick(tmp_path) -> Path:
    """Three labeled and two unlabeled volumes: a bright disc, larger in the middle slices."""
    affine = np.diag([*SPACING, 1.0])
    places = np.indices(SHAPE).astype(float)  # (3, *S)
    for index in range(5):
        rng = np.random.default_rng(index)
        center = rng.uniform(15, 25, 2)
        radius = 8 - np.abs(places[2] - 2)
        disc = np.hypot(places[0] - center[0], places[1] - center[1]) < radius
        image = (100 * disc + rng.normal(0, 10, SHAPE)).astype(np.float32)
        group = "labeled" if index < 3 else "unlabeled"
        write_volume(tmp_path / "data" / group / "imgs" / f"c{index}.nii.gz", image, affine)
        if index < 3:
            label = tmp_path / "data" / group / "lbls" / f"c{index}.nii.gz"
            write_volume(label, disc.astype(np.uint8), affine)
    return tmp_path / "data"


def test_thick_slices_are_learned_and_predicted_one_by_one(train, segpl, thick, tmp_path):
    """With every change of a crop switched on."""
    run = tmp_path / "run"
    views = [text for name in HARDER for text in ("--set", f"augment.{name}=0.9")]
    train(thick, "--method", "bpl-mix", *views, "--set", "train.batch=0", "--out", run)
    plan = json.loads((run / "plan.json").read_text())
    assert plan["patch"] == [40, 48, 1]
    assert {row[2] for row in plan["strides"]} == {row[2] for row in plan["kernels"]} == {1}
    assert plan["batch"] == 4
    image = thick / "unlabeled" / "imgs" / "c3.nii.gz"
    answer = segpl("predict", run, image, "--probabilities", "--out", tmp_path / "masks")
    assert answer.code == 0, answer.err
    assert read_volume(tmp_path / "masks" / "c3.nii.gz").shape == SHAPE
    chances = read_volume(tmp_path / "masks" / "probabilities" / "c3.nii.gz")
    assert chances.shape == SHAPE
    assert all(np.ptp(chances[..., place]) > 0 for place in range(SHAPE[2]))
