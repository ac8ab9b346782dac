"""Coarser levels and residual blocks through the commands."""

from __future__ import annotations

import csv

import pytest
from conftest import SHORT, make_dataset

import segpl as library
from segpl.engine.checkpoint import read_checkpoint

DEEP, PLAIN = ("--set", "network.deep=2"), ("--set", "network.residual=false")
COST = ("parameters", "step_flops", "predict_flops")


@pytest.fixture
def pictures_of(tmp_path):
    return make_dataset(tmp_path / "data", dims=2)


def test_run_with_coarser_levels_that_was_stopped_goes_on_to_the_same_curve(
    segpl, pictures_of, tmp_path, monkeypatch
):
    arguments = (pictures_of, *SHORT, *DEEP, "--method", "mean-teacher", "--steps", "8")
    assert segpl("train", *arguments, "--out", tmp_path / "whole").code == 0
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr("segpl.engine.trainer.take_step", stopping_at(6))
        assert segpl("train", *arguments, "--out", run).code == 130
    last = run / "checkpoints" / "last.safetensors"
    assert any(".sides." in key for key in read_checkpoint(last).weights)
    assert segpl("train", *arguments, "--out", run, "--resume").code == 0
    for name in ("log.csv", "checkpoints/last.safetensors"):
        assert (run / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name


def stopping_at(step: int):
    from segpl.engine.trainer import take_step

    calls = 0

    def counted(*arguments: object, **settings: object) -> object:
        nonlocal calls
        calls += 1
        if calls == step:
            raise KeyboardInterrupt
        return take_step(*arguments, **settings)

    return counted


def test_run_predicts_and_counts_the_weights_of_its_levels(segpl, train, pictures_of, tmp_path):
    """By hand: a level of width w has a layer of w weights and a bias."""
    counts = []
    for name, settings in {"plain": (), "deep": ("--set", "network.deep=1")}.items():
        run = tmp_path / name
        train(pictures_of, *settings, "--method", "supervised", "--out", run)
        counts.append(library.load_run(run, device="cpu").parameters)
    assert counts[1] - counts[0] == 8 + 1
    answer = segpl("predict", tmp_path / "deep", "--out", tmp_path / "predictions")
    assert answer.code == 0, answer.err
    assert any((tmp_path / "predictions").iterdir())


def test_coarser_levels_cost_training_and_no_prediction(segpl, tmp_path):
    small = ("--patch", 32, 32, "--device", "cpu", "--steps", "1", "--set", "network.width=4")
    rows = {}
    for name, settings in {"plain": PLAIN, "deep": (*DEEP, *PLAIN), "both": DEEP}.items():
        out = tmp_path / f"{name}.csv"
        answer = segpl("cost", "supervised", *small, *settings, "--out", out)
        assert answer.code == 0, answer.err
        with out.open(encoding="utf-8", newline="") as handle:
            rows[name] = {k: float(v) for k, v in next(csv.DictReader(handle)).items() if k in COST}
    for key in ("parameters", "step_flops"):
        assert rows["plain"][key] < rows["deep"][key] < rows["both"][key], key
    assert rows["plain"]["predict_flops"] == rows["deep"]["predict_flops"]
    assert rows["deep"]["predict_flops"] < rows["both"]["predict_flops"]
