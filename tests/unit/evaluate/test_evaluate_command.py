"""`segpl evaluate` on small pictures, called in this process."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_scores import picture

from segpl.cli import evaluate as command
from segpl.errors import InputError, MissingFileError, StorageError, UnknownNameError
from segpl.evaluate.folders import evaluate_folders
from segpl.evaluate.metrics import METRICS
from segpl.evaluate.scores import read_scores


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Three cases: one right, one half found, one missed."""
    for case, found in (("a", [255, 255]), ("b", [255, 0]), ("c", [0, 0])):
        picture(tmp_path / "predictions" / f"{case}.png", [found, [0, 0]])
        picture(tmp_path / "labels" / f"{case}.png", [[255, 255], [0, 0]])
    return tmp_path / "predictions", tmp_path / "labels"


def evaluate(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.mark.parametrize("layout", ["detected", "stated"])
def test_dataset_with_other_file_names_gives_its_labels(folders, tmp_path, layout):
    predictions, labels = folders
    for label in labels.iterdir():
        picture(tmp_path / "data" / label.name, np.arange(4).reshape(2, 2))
        label.rename(tmp_path / "data" / f"{label.stem}_gt.png")
    if layout == "stated":
        (tmp_path / "data" / "segpl.toml").write_text('layout = "{case}.png -> {case}_gt.png"')
    evaluate(predictions, tmp_path / "data", "--out", tmp_path / "scores.csv")
    dice = {s.case: s.value for s in read_scores(tmp_path / "scores.csv") if s.metric == "dice"}
    assert dice == pytest.approx({"a": 1, "b": 2 / 3, "c": 0})


def test_every_metric_is_written_and_printed_with_its_unit(folders, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    out = tmp_path / "out" / "scores.csv"
    assert evaluate(*folders, "--out", out, "--metrics", *METRICS) == 0
    assert len(read_scores(out)) == 3 * len(METRICS)
    printed = capsys.readouterr().out
    titles = [metric.title.replace("volume", "area") for metric in METRICS.values()]
    assert [title for title in titles if title not in printed] == []
    assert "volume" not in printed  # of a picture
    assert "label area (px)" in printed
    assert "HD95 (px)" in printed
    assert "surface Dice at 1 px" in printed
    assert "HD95: 95th percentile of the distances" in " ".join(printed.split())


@pytest.mark.parametrize(
    "name", ["vessel", "a_class_whose_name_is_as_long_as_any_that_was_ever_seen"]
)
def test_the_table_fits_100_columns_without_truncation(folders, capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "100")
    content = {"classes": {"background": 0, name: 255}, "ignore": None}
    (folders[0] / "predictions.json").write_text(json.dumps(content))
    evaluate(*folders)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert not any("…" in line for line in lines)
    assert any("0.556" in line for line in lines)


def test_the_name_of_the_worst_case_stays_on_one_line(folders, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name = "patient_0042_t1_weighted_session_2_baseline"
    for folder in folders:
        (folder / "c.png").rename(folder / f"{name}.png")
    evaluate(*folders)
    (row,) = [line for line in capsys.readouterr().out.splitlines() if name in line]
    assert row.split()[-2:] == ["-50.0", "50.0"]


@pytest.mark.parametrize(
    ("place", "words"), [("labels", "Is a directory"), ("file/new.csv", "Not a directory")]
)
def test_a_table_that_cannot_be_written_is_rejected_before_scoring(
    folders, tmp_path, capsys, place, words
):
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=rf"{place} cannot be written: {words}"):
        evaluate(*folders, "--out", tmp_path / place)
    assert "scoring" not in capsys.readouterr().err


def test_predictions_that_are_no_folder_are_named_before_the_table(folders, tmp_path):
    """The default table is in their folder."""
    scan = tmp_path / "scan.png"
    scan.touch()
    with pytest.raises(MissingFileError, match=r"scan\.png is not a folder"):
        evaluate(scan, folders[1])


def test_each_class_has_one_row_with_interval_worst_case_and_volume_error(
    folders, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "100")
    evaluate(*folders)
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "255 " in line]
    # Dice 1, 2/3 and 0; volume errors 0, -1/2 and -1
    assert [row[:2] + row[5:] for row in rows] == [["255", "0.556", "0.000", "c", "-50.0", "50.0"]]
    low, _, high = rows[0][2:5]
    assert 0 <= float(low) < 0.556 < float(high) <= 1


def test_volume_errors_are_printed_in_percent_and_stored_as_fractions(folders, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    evaluate(*folders, "--metrics", "volume_error")
    printed = capsys.readouterr()
    _, summary = (line.split() for line in printed.out.splitlines() if "255 " in line)
    # errors 0, -1/2 and -1
    assert " ".join(summary) == "255 volume error (%) -50.0 50.0 -50.0 -100.0 0.000 3"
    assert "+100 % if only the label is" in " ".join(printed.out.split())
    assert "c (volume error -100.0 %)" in printed.err
    assert [score.value for score in read_scores(folders[0] / "scores.csv")] == [0, -0.5, -1]


def test_the_five_worst_cases_are_named_worst_first(folders, capsys):
    for case in "defg":
        picture(folders[0] / f"{case}.png", [[255, 255], [0, 0]])
        picture(folders[1] / f"{case}.png", [[255, 255], [0, 0]])
    evaluate(*folders)
    shown = "c (Dice 0.000), b (Dice 0.667), a (Dice 1.000), d (Dice 1.000) and e (Dice 1.000)."
    assert f"Worst cases: {shown}" in " ".join(capsys.readouterr().err.split())
    evaluate(*folders, "--metrics", "hd95")
    assert "Worst cases: c (HD95 2.828 px)" in capsys.readouterr().err


def test_cases_used_for_training_or_validation_are_named(folders, capsys):
    files = {
        case: {"images": [], "labels": f"{case}.png", "seen": role}
        for case, role in (("a", "training"), ("b", "validation"), ("c", ""))
    }
    content = {"classes": {"background": 0, "vessel": 255}, "run": "runs/a", "files": files}
    (folders[0] / "predictions.json").write_text(json.dumps(content))
    evaluate(*folders)
    printed = " ".join(capsys.readouterr().err.split())
    assert "Used for training: a (1 case). Their scores do not measure" in printed
    assert "Used for validation: b (1 case)." in printed


def test_the_footnote_says_how_empty_masks_score_and_how_often(folders, capsys):
    evaluate(*folders, "--metrics", "dice", "hd95")
    printed = " ".join(capsys.readouterr().out.split())
    assert "3 cases scored." in printed
    assert "Empty masks: overlaps are 1 if both are empty, 0 if only one is;" in printed
    assert "applies to 1 of 3 pairs of case and class (both 0, only the prediction 1" in (printed)


def test_the_tolerance_reaches_surface_dice(folders):
    """One of three surface pixels of case b is a pixel away."""
    for tolerance, share in ((0, 2 / 3), (1, 1.0)):
        evaluate(*folders, "--metrics", "surface_dice", "--tolerance", tolerance)
        (score,) = (s for s in read_scores(folders[0] / "scores.csv") if s.case == "b")
        assert score.value == pytest.approx(share)
        assert score.unit == f"at {tolerance} px"


def test_an_unknown_metric_fails_before_reading_files(tmp_path):
    with pytest.raises(UnknownNameError, match=r"no metric named 'dise'\. Did you mean 'dice'"):
        evaluate(tmp_path / "absent", tmp_path / "absent", "--metrics", "dise")


def test_predictions_without_a_label_are_listed(folders, capsys):
    picture(folders[0] / "stray.png", [[0, 0], [0, 0]])
    evaluate(*folders)
    assert "because they have no label: stray" in capsys.readouterr().err


def test_binary_masks_of_another_program_are_noted(folders, capsys):
    predictions, labels = folders
    for case in "abc":
        picture(predictions / f"{case}.png", [[1, 1], [0, 0]])
        picture(labels / f"{case}.png", [[1, 2], [0, 0]])
    evaluate(*folders)
    assert "only 0 and 1, but the labels also contain 2. 1 was scored" in capsys.readouterr().err
    with pytest.warns(UserWarning, match="the masks contain only 0 and 1"):
        evaluate_folders(*folders)
    (predictions / "predictions.json").write_text('{"classes": {"background": 0, "a": 1, "b": 2}}')
    evaluate(*folders)
    assert "only 0 and 1" not in capsys.readouterr().err


def test_a_region_limits_the_scores_and_is_reported(folders, tmp_path, capsys):
    for case in "abc":
        picture(tmp_path / "left" / f"{case}.png", [[255, 0], [255, 0]])
    evaluate(*folders, "--metrics", "dice", "--region", tmp_path / "left")
    scores = {score.case: score.value for score in read_scores(folders[0] / "scores.csv")}
    assert scores == {"a": 1.0, "b": 1.0, "c": 0.0}
    assert "left masks." in " ".join(capsys.readouterr().err.split())


def test_other_masks_beside_a_dataset_do_not_have_its_classes(folders):
    predictions, labels = folders
    masks = labels.rename(labels.with_name("labels_of_reader_2"))
    (labels.parent / "labels.json").write_text(json.dumps({"labels": {"liver": 255}}))
    evaluate(predictions, masks)
    assert {score.class_name for score in read_scores(predictions / "scores.csv")} == {"255"}


@pytest.mark.parametrize("description", ["labels.json", "dataset.json"])
def test_a_folder_of_labels_has_the_classes_of_its_dataset(folders, description):
    predictions, labels = folders
    path = labels.parent / description
    path.write_text(json.dumps({"labels": {"background": 0, "vessel": 255}}))
    evaluate(*folders)
    assert {score.class_name for score in read_scores(predictions / "scores.csv")} == {"vessel"}
    content = {"classes": {"background": 0, "vessel": 1}, "ignore": None}
    (predictions / "predictions.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"class 'vessel' is 1 in .*predictions\.json and 255 in"):
        evaluate(*folders)
    # a region of nnU-Net
    path.write_text(json.dumps({"labels": {"background": 0, "vessel": [1, 255]}}))
    (predictions / "predictions.json").unlink()
    evaluate(*folders)
    assert {score.class_name for score in read_scores(predictions / "scores.csv")} == {"255"}


def write_probabilities(predictions: Path, **maps: object) -> None:
    """As `segpl predict --probabilities` writes them beside masks of pictures."""
    content = {"classes": {"background": 0, "vessel": 255}, "ignore": None, "files": {}}
    (predictions / "predictions.json").write_text(json.dumps(content))
    for case, values in maps.items():
        path = predictions / "probabilities" / f"{case}.tif"
        path.parent.mkdir(exist_ok=True)
        Image.fromarray(np.asarray(values, np.float32)).save(path)


def test_calibration_has_its_own_table(folders, tmp_path, capsys, monkeypatch):
    """Two of four pixels are vessel; a is certain and correct, b says 0.8 and 0.2, c 0.5."""
    monkeypatch.setenv("COLUMNS", "100")
    right, rather, half = [[1, 1], [0, 0]], [[0.8, 0.8], [0.2, 0.2]], [[0.5, 0.5], [0.5, 0.5]]
    write_probabilities(folders[0], a=right, b=rather, c=half)
    assert evaluate(*folders, "--calibration", "--out", tmp_path / "out" / "s.csv") == 0
    rows = read_scores(tmp_path / "out" / "calibration.csv")
    assert [s.value for s in rows if s.metric == "brier"] == pytest.approx([0, 0.04, 0.25])
    assert [s.value for s in rows if s.metric == "ece"] == pytest.approx([0, 0.2, 0], abs=1e-6)
    nll = {s.case: s.value for s in rows if s.metric == "nll"}
    assert (nll["b"], nll["c"]) == pytest.approx((-np.log(0.8), np.log(2)))
    assert {s.metric for s in read_scores(tmp_path / "out" / "s.csv")} == set(METRICS)
    printed = capsys.readouterr().out
    for title in ("Brier", "ECE", "ACE", "NLL (nats)"):
        assert title in printed
    assert f"{0.29 / 3:.4f}" in printed


def test_a_case_without_known_pixels_is_reported_as_left_out(folders, capsys):
    write_probabilities(folders[0], a=[[1, 1], [0, 0]], b=[[1, 1], [0, 0]])
    manifest = folders[0] / "predictions.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"ignore": 7}))
    picture(folders[1] / "b.png", [[7, 7], [7, 7]])
    evaluate(*folders, "--metrics", "dice", "--calibration")
    said = capsys.readouterr()
    left_out = "Left out, because their whole label is ignored: b (1 case)"
    assert left_out in " ".join(said.out.split())
    assert "0.0000" in said.out
    assert "Without probabilities: c" in said.err


def test_calibration_without_probabilities_fails_before_scoring(folders):
    with pytest.raises(InputError, match=r"contains no probabilities.*segpl predict RUN --out"):
        evaluate(*folders, "--calibration")
    assert not (folders[0] / "scores.csv").exists()


def test_out_must_differ_from_the_calibration_table(folders, tmp_path):
    write_probabilities(folders[0], a=[[1, 1], [0, 0]])
    out = tmp_path / "calibration.csv"
    with pytest.raises(InputError, match=r"calibration\.csv is where --calibration writes"):
        evaluate(*folders, "--calibration", "--out", out)
    assert not out.exists()


def test_only_own_tables_are_replaced(folders, tmp_path):
    """A scan could be lost to a wrong --out."""
    out, calibration = tmp_path / "scores.csv", tmp_path / "calibration.csv"
    assert evaluate(*folders, "--metrics", "dice", "--out", out) == 0
    assert evaluate(*folders, "--metrics", "iou", "--out", out) == 0
    assert {score.metric for score in read_scores(out)} == {"iou"}
    write_probabilities(folders[0], a=[[1, 1], [0, 0]])
    calibration.write_text("case,site\n")
    scan = tmp_path / "scan.png"
    picture(scan, [[255, 0], [0, 0]])
    before = scan.read_bytes()
    for arguments in (("--out", scan), ("--out", out, "--calibration")):
        with pytest.raises(InputError, match=r"(scan\.png|n\.csv) exists and was not written"):
            evaluate(*folders, *arguments)
    assert (scan.read_bytes(), calibration.read_text()) == (before, "case,site\n")
