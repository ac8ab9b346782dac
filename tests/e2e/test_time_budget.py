"""`segpl train --time`: the number of steps follows from the measured time of a step.

The tests do not depend on the clock: an hour is enough for many more steps than the limit of six
that they set.
"""

from __future__ import annotations

import os
import re
import signal
import tomllib
from pathlib import Path

import pytest
import torch
from conftest import Answer
from test_rejections import check_words

from segpl import training_time
from segpl.cli.main import NOT_STARTED
from segpl.data.sampler import Sampler
from segpl.engine import budget
from segpl.engine.budget import Budget, TrainingSpeed
from segpl.types import Batch

STEPS = 6
OPTIONS = (
    *("--set", "train.log_every=2", "--set", "train.checkpoint_every=4"),
    *("--set", "network.width=4", "--set", "train.batch=1", "--validation", "1"),
)
RESULTS = (
    *("config.toml", "split.json", "summary.json", "log.csv", "validation.csv"),
    *("checkpoints/last.safetensors", "checkpoints/best.safetensors"),
)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(budget, "MOST_STEPS", STEPS)
    monkeypatch.setattr(budget, "FEWEST_STEPS", 1)
    monkeypatch.setattr(budget, "MEASURED_SECONDS", 0.01)
    monkeypatch.setattr(budget, "MEASUREMENT", 0.01)


@pytest.fixture
def start(segpl, shared_pictures, tmp_path):
    """Train in `tmp_path/NAME`."""

    def call(name: str, *options: object) -> Answer:
        return segpl("train", shared_pictures, "--out", tmp_path / name, *OPTIONS, *options)

    return call


def steps_of(run: Path) -> int:
    steps: int = tomllib.loads((run / "config.toml").read_text())["train"]["steps"]
    return steps


def check_same(first: Path, second: Path) -> None:
    for name in RESULTS:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_run_with_a_budget_equals_a_run_with_its_number_of_steps(start, tmp_path):
    """Also if it was interrupted and resumed, by the same command."""
    answer = start("timed", "--time", "1h")
    assert answer.code == 0, answer.err
    assert "about 1h on cpu" in answer.err
    assert f"A budget of 1h allows {STEPS} steps (" in answer.err
    assert start("counted", "--steps", STEPS).code == 0
    check_same(tmp_path / "timed", tmp_path / "counted")

    original, stopped = Sampler.batch, tmp_path / "stopped"

    def batch(self: Sampler, step: int) -> Batch:
        if step == 4 and (stopped / "config.toml").exists():
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sampler, "batch", batch)
        assert start("stopped", "--time", "1h").code == 130
    assert steps_of(stopped) == STEPS
    answer = start("stopped", "--time", "1h", "--resume")
    assert answer.code == 0, answer.err
    assert f"keeps its {STEPS} steps, because --time applies to new runs only" in answer.err
    assert "Measuring" not in answer.err
    check_same(stopped, tmp_path / "counted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_while_measuring_leaves_nothing(start, tmp_path, monkeypatch, number):
    """Also a process that is killed leaves only its lock, which another run may ignore."""
    run = tmp_path / "run"

    def batch(self: Sampler, step: int) -> Batch:
        assert [path.name for path in run.iterdir()] == [".lock"]
        signal.raise_signal(number)
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "batch", batch)
        answer = start("run", "--time", "1h")
    assert answer.code == 128 + number
    assert answer.err.endswith(f"interrupted. {NOT_STARTED}\n")
    assert not run.exists()
    assert start("run", "--time", "1h").code == 0


def test_out_of_memory_while_measuring_gives_advice(start, tmp_path, monkeypatch):
    def batch(self: Sampler, step: int) -> Batch:
        raise MemoryError

    monkeypatch.setattr(Sampler, "batch", batch)
    check_words(start("run", "--time", "1h"), "out of memory on cpu", "Lower train.batch")
    assert not (tmp_path / "run").exists()


def test_default_is_a_budget_with_a_limit_of_steps(start, tmp_path, monkeypatch):
    """A resumed run keeps its steps without a note, and a config file can set them."""
    monkeypatch.setattr(budget, "MOST_DEFAULT_STEPS", 4)
    answer = start("run", "--method", "supervised")
    assert answer.code == 0, answer.err
    assert "up to 1h on cpu" in answer.err
    told = r"Training takes about \d+s on this CPU \(4 steps, .*\)\. --time or --steps changes"
    assert re.search(told, answer.err), answer.err
    assert steps_of(tmp_path / "run") == 4

    again = start("run", "--method", "supervised", "--resume")
    assert again.code == 0, again.err
    assert "note:" not in again.err
    assert "Measuring" not in again.err
    assert steps_of(tmp_path / "run") == 4

    (tmp_path / "my.toml").write_text("[train]\nsteps = 2\n")
    answer = start("set", "--method", "supervised", "--config", tmp_path / "my.toml")
    assert "Measuring" not in answer.err
    assert steps_of(tmp_path / "set") == 2


