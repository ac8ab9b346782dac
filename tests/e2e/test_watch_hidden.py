"""Hidden labels are opened for one monitor, where it is asked for, and change nothing else."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import nibabel
import numpy as np
import pytest
from conftest import PLAIN, SHORT, make_dataset, read_volume
from safetensors import safe_open

from segpl.data import sampler
from segpl.engine import trainer
from segpl.engine.collapse import CollapseWatch
from segpl.methods.base import METHODS

OPTIONS = (
    "--labeled",
    2,
    "--test",
    0,
    "--set",
    "augment.mirror=0.5",
    "--set",
    "augment.affine=0.9",
)
WATCHED = (*OPTIONS, "--set", "train.watch_hidden=true")
MONITORS = {"hidden_dice", "hidden_kept"}


@pytest.fixture
def data(tmp_path) -> Path:
    return make_dataset(tmp_path / "data", labeled=4, unlabeled=0, test=0)


def columns_of(run: Path) -> dict[str, list[str]]:
    with (run / "log.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    return {name: [row[name] for row in rows] for name in rows[0]}


def weights_of(run: Path) -> dict[str, bytes]:
    with safe_open(run / "checkpoints" / "last.safetensors", "np") as file:
        return {key: file.get_tensor(key).tobytes() for key in file.keys()}  # noqa: SIM118 -- no mapping


def hidden_files(run: Path, data: Path) -> list[Path]:
    names = json.loads((run / "split.json").read_text())["hidden"]
    return [path for path in data.glob("*/lbls/*") if path.name.split(".")[0] in names]


@pytest.mark.parametrize("method", METHODS.names)
def test_watching_changes_no_weight_and_no_column_but_its_own(train, tmp_path, method):
    data = make_dataset(tmp_path / "data", dims=2, labeled=4, unlabeled=0, test=0)
    options = ("--method", method, "--set", "train.guard=pause")
    train(data, *OPTIONS, *options, "--out", tmp_path / "off")
    train(data, *WATCHED, *options, "--out", tmp_path / "on")
    off, on = columns_of(tmp_path / "off"), columns_of(tmp_path / "on")
    assert {name: on[name] for name in off} == off
    has_labels = "pseudo_foreground" in off and method != "fixmatch"
    assert set(on) - set(off) == (MONITORS if has_labels else set())
    assert weights_of(tmp_path / "on") == weights_of(tmp_path / "off")


def test_hidden_labels_decide_nothing_but_the_monitor(train, data, tmp_path, monkeypatch):
    """Nor the share of foreground that the guard expects, which no short training would show."""
    expected: list[dict[str, float]] = []

    def watch(steps, foreground, guard):
        expected.append(foreground)
        return CollapseWatch(steps, foreground, guard)

    monkeypatch.setattr(trainer, "CollapseWatch", watch)
    train(data, *WATCHED, "--method", "segpl", "--out", tmp_path / "true")
    files = hidden_files(tmp_path / "true", data)
    assert len(files) == 2
    for path in files:
        image = nibabel.load(path)
        other = (1 - np.asarray(image.dataobj)).astype(np.uint8)
        nibabel.Nifti1Image(other, image.affine).to_filename(path)
    train(data, *WATCHED, "--method", "segpl", "--out", tmp_path / "false")
    before, after = columns_of(tmp_path / "true"), columns_of(tmp_path / "false")
    assert {name for name in before if before[name] != after[name]} == {"hidden_dice"}
    assert expected[0] == expected[1]
    assert weights_of(tmp_path / "true") == weights_of(tmp_path / "false")


def test_hidden_labels_are_opened_only_where_it_is_asked_for(train, segpl, data, tmp_path):
    train(data, *OPTIONS, "--out", tmp_path / "one")
    for path in hidden_files(tmp_path / "one", data):
        path.write_bytes(b"no label at all")
    train(data, *OPTIONS, "--out", tmp_path / "two")
    answer = segpl("train", data, *WATCHED, "--out", tmp_path / "three")
    assert answer.code == 1
    assert "lbls" in answer.err
    train(data, *WATCHED, "--method", "supervised", "--out", tmp_path / "four")


def test_dice_of_labels_that_call_everything_foreground_is_that_of_the_share(train, data, tmp_path):
    """The patch is the whole volume here, so each crop shows all of a hidden label."""
    options = ("--method", "segpl", "--set", "method.threshold=0.0", "--set", "train.ratio=1")
    run = tmp_path / "run"
    train(data, *WATCHED, *PLAIN, *options, "--set", "train.log_every=1", "--out", run)
    shares = [float((read_volume(path) == 1).mean()) for path in hidden_files(run, data)]
    wanted = [2 * share / (1 + share) for share in shares]
    for value in columns_of(run)["hidden_dice"]:
        assert any(float(value) == pytest.approx(dice, rel=1e-6) for dice in wanted)
    assert set(columns_of(run)["hidden_kept"]) == {"1.0"}


def test_cases_that_never_had_a_label_are_left_out_of_the_comparison(train, tmp_path):
    data = make_dataset(tmp_path / "mixed", labeled=3, unlabeled=3, test=0)
    options = ("--method", "segpl", "--set", "train.log_every=1", "--set", "train.ratio=1")
    train(data, *WATCHED, *options, "--steps", 12, "--out", tmp_path / "run")
    values = columns_of(tmp_path / "run")["hidden_dice"]
    assert "nan" in values  # a line whose one crop is of such a case
    assert any(value != "nan" for value in values)


def test_watched_training_resumes_to_the_same_log(train, segpl, data, tmp_path, monkeypatch):
    options = (*WATCHED, "--set", "train.guard=pause")
    train(data, *options, "--out", tmp_path / "whole")
    honest = sampler.Sampler.batch

    def batch(self, step):
        if step == 5:
            raise KeyboardInterrupt
        return honest(self, step)

    with monkeypatch.context() as patched:
        patched.setattr(sampler.Sampler, "batch", batch)
        assert segpl("train", data, *SHORT, *options, "--out", tmp_path / "cut").code != 0
    assert columns_of(tmp_path / "cut")["step"] == ["2", "4"]
    train(data, *options, "--out", tmp_path / "cut", "--resume")
    assert columns_of(tmp_path / "cut") == columns_of(tmp_path / "whole")
    assert weights_of(tmp_path / "cut") == weights_of(tmp_path / "whole")


def test_labels_too_large_for_memory_give_the_same_log(train, data, tmp_path, monkeypatch):
    train(data, *WATCHED, "--out", tmp_path / "resident")
    monkeypatch.setattr(sampler, "RESIDENT_SHARE", 0.0)
    train(data, *WATCHED, "--out", tmp_path / "mapped")
    assert columns_of(tmp_path / "resident") == columns_of(tmp_path / "mapped")


def test_watching_without_a_hidden_label_is_refused(segpl, volumes, tmp_path):
    answer = segpl("train", volumes, "--set", "train.watch_hidden=true", "--out", tmp_path / "run")
    assert answer.code == 1
    assert "no label of" in answer.err
    assert "Hide some with --labeled N" in answer.err
    assert not (tmp_path / "run").exists()
