"""What validation cases say of post-processing, and who listens."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import SHORT, write_picture
from PIL import Image

from segpl.cli.main import main
from segpl.data.masks import largest_component
from segpl.experiments.scoring import score_run
from segpl.run import load_run

SIDE = 32
LONGER = ("--steps", "40", "--set", "train.log_every=20", "--set", "train.checkpoint_every=40")


def write_case(root: Path, group: str, name: str, seed: int) -> None:
    """A bright disc, whose label is in one piece; beside that of the test a speck as bright."""
    rng = np.random.default_rng(seed)
    rows, columns = np.indices((SIDE, SIDE)) - rng.integers(14, 18, (2, 1, 1))
    disc = (rows**2 + columns**2 < 36).astype(np.uint8)
    bright = disc.copy()
    if group == "test":
        bright[1:5, 1:5] = 1
    image = np.clip(rng.normal(60, 10, disc.shape) + 120 * bright, 0, 255).astype(np.uint8)
    write_picture(root / group / "imgs" / f"{name}.png", image)
    if group != "unlabeled":
        write_picture(root / group / "lbls" / f"{name}.png", disc)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run with two validation cases, and one without."""
    root = tmp_path_factory.mktemp("trained")
    for number in range(4):
        write_case(root / "data", "labeled", f"a{number}", number)
    write_case(root / "data", "unlabeled", "u0", 4)
    write_case(root / "data", "test", "t0", 5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEGPL_CACHE", str(root / "cache"))
        for name, held in (("watched", 2), ("blind", 0)):
            made = [*SHORT, *LONGER, root / "data", "--method", "supervised", "--validation", held]
            assert main(["train", *map(str, made), "--out", str(root / name)]) == 0
    return root


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained / "watched", tmp_path / "run"))


def advice_of(run: Path) -> dict[str, dict[str, object]]:
    return json.loads((run / "postprocessing.json").read_text())


def judge(segpl, run: Path, gain: float) -> None:
    """Change what validation said of the largest component, and let the run conclude again."""
    path = run / "validation.csv"
    with path.open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    for row in rows:
        row["dice"], row["dice_largest"] = "0.5", str(0.5 + gain)
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    assert segpl("train", "--out", run, "--resume").code == 0


def masks(segpl, run: Path, out: Path, *options: object) -> tuple[np.ndarray, str]:
    answer = segpl("predict", run, "--out", out, "--overwrite", *options)
    assert answer.code == 0, answer.err
    return np.asarray(Image.open(out / "t0.png")), answer.err


def test_end_of_a_training_compares_with_and_without(run):
    advice = advice_of(run)
    assert list(advice) == ["last", "best"]
    assert advice["last"]["step"] == 40
    with (run / "validation.csv").open(newline="") as handle:
        rows = [row for row in csv.DictReader(handle) if row["step"] == "40"]
    (found,) = advice["last"]["classes"].values()
    assert found["cases"] == 2
    assert found["dice"] == pytest.approx(np.mean([float(row["dice"]) for row in rows]))
    kept = [float(row["dice_largest"]) for row in rows]
    assert found["dice_largest"] == pytest.approx(np.mean(kept))


def test_without_validation_cases_nothing_is_advised(segpl, trained, tmp_path):
    assert not (trained / "blind" / "postprocessing.json").exists()
    found, said = masks(segpl, trained / "blind", tmp_path / "masks")
    assert "largest" not in said
    plain, _ = masks(segpl, trained / "blind", tmp_path / "masks", "--largest", "none")
    assert np.array_equal(found, plain)


def test_prediction_does_what_validation_advises_and_says_so(segpl, run, tmp_path):
    plain, _ = masks(segpl, run, tmp_path / "masks", "--largest", "none")
    kept = largest_component(plain > 0)
    assert kept.sum() < (plain > 0).sum()
    judge(segpl, run, 0.1)
    found, said = masks(segpl, run, tmp_path / "masks")
    assert np.array_equal(found > 0, kept)
    assert "Only the largest component of foreground is kept" in said
    assert (
        "largest component" in json.loads((tmp_path / "masks/predictions.json").read_text())["run"]
    )