def test_default_depends_on_the_device(monkeypatch):
    monkeypatch.setattr(training_time, "choose_device", torch.device)
    for name, gigabytes, minutes in (("cpu", 0, 60), ("cuda", 24, 60), ("cuda", 42, 30)):
        memory = int(gigabytes * 1e9)
        monkeypatch.setattr(training_time, "total_memory", lambda device, memory=memory: memory)
        assert training_time.default_budget({"train": {"seed": 1}}, name) == Budget(
            60 * minutes, True
        )
        assert training_time.default_budget({"train": {"steps": 9}}, name) is None


def test_too_short_a_budget_says_what_is_enough(start, tmp_path, monkeypatch):
    monkeypatch.setattr(budget, "FEWEST_STEPS", 100)
    monkeypatch.setattr(budget, "MOST_STEPS", 10**9)
    monkeypatch.setattr("segpl.training_time.measure_speed", lambda *_: TrainingSpeed(10.0))
    answer = start("run", "--time", "90s")
    check_words(
        answer, r"'1m30s' allows 8 steps \(10.0 s each\)", "at least 100", "--time '19m' or more"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--time", "30"), "cannot read --time '30'"),
        (("--time", "0m"), "is zero"),
        (("--time", "1000h"), "the limit is 720h"),
        (("--time", "1h", "--steps", "9"), "cannot be combined with --steps"),
        (("--time", "1h", "--set", "train.steps=9"), "cannot be combined with --steps"),
        (("--time", "1h", "--steps", "9", "--folds", "2"), "cannot be combined with --steps"),
    ],
)
def test_unusable_budgets_are_rejected_before_any_work(segpl, tmp_path, options, words):
    answer = segpl("train", tmp_path / "missing", "--out", tmp_path / "run", *options)
    check_words(answer, words)
    assert list(tmp_path.glob("run*")) == []


def test_budget_overrides_the_steps_of_a_config_file(start, tmp_path):
    """With --resume and without a run, a new one starts."""
    (tmp_path / "my.toml").write_text("[train]\nsteps = 4\n")
    options = ("--method", "supervised", "--config", tmp_path / "my.toml", "--resume")
    assert start("run", *options, "--time", "1h").code == 0
    assert steps_of(tmp_path / "run") == STEPS


FOLDS = (*OPTIONS[:-2], "--method", "supervised", "--labeled", "2", "--folds", "2")


@pytest.mark.parametrize(
    ("options", "steps", "words"),
    [
        (("--time", "2h"), STEPS, "about 4h in total; the final run takes about 2h."),
        ((), 4, "up to 2h in total; the final run takes up to 1h."),
    ],
)
def test_all_folds_and_the_final_run_take_the_same_steps(
    segpl, shared_pictures, tmp_path, monkeypatch, options, steps, words
):
    monkeypatch.setattr(budget, "MOST_DEFAULT_STEPS", 4)
    run = tmp_path / "run"
    answer = segpl("train", shared_pictures, "--out", run, *FOLDS, *options)
    assert answer.code == 0, answer.err
    assert answer.err.count("Measuring the time of a step") == 1
    assert f"The 2 folds take {words}" in answer.err
    assert [steps_of(one) for one in (run, run / "fold-0", run / "fold-1")] == [steps] * 3
    assert not (run / "validation.csv").exists()
    assert "note:" not in answer.err


def test_a_single_fold_keeps_the_steps_of_the_others(segpl, shared_pictures, tmp_path, monkeypatch):
    run = tmp_path / "run"
    given = (shared_pictures, "--out", run, *FOLDS, "--time", "2h")
    assert segpl("train", *given, "--fold", "1").code == 0
    monkeypatch.setattr(budget, "MOST_STEPS", 9)  # another moment, another speed
    answer = segpl("train", *given, "--fold", "0")
    assert answer.code == 0, answer.err
    assert f"keeps its {STEPS} steps" in answer.err
    assert steps_of(run / "fold-0") == steps_of(run / "fold-1") == STEPS
