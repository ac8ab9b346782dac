"""Rounds of the labeling loop: each trains on more labels, from the weights of the last one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import QUICK, make_dataset
from safetensors.numpy import load_file

from segpl.data.split import Split
from segpl.engine.folder import RunFolder
from segpl.errors import InputError
from segpl.files import write_text
from segpl.labeling.browser_arrays import mask_bytes
from segpl.labeling.rounds import Rounds, gain_advice
from segpl.labeling.session import Session
from segpl.settings import read_config

FAST = ("--method", "supervised", *QUICK)


def weights_of(path: Path) -> dict[str, np.ndarray]:
    stored = load_file(RunFolder(path).last)
    return {key: value for key, value in stored.items() if "network" in key and value.ndim > 3}


def test_training_starts_from_the_weights_of_another_run(segpl, tmp_path):
    data = make_dataset(tmp_path / "data", dims=2, classes=2)
    runs = {"a": (), "b": ("--set", f"train.start={tmp_path / 'a'}"), "c": ()}
    for name, options in runs.items():
        slow = () if name == "a" else ("--set", "train.lr=1e-9", "--seed", "1")
        answer = segpl("train", data, *FAST, *slow, *options, "--out", tmp_path / name)
        assert answer.code == 0, answer.err
    a, b, c = (weights_of(tmp_path / name) for name in runs)
    assert a
    for key, value in a.items():
        np.testing.assert_allclose(b[key], value, atol=1e-6)
        assert np.abs(c[key] - value).max() > 1e-3


def test_start_that_is_no_run_is_an_error(segpl, tmp_path):
    data = make_dataset(tmp_path / "data", dims=2, classes=2)
    out = tmp_path / "a"
    answer = segpl("train", data, *FAST, "--set", f"train.start={tmp_path / 'b'}", "--out", out)
    assert answer.code == 1
    assert f"{tmp_path / 'b'} is not a segpl run" in answer.err
    assert not out.exists()


def wait(rounds: Rounds) -> None:
    assert rounds.process is not None
    rounds.process.wait(100)


@pytest.mark.slow
def test_second_round_has_the_new_labels_and_resumes_after_a_stop(tmp_path):
    data = make_dataset(tmp_path / "data", dims=2, classes=2, labeled=2)
    mine = tmp_path / "mine"
    session = Session(data, run=tmp_path / "runs" / "x", labels=mine, options=FAST)
    rounds = session.rounds
    session.train(steps=None, folds=False)
    with pytest.raises(InputError, match="already in progress"):
        session.train(steps=None, folds=False)
    wait(rounds)
    assert rounds.failure == ""
    name = next(one["name"] for one in session.queue()["scans"] if one["state"] == "unlabeled")
    scan = session.open(name)
    assert (scan.start, scan.uncertainty is not None) == ("predicted", True)
    session.save(name, mask_bytes(scan.grid, scan.indices), scan.stamp)
    states = {one["name"]: one["state"] for one in session.queue()["scans"]}
    assert states[name] == "corrected"
    before = session.predictions.ranked
    session.train(steps=4, folds=False)
    wait(rounds)
    assert rounds.failure == ""
    assert [(one.folder, one.labels) for one in rounds.summary()] == [("x", 2), ("x-2", 3)]
    assert name in Split.read(RunFolder(tmp_path / "runs" / "x-2").split).labeled
    settings = read_config(tmp_path / "runs" / "x-2" / "config.toml")
    assert settings["train"]["start"] == str(tmp_path / "runs" / "x")
    session.queue()
    assert session.predictions.ranked != before
    # a third round that is stopped is resumed, not replaced by a fourth
    session.train(steps=100000, folds=False)
    until = time.monotonic() + 60
    while not rounds.folder(3).last.parent.exists() and time.monotonic() < until:
        time.sleep(0.1)
    rounds.stop()
    assert rounds.failure == ""
    assert "--resume" in rounds.command()
    assert rounds.command()[2] == str(tmp_path / "runs" / "x-3")


def rounds_in(root: Path, labels: Path | None = None) -> Rounds:
    return Rounds(root / "runs" / "x", root / "data", labels, root / "out.txt", ["--steps", "9"])


def fake_run(path: Path, *, steps: int, taken: int, dice: list[float] | None = None) -> None:
    folder = RunFolder(path)
    write_text(folder.config, f"[train]\nsteps = {steps}\n")
    write_text(folder.log, f"step,pseudo,supervised\n1,0,0.9\n{taken},0,0.5\n{taken}")
    write_text(folder.last, "")
    names = tuple(f"case{number}" for number in range(len(dice or [0])))
    Split(names, (), (), (), ()).write(folder.split)
    if dice:
        rows = "".join(
            f"{steps},0,{name},{class_name},{value + change},0.9\n"
            for name, value in zip(names, dice, strict=True)
            for class_name, change in (("organ", -0.01), ("vessel", 0.01))
        )
        write_text(folder.folds, f"step,fold,case,class,dice,confidence\n{rows}")


def test_first_round_trains_the_dataset_with_the_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    rounds = Rounds(Path("runs", "x"), data, Path("mine"), tmp_path / "out.txt", ["--steps", "9"])
    assert rounds.command() == [
        *("train", str(data), "--out", str(tmp_path / "runs" / "x"), "--steps", "9"),
        *("--set", f"data.labels={tmp_path / 'mine'}"),
    ]
    assert rounds.curve() == []


def test_next_round_repeats_the_settings_and_starts_from_the_weights(tmp_path):
    last = tmp_path / "runs" / "x"
    fake_run(last, steps=20, taken=20)
    rounds = rounds_in(tmp_path)
    out = ["--out", str(tmp_path / "runs" / "x-2")]
    command = ["train", str(last / "config.toml"), *out]
    assert rounds.command() == [*command, "--set", f"train.start={last}"]
    # a fold must not start from weights that have seen its held-out cases
    chosen = [*command, "--folds", "3", "--steps", "5", "--set", "train.start="]
    assert rounds.command(folds=3, steps=5) == chosen
    assert rounds.curve() == [(1, 0.9), (20, 0.5)]
    assert rounds.steps == 20


def test_incomplete_round_is_resumed(tmp_path):
    fake_run(tmp_path / "runs" / "x", steps=20, taken=20)
    fake_run(tmp_path / "runs" / "x-2", steps=20, taken=10)
    rounds = rounds_in(tmp_path)
    expected = ["train", "--out", str(tmp_path / "runs" / "x-2"), "--resume"]
    assert rounds.command(steps=7) == expected
    assert rounds.stopped == "x-2"
    assert rounds.command(["case0"], folds=2) == [*expected, "--folds", "2"]
    every = (("case0",), ("case3",), ("case1",), ("case2",), ("case3",))
    Split(*every).write(RunFolder(tmp_path / "runs" / "x-2").split)
    assert rounds.command(["case0", "case1", "case2", "case3"]) == expected


def test_incomplete_round_without_the_new_labels_is_not_resumed(tmp_path):
    fake_run(tmp_path / "runs" / "x", steps=20, taken=20)
    fake_run(tmp_path / "runs" / "x-2", steps=20, taken=10)
    last = RunFolder(tmp_path / "runs" / "x-2")
    rounds = rounds_in(tmp_path)
    following = ["train", str(last.config), "--out", str(tmp_path / "runs" / "x-3")]
    start = ["--set", f"train.start={last.path}"]
    assert rounds.command(["case0", "case1"]) == [*following, *start]
    last.last.unlink()  # it has no weights yet
    start = ["--set", f"train.start={tmp_path / 'runs' / 'x'}"]
    assert rounds.command(["case0", "case1"]) == [*following, *start]
    assert "--resume" in rounds.command(["case0"])


def test_folds_do_not_start_from_weights_that_have_seen_their_cases(tmp_path):
    fake_run(tmp_path / "runs" / "x", steps=20, taken=20)
    fake_run(tmp_path / "runs" / "x-2", steps=20, taken=10)
    config = RunFolder(tmp_path / "runs" / "x-2").config
    write_text(config, f'[train]\nsteps = 20\nstart = "{tmp_path / "runs" / "x"}"\n')
    rounds = rounds_in(tmp_path)
    assert "--resume" in rounds.command()
    out = ["--out", str(tmp_path / "runs" / "x-3")]
    expected = ["train", str(config), *out, "--folds", "2", "--set", "train.start="]
    assert rounds.command(folds=2) == expected


def test_curve_is_that_of_the_fold_in_training(tmp_path, monkeypatch):
    fake_run(tmp_path / "runs" / "x", steps=20, taken=20)
    rounds = rounds_in(tmp_path)
    for number, loss in enumerate((0.8, 0.7)):
        log = tmp_path / "runs" / "x" / f"fold-{number}" / "log.csv"
        write_text(log, f"step,supervised\n1,{loss}\n")
        os.utime(log, ns=(0, 2**62 + number))
    assert rounds.curve() == [(1, 0.7)]
    assert rounds.fold is None
    monkeypatch.setattr(Rounds, "is_training", True)
    assert rounds.fold == 2


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([0.2, 0.21, 0.19, 0.2], "More labels are likely to help."),
        ([0.002, 0.003, 0.001, 0.002], "More labels are unlikely to gain 0.01 Dice."),
        ([-0.1, -0.11, -0.09, -0.1], "More labels are unlikely to gain 0.01 Dice."),
        ([0.1, -0.1, 0.05, 0.0], "This is too uncertain to say whether more labels help."),
        ([0.2], "Too few scans were cross-validated in both rounds to compare them."),
    ],
)
def test_advice_respects_the_uncertainty_of_the_gain(tmp_path, gains, verdict):
    before = [0.3, 0.8, 0.5, 0.6][: len(gains)]
    fake_run(tmp_path / "runs" / "x", steps=20, taken=20, dice=before)
    rounds = rounds_in(tmp_path)
    assert gain_advice(rounds.summary()) == ""
    # a new scan that is easy must not look like a gain
    dice = [*(one + gain for one, gain in zip(before, gains, strict=True)), 0.99]
    fake_run(tmp_path / "runs" / "x-2", steps=20, taken=20)  # without cross-validation
    fake_run(tmp_path / "runs" / "x-3", steps=20, taken=20, dice=dice)
    fake_run(tmp_path / "runs" / "x-4", steps=20, taken=20)
    RunFolder(tmp_path / "runs" / "x-4").split.write_text("being written")
    first, _, second = rounds.summary()
    assert (first.labels, second.labels) == (len(before), len(dice))
    assert first.dice == pytest.approx(np.mean(before))
    assert second.error == pytest.approx(np.std(dice, ddof=1) / len(dice) ** 0.5)
    assert gain_advice(rounds.summary()).endswith(verdict)


def test_advice_states_the_gain_with_its_interval(tmp_path):
    fake_run(tmp_path / "runs" / "x", steps=20, taken=20, dice=[0.5, 0.6])
    fake_run(tmp_path / "runs" / "x-2", steps=20, taken=20, dice=[0.6, 0.72, 0.9])
    # mean and standard error 0.11 and 0.01; Student's quantile of one degree of freedom is 12.706
    expected = (
        "1 more label changed the expected Dice of the 2 scans in both rounds by +0.110 "
        "(95 % confidence interval -0.017 to +0.237)."
    )
    assert gain_advice(rounds_in(tmp_path).summary()).startswith(expected)


def test_run_in_training_does_not_predict(tmp_path, monkeypatch):
    """Scans that are opened meanwhile get masks of the last complete round."""
    fake_run(tmp_path / "runs" / "x", steps=20, taken=20)
    fake_run(tmp_path / "runs" / "x-2", steps=20, taken=10)
    rounds = rounds_in(tmp_path)
    real = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda _, **options: real(["sleep", "60"], **options))
    rounds.start()
    assert rounds.process is not None
    assert os.getpgid(rounds.process.pid) != os.getpgid(0)  # Ctrl-C is for the server
    with pytest.raises(InputError, match="already in progress"):
        rounds.start()
    assert [one.path.name for one in rounds.trained] == ["x"]
    rounds.stop()
    assert [one.path.name for one in rounds.trained] == ["x", "x-2"]


@pytest.mark.slow
def test_failed_training_shows_the_end_of_its_output(tmp_path):
    rounds = rounds_in(tmp_path)
    rounds.start()
    wait(rounds)
    assert not rounds.is_training
    assert rounds.failure.startswith(f"error: {tmp_path / 'data'} does not exist")


def test_stopping_is_not_a_failure(tmp_path):
    rounds = rounds_in(tmp_path)
    rounds.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert rounds.is_training
    rounds.stop()
    assert not rounds.is_training
    assert rounds.process.returncode == -signal.SIGTERM
    assert rounds.failure == ""


@pytest.mark.parametrize(("code", "is_failure"), [(0, False), (1, True), (143, False), (-9, True)])
def test_failure_is_the_end_of_the_output(tmp_path, code, is_failure):
    rounds = rounds_in(tmp_path)
    write_text(rounds.output, "".join(f"line {number}.\n" for number in range(100)))
    rounds.process = subprocess.Popen(["true"])
    rounds.process.wait()
    rounds.process.returncode = code
    assert ("line 99." in rounds.failure) is is_failure
    assert "line 50." not in rounds.failure


def test_failure_starts_with_the_error(tmp_path):
    rounds = rounds_in(tmp_path)
    rounds.process = subprocess.Popen(["false"])
    rounds.process.wait()
    write_text(rounds.output, "step 1\nstep 2\nerror: no memory.\nUse a smaller batch.\n")
    expected = "error: no memory.\nUse a smaller batch.\n\nOutput before the error:\nstep 1\nstep 2"
    assert rounds.failure == expected
    write_text(rounds.output, "Traceback\nRuntimeError: out of memory\n")
    assert rounds.failure.startswith("RuntimeError: out of memory\n")
    write_text(rounds.output, "error: no memory.\n")
    assert rounds.failure == "error: no memory."


def test_round_whose_log_has_no_step_yet_is_resumed(tmp_path):
    fake_run(tmp_path / "runs" / "x", steps=20, taken=20)
    write_text(RunFolder(tmp_path / "runs" / "x").log, "step,supervised\n")
    assert "--resume" in rounds_in(tmp_path).command()


def test_round_without_weights_is_resumed_and_long_curves_are_thinned(tmp_path):
    folder = RunFolder(tmp_path / "runs" / "x")
    fake_run(folder.path, steps=900, taken=900)
    write_text(folder.log, "step,supervised\n" + "".join(f"{n},0.5\n" for n in range(1, 901)))
    rounds = rounds_in(tmp_path)
    assert 200 <= len(rounds.curve()) <= 400
    assert rounds.curve()[-1][0] == 900
    assert rounds.stopped == ""
    assert "--resume" not in rounds.command()
    folder.last.unlink()
    assert "--resume" in rounds.command()


def test_no_advice_without_more_labels(tmp_path):
    for name in ("x", "x-2"):
        fake_run(tmp_path / "runs" / name, steps=20, taken=20, dice=[0.5, 0.6])
    assert gain_advice(rounds_in(tmp_path).summary()) == ""