def test_prediction_keeps_everything_where_validation_does_not_gain(segpl, run, tmp_path):
    plain, _ = masks(segpl, run, tmp_path / "masks", "--largest", "none")
    judge(segpl, run, -0.1)
    found, said = masks(segpl, run, tmp_path / "masks")
    assert np.array_equal(found, plain)
    assert "largest" not in said


def test_option_overrules_the_advice(segpl, run, tmp_path):
    judge(segpl, run, 0.1)
    plain, said = masks(segpl, run, tmp_path / "masks", "--largest", "none")
    assert "largest" not in said
    assert largest_component(plain > 0).sum() < (plain > 0).sum()
    for words in (["all"], ["foreground"]):
        found, _ = masks(segpl, run, tmp_path / "masks", "--largest", *words)
        assert np.array_equal(found > 0, largest_component(plain > 0))


def test_class_that_does_not_exist_is_refused(segpl, run, tmp_path):
    answer = segpl("predict", run, "--out", tmp_path / "masks", "--largest", "foregroun")
    assert answer.code == 1
    assert "no foreground class named 'foregroun'. Did you mean 'foreground'?" in answer.err


def test_masks_with_and_without_are_not_taken_for_each_other(segpl, run, tmp_path):
    out = tmp_path / "masks"
    assert segpl("predict", run, "--out", out, "--largest", "none").code == 0
    answer = segpl("predict", run, "--out", out, "--largest", "all")
    assert answer.code == 1
    assert "holds predictions of another run" in answer.err


def test_labels_alone_are_in_one_piece(segpl, run, tmp_path):
    """Probabilities stay what the network said."""
    chances = []
    for word in ("none", "all"):
        masks(segpl, run, tmp_path / word, "--largest", word, "--probabilities")
        (path,) = (tmp_path / word / "probabilities").iterdir()
        chances.append(np.asarray(Image.open(path)))
    assert np.array_equal(*chances)


def test_ensemble_keeps_one_piece_where_all_of_its_runs_advise_it(segpl, run, trained, tmp_path):
    judge(segpl, run, 0.1)
    twin = Path(shutil.copytree(run, tmp_path / "twin"))
    options = ("--ensemble", trained / "blind")
    assert "largest" not in masks(segpl, run, tmp_path / "masks", *options)[1]
    assert (
        "largest" not in masks(segpl, trained / "blind", tmp_path / "masks", "--ensemble", run)[1]
    )
    assert "Only the largest" in masks(segpl, run, tmp_path / "masks", "--ensemble", twin)[1]


def test_scores_of_a_run_are_those_of_its_masks(segpl, run):
    """Comparisons, studies and reports score by this, and so by the same advice."""
    plain = [score.value for score in score_run(load_run(run, device="cpu", quiet=True))]
    judge(segpl, run, 0.1)
    kept = [score.value for score in score_run(load_run(run, device="cpu", quiet=True))]
    assert plain != kept
    found = np.asarray(Image.open(run / "predictions" / "t0.png")) > 0
    assert np.array_equal(found, largest_component(found))


def test_stress_scores_what_the_run_would_predict(segpl, run, tmp_path):
    """A folder with rows of all components measures anew."""
    options = ("--only", "gamma", "--severities", 1, "--device", "cpu", "--out", tmp_path / "out")
    tables = []
    for gain in (-0.1, 0.1):
        judge(segpl, run, gain)
        assert segpl("stress", run, *options).code == 0
        with (tmp_path / "out" / "stress.csv").open(newline="") as handle:
            tables.append([row["dice"] for row in csv.DictReader(handle)])
    assert len(tables[0]) == len(tables[1]) == 2
    assert tables[0] != tables[1]


def test_labels_of_the_training_cases_are_looked_at_too(segpl, run, monkeypatch):
    """Two of them, and two of validation; not that of the test case."""
    seen = []
    monkeypatch.setattr("segpl.run.write_advice", lambda *given: seen.append(given))
    assert segpl("train", "--out", run, "--resume").code == 0
    ((_, _, steps, labels),) = seen
    assert steps["last"] == 40
    assert len(labels) == 4
