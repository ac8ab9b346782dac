"""Regions: finding their masks, checking them, and excluding what lies outside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from test_scores import BINARY, picture

from segpl.errors import InputError, MissingFileError
from segpl.evaluate.folders import evaluate_case, evaluate_folders
from segpl.evaluate.metrics import METRICS
from segpl.evaluate.pairing import find_regions, pair_cases


@pytest.fixture
def retina(tmp_path: Path) -> Path:
    """A dataset in two parts; the left columns count, and predictions are wrong in the others."""
    for part, case in (("training", "21"), ("test", "01")):
        folder = tmp_path / "data" / part
        picture(folder / "images" / f"{case}.png", np.arange(24).reshape(4, 6))
        label = np.zeros((4, 6))
        label[1:3, 1:3] = 255
        picture(folder / "labels" / f"{case}.png", label)
        label[:, 4:] = 255
        picture(tmp_path / "masks" / f"{case}.png", label)
        region = np.zeros((4, 6))
        region[:, :4] = 255
        picture(folder / "fov" / f"{case}.png", region)
    return tmp_path


@pytest.mark.parametrize("name", ["fov", "FOV"])
def test_a_region_folder_beside_the_labels_is_found_in_every_part(retina, name):
    pairing = pair_cases(retina / "masks", retina / "data", region=name)
    assert pairing.regions == {
        "01": retina / "data" / "test" / "fov" / "01.png",
        "21": retina / "data" / "training" / "fov" / "21.png",
    }


def test_errors_outside_the_region_do_not_count(retina):
    names = [name for name in METRICS if METRICS[name].best != "none"]
    data = retina / "data"
    inside = evaluate_folders(retina / "masks", data, metrics=names, region="fov")
    perfect = {"share": 1.0, "distance": 0.0, "error": 0.0}
    assert [s.metric for s in inside if s.value != perfect[METRICS[s.metric].kind]] == []
    everywhere = evaluate_folders(retina / "masks", data, metrics=names)
    assert {s.value for s in everywhere if s.metric == "dice"} == {8 / 16}


def test_labels_outside_the_region_do_not_count():
    truth = np.array([[1, 0, 0, 1]])
    region = np.array([[True, True, True, False]])
    scores = evaluate_case(
        np.array([[1, 0, 0, 0]]), truth, BINARY, None, case="a", region=region, metrics=METRICS
    )
    found = {score.metric: score.value for score in scores}
    assert (found["recall"], found["hd95"], found["label_volume"]) == (1.0, 0.0, 1.0)


def test_region_and_ignored_voxels_combine():
    prediction, truth = np.array([[1, 1, 1]]), np.array([[1, 9, 0]])
    region = np.array([[True, True, False]])
    scores = evaluate_case(prediction, truth, BINARY, 9, case="a", region=region)
    assert {score.value for score in scores} == {1.0}


def test_regions_are_matched_by_case_name(retina, tmp_path):
    for case in ("01", "21"):
        picture(tmp_path / "elsewhere" / f"{case}_mask.png", np.ones((4, 6)))
    scores = evaluate_folders(retina / "masks", retina / "data", region=tmp_path / "elsewhere")
    assert {score.value for score in scores if score.metric == "dice"} == {8 / 16}


def test_the_region_of_another_part_is_not_that_of_a_case(tmp_path):
    region, labels = tmp_path / "fov", {"training_1": tmp_path / "labels" / "training_1.png"}
    picture(region / "test_1_mask.png", np.ones((4, 6)))
    with pytest.raises(MissingFileError, match="case training_1 has no region"):
        find_regions(region, labels)
    picture(region / "training_1_mask.png", np.ones((4, 6)))
    assert find_regions(region, labels)["training_1"].name == "training_1_mask.png"


def test_a_case_without_a_region_is_an_error(retina):
    (retina / "data" / "test" / "fov" / "01.png").unlink()
    with pytest.raises(MissingFileError, match=r"case 01 has no region: .*fov contains 0 masks"):
        evaluate_folders(retina / "masks", retina / "data", region="fov")


def test_a_missing_region_folder_is_an_error(retina):
    with pytest.raises(
        MissingFileError, match="eyes is not a folder, and there is no folder of that"
    ):
        evaluate_folders(retina / "masks", retina / "data", region="eyes")


def test_an_empty_region_is_an_error(retina):
    picture(retina / "data" / "test" / "fov" / "01.png", np.zeros((4, 6)))
    with pytest.raises(InputError, match=r"case 01: the region .* is empty"):
        evaluate_folders(retina / "masks", retina / "data", region="fov")


def test_a_class_outside_the_region_is_empty():
    truth = np.array([[1, 0]])
    scores = evaluate_case(truth, truth, BINARY, None, case="a", region=np.array([[False, True]]))
    assert {score.empty for score in scores} == {"both"}


def test_a_region_of_another_shape_is_an_error(retina):
    picture(retina / "data" / "test" / "fov" / "01.png", np.ones((4, 5)))
    with pytest.raises(InputError, match=r"case 01: the region .* the grid of the label: shape"):
        evaluate_folders(retina / "masks", retina / "data", region="fov")
