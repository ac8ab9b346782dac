"""`train.watch_hidden` reads hidden labels for one monitor, and changes nothing else."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from conftest import PLAIN, make_dataset, write_picture
from PIL import Image
from safetensors import safe_open

from segpl.engine import trainer
from segpl.engine.collapse import CollapseWatch

OPTIONS = ("--method", "segpl", "--labeled", 2, "--test", 0, "--set", "augment.affine=0.9")
WATCHED = (*OPTIONS, "--set", "train.watch_hidden=true")
MONITORS = {"hidden_dice", "hidden_kept"}


@pytest.fixture
def data(tmp_path) -> Path:
    return make_dataset(tmp_path / "data", dims=2, labeled=4, unlabeled=0, test=0)


def columns_of(run: Path) -> dict[str, list[str]]:
    with (run / "log.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    return {name: [row[name] for row in rows] for name in rows[0]}


def weights_of(run: Path) -> dict[str, bytes]:
    with safe_open(run / "checkpoints" / "last.safetensors", "np") as file:
        return {key: file.get_tensor(key).tobytes() for key in file.keys()}  # noqa: SIM118 -- not a mapping


def hidden_files(run: Path, data: Path) -> list[Path]:
    names = json.loads((run / "split.json").read_text())["hidden"]
    return [path for path in data.glob("*/lbls/*") if path.stem in names]


@pytest.mark.parametrize("method", ["supervised", "segpl"])
def test_watching_only_adds_its_own_columns(train, data, tmp_path, method):
    train(data, *OPTIONS, "--method", method, "--out", tmp_path / "off")
    train(data, *WATCHED, "--method", method, "--out", tmp_path / "on")
    off, on = columns_of(tmp_path / "off"), columns_of(tmp_path / "on")
    assert {name: on[name] for name in off} == off
    assert set(on) - set(off) == (MONITORS if method != "supervised" else set())
    assert weights_of(tmp_path / "on") == weights_of(tmp_path / "off")


def test_hidden_labels_affect_only_the_monitor(train, data, tmp_path, monkeypatch):
    """They do not even change the foreground share that the collapse watch expects."""
    expected: list[dict[str, float]] = []

    def watch(steps, foreground, guard):
        expected.append(foreground)
        return CollapseWatch(steps, foreground, guard)

    monkeypatch.setattr(trainer, "CollapseWatch", watch)
    train(data, *WATCHED, "--out", tmp_path / "true")
    files = hidden_files(tmp_path / "true", data)
    assert len(files) == 2
    for path in files:
        write_picture(path, 1 - np.asarray(Image.open(path)))
    train(data, *WATCHED, "--out", tmp_path / "false")
    before, after = columns_of(tmp_path / "true"), columns_of(tmp_path / "false")
    assert {name for name in before if before[name] != after[name]} == {"hidden_dice"}
    assert expected[0] == expected[1]
    assert weights_of(tmp_path / "true") == weights_of(tmp_path / "false")


def test_hidden_labels_are_read_only_on_request(train, segpl, data, tmp_path):
    train(data, *OPTIONS, "--out", tmp_path / "one")
    for path in hidden_files(tmp_path / "one", data):
        path.write_bytes(b"not a label")
    train(data, *OPTIONS, "--out", tmp_path / "two")
    answer = segpl("train", data, *WATCHED, "--steps", 2, "--out", tmp_path / "three")
    assert answer.code == 1
    assert "lbls" in answer.err
    train(data, *WATCHED, "--method", "supervised", "--out", tmp_path / "four")


def test_all_foreground_pseudo_labels_have_the_dice_of_the_foreground_share(train, data, tmp_path):
    """Each crop is a whole picture, so it shows all of a hidden label."""
    options = ("--set", "method.threshold=0.0", "--set", "train.ratio=1")
    run = tmp_path / "run"
    train(data, *WATCHED, *PLAIN, *options, "--set", "train.log_every=1", "--out", run)
    labels = [np.asarray(Image.open(path)) for path in hidden_files(run, data)]
    shares = [float((label == 1).mean()) for label in labels]
    wanted = [2 * share / (1 + share) for share in shares]
    for value in columns_of(run)["hidden_dice"]:
        assert any(float(value) == pytest.approx(dice, rel=1e-5) for dice in wanted)
    assert set(columns_of(run)["hidden_kept"]) == {"1.0"}


def test_watching_without_hidden_labels_is_rejected(segpl, shared_pictures, tmp_path):
    options = ("--set", "train.watch_hidden=true", "--steps", 2, "--out", tmp_path / "run")
    answer = segpl("train", shared_pictures, *options)
    assert answer.code == 1
    assert "has a hidden label. Hide some with --labeled N" in answer.err
    assert not (tmp_path / "run").exists()
