"""`segpl predict` warns of scans unlike the training images."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from conftest import ANY, make_dataset, read_volume, write_volume
from test_real_data import link, require

from segpl.run import load_run

PLAN = Path(__file__).parents[2] / "benchmarks" / "plans" / "hippocampus-2mm.json"


def test_predict_warns_and_old_runs_say_that_they_cannot(segpl, train, tmp_path, capsys):
    data, run = make_dataset(tmp_path / "data", labeled=4), tmp_path / "run"
    train(data, "--out", run, *ANY)
    usual = next((data / "test" / "imgs").glob("*.nii.gz"))
    strange = tmp_path / "strange.nii.gz"
    write_volume(strange, np.tile(read_volume(usual), (4, 1, 1)))
    command = ("predict", run, usual, strange, "--no-preview", "--out")
    answer = segpl(*command, tmp_path / "new")
    assert "strange is unlike the training images: " in answer.err
    assert "field of view 22.4x5.6x5.6 mm, in training 5.6x5.6x5.6 mm" in answer.err
    with (tmp_path / "new" / "cases.csv").open() as file:
        scores = {row["case"]: float(row["out_of_distribution"]) for row in csv.DictReader(file)}
    assert scores["strange"] > 1
    load_run(run).predict_array(nibabel.load(strange))  # in memory, too
    assert "unlike the training images: field of view" in capsys.readouterr().err
    (run / "familiarity.json").unlink()
    answer = segpl(*command, tmp_path / "old")
    assert answer.code == 0
    assert answer.err.count("unfamiliar scans are not detected") == 1


@pytest.mark.slow
def test_prostates_are_unlike_hippocampi_and_other_hippocampi_are_not(segpl, tmp_path):
    source, data, run = require("Task04_Hippocampus"), tmp_path / "Task04", tmp_path / "run"
    prostates = sorted((require("Dataset012_PROMISE12") / "imagesTr").iterdir())[:3]
    description = json.loads((source / "dataset.json").read_text())
    cases = description["training"]
    for entry in cases[:20]:
        link(source / entry["image"], data / entry["image"])
    for entry in cases[:6]:
        link(source / entry["label"], data / entry["label"])
    description |= {"training": cases[:6], "test": [entry["image"] for entry in cases[6:20]]}
    (data / "dataset.json").write_text(json.dumps(description))
    options = ("--plan", PLAN, "--method", "supervised")
    small = ("--steps", 10, "--set", "network.width=4", "--set", "train.batch=1")
    assert segpl("train", data, *options, *small, "--out", run).code == 0
    held_out = [source / entry["image"] for entry in cases[-20:]]
    command = ("predict", run, *prostates, *held_out, "--overlap", 0, "--no-preview")
    answer = segpl(*command, "--out", tmp_path / "masks")
    assert answer.code == 0, answer.err
    with (tmp_path / "masks" / "cases.csv").open() as file:
        scores = {row["case"]: float(row["out_of_distribution"]) for row in csv.DictReader(file)}
    alarms = [case for case, score in scores.items() if score > 1]
    assert {path.name.removesuffix(".nii.gz") for path in prostates} <= set(alarms)
    assert len(alarms) - len(prostates) <= 3  # of 20
    for words in ("field of view", "spacing", "intensities"):
        assert words in answer.err
