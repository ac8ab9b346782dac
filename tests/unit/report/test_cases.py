from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import nibabel
import numpy as np
import pytest
from generated_dicom import make_contours, make_series, save
from records import collect, make_record
from tiny import ORGAN_PLAN

from segpl.errors import InputError
from segpl.evaluate.scores import Score
from segpl.report.page import cases as page_cases
from segpl.report.page.cases import MAX_ENTROPY, RunCases, calibrations, channel_note
from segpl.report.page.slices import MaskArrays
from segpl.report.run_record import RunRecord
from segpl.report.sections.volumes import volume_of

PLAN = replace(ORGAN_PLAN, classes={"background": 0, "vessel": 1, "tumor": 4}, ignore=9)
AFFINE = np.diag([2.0, 2.0, 2.0, 1.0])  # a voxel has 8 mm³
LABEL = np.zeros((6, 5, 4), np.uint8)
LABEL[1:3, 1:3, 1] = 1
LABEL[4, 4] = 4
LABEL[0, 0, 0] = 9


def write(path: Path, array: np.ndarray, affine: np.ndarray = AFFINE) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.Nifti1Image(array, affine).to_filename(path)


@pytest.fixture
def run(tmp_path) -> RunRecord:
    """One case that was predicted without its tumor."""
    data, folder = tmp_path / "data", tmp_path / "run"
    write(data / "images" / "t0.nii.gz", np.arange(120, dtype=np.float32).reshape(6, 5, 4))
    write(data / "labels" / "t0.nii.gz", LABEL)
    write(folder / "predictions" / "t0.nii.gz", np.where(LABEL == 1, 1, 0).astype(np.uint8))
    scores = [Score("t0", "x", "dice", 0.5)]
    return make_record("segpl", dataset=str(data), path=folder, plan=PLAN, scores=scores)


def masks(run: RunRecord) -> MaskArrays:
    cases = RunCases(run)
    return cases.mask_arrays("t0", cases.case_arrays("t0").grid)


def test_a_folder_is_listed_once_for_all_cases(run, monkeypatch):
    listing = Mock(wraps=page_cases.image_files)
    monkeypatch.setattr(page_cases, "image_files", listing)
    cases = RunCases(run)
    assert [cases.find("predictions", name=f"t{n}") is not None for n in range(3)] == [1, 0, 0]
    listing.assert_called_once()


def test_number_without_a_class_is_rejected(run):
    write(run.path / "predictions" / "t0.nii.gz", np.full((6, 5, 4), 7, np.uint8))
    with pytest.raises(InputError, match="contains 7, but the classes are"):
        masks(run)


def test_label_with_turned_axes_is_shown_with_those_of_the_image(run):
    label = Path(run.dataset) / "labels" / "t0.nii.gz"
    before = RunCases(run).case_arrays("t0").truth
    nibabel.load(label).as_reoriented([[2, -1], [0, 1], [1, -1]]).to_filename(label)
    np.testing.assert_array_equal(RunCases(run).case_arrays("t0").truth, before)
    assert before.any()


@pytest.mark.parametrize(
    ("shape", "affine", "words"),
    [
        ((6, 5, 4, 3), np.eye(4), "the label and the probabilities differ in voxel spacing"),
        ((6, 5, 4), AFFINE, "the probabilities have 1 channel, but the 3 classes"),
    ],
)
def test_probabilities_of_another_grid_or_other_classes_are_reported(run, shape, affine, words):
    path = run.path / "predictions" / "probabilities" / "t0.nii.gz"
    write(path, np.zeros(shape, np.float32), affine)
    known, missing = calibrations(collect(run))
    assert known == {"segpl": {}}
    assert words in missing[0]


def test_shown_channel_is_named_if_there_are_several(run):
    assert channel_note(collect(run)) == ""
    several = replace(run, plan=replace(PLAN, channels=("T1", "FLAIR")))
    assert channel_note(collect(several)) == "The first of the 2 channels T1, FLAIR is shown."


def test_case_is_read_with_its_truth_and_prediction(run):
    truth = RunCases(run).case_arrays("t0").truth
    assert np.count_nonzero(truth == 2) == 4
    assert truth[0, 0, 0] == 0
    assert np.count_nonzero(masks(run).prediction) == 4
    assert masks(run).uncertainty is None


def test_truth_of_a_dicom_series_is_drawn_on_its_grid(tmp_path):
    series = make_series()
    save(series, tmp_path / "t0")
    corners = [(-30.0, 14.0, 9.5), (-26.0, 14.0, 9.5), (-26.0, 18.0, 9.5), (-30.0, 18.0, 9.5)]
    save([make_contours(series, {"vessel": [np.array(corners)]})], tmp_path)
    scores = [Score("t0", "vessel", "dice", 0.5)]
    plan = replace(PLAN, classes={"background": 0, "vessel": 1}, ignore=None)
    run = make_record("segpl", dataset=str(tmp_path), path=tmp_path, plan=plan, scores=scores)
    arrays = RunCases(run).case_arrays("t0")
    assert np.flatnonzero(arrays.truth.any(axis=(0, 1))).tolist() == [1]
    assert arrays.truth.sum() == 8 * 5
    moved = replace(run, plan=replace(plan, classes={"background": 0, "vessel": 2}))
    with pytest.raises(InputError, match="class 'vessel' is 2 in"):
        RunCases(moved).truth("t0", arrays.grid)


def test_uncertainty_is_the_entropy_relative_to_its_maximum(run):
    entropy = np.zeros((6, 5, 4, 3), np.float32)
    entropy[2, 2, 2, 1] = MAX_ENTROPY / 2
    write(run.path / "samples" / "uncertainty" / "t0_entropy.nii.gz", entropy)
    shown = masks(run).uncertainty
    assert shown is not None
    assert (shown[2, 2, 2], shown.sum()) == (pytest.approx(0.5), pytest.approx(0.5))


def test_prediction_on_another_grid_is_rejected(run):
    write(run.path / "predictions" / "t0.nii.gz", np.zeros((6, 5, 4), np.uint8), np.eye(4))
    with pytest.raises(InputError, match="the label and the prediction differ in voxel spacing"):
        masks(run)


def test_calibration_uses_only_voxels_with_a_known_label(run):
    probability = np.stack([number == LABEL for number in (0, 1, 4)], -1).astype(np.float32)
    write(run.path / "predictions" / "probabilities" / "t0.nii.gz", probability)
    known, missing = calibrations(collect(run))
    case = known["segpl"][0]["t0"]
    assert missing == []
    assert case.measures["Brier"] == 0
    assert case.reliability.count.sum() == 3 * 119


def test_volume_of_a_case_is_the_sum_over_its_classes(run):
    scored = [Score("t0", name, "volume", size, "ml") for name, size in (("a", 1.5), ("b", 2.0))]
    assert volume_of(replace(run, scores=scored), "volume") == {"t0": 3.5}
