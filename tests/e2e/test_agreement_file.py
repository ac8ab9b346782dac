"""What a training says of itself where no validation case can judge it."""

from __future__ import annotations

import json

import pytest
from conftest import SHORT, make_dataset

from segpl.evaluate.agreement import agreement_summary, read_agreement
from segpl.validate import agreement


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("mean-teacher", "On 2 unlabeled cases: "),
        ("segpl-vi", "The pseudo-label threshold ended at"),
        ("supervised", "Agreement is not accuracy"),
    ],
)
def test_a_training_without_validation_cases_says_how_sure_it_is(
    train, pictures, tmp_path, method, words
):
    answer = train(pictures, "--method", method, "--out", tmp_path / "run")
    record = read_agreement(tmp_path / "run" / "agreement.json")
    assert record.cases == ("u0", "u1")
    assert words in agreement_summary(record)
    assert agreement_summary(record) in answer.err


@pytest.mark.parametrize(
    "options", [("--validation", 1), ("--set", "train.agreement=0"), ("--method", "supervised")]
)
def test_nothing_is_said_with_validation_cases_switched_off_or_without_unlabeled_cases(
    train, tmp_path, options
):
    data = make_dataset(tmp_path / "data", dims=2, unlabeled=0 if "supervised" in options else 2)
    answer = train(data, *options, "--out", tmp_path / "run")
    assert not (tmp_path / "run" / "agreement.json").exists()
    assert "not accuracy" not in answer.err


def test_saying_it_changes_nothing_about_the_run(train, pictures, tmp_path):
    for name, count in (("one", 10), ("two", 0)):
        train(pictures, "--set", f"train.agreement={count}", "--out", tmp_path / name)
    for name in ("log.csv", "checkpoints/last.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_finished_run_says_it_again_without_looking(
    segpl, train, pictures, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    train(pictures, "--out", run)
    monkeypatch.delattr(agreement, "measure_agreement")
    answer = segpl("train", "--out", run, "--resume")
    assert answer.code == 0, answer.err
    assert agreement_summary(read_agreement(run / "agreement.json")) in answer.err


def test_a_run_that_went_on_is_looked_at_anew(segpl, train, pictures, tmp_path):
    run = tmp_path / "run"
    train(pictures, "--out", run)
    before = json.loads((run / "agreement.json").read_text())["weights"]
    assert segpl("train", "--out", run, "--resume", "--steps", 8).code == 0
    assert json.loads((run / "agreement.json").read_text())["weights"] != before


def test_the_number_of_cases_may_be_given_anew(segpl, train, pictures, tmp_path):
    run = tmp_path / "run"
    train(pictures, "--out", run)
    assert segpl("train", "--out", run, "--resume", "--set", "train.agreement=1").code == 0
    assert json.loads((run / "agreement.json").read_text())["cases"] == ["u0"]


def test_a_device_without_memory_left_does_not_spoil_a_training(
    train, pictures, tmp_path, monkeypatch
):
    def full(*_: object, **__: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(agreement, "measure_agreement", full)
    answer = train(pictures, "--out", tmp_path / "run")
    assert "is out of memory" in answer.err


def test_a_negative_number_of_cases_is_refused(segpl, pictures, tmp_path):
    options = (*SHORT, "--set", "train.agreement=-1", "--out", tmp_path / "run")
    answer = segpl("train", pictures, *options)
    assert answer.code == 1
    assert "train.agreement is -1: it must be finite and not negative" in answer.err
