"""Agreement on unlabeled cases: what a run without validation cases reports at the end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import SHORT, make_dataset, train_runs

from segpl.evaluate.agreement import agreement_summary, read_agreement
from segpl.validate import agreement

ON = ("--set", "train.agreement=10")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("made")
    data = make_dataset(root / "data", dims=2)
    teacher = ("--method", "mean-teacher")
    runs = {"on": (*teacher, *ON), "off": teacher, "validated": (*teacher, *ON, "--validation", 1)}
    train_runs(root, data, runs)
    return root


@pytest.fixture
def run(made, tmp_path) -> Path:
    return Path(shutil.copytree(made / "on", tmp_path / "run"))


def test_a_run_records_agreement_without_changing_its_weights(made):
    record = read_agreement(made / "on" / "agreement.json")
    assert record.cases == ("u0", "u1")
    assert record.networks == ("student", "teacher")
    for name in ("log.csv", "checkpoints/last.safetensors"):
        assert (made / "on" / name).read_bytes() == (made / "off" / name).read_bytes()


@pytest.mark.parametrize("name", ["off", "validated"])
def test_no_record_if_switched_off_or_with_validation_cases(made, name):
    assert not (made / name / "agreement.json").exists()


def test_a_finished_run_repeats_its_summary_without_measuring(segpl, run, monkeypatch):
    monkeypatch.delattr(agreement, "measure_agreement")
    answer = segpl("train", "--out", run, "--resume")
    assert answer.code == 0, answer.err
    assert agreement_summary(read_agreement(run / "agreement.json")) in answer.err
    assert "Agreement is not accuracy" in answer.err


def test_the_number_of_cases_can_be_changed_later(segpl, run):
    assert segpl("train", "--out", run, "--resume", "--set", "train.agreement=1").code == 0
    assert read_agreement(run / "agreement.json").cases == ("u0",)


def test_running_out_of_memory_does_not_fail_the_training(segpl, run, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(agreement, "measure_agreement", fail)
    answer = segpl("train", "--out", run, "--resume", "--set", "train.agreement=1")
    assert answer.code == 0
    assert "was not measured: out of memory" in answer.err


def test_a_negative_number_of_cases_is_an_error(segpl, made, tmp_path):
    options = (*SHORT, "--set", "train.agreement=-1", "--out", tmp_path / "run")
    answer = segpl("train", made / "data", *options)
    assert answer.code == 1
    assert "train.agreement is -1" in answer.err
