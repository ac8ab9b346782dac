"""The largest component of a class, where labels and validation scores agree on it."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import train_runs, write_picture
from PIL import Image

from segpl.data.masks import largest_component
from segpl.evaluate.postprocessing_file import LabelComponents, read_postprocessing
from segpl.experiments.scoring import score_run
from segpl.methods.base import METHODS
from segpl.run import load_run

SIDE = 32


def write_case(root: Path, group: str, name: str, seed: int) -> None:
    """A bright disc with its label; the test case also has an equally bright speck."""
    rng = np.random.default_rng(seed)
    rows, columns = np.indices((SIDE, SIDE)) - rng.integers(14, 18, (2, 1, 1))
    disc = (rows**2 + columns**2 < 36).astype(np.uint8)
    bright = disc.copy()
    if group == "test":
        bright[1:5, 1:5] = 1
    image = np.clip(rng.normal(60, 5, disc.shape) + 120 * bright, 0, 255).astype(np.uint8)
    write_picture(root / group / "imgs" / f"{name}.png", image)
    if group != "unlabeled":
        write_picture(root / group / "lbls" / f"{name}.png", disc)


@pytest.fixture(autouse=True)
def find_what_is_bright(monkeypatch) -> None:
    """In place of a trained network: every bright voxel is foreground."""
    method = METHODS.get("supervised")
    monkeypatch.setattr(method, "predict", lambda self, image: torch.sigmoid(10 * (image - 1)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run with three labels and two validation cases, one with five labels, one with two."""
    root = tmp_path_factory.mktemp("trained")
    for number in range(5):
        write_case(root / "data", "labeled", f"a{number}", number)
    write_case(root / "data", "unlabeled", "u0", 6)
    write_case(root / "data", "test", "t0", 7)
    supervised = ("--method", "supervised")
    runs = {
        "validated": (*supervised, "--validation", 2),
        "blind": supervised,
        "few": (*supervised, "--labeled", 2),
    }
    train_runs(root, root / "data", runs)
    return root


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained / "validated", tmp_path / "run"))


def set_gain(segpl, run: Path, gain: float) -> str:
    """Set the gain by the largest component in validation.csv, and renew the decision."""
    path = run / "validation.csv"
    with path.open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    for row in rows:
        row["dice"], row["dice_largest"] = "0.5", str(0.5 + gain)
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    answer = segpl("train", "--out", run, "--resume")
    assert answer.code == 0, answer.err
    return " ".join(answer.err.split())


def masks(segpl, run: Path, out: Path, *options: object) -> tuple[np.ndarray, str]:
    answer = segpl("predict", run, "--out", out, "--overwrite", *options)
    assert answer.code == 0, answer.err
    return np.asarray(Image.open(out / "t0.png")), answer.err


def test_decision_records_labels_and_validation_scores(run):
    """Three training labels; those of validation and test cases do not count."""
    decided = read_postprocessing(run / "postprocessing.json")
    assert decided.labels == {"foreground": LabelComponents(3, 3, 0)}
    assert decided.largest == ("foreground",)
    assert list(decided.checkpoints) == ["last", "best"]
    assert decided.checkpoints["last"].step == 2
    with (run / "validation.csv").open(newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["step"] == "2"]
    (found,) = decided.checkpoints["last"].classes.values()
    assert found.cases == 2
    assert found.dice == pytest.approx(np.mean([float(row["dice"]) for row in rows]))
    kept = [float(row["dice_largest"]) for row in rows]
    assert found.dice_largest == pytest.approx(np.mean(kept))


def test_labels_decide_without_validation_cases(segpl, trained, tmp_path):
    blind = Path(shutil.copytree(trained / "blind", tmp_path / "blind"))
    plain, _ = masks(segpl, blind, tmp_path / "masks", "--largest", "none")
    found, said = masks(segpl, blind, tmp_path / "masks")
    assert "Keeping only the largest component of foreground" in said
    assert np.array_equal(found > 0, largest_component(plain > 0))
    assert found.sum() < plain.sum()


