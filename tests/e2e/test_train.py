"""A run folder holds everything needed to use, judge and repeat the run."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
import tomllib
from pathlib import Path

import nibabel
import numpy as np
import pytest
from conftest import ANY, PLAIN, SHORT, edited, make_dataset, make_nnunet_dataset, read_volume
from safetensors import safe_open

import segpl as library
from segpl.engine.trainer import TrainSettings
from segpl.evaluate.scores import read_scores

FILES = (
    *("config.toml", "plan.json", "split.json", "log.csv", "times.csv", "environment.json"),
    "checkpoints/last.safetensors",
)
COLUMNS = {
    "supervised": {"supervised", "labeled_foreground"},
    "segpl-vi": {"supervised", "pseudo", "kl", "threshold", "threshold_std", "threshold_drawn"},
    "bpl-mix": {"supervised", "pseudo", "pseudo_foreground", "threshold"},
}


def rows_of(path: Path) -> list[dict[str, float]]:
    with path.open(newline="") as handle:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(handle)]


def log_of(run: Path) -> bytes:
    return (run / "log.csv").read_bytes()


def split_of(run: Path) -> dict[str, list[str]]:
    split: dict[str, list[str]] = json.loads((run / "split.json").read_text())
    return split


@pytest.mark.parametrize(
    ("method", "classes"), [("supervised", 2), ("segpl-vi", 2), ("bpl-mix", 3)]
)
def test_run_folder_is_complete(train, tmp_path, method, classes):
    data = make_dataset(tmp_path / "data", dims=2, classes=classes)
    run = tmp_path / "run"
    train(data, "--method", method, "--out", run)
    assert [name for name in FILES if not (run / name).is_file()] == []
    assert len(json.loads((run / "plan.json").read_text())["classes"]) == classes
    rows = rows_of(run / "log.csv")
    assert [row["step"] for row in rows] == [2, 4, 6]
    assert rows[0].keys() >= COLUMNS[method]
    assert all(math.isfinite(value) for row in rows for value in row.values())


def test_saved_config_is_complete_and_repeats_the_run(train, segpl, pictures, tmp_path):
    given = ("--labeled", 2, "--seed", 5, "--set", "method.alpha=0.25")
    train(pictures, "--out", tmp_path / "one", *given)
    saved = tomllib.loads((tmp_path / "one" / "config.toml").read_text())
    assert saved["method"]["name"] == "bpl-mix"
    assert saved["method"]["alpha"] == 0.25
    assert saved["train"]["seed"] == 5
    assert saved["train"]["lr"] == 0.01  # from the plan
    assert saved["train"]["lr_decay"] == TrainSettings().lr_decay
    assert saved["data"]["path"] == str(pictures)
    again = segpl("train", tmp_path / "one" / "config.toml", "--out", tmp_path / "two")
    assert again.code == 0, again.err
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")


@pytest.mark.slow
def test_same_seed_gives_the_same_log_in_another_process(train, process, pictures, tmp_path):
    options = (*SHORT, "--set", "train.precision=float32")
    train(pictures, "--out", tmp_path / "one", *options)
    answer = process("train", pictures, "--out", tmp_path / "two", *options)
    assert answer.code == 0, answer.err
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")


SECOND_START = """
import gc, sys

def show_loaded(*names):
    print(*[name for name in names if name in sys.modules])

opened = set()
sys.addaudithook(lambda event, given: opened.add(str(given[0])) if event == "open" else None)
import segpl.data.cache
show_loaded("torch", "monai")
from segpl.cli import main
import_torch = main.import_torch

def then_skip_the_last_part():
    import_torch()
    from segpl import training
    training.record_training_images = lambda *_, **__: None

main.import_torch = then_skip_the_last_part
code = main.main(sys.argv[1:])
if gc.get_freeze_count() < 10_000 or not gc.isenabled():
    print("torch is imported with garbage collection")
