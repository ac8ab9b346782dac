"""A threshold of any family, rule and scope, chosen by a word on the command line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from conftest import SHORT, make_dataset

from segpl.engine import trainer
from segpl.engine.step import take_step

AS_ASKED = {"family": "beta", "rule": "marginal-select", "scope": "image"}


def chosen(**threshold: str) -> list[str]:
    """Options that choose parts of the threshold."""
    given = [f"method.threshold.{key}={value}" for key, value in threshold.items()]
    return [part for setting in given for part in ("--set", setting)]


def log_of(run: Path) -> list[dict[str, str]]:
    with (run / "log.csv").open(newline="") as handle:
        return list(csv.DictReader(handle))


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("classes", [2, 3])
def test_bpl_trains_and_predicts_in_2d_and_3d_binary_and_multi_class(
    train, segpl, tmp_path, dims, classes
):
    data = make_dataset(tmp_path / "data", dims=dims, classes=classes)
    train(data, "--method", "bpl", *chosen(**AS_ASKED), "--out", tmp_path / "run")
    answer = segpl("predict", tmp_path / "run", "--out", tmp_path / "masks")
    assert answer.code == 0, answer.err
    assert len([path for path in (tmp_path / "masks").iterdir() if path.suffix != ".json"]) == 1
    columns = log_of(tmp_path / "run")[-1]
    expected = {"free_energy", "energy", "kl", "threshold", "threshold_std", "share_left_out"}
    assert expected <= columns.keys()


@pytest.mark.parametrize(
    "threshold",
    [
        {"prior": "labeled"},
        {"prior": "confidence", "family": "normal"},
        {"e_step": "exact", "prior": "labeled"},
        {"family": "categorical", "rule": "marginal"},
    ],
    ids=lambda entry: "-".join(entry.values()),
)
def test_resumed_bpl_is_the_unbroken_one(train, segpl, pictures, tmp_path, monkeypatch, threshold):
    """What a prior has learned is part of the checkpoint."""
    options = (pictures, "--method", "bpl", *chosen(**threshold))
    train(*options, "--out", tmp_path / "whole")

    def breaking(*arguments, taken, **options):
        if taken == 5:
            raise KeyboardInterrupt
        return take_step(*arguments, taken=taken, **options)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "take_step", breaking)
        assert segpl("train", *SHORT, *options, "--out", tmp_path / "part").code == 130
    train(*options, "--resume", "--out", tmp_path / "part")
    logs = [(tmp_path / run / "log.csv").read_bytes() for run in ("whole", "part")]
    assert logs[0] == logs[1]


def test_calibration_logs_its_error_and_needs_validation_cases(train, segpl, pictures, tmp_path):
    options = ("--method", "bpl", "--set", "method.calibrate=all")
    refused = segpl("train", pictures, *options, "--out", tmp_path / "none")
    assert refused.code == 1
    assert "validation cases, and there are none" in refused.err
    train(pictures, *options, "--validation", 1, "--out", tmp_path / "run")
    last = log_of(tmp_path / "run")[-1]
    assert {"ece_before", "ece_after", "temperature", "calibration"} <= last.keys()
    assert float(last["temperature"]) != 1
