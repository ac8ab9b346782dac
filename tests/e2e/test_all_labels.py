"""Every label is used unless an option hides some."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from conftest import QUICK, make_dataset


@pytest.fixture
def labeled(tmp_path) -> Path:
    """Twelve labeled cases and nothing else."""
    return make_dataset(tmp_path / "data", dims=2, labeled=12, unlabeled=0, test=0)


def parts_of(run: Path) -> dict[str, int]:
    split = json.loads((run / "split.json").read_text())
    return {name: len(split[name]) for name in ("labeled", "unlabeled", "validation", "test")}


def method_of(run: Path) -> str:
    name: str = tomllib.loads((run / "config.toml").read_text())["method"]["name"]
    return name


@pytest.mark.parametrize("options", [(), ("--labeled", 0)])
def test_fully_labeled_dataset_trains_on_all_labels(segpl, labeled, tmp_path, options):
    run = tmp_path / "run"
    answer = segpl("train", *QUICK, labeled, *options, "--out", run)
    assert answer.code == 0, answer.err
    assert parts_of(run) == {"labeled": 12, "unlabeled": 0, "validation": 0, "test": 0}
    assert method_of(run) == "bpl-mix"
    assert "the labeled images also serve as unlabeled ones" in answer.err
    assert "--labeled N" in answer.err
    assert f"Next: segpl predict {run} {labeled} --out {run}/predictions\n" in answer.err
    assert segpl("train", *QUICK, labeled, *options, "--out", run, "--resume").code == 0


def test_labels_are_hidden_and_held_out_on_request(segpl, labeled, tmp_path):
    run = tmp_path / "run"
    options = ("--labeled", 3, "--test", 2)
    assert segpl("train", *QUICK, labeled, *options, "--out", run).code == 0
    assert parts_of(run) == {"labeled": 3, "unlabeled": 7, "validation": 0, "test": 2}


def test_plan_suggests_training_with_the_same_labels(segpl, labeled, tmp_path):
    plan = tmp_path / "plan.json"
    answer = segpl("plan", labeled, "--labeled", 5, "--set", "train.ratio=3", "--out", plan)
    assert answer.code == 0, answer.err
    options = f"--plan {plan} --labeled 5 --set train.ratio=3"
    assert f"segpl train {labeled} --out runs/first {options}" in answer.err


def test_folds_use_all_labels_too(segpl, labeled, tmp_path):
    run = tmp_path / "run"
    folds = ("--folds", 2, "--estimate-only")
    answer = segpl("train", *QUICK, labeled, *folds, "--out", run)
    assert answer.code == 0, answer.err
    assert f"mean of the folds: segpl predict {run}" in answer.err
    assert parts_of(run / "fold-0")["labeled"] == parts_of(run / "fold-0")["validation"] == 6
