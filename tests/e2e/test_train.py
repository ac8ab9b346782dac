"""A training leaves everything behind that is needed to use it, judge it and repeat it."""

from __future__ import annotations

import csv
import json
import math
import tomllib
from pathlib import Path

import nibabel
import numpy as np
import pytest
from conftest import ANY, PLAIN, SHORT, edited, make_dataset, make_nnunet_dataset, read_volume
from safetensors import safe_open

import segpl as library
from segpl.data import sampler
from segpl.engine.trainer import TrainSettings
from segpl.errors import InputError
from segpl.evaluate.scores import read_scores
from segpl.methods.base import METHODS

FILES = (
    *("config.toml", "plan.json", "split.json", "log.csv", "times.csv", "environment.json"),
    "checkpoints/last.safetensors",
)
COLUMNS = {
    "supervised": {"supervised", "labeled_foreground"},
    "segpl": {"supervised", "pseudo", "pseudo_foreground", "threshold", "threshold_std"},
    "segpl-vi": {"supervised", "pseudo", "kl", "threshold", "threshold_std", "threshold_drawn"},
}


def rows_of(path: Path) -> list[dict[str, float]]:
    with path.open(newline="") as handle:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(handle)]


def log_of(run: Path) -> bytes:
    return (run / "log.csv").read_bytes()


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("method", METHODS.names)
def test_a_training_leaves_settings_plan_split_log_and_checkpoint(
    train, tmp_path, method, dims, classes
):
    data = make_dataset(tmp_path / "data", dims=dims, classes=classes)
    run = tmp_path / "run"
    train(data, "--method", method, "--out", run)
    assert [name for name in FILES if not (run / name).is_file()] == []
    rows = rows_of(run / "log.csv")
    assert [row["step"] for row in rows] == [2, 4, 6]
    assert COLUMNS.get(method, set()) <= set(rows[0])
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert len(json.loads((run / "plan.json").read_text())["classes"]) == classes


@pytest.mark.parametrize("method", METHODS.names)
def test_the_total_of_a_log_line_is_the_sum_of_its_terms_by_their_weights(
    train, pictures, tmp_path, method
):
    run = tmp_path / "run"
    options = ("--set", "train.log_every=1", "--set", "train.checkpoint_every=1")
    train(pictures, "--method", method, "--out", run, *options)
    for row in rows_of(run / "log.csv"):
        terms = [name for name in row if f"{name}.weight" in row]
        total = sum(row[name] * row[f"{name}.weight"] for name in terms)
        assert row["total"] == pytest.approx(total, rel=1e-5)


def test_the_saved_config_holds_every_setting_and_what_was_given(train, volumes, tmp_path):
    train(volumes, "--out", tmp_path / "run", "--seed", 5, "--set", "method.alpha=0.25")
    saved = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert saved["method"]["name"] == "bpl-mix"
    assert saved["method"]["alpha"] == 0.25
    assert saved["train"]["seed"] == 5
    assert saved["train"]["lr_decay"] == TrainSettings().lr_decay
    assert saved["data"]["path"] == str(volumes)


@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        (["network.width=4"], 0.01),
        (["network.width=16"], 0.005),
        (["network.width=4", "train.lr=0.1"], 0.1),
    ],
)
def test_the_planned_learning_rate_falls_as_the_network_is_wider(
    train, volumes, tmp_path, settings, rate
):
    given = [text for setting in settings for text in ("--set", setting)]
    train(volumes, "--method", "supervised", "--out", tmp_path / "run", *given)
    saved = tomllib.loads((tmp_path / "run" / "config.toml").read_text())
    assert saved["train"]["lr"] == pytest.approx(rate)
    with (tmp_path / "run" / "log.csv").open(newline="") as handle:
        assert rate / 3 < float(next(csv.DictReader(handle))["lr"]) < rate


@pytest.mark.parametrize("method", METHODS.names)
def test_the_same_seed_gives_the_same_log_to_the_bit(train, volumes, tmp_path, method):
    for name in ("one", "two"):
        train(volumes, "--method", method, "--out", tmp_path / name)
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")


def test_the_same_seed_gives_the_same_log_in_another_process(train, process, pictures, tmp_path):
    train(pictures, "--out", tmp_path / "one")
    answer = process("train", pictures, "--out", tmp_path / "two", *SHORT)
    assert answer.code == 0, answer.err
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")


def test_another_seed_gives_another_log(train, volumes, tmp_path):
    train(volumes, *ANY, "--out", tmp_path / "one")
    train(volumes, *ANY, "--out", tmp_path / "two", "--seed", 1)
    assert log_of(tmp_path / "one") != log_of(tmp_path / "two")