show_loaded("torch._dynamo", "sympy", "monai", "nibabel", "scipy", "pydicom", "matplotlib")
import segpl.run, segpl.report.page.preview
show_loaded("scipy.stats", "matplotlib")
print(*sorted(path for path in opened if path.endswith(".nii.gz")))
sys.exit(code)
"""


def test_second_start_reads_no_scan_and_loads_no_package_it_does_not_use(train, volumes, tmp_path):
    """Importing torch's compiler takes as long as importing torch.

    Garbage collection would take a tenth of importing torch, and half a second at the exit.
    """
    train(volumes, "--steps", 1, *ANY, "--out", tmp_path / "one")
    command = ["train", volumes, *SHORT, "--steps", "2", "--out", tmp_path / "two"]
    second = subprocess.run(
        [sys.executable, "-c", SECOND_START, *map(str, command)], capture_output=True, text=True
    )
    assert second.returncode == 0, second.stderr
    assert second.stdout.strip() == ""


def test_edited_plan_is_used_and_repeated(segpl, volumes, tmp_path):
    plan = tmp_path / "plan.json"
    assert segpl("plan", volumes, "--out", plan).code == 0
    kernels = [[3, 1, 3], [3, 3, 3]]
    edited(plan, patch=[8, 4, 12], strides=[[2, 1, 2]], kernels=kernels, width=5)
    options = ("--steps", 2, "--set", "train.log_every=2", "--set", "train.checkpoint_every=2")
    run = tmp_path / "run"
    answer = segpl("train", volumes, *ANY, "--plan", plan, "--out", run, *options)
    assert answer.code == 0, answer.err
    assert "patch 8x4x12" in answer.err
    used = json.loads((run / "plan.json").read_text())
    assert (used["patch"], used["strides"]) == ([8, 4, 12], [[2, 1, 2]])
    with safe_open(run / "checkpoints" / "last.safetensors", "pt") as weights:
        shapes = {tuple(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118 -- not a mapping
    assert (5, 1, 3, 1, 3) in shapes
    plan.unlink()
    again = segpl("train", run / "config.toml", "--out", tmp_path / "again")
    assert again.code == 0, again.err
    assert log_of(run) == log_of(tmp_path / "again")


def test_ignored_voxels_affect_neither_training_nor_scores(train, segpl, tmp_path):
    data = make_nnunet_dataset(tmp_path / "data", labeled=1)
    train(data, *PLAIN, *ANY, "--out", tmp_path / "run")
    label = read_volume(data / "labelsTr" / "c0.nii.gz")
    # the patch is the whole volume, so every batch has the foreground share of the one label
    share = (label == 1).sum() / (label != 2).sum()
    for row in rows_of(tmp_path / "run" / "log.csv"):
        assert row["labeled_foreground"] == pytest.approx(share, rel=1e-4)
    predictions = tmp_path / "predictions"
    assert segpl("predict", tmp_path / "run", data, "--out", predictions).code == 0
    path = predictions / "c0.nii.gz"
    assert set(np.unique(read_volume(path))) <= {0, 1}
    # correct wherever the label is known, wrong elsewhere
    guess = np.where(label == 2, 1, label).astype(np.uint8)
    nibabel.Nifti1Image(guess, nibabel.load(path).affine).to_filename(path)
    assert segpl("evaluate", predictions, data, "--metrics", "dice", "hd95", "recall").code == 0
    scores = read_scores(predictions / "scores.csv")
    assert {score.value for score in scores if score.metric == "hd95"} == {0.0}
    assert {score.value for score in scores if score.metric != "hd95"} == {1.0}


def test_validation_cases_give_a_table_and_a_best_checkpoint(finished):
    with (finished / "validation.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert {row["case"] for row in rows} == set(split_of(finished)["validation"])
    assert [row["step"] for row in rows] == ["2", "4", "6"]
    assert (finished / "checkpoints" / "best.safetensors").is_file()


def test_validation_does_not_change_the_training(train, pictures, tmp_path):
    """Both runs train on the same cases: one validates on the case that the other tests on."""
    train(pictures, "--validation", 1, "--test", 0, "--out", tmp_path / "one")
    train(pictures, "--validation", 0, "--test", 1, "--out", tmp_path / "two")
    assert split_of(tmp_path / "one")["labeled"] == split_of(tmp_path / "two")["labeled"]
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")


def test_monai_network_is_chosen_by_name(train, pictures, tmp_path):
    run = tmp_path / "run"
    options = ("--set", "network.name=SegResNet", "--set", "network.options.init_filters=8")
    train(pictures, *ANY, "--out", run, *options)
    with safe_open(run / "checkpoints" / "last.safetensors", "pt") as weights:
        assert any(".network.convInit." in key for key in weights.keys())  # noqa: SIM118 -- not a mapping


def test_hidden_and_held_out_labels_are_never_read(train, tmp_path):
    data = make_dataset(tmp_path / "data", dims=2, labeled=4, test=1)
    options = ("--labeled", 2, "--test", 1)
    train(data, "--out", tmp_path / "one", *options)
    split = split_of(tmp_path / "one")
    assert len(split["hidden"]) == 1
    secret = [*split["hidden"], *split["test"]]
    broken = [path for path in data.glob("*/lbls/*") if path.name.split(".")[0] in secret]
    assert len(broken) == 3
    for path in broken:
        path.write_bytes(b"not a label")
    train(data, "--out", tmp_path / "two", *options)
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")


def test_paths_may_have_spaces_and_links_and_be_relative(train, segpl, tmp_path, monkeypatch):
    data = make_dataset(tmp_path / "my data", dims=2)
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(data)
    (tmp_path / "here" / "settings.toml").write_text('[data]\npath = "link"\n')
    monkeypatch.chdir(tmp_path / "here")
    answer = train("settings.toml", *ANY, "--out", "my run")
    assert "segpl predict 'my run' --out" in answer.err
    assert "Classes found in the labels: background, foreground." in answer.err
    monkeypatch.chdir(tmp_path)
    answer = segpl("predict", "here/my run", "--out", "masks")
    assert answer.code == 0, answer.err


def test_python_api_does_what_the_commands_do(pictures, tmp_path):
    settings = {
        "train": {"steps": 4, "log_every": 2, "checkpoint_every": 4, "batch": 1},
        "network": {"width": 4},
    }
    run = library.train(
        pictures, method="segpl", out=tmp_path / "run", settings=settings, quiet=True
    )
    written = run.predict(out=tmp_path / "one")
    assert [path.name for path in written] == ["t0.png"]
    loaded = library.load_run(tmp_path / "run", quiet=True)
    again = loaded.predict(pictures / "test" / "imgs" / "t0.png", out=tmp_path / "two")
    assert written[0].read_bytes() == again[0].read_bytes()
    scores = library.evaluate_folders(tmp_path / "one", pictures)
    assert {score.case for score in scores} == {"t0"}
