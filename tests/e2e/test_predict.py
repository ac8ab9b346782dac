"""Predictions lie on the grid of their images, and scores on the cases that were predicted."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import nibabel
import numpy as np
import pytest
from conftest import AFFINE, ANY, make_dataset, read_volume, scan, write_volume
from PIL import Image

SLANTED = np.array(
    [[-0.69, 0.05, 0.0, 12.0], [0.05, 0.69, 0.1, -30.0], [0.0, -0.1, 1.4, 7.5], [0, 0, 0, 1.0]]
)


@pytest.fixture
def run(train, volumes, tmp_path) -> Path:
    train(volumes, *ANY, "--out", tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def flat_run(train, tmp_path) -> Path:
    data = make_dataset(tmp_path / "pictures", dims=2, classes=3)
    train(data, *ANY, "--out", tmp_path / "flat")
    return tmp_path / "flat"


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".json")


def test_without_inputs_the_test_cases_of_the_run_are_predicted(segpl, run, tmp_path):
    answer = segpl("predict", run, "--out", tmp_path / "masks")
    assert answer.code == 0, answer.err
    assert files_in(tmp_path / "masks") == ["t0.nii.gz"]
    assert "Wrote 1 prediction(s) to" in answer.out


def test_without_inputs_and_test_cases_the_way_out_is_named(segpl, train, tmp_path):
    data = make_dataset(tmp_path / "data", dims=2, test=0)
    train(data, *ANY, "--out", tmp_path / "run")
    answer = segpl("predict", tmp_path / "run", "--out", tmp_path / "masks")
    assert answer.code == 1
    assert "has no test cases to predict. Name images or folders" in answer.err


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (["test/imgs/t0.nii.gz"], ["t0.nii.gz"]),
        (["unlabeled/imgs/u0.nii.gz", "test/imgs/t0.nii.gz"], ["t0.nii.gz", "u0.nii.gz"]),
        (["unlabeled/imgs"], ["u0.nii.gz", "u1.nii.gz"]),
        ([""], ["t0.nii.gz"]),
    ],
    ids=["a file", "files", "a folder", "a dataset"],
)
def test_files_folders_and_datasets_are_predicted(segpl, run, volumes, tmp_path, inputs, expected):
    answer = segpl(
        "predict", run, "--out", tmp_path / "masks", *(volumes / entry for entry in inputs)
    )
    assert answer.code == 0, answer.err
    assert files_in(tmp_path / "masks") == expected


@pytest.mark.parametrize("affine", [AFFINE, SLANTED], ids=["flipped", "slanted"])
@pytest.mark.parametrize("shape", [(24, 24, 24), (31, 17, 9)], ids=["cube", "odd"])
def test_a_prediction_has_the_geometry_of_its_image(segpl, run, tmp_path, shape, affine):
    image = np.resize(scan(3, 5)[0], shape)
    write_volume(tmp_path / "new scan.nii.gz", image, affine)
    answer = segpl("predict", run, tmp_path / "new scan.nii.gz", "--out", tmp_path / "my masks")
    assert answer.code == 0, answer.err
    source = nibabel.load(tmp_path / "new scan.nii.gz")
    mask = nibabel.load(tmp_path / "my masks" / "new scan.nii.gz")
    assert mask.shape == shape
    assert np.array_equal(mask.affine, source.affine)
    assert mask.get_data_dtype() == np.uint8
    assert set(np.unique(mask.dataobj)) <= {0, 1}


def test_pictures_give_pictures_of_class_numbers(segpl, flat_run, tmp_path):
    assert segpl("predict", flat_run, "--out", tmp_path / "masks", "--probabilities").code == 0
    with Image.open(tmp_path / "masks" / "t0.png") as mask:
        assert mask.size == (32, 32)
        assert set(np.unique(np.asarray(mask))) <= {0, 1, 2}
    with np.load(tmp_path / "masks" / "probabilities" / "t0.npz") as stored:
        assert stored["probabilities"].shape == (3, 32, 32)


def test_labels_follow_from_the_probabilities_beside_them(segpl, run, tmp_path):
    assert segpl("predict", run, "--out", tmp_path / "masks", "--probabilities").code == 0
    labels = read_volume(tmp_path / "masks" / "t0.nii.gz")
    probabilities = read_volume(tmp_path / "masks" / "probabilities" / "t0.nii.gz")
    assert probabilities.dtype == np.float32
    assert 0 <= probabilities.min() < probabilities.max() <= 1
    assert np.array_equal(labels, (probabilities > 0.5).astype(np.uint8))


def test_what_is_there_is_skipped_unless_it_shall_be_replaced(segpl, run, tmp_path):
    command = ("predict", run, "--out", tmp_path / "masks")
    assert segpl(*command).code == 0
    mask = tmp_path / "masks" / "t0.nii.gz"
    mask.write_bytes(b"touched by hand")
    answer = segpl(*command)
    assert answer.code == 0
    assert "Nothing to do" in answer.out
    assert mask.read_bytes() == b"touched by hand"
    assert segpl(*command, "--overwrite").code == 0
    assert read_volume(mask).shape == (24, 24, 24)


def test_predictions_of_another_run_are_not_taken_for_ones_own(
    segpl, train, run, volumes, tmp_path
):
    train(volumes, *ANY, "--out", tmp_path / "other", "--seed", 1)
    assert segpl("predict", run, "--out", tmp_path / "masks").code == 0
    answer = segpl("predict", tmp_path / "other", "--out", tmp_path / "masks")
    assert answer.code == 1
    assert "holds predictions of another run" in answer.err


def test_images_are_never_overwritten(segpl, run, volumes):
    folder = volumes / "unlabeled" / "imgs"
    before = [path.read_bytes() for path in sorted(folder.iterdir())]
    answer = segpl("predict", run, folder, "--out", folder)
    assert answer.code == 1
    assert "would overwrite the image" in answer.err
    assert [path.read_bytes() for path in sorted(folder.iterdir())] == before


def test_one_broken_image_does_not_cost_the_others(segpl, run, volumes, tmp_path):
    folder = volumes / "unlabeled" / "imgs"
    (folder / "u0.nii.gz").write_bytes(b"broken")
    answer = segpl("predict", run, folder, "--out", tmp_path / "masks")
    assert answer.code == 1
    assert "1 of 2 image(s) could not be predicted (the predictions of the others" in answer.err
    assert files_in(tmp_path / "masks") == ["u1.nii.gz"]


def test_where_all_images_are_broken_no_others_are_spoken_of(segpl, run, tmp_path):
    (tmp_path / "x.nii.gz").write_bytes(b"broken")
    answer = segpl("predict", run, tmp_path / "x.nii.gz", "--out", tmp_path / "masks")
    assert answer.code == 1
    assert "1 of 1 image(s) could not be predicted: [x]" in answer.err


def test_an_empty_folder_is_refused(segpl, run, tmp_path):
    (tmp_path / "empty").mkdir()
    answer = segpl("predict", run, tmp_path / "empty", "--out", tmp_path / "masks")
    assert answer.code == 1
    assert "empty is empty. Give a folder of images" in answer.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nothere.nii.gz"], "nothere.nii.gz does not exist. Give an image, or a folder"),
        (["--overlap", "1"], "overlap is 1.0"),
        (["--device", "gpu"], "no device named 'gpu'"),
    ],
)
def test_bad_requests_are_refused_in_one_sentence(segpl, run, tmp_path, arguments, words):
    answer = segpl("predict", run, *arguments, "--out", tmp_path / "masks")
    assert answer.code == 1
    assert words in answer.err


def test_a_folder_that_is_no_run_is_refused(segpl, volumes, tmp_path):
    answer = segpl("predict", volumes, "--out", tmp_path / "masks")
    assert answer.code == 1
    assert "is not a segpl run: config.toml" in answer.err


def test_options_may_stand_before_between_and_after_the_images(segpl, run, volumes, tmp_path):
    image = volumes / "test" / "imgs" / "t0.nii.gz"
    for number, order in enumerate([("--out", run, image), (run, "--out", image)]):
        place = order.index("--out") + 1
        arguments = [*order[:place], tmp_path / f"masks{number}", *order[place:]]
        answer = segpl("predict", *arguments)
        assert answer.code == 0, answer.err


def test_a_case_that_was_trained_on_is_pointed_out(segpl, run, volumes, tmp_path):
    answer = segpl("predict", run, volumes / "labeled" / "imgs", "--out", tmp_path / "masks")
    assert answer.code == 0
    assert "3 of 3 inputs share their name with a labeled training case" in answer.err


def test_best_and_last_are_different_predictions(segpl, train, volumes, tmp_path):
    train(volumes, *ANY, "--validation", 1, "--out", tmp_path / "run")
    command = ("predict", tmp_path / "run", "--out", tmp_path / "masks")
    assert segpl(*command).code == 0
    answer = segpl(*command, "--checkpoint", "best")
    assert answer.code == 1
    assert "holds predictions of another run" in answer.err
    assert segpl(*command, "--checkpoint", "best", "--overwrite").code == 0


class TestScores:
    @pytest.fixture
    def masks(self, segpl, flat_run, tmp_path) -> Path:
        assert segpl("predict", flat_run, "--out", tmp_path / "masks").code == 0
        return tmp_path / "masks"

    def test_a_row_for_each_case_class_and_metric(self, segpl, masks, tmp_path):
        answer = segpl("evaluate", masks, tmp_path / "pictures", "--metrics", "dice", "iou")
        assert answer.code == 0, answer.err
        with (masks / "scores.csv").open(newline="") as handle:
            rows = list(csv.reader(handle))
        assert rows[0] == ["case", "class", "metric", "value", "unit", "empty"]
        assert [tuple(row[:3]) for row in rows[1:]] == [
            ("t0", name, metric) for name in ("class-1", "class-2") for metric in ("dice", "iou")
        ]
        assert all(0 <= float(row[3]) <= 1 for row in rows[1:])

    def test_the_summary_is_printed_with_the_policy_for_empty_masks(self, segpl, masks, tmp_path):
        answer = segpl("evaluate", masks, tmp_path / "pictures")
        assert "class-1" in answer.out
        assert "Empty masks: both empty scores 1" in answer.out

    def test_a_folder_of_labels_gives_the_same_scores_as_its_dataset(self, segpl, masks, tmp_path):
        data = tmp_path / "pictures"
        for name, labels in (("one", data), ("two", data / "test" / "lbls")):
            assert segpl("evaluate", masks, labels, "--out", tmp_path / f"{name}.csv").code == 0
        tables = [(tmp_path / f"{name}.csv").read_text() for name in ("one", "two")]
        assert tables[0] == tables[1]

    def test_labels_score_one_against_themselves(self, segpl, tmp_path, pictures):
        labels = pictures / "test" / "lbls"
        out = tmp_path / "new folder" / "scores.csv"
        assert segpl("evaluate", labels, labels, "--out", out).code == 0
        perfect = {"hd95": 0.0, "assd": 0.0, "volume_error": 0.0}
        with out.open(newline="") as handle:
            for row in csv.DictReader(handle):
                if row["metric"] not in ("volume", "label_volume"):
                    assert float(row["value"]) == perfect.get(row["metric"], 1.0), row

    def test_predictions_without_labels_are_refused(self, segpl, masks, volumes):
        for path in (volumes / "test").rglob("*.nii.gz"):
            path.unlink()
        answer = segpl("evaluate", masks, volumes)
        assert answer.code == 1
        assert "no prediction has a label" in answer.err

    def test_the_manifest_says_what_the_numbers_mean(self, masks):
        manifest = json.loads((masks / "predictions.json").read_text())
        assert manifest["classes"] == {"background": 0, "class-1": 1, "class-2": 2}


def test_a_run_that_was_trained_anew_does_not_pass_for_the_old_one(segpl, train, volumes, tmp_path):
    run, masks = tmp_path / "run", tmp_path / "masks"
    train(volumes, *ANY, "--out", run)
    assert segpl("predict", run, "--out", masks).code == 0
    shutil.rmtree(run)
    train(volumes, *ANY, "--out", run, "--seed", 1)
    answer = segpl("predict", run, "--out", masks)
    assert answer.code == 1
    assert "predictions of another run or other weights" in answer.err
    assert segpl("predict", run, "--out", masks, "--overwrite").code == 0