def test_the_config_of_a_run_repeats_it_to_the_bit(train, segpl, volumes, tmp_path):
    options = ("--labeled", 2, "--set", "augment.affine=0.9", "--set", "method.loss=dice")
    train(volumes, "--out", tmp_path / "one", *options)
    again = segpl("train", tmp_path / "one" / "config.toml", "--out", tmp_path / "two")
    assert again.code == 0, again.err
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")


def test_an_edited_plan_is_used_as_edited(segpl, volumes, tmp_path):
    plan = tmp_path / "plan.json"
    assert segpl("plan", volumes, "--out", plan).code == 0
    kernels = [[3, 1, 3], [3, 3, 3]]
    edited(plan, patch=[16, 8, 24], strides=[[2, 1, 2]], kernels=kernels, width=5)
    options = ("--steps", 2, "--set", "train.log_every=2", "--set", "train.checkpoint_every=2")
    answer = segpl("train", volumes, "--plan", plan, "--out", tmp_path / "run", *options)
    assert answer.code == 0, answer.err
    assert "patch 16x8x24" in answer.err
    used = json.loads((tmp_path / "run" / "plan.json").read_text())
    assert (used["patch"], used["strides"]) == ([16, 8, 24], [[2, 1, 2]])
    with safe_open(tmp_path / "run" / "checkpoints" / "last.safetensors", "pt") as weights:
        shapes = {tuple(weights.get_slice(key).get_shape()) for key in weights.keys()}  # noqa: SIM118 -- no mapping
    assert (5, 1, 3, 1, 3) in shapes


def test_ignored_voxels_are_no_part_of_what_is_learned(train, segpl, tmp_path):
    data = make_nnunet_dataset(tmp_path / "data", labeled=1)
    train(data, *PLAIN, *ANY, "--out", tmp_path / "run")
    label = read_volume(data / "labelsTr" / "c0.nii.gz")
    known = label != 2
    # the patch is the whole volume, so every batch has the share of the one label
    share = (label == 1).sum() / known.sum()
    for row in rows_of(tmp_path / "run" / "log.csv"):
        assert row["labeled_foreground"] == pytest.approx(share, rel=1e-5)


def test_ignored_voxels_are_no_part_of_a_score(segpl, train, tmp_path):
    data = make_nnunet_dataset(tmp_path / "data")
    train(data, *ANY, "--out", tmp_path / "run")
    predictions = tmp_path / "predictions"
    assert segpl("predict", tmp_path / "run", data, "--out", predictions).code == 0
    for index in range(2):
        label = read_volume(data / "labelsTr" / f"c{index}.nii.gz")
        path = predictions / f"c{index}.nii.gz"
        assert set(np.unique(read_volume(path))) <= {0, 1}
        # right where it counts, wrong everywhere else
        guess = np.where(label == 2, 1, label).astype(np.uint8)
        nibabel.Nifti1Image(guess, nibabel.load(path).affine).to_filename(path)
    assert segpl("evaluate", predictions, data, "--metrics", "dice", "hd95", "recall").code == 0
    scores = read_scores(predictions / "scores.csv")
    assert {score.value for score in scores if score.metric == "hd95"} == {0.0}
    assert {score.value for score in scores if score.metric != "hd95"} == {1.0}


