from __future__ import annotations

import json
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from segpl.errors import InputError, MissingFileError
from segpl.evaluate.folders import evaluate_case, evaluate_folders
from segpl.evaluate.metrics import EMPTY_POLICY
from segpl.evaluate.pairing import pair_cases
from segpl.evaluate.scores import Score, empty_note, read_scores, write_scores
from segpl.report.tables import summary_rows

BINARY = {"background": 0, "vessel": 1}


def picture(path: Path, values: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(values, np.uint8)).save(path)


def volume(path: Path, values: object, spacing: float = 1.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    affine = np.diag([spacing, spacing, spacing, 1.0])
    nib.save(nib.Nifti1Image(np.asarray(values, np.uint8), affine), path)


def value(scores: list[Score], metric: str, class_name: str | None = None) -> float:
    (found,) = (
        s.value for s in scores if s.metric == metric and class_name in (None, s.class_name)
    )
    return found


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two cases: one right, one of which half the foreground is found."""
    predictions, labels = tmp_path / "predictions", tmp_path / "labels"
    picture(predictions / "a.png", [[255, 255], [0, 0]])
    picture(labels / "a.tif", [[255, 255], [0, 0]])
    picture(predictions / "b.png", [[255, 0], [0, 0]])
    picture(labels / "b.tif", [[255, 255], [0, 0]])
    return predictions, labels


def test_each_class_is_scored_by_its_own_number():
    prediction, truth = np.array([0, 1, 1, 2]), np.array([0, 1, 2, 2])
    scores = evaluate_case(prediction, truth, {"left": 1, "right": 2}, None, case="a")
    assert value(scores, "iou", "left") == pytest.approx(1 / 2)
    assert value(scores, "dice", "right") == pytest.approx(2 / 3)


def test_ignored_voxels_do_not_count():
    prediction, truth = np.array([1, 0, 1, 1]), np.array([1, 0, 9, 9])
    scores = evaluate_case(prediction, truth, BINARY, 9, case="a")
    assert value(scores, "iou") == 1.0


@pytest.mark.parametrize("what", ["prediction", "label"])
def test_a_number_that_is_not_a_class_is_an_error(what):
    arrays = {"prediction": np.array([0, 1]), "label": np.array([0, 1])}
    arrays[what] = np.array([0, 7])
    for classes, known in ((BINARY, "background = 0, vessel = 1"), ({"1": 1}, "1")):
        words = f"the {what} contains the number 7, which is not a class. Known: {known}. Pred"
        with pytest.raises(InputError, match=words):
            evaluate_case(arrays["prediction"], arrays["label"], classes, None, case="a")


def test_masks_of_0_and_255_score_across_formats(folders):
    scores = evaluate_folders(*folders)
    assert {s.class_name for s in scores} == {"255"}
    found = {(s.case, s.metric): s.value for s in scores}
    assert (found["a", "dice"], found["a", "iou"]) == (1.0, 1.0)
    assert (found["b", "dice"], found["b", "iou"]) == (pytest.approx(2 / 3), 0.5)


def test_predictions_json_names_the_classes_and_the_ignored_number(folders):
    predictions, labels = folders
    picture(labels / "b.tif", [[255, 128], [0, 0]])
    content = {"classes": {"background": 0, "vessel": 255}, "ignore": 128}
    (predictions / "predictions.json").write_text(json.dumps(content))
    scores = evaluate_folders(predictions, labels)
    assert {(s.class_name, s.value) for s in scores} == {("vessel", 1.0)}


@pytest.mark.parametrize("content", [[], {"classes": [1]}, {"classes": {"a": 1}, "ignore": "x"}])
def test_a_damaged_predictions_json_is_an_error(folders, content):
    predictions, labels = folders
    (predictions / "predictions.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"predictions.json cannot be used: .* It needs"):
        evaluate_folders(predictions, labels)


def test_a_prediction_without_a_label_is_reported_and_the_others_are_scored(folders):
    predictions, labels = folders
    picture(predictions / "stray.png", [[0, 0], [0, 0]])
    with pytest.warns(UserWarning, match=r"not scored, because .* has no label for them: stray"):
        scores = evaluate_folders(predictions, labels)
    assert {s.case for s in scores} == {"a", "b"}


def test_labels_without_a_prediction_are_listed(folders):
    predictions, labels = folders
    picture(labels / "c.tif", [[0, 0], [0, 0]])
    assert pair_cases(predictions, labels).without_prediction == ["c"]


def test_folders_without_a_common_case_are_an_error_that_names_both(folders, tmp_path):
    predictions, _ = folders
    picture(tmp_path / "other" / "z.tif", [[255]])
    with pytest.raises(
        InputError, match=r"no prediction has a label: .* contains a, b, .* contains z"
    ):
        evaluate_folders(predictions, tmp_path / "other")


def test_labels_are_not_scored_against_themselves(folders):
    _, labels = folders
    with pytest.raises(InputError, match="contains the label of a, not a prediction"):
        evaluate_folders(labels, labels)


def test_a_folder_without_predictions_is_an_error(folders, tmp_path):
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError, match=r"contains no masks\. Evaluate the folder"):
        evaluate_folders(tmp_path / "nothing", folders[1])


def test_empty_labels_without_class_names_are_an_error(tmp_path):
    for folder in ("predictions", "labels"):
        picture(tmp_path / folder / "a.png", [[0, 0]])
    with pytest.raises(InputError, match="every label is empty"):
        evaluate_folders(tmp_path / "predictions", tmp_path / "labels")


def test_two_files_for_one_case_are_an_error(folders):
    predictions, labels = folders
    picture(predictions / "a.tif", [[0, 0], [0, 0]])
    with pytest.raises(InputError, match=r"two labels have the same name: .*a\.png and .*a\.tif"):
        evaluate_folders(predictions, labels)


def test_a_prediction_of_another_spacing_is_an_error(tmp_path):
    volume(tmp_path / "predictions" / "a.nii.gz", np.ones((2, 2, 2)), spacing=1.0)
    volume(tmp_path / "labels" / "a.nii.gz", np.ones((2, 2, 2)), spacing=2.0)
    with pytest.raises(InputError, match=r"case a: .* are on different grids: .*spacing"):
        evaluate_folders(tmp_path / "predictions", tmp_path / "labels")


def test_a_label_and_a_region_with_turned_axes_are_compared_at_the_same_place(tmp_path):
    mask = np.arange(24).reshape(2, 3, 4) % 5 == 0
    volume(tmp_path / "predictions" / "a.nii.gz", mask)
    volume(tmp_path / "labels" / "a.nii.gz", mask)
    volume(tmp_path / "regions" / "a.nii.gz", mask)
    for folder in ("labels", "regions"):
        file = nib.load(tmp_path / folder / "a.nii.gz")
        file.as_reoriented([[1, -1], [0, 1], [2, -1]]).to_filename(file.get_filename())
    for region in (None, tmp_path / "regions"):
        (score,) = evaluate_folders(
            tmp_path / "predictions", tmp_path / "labels", metrics=["dice"], region=region
        )
        assert score.value == 1


def test_a_dataset_provides_labels_and_class_names(tmp_path):
    root = tmp_path / "Task99_Toy"
    volume(root / "imagesTr" / "a.nii.gz", np.arange(8).reshape(2, 2, 2))
    volume(root / "labelsTr" / "a.nii.gz", np.ones((2, 2, 2)))
    (root / "dataset.json").write_text(
        json.dumps(
            {
                "name": "toy",
                "tensorImageSize": "3D",
                "modality": {"0": "CT"},
                "labels": {"0": "background", "1": "organ"},
                "training": [{"image": "./imagesTr/a.nii.gz", "label": "./labelsTr/a.nii.gz"}],
                "test": [],
            }
        )
    )
    volume(tmp_path / "predictions" / "a.nii.gz", np.ones((2, 2, 2)))
    scores = evaluate_folders(tmp_path / "predictions", root)
    assert {(s.class_name, s.value) for s in scores} == {("organ", 1.0)}


def test_scores_survive_their_file_exactly(tmp_path):
    scores = [Score("a, b", "left", "dice", 1 / 3), Score("c", "right", "hd95", 0.1, "mm", "no")]
    write_scores(tmp_path / "scores.csv", scores)
    assert read_scores(tmp_path / "scores.csv") == scores


def test_the_table_has_a_fixed_header(tmp_path):
    write_scores(tmp_path / "scores.csv", [Score("a", "left", "hd95", 0.5, "mm", "no")])
    written = (tmp_path / "scores.csv").read_text(encoding="utf-8")
    assert written == "case,class,metric,value,unit,empty\na,left,hd95,0.5,mm,no\n"


def test_another_table_is_an_error(tmp_path):
    (tmp_path / "log.csv").write_text("step,total\n1,0.5\n")
    with pytest.raises(InputError, match=r"does not have the columns .* but 'step,total'"):
        read_scores(tmp_path / "log.csv")


def test_a_damaged_line_is_named(tmp_path):
    (tmp_path / "scores.csv").write_text("case,class,metric,value,unit,empty\na,left,dice,good,,\n")
    with pytest.raises(InputError, match="row 2: 'a,left,dice,good,,' does not"):
        read_scores(tmp_path / "scores.csv")


def test_summary_statistics_of_three_cases():
    scores = [Score(str(i), "left", "dice", v) for i, v in enumerate([0.2, 0.4, 0.9])]
    (row,) = summary_rows(scores, digits=3)
    std = "0.361"  # the root of (0.09 + 0.01 + 0.16) / 2
    assert row == ["left", "Dice", "0.500", std, "0.400", "0.200", "0.900", "3"]


def test_values_of_different_units_are_not_averaged():
    scores = [Score("a", "left", "hd95", 2.0, "mm"), Score("b", "left", "hd95", 4.0, "voxel")]
    found = [(row[1], row[2], row[-1]) for row in summary_rows(scores, digits=1)]
    assert found == [("HD95 (mm)", "2.0", "1"), ("HD95 (voxel)", "4.0", "1")]


@pytest.mark.parametrize("tolerance", [-1.0, float("nan"), float("inf")])
def test_an_invalid_tolerance_is_an_error(folders, tolerance):
    with pytest.raises(InputError, match="must be 0 or more"):
        evaluate_folders(*folders, tolerance=tolerance)


def test_distances_and_volumes_use_the_spacing_of_the_label_file(tmp_path):
    """Two of four voxels of 2 mm are found: the surfaces end 4 mm apart."""
    label, prediction = np.zeros((6, 3, 3)), np.zeros((6, 3, 3))
    label[1:5, 1, 1] = 1
    prediction[1:3, 1, 1] = 1
    volume(tmp_path / "labels" / "a.nii.gz", label, spacing=2.0)
    volume(tmp_path / "predictions" / "a.nii.gz", prediction, spacing=2.0)
    folders = tmp_path / "predictions", tmp_path / "labels"
    scores = evaluate_folders(*folders, metrics=["assd", "volume", "label_volume"])
    assert value(scores, "assd") == pytest.approx((2 + 4) / 6)
    assert value(scores, "volume") == pytest.approx(2 * 8 / 1000)
    assert value(scores, "label_volume") == pytest.approx(4 * 8 / 1000)
    assert [score.unit for score in scores] == ["mm", "ml", "ml"]


def test_pictures_are_measured_in_pixels(folders):
    scores = evaluate_folders(*folders, metrics=["hd95", "surface_dice", "volume"], tolerance=2)
    assert [s.unit for s in scores if s.case == "b"] == ["px", "at 2 px", "px"]
    assert [s.value for s in scores if s.metric == "volume"] == [2.0, 1.0]


def test_surfaces_end_at_ignored_voxels():
    """The prediction extends four voxels into ignored ones, which is not an error."""
    prediction, truth = np.zeros((3, 9), int), np.zeros((3, 9), int)
    prediction[1, 1:7], truth[1, 1:3], truth[:, 3:] = 1, 1, 9
    scores = evaluate_case(
        prediction, truth, BINARY, 9, case="a", metrics=["hd95", "assd", "volume_error"]
    )
    assert [score.value for score in scores] == [0.0, 0.0, 0.0]


def test_rows_record_which_mask_was_empty():
    prediction, truth = np.array([[1, 1, 3]]), np.array([[1, 2, 0]])
    classes = {"found": 1, "missed": 2, "invented": 3, "absent": 4}
    scores = evaluate_case(prediction, truth, classes, None, case="a", metrics=["dice", "hd95"])
    assert {score.class_name: score.empty for score in scores} == {
        "found": "no",
        "missed": "prediction",
        "invented": "label",
        "absent": "both",
    }


def test_footnote_counts_pairs_with_empty_masks():
    kinds = ["both", "prediction", "prediction", "no", "no"]
    scores = [
        Score(str(index), "left", metric, 0.0, "", empty)
        for index, empty in enumerate(kinds)
        for metric in ("dice", "hd95")
    ]
    assert empty_note(scores) == (
        "Empty masks: overlaps are 1 if both are empty, 0 if only one is; distances are 0 if both "
        "are empty, the diagonal of the image if only one is. This applies to 3 of 5 pairs of "
        "case and class (both 1, only the prediction 2, only the label 0)."
    )


def test_footnote_says_that_no_mask_was_empty():
    note = empty_note([Score("a", "left", "dice", 0.5, "", "no")])
    assert note == "No prediction or label is empty."


def test_missing_scores_name_the_command_that_writes_them(tmp_path):
    with pytest.raises(MissingFileError, match="segpl evaluate PREDICTIONS LABELS --out"):
        read_scores(tmp_path / "scores.csv")


def test_one_case_has_no_deviation():
    (row,) = summary_rows([Score("a", "left", "dice", 0.5)], digits=3)
    assert row[3] == "-"


def test_footnote_counts_nothing_if_empty_masks_were_not_recorded():
    assert empty_note([Score("a", "left", "dice", 0.5)]) == EMPTY_POLICY
