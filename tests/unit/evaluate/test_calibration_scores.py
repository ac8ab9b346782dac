from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from segpl.errors import InputError
from segpl.evaluate.calibration import case_scores, pair_probabilities, score_probabilities
from segpl.predict.writers import probabilities_name, write_labels, write_probabilities

TWO = {"background": 0, "organ": 4}
THREE = {"background": 0, "organ": 4, "vessel": 9}
SHAPES = {".nii.gz": (3, 4, 5), ".mha": (3, 4, 5), ".npy": (3, 4, 5), ".png": (6, 7)}


def write_case(root: Path, suffix: str, classes: dict[str, int], seed: int = 0, name: str = "a"):
    """A case as `segpl predict --probabilities` writes it, and its label."""
    draw = np.random.default_rng(seed)
    shape = SHAPES[suffix]
    outputs = 1 if len(classes) == 2 else len(classes)
    p = draw.random((outputs, *shape)).astype(np.float32)
    numbers = np.array(list(classes.values()))
    label = draw.choice(numbers, shape).astype(np.uint8)
    like = root / "images" / f"{name}{suffix}"
    like.parent.mkdir(parents=True, exist_ok=True)
    write_like(like, shape)
    for folder in ("out/probabilities", "labels"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    path = root / "out" / "probabilities" / probabilities_name(name, like, outputs)
    write_probabilities(path, p, like)
    write_labels(root / "labels" / like.name, label, like)
    manifest = {"run": "r", "classes": classes, "ignore": None, "files": {}}
    (root / "out" / "predictions.json").write_text(json.dumps(manifest))
    return p, label


def write_like(path: Path, shape: tuple[int, ...]) -> None:
    if path.suffix == ".png":
        Image.fromarray(np.zeros(shape, np.uint8)).save(path)
    elif path.suffix == ".npy":
        np.save(path, np.zeros(shape))
    elif path.suffix == ".mha":
        import SimpleITK as sitk  # noqa: N813 (as in its manual)

        sitk.WriteImage(sitk.GetImageFromArray(np.zeros(shape[::-1])), str(path))
    else:
        import nibabel

        nibabel.Nifti1Image(np.zeros(shape, np.float32), np.eye(4)).to_filename(path)


def calibration_scores(predictions: Path, labels: Path, region: Path | None = None):
    return score_probabilities(pair_probabilities(predictions, labels, region=region))


def values(scores) -> dict[tuple[str, str], float]:
    return {(score.class_name, score.metric): score.value for score in scores}


@pytest.mark.parametrize("suffix", list(SHAPES))
@pytest.mark.parametrize("classes", [TWO, THREE], ids=["two", "three"])
def test_brier_score_of_files_equals_that_of_their_arrays(tmp_path, suffix, classes):
    p, label = write_case(tmp_path, suffix, classes)
    found = values(calibration_scores(tmp_path / "out", tmp_path / "labels"))
    for channel, (name, number) in enumerate(classes.items()):
        if number:
            own = p[channel if len(p) > 1 else 0]
            assert found[name, "brier"] == pytest.approx(np.mean((own - (label == number)) ** 2))
    assert set(found) == {
        (name, measure)
        for name in classes
        if classes[name]
        for measure in ("brier", "ece", "ace", "nll")
    }


def test_either_folder_may_be_given(tmp_path):
    write_case(tmp_path, ".npy", TWO)
    outer, inner = (
        calibration_scores(tmp_path / "out" / part, tmp_path / "labels")
        for part in ("", "probabilities")
    )
    assert outer == inner


def test_ignored_voxels_and_voxels_outside_the_region_do_not_count(tmp_path):
    p, label = write_case(tmp_path, ".npy", TWO)
    label[0] = 7
    np.save(tmp_path / "labels" / "a.npy", label)
    with pytest.raises(InputError, match="contains 7, but the classes are"):
        calibration_scores(tmp_path / "out", tmp_path / "labels")
    manifest = tmp_path / "out" / "predictions.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"ignore": 7}))
    found = values(calibration_scores(tmp_path / "out", tmp_path / "labels"))
    expected = np.mean((p[0, 1:] - (label[1:] == 4)) ** 2)
    assert found["organ", "brier"] == pytest.approx(expected)
    inside = np.zeros_like(label)
    inside[:2] = 1
    (tmp_path / "fov").mkdir()
    np.save(tmp_path / "fov" / "a.npy", inside)
    found = values(
        calibration_scores(tmp_path / "out", tmp_path / "labels", region=tmp_path / "fov")
    )
    expected = np.mean((p[0, 1] - (label[1] == 4)) ** 2)
    assert found["organ", "brier"] == pytest.approx(expected)


def test_a_case_without_known_voxels_scores_nan():
    nothing = np.full((2, 2), -1)
    scores = case_scores(np.zeros((1, 2, 2)), nothing, list(TWO), case="a")
    assert all(np.isnan(score.value) for score in scores)


def test_wrong_number_of_channels_is_an_error():
    with pytest.raises(InputError, match="have 2 channels, but the 3 classes"):
        case_scores(np.zeros((2, 4)), np.zeros(4, int), list(THREE), case="a")


def test_probabilities_without_a_manifest_are_an_error(tmp_path):
    write_case(tmp_path, ".npy", TWO)
    (tmp_path / "out" / "predictions.json").unlink()
    with pytest.raises(InputError, match="says which channel is which class"):
        calibration_scores(tmp_path / "out", tmp_path / "labels")


def test_another_grid_is_an_error(tmp_path):
    write_case(tmp_path, ".npy", TWO)
    np.save(tmp_path / "labels" / "a.npy", np.zeros((3, 4, 6), np.uint8))
    with pytest.raises(InputError, match="on different grids"):
        calibration_scores(tmp_path / "out", tmp_path / "labels")


def test_masks_do_not_count_as_probabilities(tmp_path):
    """Masks of two classes look like probabilities of 0 and 1."""
    write_case(tmp_path, ".npy", {"background": 0, "organ": 1})
    shutil.rmtree(tmp_path / "out" / "probabilities")
    np.save(tmp_path / "out" / "a.npy", np.load(tmp_path / "labels" / "a.npy"))
    with pytest.raises(InputError, match=r"contains no probabilities, .* --probabilities"):
        calibration_scores(tmp_path / "out", tmp_path / "labels")


def test_probabilities_older_than_their_masks_are_an_error(tmp_path):
    """Another run has replaced the masks but not the probabilities."""
    write_case(tmp_path, ".npy", TWO)
    manifest = tmp_path / "out" / "predictions.json"
    content = json.loads(manifest.read_text()) | {
        "files": {"a": {"images": ["a.npy"], "labels": "a.npy"}}
    }
    manifest.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"probabilities of a in .* are older than the masks"):
        calibration_scores(tmp_path / "out", tmp_path / "labels")
    content["files"]["a"]["maps"] = {"probabilities": "probabilities/a.npy"}
    manifest.write_text(json.dumps(content))
    assert calibration_scores(tmp_path / "out", tmp_path / "labels")


def test_each_case_has_its_own_rows(tmp_path):
    for number, name in enumerate("ab"):
        write_case(tmp_path, ".npy", TWO, seed=number, name=name)
    scores = calibration_scores(tmp_path / "out", tmp_path / "labels")
    assert [score.case for score in scores] == ["a"] * 4 + ["b"] * 4
    assert scores[0].value != scores[4].value
