"""Masks of DICOM series are scored against DICOM labels, class by class."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from generated_dicom import make_contours, make_series, save

from segpl.data.layouts import read_dataset
from segpl.data.manifest import Manifest, write_manifest
from segpl.data.readers import read_case_label
from segpl.errors import InputError
from segpl.evaluate.folders import evaluate_folders
from segpl.predict.writers import write_labels


def square(place: int) -> np.ndarray:
    corners = [(-30.0, 14.0), (-26.0, 14.0), (-26.0, 18.0), (-30.0, 18.0)]
    return np.column_stack([corners, np.full(4, 7.0 + 2.5 * place)])


@pytest.fixture
def folders(tmp_path) -> tuple[Path, Path]:
    """A dataset with one case, and a prediction that misses one of two slices of the prostate."""
    data, masks = tmp_path / "data", tmp_path / "masks"
    series = make_series()
    save(series, data / "p1")
    structures = {"prostate": [square(1), square(2)], "bladder": [square(4)]}
    save([make_contours(series, structures)], data)
    dataset = read_dataset(data)
    (case,) = dataset.cases
    label = read_case_label(case)
    mask = label.array.copy()
    mask[..., 1] = 0
    write_labels(masks / "p1.nii.gz", mask, case.images[0], label.grid)
    write_manifest(masks, Manifest(dataset.classes))
    return masks, data


def test_every_class_is_scored_on_the_grid_of_the_series(folders):
    scores = evaluate_folders(*folders, metrics=["dice", "volume"])
    dice = {score.class_name: score.value for score in scores if score.metric == "dice"}
    assert dice == pytest.approx({"bladder": 1.0, "prostate": 2 / 3})
    volume = {score.class_name: score.value for score in scores if score.metric == "volume"}
    assert volume["bladder"] == pytest.approx(8 * 5 * 0.75 * 0.5 * 2.5 / 1000)


def test_renumbered_classes_are_refused(folders):
    masks, data = folders
    (data / "labels.json").write_text(json.dumps({"prostate": 1, "bladder": 2}))
    with pytest.raises(InputError, match=r"class 'prostate' is 2 in .*json and 1 in"):
        evaluate_folders(masks, data)
