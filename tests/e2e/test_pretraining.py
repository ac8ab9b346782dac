"""`train.pretrain`: what it learns from, where it is kept, and what it changes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SHORT, make_dataset, read_volume, write_volume
from safetensors.torch import load_file

from segpl.data.sampler import Sampler
from segpl.engine.pretrain import Pretrainer

PRETRAIN = ("--set", "train.pretrain=4", "--set", "train.checkpoint_every=2")
TEACHER = ("--method", "mean-teacher", "--test", 0)


@pytest.fixture
def data(tmp_path) -> Path:
    return make_dataset(tmp_path / "data", labeled=3, unlabeled=2, test=1)


@pytest.fixture
def pictures(tmp_path) -> Path:
    return make_dataset(tmp_path / "pictures", dims=2, labeled=2, unlabeled=2, test=1)


def losses(run: Path) -> list[str]:
    with (run / "pretrain.csv").open(newline="") as handle:
        return [row["loss"] for row in csv.DictReader(handle)]


def weights(run: Path, name: str = "last") -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / f"{name}.safetensors")


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(one[key].equal(other[key]) for key in one)


@pytest.mark.parametrize("dims", [2, 3])
def test_run_is_pretrained_trained_and_used(train, segpl, tmp_path, dims):
    data = make_dataset(tmp_path / "data", dims=dims, labeled=2, unlabeled=2, test=1)
    run = tmp_path / "run"
    answer = train(data, *PRETRAIN, *TEACHER[:2], "--out", run)
    assert "pre-training: step 4 of 4" in answer.err
    assert len(losses(run)) == 2
    assert segpl("predict", run, "--out", tmp_path / "masks").code == 0
    assert len(list((tmp_path / "masks").glob("t0.*"))) == 1


def test_pretrained_weights_start_the_training_and_its_batches_are_the_same(
    train, pictures, tmp_path, monkeypatch
):
    batches, starts = [], []
    honest = Sampler.batch

    def batch(self, step):
        batches.append(honest(self, step))
        return batches[-1]

    monkeypatch.setattr(Sampler, "batch", batch)
    with monkeypatch.context() as patch:
        from segpl.methods.mean_teacher import MeanTeacher

        step = MeanTeacher.step

        def recorded(self, batch, progress):
            if progress == 0:
                starts.append({k: v.clone() for k, v in self.state_dict().items()})
            return step(self, batch, progress)

        patch.setattr(MeanTeacher, "step", recorded)
        train(pictures, *TEACHER, "--out", tmp_path / "plain")
        train(pictures, *TEACHER, *PRETRAIN, "--out", tmp_path / "pretrained")
    plain, changed = starts
    learned = weights(tmp_path / "pretrained", "pretrain")
    for key in plain:
        name = key.split(".body.")[1]
        expected = plain[key] if name.startswith("last.") else learned[f"model.network.body.{name}"]
        assert changed[key].equal(expected), key
        assert name.startswith("last.") or not changed[key].equal(plain[key])
    assert len(batches) == 12
    for one, other in zip(batches[:6], batches[6:], strict=True):
        assert one.labeled.image.equal(other.labeled.image)
        assert one.labeled.label.equal(other.labeled.label)
        assert one.unlabeled.image.equal(other.unlabeled.image)
        assert one.generator.initial_seed() == other.generator.initial_seed()


def test_labels_validation_and_test_cases_change_nothing_of_it(train, data, tmp_path):
    """With one plan: normalization may look at labels of the labeled cases."""
    held = ("--validation", 1, "--method", "supervised", *PRETRAIN)
    train(data, *held, "--out", tmp_path / "honest")
    plan, split = (tmp_path / "honest" / name for name in ("plan.json", "split.json"))
    names = json.loads(split.read_text())
    for path in data.glob("*/lbls/*.nii.gz"):
        write_volume(path, 1 - read_volume(path))
    for name in (*names["validation"], *names["test"]):
        (path,) = data.glob(f"*/imgs/{name}.nii.gz")
        write_volume(path, np.flip(read_volume(path)) + np.float32(100))
    train(data, *held, "--plan", plan, "--out", tmp_path / "poisoned")
    assert split.read_bytes() == (tmp_path / "poisoned" / "split.json").read_bytes()
    assert losses(tmp_path / "honest") == losses(tmp_path / "poisoned")
    one, other = (weights(tmp_path / name, "pretrain") for name in ("honest", "poisoned"))
    assert same(one, other)
    assert not same(weights(tmp_path / "honest"), weights(tmp_path / "poisoned"))


@pytest.mark.parametrize(
    ("what", "at"), [("scans", 0), ("scans", 3), ("batch", 0), ("batch", 1), ("batch", 3)]
)
def test_killed_run_is_resumed_to_the_same_weights(
    train, segpl, pictures, tmp_path, monkeypatch, what, at
):
    arguments = ("train", *SHORT, pictures, *TEACHER, *PRETRAIN)
    train(*arguments[len(SHORT) + 1 :], "--out", tmp_path / "whole")
    honest = getattr(Sampler, what)

    def deadly(self, step, *rest):
        if step == at:
            raise KeyboardInterrupt
        return honest(self, step, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, what, deadly)
        stopped = segpl(*arguments, "--out", tmp_path / "killed")
    assert stopped.code != 0
    assert f"stopped at step {at}" in stopped.err
    assert segpl("train", "--out", tmp_path / "killed", "--resume").code == 0
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "killed"))
    assert losses(tmp_path / "whole") == losses(tmp_path / "killed")
    logs = [(tmp_path / name / "log.csv").read_text() for name in ("whole", "killed")]
    assert logs[0] == logs[1]


def test_resumed_training_does_not_pretrain_again(train, segpl, pictures, tmp_path, monkeypatch):
    train(pictures, *PRETRAIN, *TEACHER, "--out", tmp_path / "run")
    monkeypatch.setattr(Pretrainer, "__init__", None)
    assert segpl("train", "--out", tmp_path / "run", "--resume", "--steps", 8).code == 0


def test_resumed_run_keeps_its_steps(train, segpl, pictures, tmp_path):
    train(pictures, *PRETRAIN, "--out", tmp_path / "run")
    answer = segpl("train", "--out", tmp_path / "run", "--resume", "--set", "train.pretrain=9")
    assert answer.code == 1
    assert "train.pretrain (4 -> 9)" in answer.err


def test_without_it_there_is_nothing_of_it(train, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(Pretrainer, "__init__", None)
    train(pictures, *TEACHER, "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "pretrain.csv").exists()
    assert [path.stem for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["last"]


def test_negative_number_of_steps_is_refused(segpl, pictures, tmp_path):
    answer = segpl("train", pictures, "--set", "train.pretrain=-1", "--out", tmp_path / "run")
    assert answer.code == 1
    assert "train.pretrain is -1: it must be finite and not negative" in answer.err