def test_validation_cases_give_a_table_and_a_best_checkpoint(train, volumes, tmp_path):
    run = tmp_path / "run"
    train(volumes, *ANY, "--validation", 1, "--out", run)
    with (run / "validation.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    held = json.loads((run / "split.json").read_text())["validation"]
    assert {row["case"] for row in rows} == set(held)
    assert [row["step"] for row in rows] == ["2", "4", "6"]
    assert (run / "checkpoints" / "best.safetensors").is_file()


def test_without_validation_cases_nothing_is_called_best(train, volumes, tmp_path):
    train(volumes, *ANY, "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "validation.csv").exists()
    assert not (tmp_path / "run" / "checkpoints" / "best.safetensors").exists()


def test_watching_validation_cases_changes_nothing_about_the_training(train, volumes, tmp_path):
    """The same cases train: those watched are the ones that the other run tests on."""
    train(volumes, "--validation", 1, "--test", 0, "--out", tmp_path / "one")
    train(volumes, "--validation", 0, "--test", 1, "--out", tmp_path / "two")
    splits = [json.loads((tmp_path / run / "split.json").read_text()) for run in ("one", "two")]
    assert splits[0]["labeled"] == splits[1]["labeled"]
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")


def test_a_network_of_monai_is_trained_by_its_name(train, pictures, tmp_path):
    run = tmp_path / "run"
    options = ("--set", "network.name=BasicUNet", "--set", "network.options.features=[4,4,4,4,4,4]")
    train(pictures, "--out", run, *options)
    with safe_open(run / "checkpoints" / "last.safetensors", "pt") as weights:
        assert any(".network.upcat_1." in key for key in weights.keys())  # noqa: SIM118 -- no mapping


def test_labels_that_are_hidden_or_held_out_are_never_opened(train, tmp_path):
    data = make_dataset(tmp_path / "data", labeled=4, test=1)
    options = ("--labeled", 2, "--test", 1)
    train(data, "--out", tmp_path / "one", *options)
    split = json.loads((tmp_path / "one" / "split.json").read_text())
    assert len(split["hidden"]) == 1
    secret = [*split["hidden"], *split["test"]]
    broken = [path for path in data.glob("*/lbls/*") if path.name.split(".")[0] in secret]
    assert len(broken) == 3
    for path in broken:
        path.write_bytes(b"no label at all")
    train(data, "--out", tmp_path / "two", *options)
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")


def test_augmentation_changes_what_is_seen(train, volumes, tmp_path):
    names = ("affine", "scanner")
    more = [part for name in names for part in ("--set", f"augment.{name}=0.9")]
    for name, options in (("plain", PLAIN), ("default", ()), ("more", more)):
        train(volumes, *ANY, *options, "--out", tmp_path / name)
    assert len({log_of(tmp_path / name) for name in ("plain", "default", "more")}) == 3


def test_volumes_too_large_for_memory_give_the_same_log(train, volumes, tmp_path, monkeypatch):
    train(volumes, *ANY, "--out", tmp_path / "in-memory")
    monkeypatch.setattr(sampler, "RESIDENT_SHARE", 0.0)
    train(volumes, *ANY, "--out", tmp_path / "mapped")
    assert log_of(tmp_path / "in-memory") == log_of(tmp_path / "mapped")


def test_a_path_with_spaces_is_quoted_in_the_next_command(train, segpl, tmp_path):
    data = make_dataset(tmp_path / "my data")
    answer = train(f"{data}/", *ANY, "--out", tmp_path / "my run")
    assert f"segpl predict '{tmp_path / 'my run'}' --out" in answer.err


def test_data_is_found_through_links_and_from_where_the_command_was_given(
    train, segpl, volumes, tmp_path, monkeypatch
):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "link").symlink_to(volumes)
    config = tmp_path / "here" / "settings.toml"
    config.write_text('[data]\npath = "link"\n')
    monkeypatch.chdir(tmp_path / "here")
    train("settings.toml", *ANY, "--out", "run")
    monkeypatch.chdir(tmp_path)
    answer = segpl("predict", "here/run", "--out", "masks")
    assert answer.code == 0, answer.err


def test_python_trains_predicts_loads_and_evaluates_as_the_commands_do(volumes, tmp_path):
    settings = {
        "train": {"steps": 4, "log_every": 2, "checkpoint_every": 4, "batch": 1},
        "network": {"width": 4},
    }
    run = library.train(
        volumes, method="segpl", out=tmp_path / "run", settings=settings, quiet=True
    )
    written = run.predict(out=tmp_path / "one")
    assert [path.name for path in written] == ["t0.nii.gz"]
    loaded = library.load_run(tmp_path / "run", quiet=True)
    again = loaded.predict(volumes / "test" / "imgs" / "t0.nii.gz", out=tmp_path / "two")
    assert np.array_equal(read_volume(written[0]), read_volume(again[0]))
    scores = library.evaluate_folders(tmp_path / "one", volumes)
    assert {score.case for score in scores} == {"t0"}


def test_python_raises_what_a_caller_would_catch(volumes, tmp_path):
    with pytest.raises(ValueError, match="exceeds the") as caught:
        library.train(volumes, out=tmp_path / "run", settings={"split": {"labeled": 50}})
    assert isinstance(caught.value, InputError)


def test_the_config_of_a_run_brings_the_edited_plan_along(train, segpl, volumes, tmp_path):
    plan = tmp_path / "plan.json"
    assert segpl("plan", volumes, "--out", plan).code == 0
    edited(plan, patch=[16, 8, 24], strides=[[2, 1, 2]], kernels=[], width=5)
    train(volumes, *ANY, "--out", tmp_path / "one", "--plan", plan)
    plan.unlink()
    again = segpl("train", tmp_path / "one" / "config.toml", "--out", tmp_path / "two")
    assert again.code == 0, again.err
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")


def test_classes_that_nobody_named_are_told(train, volumes, tmp_path):
    answer = train(volumes, *ANY, "--out", tmp_path / "run")
    assert "Classes found in the labels: background, foreground." in answer.err
