"""A method whose threshold is a table of settings, through the commands."""

from __future__ import annotations

import csv
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
from conftest import SHORT, make_dataset

from segpl.methods.base import METHODS
from segpl.methods.segpl import SegPL


@dataclass(frozen=True, slots=True)
class Threshold:
    value: float = 0.5
    rule: str = "binarize"


class Nested(SegPL):
    name: ClassVar[str] = "nested"

    @dataclass(frozen=True, slots=True)
    class Settings:
        table: Threshold = field(default_factory=Threshold)
        alpha: float = 0.1
        ramp_begin: float = 0.0
        ramp_end: float = 0.0
        loss: str = "dice"

        @property
        def threshold(self) -> float:
            return self.table.value


@pytest.fixture(autouse=True)
def nested(monkeypatch) -> None:
    monkeypatch.setitem(METHODS.classes, "nested", Nested)


def log_of(run: Path) -> str:
    return (run / "log.csv").read_text()


def threshold_of(run: Path) -> float:
    with (run / "log.csv").open(newline="") as handle:
        return float(next(csv.DictReader(handle))["threshold"])


def test_nested_settings_are_used_saved_and_repeated(train, segpl, pictures, tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text('[method]\nname = "nested"\n[method.table]\nrule = "other"\n')
    given = ("--config", config, "--set", "method.table.value=0.25")
    train(pictures, *given, "--out", tmp_path / "one")
    assert threshold_of(tmp_path / "one") == 0.25
    saved = tomllib.loads((tmp_path / "one" / "config.toml").read_text())
    assert saved["method"]["table"] == {"value": 0.25, "rule": "other"}
    again = segpl("train", tmp_path / "one" / "config.toml", "--out", tmp_path / "two")
    assert again.code == 0, again.err
    assert log_of(tmp_path / "one") == log_of(tmp_path / "two")


def test_resumed_run_takes_the_nested_settings_it_had_and_no_others(
    train, segpl, pictures, tmp_path
):
    run = tmp_path / "run"
    options = ("--method", "nested", "--set", "method.table.value=0.25")
    train(pictures, *options, "--set", "method.table.rule=other", "--out", run)
    train(pictures, *options, "--steps", 8, "--out", run, "--resume")
    answer = segpl(
        "train", "--out", run, "--resume", "--steps", 10, "--set", "method.table.value=0.5"
    )
    assert answer.code == 1
    assert "other settings: method.table.value (0.25 -> 0.5). A resumed run" in answer.err


def test_comparison_takes_nested_settings_guard_and_watch(segpl, tmp_path):
    data = make_dataset(tmp_path / "data", dims=2, labeled=6, unlabeled=0, test=0)
    config = tmp_path / "compare.toml"
    config.write_text(
        '[compare]\nmethods = ["nested"]\nseeds = [0]\n'
        '[train]\nguard = "pause"\nwatch_hidden = true\n'
        "[methods.nested.table]\nvalue = 0.25\n"
    )
    options = (*SHORT, "--config", config, "--labeled", 2, "--test", 2, "--out", tmp_path / "out")
    answer = segpl("compare", data, *options)
    assert answer.code == 0, answer.err + answer.out
    run = tmp_path / "out" / "runs" / "nested-0"
    assert threshold_of(run) == 0.25
    assert "hidden_dice" in log_of(run)
    assert "hidden_dice" not in log_of(tmp_path / "out" / "runs" / "supervised-0")
    assert segpl("compare", data, *options).code == 0
    config.write_text(config.read_text().replace("0.25", "0.75"))
    answer = segpl("compare", data, *options)
    assert answer.code == 1
    assert "other settings: method.table.value (0.25 -> 0.75)" in answer.err
