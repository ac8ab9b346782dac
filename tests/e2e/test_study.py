"""A study trains what its questions name, and answers them on a page."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from conftest import Answer, Command, make_dataset
from PIL import Image

from segpl.data.split import Split
from segpl.engine.log import read_log
from segpl.experiments import compare
from segpl.methods.segpl import SegPL

STUDY = """
title = "Thresholds"
[datasets.small]
path = "many"
seeds = [0, 1]
[datasets.small.split]
labeled = 2
validation = 2
test = 1
[train]
steps = 6
batch = 1
log_every = 2
checkpoint_every = 4
[network]
width = 4
[methods.low]
method = "segpl"
threshold = 0.4
alpha = 1.0
ramp_begin = 0.0
ramp_end = 0.1
split = { unlabeled = 1 }
[methods.unused]
method = "segpl"
[[questions]]
id = "fixed"
text = "Is 0.4 better than 0.5?"
reference = "segpl"
variants = ["low"]
curves = ["threshold", "free_energy"]
[[questions]]
id = "found"
text = "Does it find more?"
reference = "segpl"
variants = ["low"]
measure = "pseudo_foreground"
[[questions]]
id = "none"
text = "Is it higher?"
reference = "segpl"
variants = ["low"]
measure = "free_energy"
[final]
variants = ["supervised", "low"]
"""


@pytest.fixture
def study(segpl, tmp_path) -> Command:
    make_dataset(tmp_path / "many", dims=2, labeled=7, unlabeled=0, test=0)
    path = tmp_path / "study.toml"
    path.write_text(STUDY)

    def call(*options: object, out: Path = tmp_path / "out") -> Answer:
        return segpl("study", path, "--data", tmp_path, "--out", out, *options)

    return call


def rows_of(out: Path) -> list[dict[str, str]]:
    with (out / "study.csv").open(newline="") as handle:
        return list(csv.DictReader(handle))


def test_questions_are_answered_and_nothing_is_trained_twice(study, tmp_path, monkeypatch):
    answer = study()
    assert answer.code == 0, answer.err
    out = tmp_path / "out"
    rows = rows_of(out)
    assert [(row["dataset"], row["method"], row["seed"]) for row in rows] == [
        ("small", method, seed) for seed in "01" for method in ("supervised", "segpl", "low")
    ]
    assert all(0 <= float(row["validation dice"]) <= 1 for row in rows)

    page = (out / "study.md").read_text()
    assert page.startswith("# Thresholds\n\nMade by `segpl study study.toml --data DATASETS --out")
    assert "from 6 trainings" in page
    assert "2 labeled, 2 unlabeled, 2 validation and 1 test cases; 6 steps" in page
    assert len(Split.read(out / "datasets/small/runs/low-0/split.json").unlabeled) == 1
    assert "`split.unlabeled = 1`" in page
    assert str(tmp_path) not in page
    assert "about new draws of labeled cases, weights and crops, not about new scans" in page
    assert "p Holm of the questions is corrected for 2 comparisons here" in page
    assert "## Is it higher?\n\n**small**\n\nNo log has `free_energy`.\n" in page
    assert "Is it higher? (small)\nNo log has `free_energy`.\n" in answer.out
    for row in rows[1:3]:
        log = read_log(out / f"datasets/small/runs/{row['method']}-{row['seed']}/log.csv")
        assert float(row["last pseudo_foreground"]) == round(log["pseudo_foreground"][-1], 6)
    assert len({row["last pseudo_foreground"] for row in rows}) > 2
    assert "## On the test cases\n\nNo question of this study was answered on these cases" in page
    for link in re.findall(r"\]\(([^)]*)\)", page):
        assert (out / link).is_file()
    with Image.open(out / "images/fixed.png") as picture:
        assert (picture.format, picture.mode) == ("PNG", "P")
    assert "Is 0.4 better than 0.5? (small)" in answer.out

    def train(*_: object, **__: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(compare, "train", train)
    again = study()
    assert again.code == 0, again.err
    assert (out / "study.md").read_text() == page
    assert again.out == answer.out


def test_a_training_that_fails_drops_its_pairs_and_is_told(study, tmp_path, monkeypatch):
    step = SegPL.step

    def fails(self, batch, progress):
        if self.settings.threshold == 0.4:
            raise RuntimeError("CUDNN_STATUS_BAD")
        return step(self, batch, progress)

    monkeypatch.setattr(SegPL, "step", fails)
    answer = study()
    assert answer.code == 1
    assert "small, low, seed 0: RuntimeError('CUDNN_STATUS_BAD')" in answer.out
    page = (tmp_path / "out/study.md").read_text()
    assert "| low | - | - | - | - | - |" in page
    assert "left out with their pairs: `low` with seed 0, `low` with seed 1." in page
    assert "Without a pair nothing can be told." in page


OTHER = """
[datasets.other]
path = "gone"
seeds = [4]
[datasets.other.split]
labeled = 1
validation = 1
test = 1
"""


def test_missing_dataset_is_refused_before_anything_is_trained(study, tmp_path):
    (tmp_path / "study.toml").write_text(STUDY + OTHER)
    answer = study()
    assert answer.code == 1
    assert f"dataset 'other': {tmp_path / 'gone'} is no folder. Say with --data" in answer.err
    assert not (tmp_path / "out").exists()


def test_a_part_of_a_study_leaves_the_other_parts_as_they_are(study, tmp_path):
    (tmp_path / "study.toml").write_text(STUDY + OTHER)
    answer = study("--only", "small")
    assert answer.code == 0, answer.err
    page = (tmp_path / "out/study.md").read_text()
    assert "--data DATASETS --only small --out" in page
    assert "**other**" not in page

    make_dataset(tmp_path / "gone", dims=2, labeled=4, unlabeled=0, test=0)
    (tmp_path / "many").rename(tmp_path / "elsewhere")
    run = tmp_path / "out/datasets/small/runs/low-1"
    (run / "scores.csv").unlink()  # as if it had been interrupted there
    answer = study("--only", "other")
    assert answer.code == 0, answer.err
    page = (tmp_path / "out/study.md").read_text()
    assert "--data DATASETS --out FOLDER` from 8 trainings" in page
    assert "left out with their pairs: `low` with seed 1." in page
    assert [(row["dataset"], row["error"]) for row in rows_of(tmp_path / "out")][-4:] == [
        ("small", "not trained yet"),
        *[("other", "")] * 3,
    ]

    (tmp_path / "study.toml").write_text(STUDY + OTHER + "[datasets.small.train]\nsteps = 8\n")
    answer = study("--only", "other")
    assert answer.code == 1
    assert "was trained with other settings: train.steps (6 -> 8)" in answer.err

    fewer = (STUDY + OTHER).replace("labeled = 2\n", "labeled = 1\n")
    (tmp_path / "study.toml").write_text(fewer)
    answer = study("--only", "other")
    assert answer.code == 1
    assert "was trained with other settings: split.labeled (2 -> 1)" in answer.err

    (tmp_path / "study.toml").write_text((STUDY + OTHER).replace("labeled = 2\n", ""))
    assert study("--only", "other").code == 0


def test_an_interrupted_study_has_a_page_of_what_has_ended(study, tmp_path):
    answer = study("--page")
    assert answer.code == 1
    assert "no page to write" in answer.err
    assert not (tmp_path / "out").exists()

    assert study().code == 0
    (tmp_path / "many").rename(tmp_path / "elsewhere")  # and nothing can be trained
    before = (tmp_path / "out/study.md").read_text()
    assert study("--page").code == 0
    assert (tmp_path / "out/study.md").read_text() == before

    run = tmp_path / "out/datasets/small/runs/low-1"
    (run / "scores.csv").unlink()
    answer = study("--page")
    assert answer.code == 0, answer.err
    page = (tmp_path / "out/study.md").read_text()
    assert "left out with their pairs: `low` with seed 1." in page
    assert not (run / "scores.csv").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--only", "smal"), "--only: no dataset named 'smal'. Did you mean 'small'?"),
        (("--jobs", 0), "at least one training has to run"),
    ],
)
def test_options_that_fit_no_study_are_refused(study, options, words):
    answer = study(*options)
    assert answer.code == 1
    assert words in answer.err


def test_study_that_does_not_exist_is_refused(segpl, tmp_path):
    answer = segpl("study", tmp_path / "absent.toml", "--out", tmp_path / "out")
    assert answer.code == 1
    assert "absent.toml does not exist" in answer.err
