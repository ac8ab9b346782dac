"""On real scans, default samples are uncertain where the mask is wrong, and no less likely."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from conftest import read_volume
from test_real_data import link, require

from segpl.data.masks import voxel_entropy
from segpl.evaluate.uncertainty import negative_log_likelihood, questions

pytestmark = pytest.mark.slow

PLAN = Path(__file__).parents[2] / "benchmarks" / "plans" / "hippocampus-2mm.json"
LABELED, UNLABELED, TEST = 8, 8, 4
SMALL = ("--steps", 60, "--set", "network.width=4", "--set", "train.batch=1")


@pytest.fixture
def hippocampus(tmp_path) -> Path:
    """The labels of the test cases are not part of the dataset."""
    source, root = require("Task04_Hippocampus"), tmp_path / "Task04_Hippocampus"
    description = json.loads((source / "dataset.json").read_text())
    some = description["training"][: LABELED + UNLABELED]
    for entry in some:
        link(source / entry["image"], root / entry["image"])
    for entry in some[:LABELED]:
        link(source / entry["label"], root / entry["label"])
    description |= {"training": some[:LABELED], "test": [e["image"] for e in some[LABELED:]]}
    (root / "dataset.json").write_text(json.dumps(description))
    return root


def test_default_samples_find_errors_and_are_no_worse_calibrated(segpl, hippocampus, tmp_path):
    """Of a method with a threshold; samples of it would be nearly all alike, and overconfident."""
    run, source = tmp_path / "run", require("Task04_Hippocampus")
    cases = json.loads((source / "dataset.json").read_text())["training"][-TEST:]
    images = [source / entry["image"] for entry in cases]
    options = ("--plan", PLAN, "--method", "segpl-vi", *SMALL, "--out", run)
    assert segpl("train", hippocampus, *options).code == 0
    for out, samples in (("plain", ()), ("samples", ("--samples", 4))):
        command = ("predict", run, *images, "--out", tmp_path / out, "--probabilities")
        assert segpl(*command, *samples).code == 0

    losses: dict[str, list[float]] = {"plain": [], "samples": []}
    on_wrong, on_right = [], []
    for entry, image in zip(cases, images, strict=True):
        truth = read_volume(source / entry["label"]).astype(int)
        for out, found in losses.items():
            probability = read_volume(tmp_path / out / "probabilities" / image.name)
            maps = np.moveaxis(probability, -1, 0)
            found.append(negative_log_likelihood(*questions(maps, truth)))
        wrong = read_volume(tmp_path / "samples" / image.name) != truth
        entropy = voxel_entropy(maps).max(0)
        on_wrong.append(entropy[wrong].mean())
        on_right.append(entropy[~wrong].mean())
    assert np.mean(on_wrong) > 1.1 * np.mean(on_right)
    # samples of the threshold: 1.7 times
    assert np.mean(losses["samples"]) < 1.1 * np.mean(losses["plain"])