def test_two_labels_decide_nothing(segpl, trained, tmp_path):
    few = Path(shutil.copytree(trained / "few", tmp_path / "few"))
    found, said = masks(segpl, few, tmp_path / "masks")
    assert "Keeping all components of foreground, because fewer than 3" in said
    assert largest_component(found > 0).sum() < (found > 0).sum()


def test_prediction_follows_the_decision_and_says_so(segpl, run, tmp_path):
    plain, _ = masks(segpl, run, tmp_path / "masks", "--largest", "none")
    kept = largest_component(plain > 0)
    assert kept.sum() < (plain > 0).sum()
    said = set_gain(segpl, run, -0.1)
    assert "Validation Dice at the last step: foreground 0." in said
    found, said = masks(segpl, run, tmp_path / "masks")
    assert np.array_equal(found, plain)
    assert "Keeping all components of foreground" in said
    assert "does not improve the validation scores" in said
    set_gain(segpl, run, 0.0)
    found, said = masks(segpl, run, tmp_path / "masks")
    assert np.array_equal(found > 0, kept)
    assert "Keeping only the largest component of foreground" in said
    assert (
        "largest component" in json.loads((tmp_path / "masks/predictions.json").read_text())["run"]
    )


def test_option_overrides_the_decision(segpl, run, tmp_path):
    set_gain(segpl, run, 0.1)
    plain, said = masks(segpl, run, tmp_path / "masks", "--largest", "none")
    assert "largest" not in said
    assert largest_component(plain > 0).sum() < (plain > 0).sum()
    for words in (["all"], ["foreground"]):
        found, _ = masks(segpl, run, tmp_path / "masks", "--largest", *words)
        assert np.array_equal(found > 0, largest_component(plain > 0))


def test_masks_with_and_without_post_processing_are_not_mixed(segpl, run, tmp_path):
    out = tmp_path / "masks"
    assert segpl("predict", run, "--out", out, "--largest", "none").code == 0
    answer = segpl("predict", run, "--out", out, "--largest", "all")
    assert answer.code == 1
    assert "contains predictions with another --largest" in answer.err


def test_probabilities_are_not_post_processed(segpl, run, tmp_path):
    stored = []
    for word in ("none", "all"):
        masks(segpl, run, tmp_path / word, "--largest", word, "--probabilities")
        (path,) = (tmp_path / word / "probabilities").iterdir()
        stored.append(np.asarray(Image.open(path)))
    assert np.array_equal(*stored)


def test_ensemble_follows_the_decision_of_its_first_run(segpl, run, trained, tmp_path):
    """A fold has fewer labels than the run it belongs to."""
    set_gain(segpl, run, 0.1)
    few = trained / "few"
    _, said = masks(segpl, run, tmp_path / "masks", "--ensemble", few)
    assert "Keeping only the largest component of foreground" in said
    _, said = masks(segpl, few, tmp_path / "masks", "--ensemble", run)
    assert "Keeping all components of foreground" in said


def test_scores_follow_the_decision(segpl, run):
    """Comparisons and reports use this function."""
    set_gain(segpl, run, -0.1)
    plain = [score.value for score in score_run(load_run(run, device="cpu", quiet=True))]
    set_gain(segpl, run, 0.1)
    kept = [score.value for score in score_run(load_run(run, device="cpu", quiet=True))]
    assert plain != kept
    found = np.asarray(Image.open(run / "predictions" / "t0.png")) > 0
    assert np.array_equal(found, largest_component(found))


def test_stress_scores_follow_the_decision(segpl, run, tmp_path):
    options = ("--only", "gamma", "--severities", 1, "--device", "cpu", "--out")
    tables = []
    for gain in (-0.1, 0.1):
        set_gain(segpl, run, gain)
        out = tmp_path / f"gain{gain}"
        assert segpl("stress", run, *options, out).code == 0
        with (out / "stress.csv").open(newline="") as handle:
            tables.append([row["dice"] for row in csv.DictReader(handle)])
    assert len(tables[0]) == len(tables[1]) == 2
    assert tables[0] != tables[1]
