"""A teacher, harder views and mixing, from the command line to masks."""

from __future__ import annotations

import csv
import math

import pytest
from conftest import SHORT, make_dataset

from segpl.engine import trainer
from segpl.engine.step import take_step

# everything that a step draws or remembers
ALL_ON = (
    *("--method", "bpl-mix", "--set", "method.threshold.prior=labeled"),
    *("--set", "method.geometry=true", "--set", "method.ramp_begin=0"),
)


@pytest.mark.parametrize(("dims", "classes"), [(2, 2), (3, 3)])
def test_resumed_bpl_mix_is_the_unbroken_one_and_predicts(
    train, segpl, tmp_path, monkeypatch, dims, classes
):
    """Teacher, threshold and prior are parts of the checkpoint; views follow from the step."""
    data = make_dataset(tmp_path / "data", dims=dims, classes=classes)
    train(data, *ALL_ON, "--out", tmp_path / "whole")

    def breaking(*arguments, taken, **options):
        if taken == 5:
            raise KeyboardInterrupt
        return take_step(*arguments, taken=taken, **options)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "take_step", breaking)
        assert segpl("train", *SHORT, data, *ALL_ON, "--out", tmp_path / "part").code == 130
    train(data, *ALL_ON, "--resume", "--out", tmp_path / "part")
    logs = [(tmp_path / run / "log.csv").read_bytes() for run in ("whole", "part")]
    assert logs[0] == logs[1]

    options = ("--samples", 2, "--by", "thresholds", "--out", tmp_path / "masks")
    answer = segpl("predict", tmp_path / "part", *options)
    assert answer.code == 0, answer.err
    assert len(list((tmp_path / "masks" / "uncertainty").iterdir())) == 2


@pytest.mark.parametrize("unlabeled", [1, 1000])
def test_default_learns_from_one_labeled_picture_and_as_many_others_as_there_are(
    train, tmp_path, unlabeled
):
    data = make_dataset(tmp_path / "data", dims=2, labeled=1, unlabeled=unlabeled, test=0)
    answer = train(data, "--set", "method.ramp_begin=0", "--out", tmp_path / "run")
    assert f"bpl-mix: 1 labeled, {unlabeled} unlabeled" in answer.err
    with (tmp_path / "run" / "log.csv").open(encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    numbers = [float(value) for row in rows for value in row.values()]
    assert all(map(math.isfinite, numbers))
    assert float(rows[-1]["pseudo.weight"]) > 0
    assert float(rows[-1]["pseudo"]) > 0
