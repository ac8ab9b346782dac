"""`bpl` and `bpl-mix` from the command line: nested settings, checkpoints, prediction."""

from __future__ import annotations

import csv
import math
import tomllib
from pathlib import Path

from conftest import SHORT, make_dataset

from segpl.engine import trainer
from segpl.engine.step import take_step


def threshold_options(**threshold: str | float) -> list[str]:
    given = [f"method.threshold.{key}={value}" for key, value in threshold.items()]
    return [part for setting in given for part in ("--set", setting)]


def log_of(run: Path) -> list[dict[str, str]]:
    with (run / "log.csv").open(newline="") as handle:
        return list(csv.DictReader(handle))


def check_resume(train, segpl, monkeypatch, tmp_path, *options: object) -> None:
    """A run interrupted at step 5, after the checkpoint of step 4, repeats the whole run."""
    train(*options, "--out", tmp_path / "whole")

    def interrupted(*arguments, taken, **others):
        if taken == 5:
            raise KeyboardInterrupt
        return take_step(*arguments, taken=taken, **others)

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "take_step", interrupted)
        assert segpl("train", *SHORT, *options, "--out", tmp_path / "part").code == 130
    train(*options, "--resume", "--out", tmp_path / "part")
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "part")


def test_resumed_bpl_mix_repeats_the_uninterrupted_run_and_predicts(
    train, segpl, tmp_path, monkeypatch
):
    """Teacher and threshold are part of the checkpoint; views depend on the step."""
    data = make_dataset(tmp_path / "data", dims=2, classes=3)
    options = (
        *(data, "--method", "bpl-mix"),
        *("--set", "method.geometry=true", "--set", "method.ramp_begin=0"),
    )
    check_resume(train, segpl, monkeypatch, tmp_path, *options)
    samples = ("--samples", 2, "--by", "thresholds", "--out", tmp_path / "masks")
    answer = segpl("predict", tmp_path / "part", *samples)
    assert answer.code == 0, answer.err
    assert len(list((tmp_path / "masks" / "uncertainty").iterdir())) == 2


def test_nested_settings_are_used_saved_and_repeated(train, segpl, pictures, tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text('[method]\nname = "bpl"\n[method.threshold]\nfamily = "beta"\n')
    options = threshold_options(rule="marginal-select", scope="image")
    train(pictures, "--config", config, *options, "--out", tmp_path / "one")
    columns = log_of(tmp_path / "one")[-1].keys()
    assert {"free_energy", "energy", "kl", "threshold", "share_left_out"} <= columns
    saved = tomllib.loads((tmp_path / "one" / "config.toml").read_text())["method"]["threshold"]
    assert (saved["family"], saved["rule"], saved["scope"]) == ("beta", "marginal-select", "image")
    again = segpl("train", tmp_path / "one" / "config.toml", "--out", tmp_path / "two")
    assert again.code == 0, again.err
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")
    changed = ("--steps", 8, *threshold_options(scope="batch"))
    answer = segpl("train", "--out", tmp_path / "one", "--resume", *changed)
    assert answer.code == 1
    assert "other settings: method.threshold.scope ('image' -> 'batch'). A resumed" in answer.err


def test_default_learns_from_one_labeled_picture(train, tmp_path):
    data = make_dataset(tmp_path / "data", dims=2, labeled=1, unlabeled=1, test=0)
    answer = train(data, "--set", "method.ramp_begin=0", "--out", tmp_path / "run")
    assert "bpl-mix: 1 labeled, 1 unlabeled" in answer.err
    rows = log_of(tmp_path / "run")
    assert all(math.isfinite(float(value)) for row in rows for value in row.values())
    assert float(rows[-1]["pseudo.weight"]) > 0
    assert float(rows[-1]["pseudo"]) > 0
