"""A killed or interrupted run resumes as if nothing had happened."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import QUICK, SHORT, make_dataset
from killed import MOMENTS

from segpl.cli.main import main
from segpl.data import sampler
from segpl.data.sampler import Sampler, StepCrops
from segpl.engine import interrupt
from segpl.engine.checkpoint import read_checkpoint
from segpl.engine.folder import RunFolder
from segpl.types import Batch

KILLED = Path(__file__).with_name("killed.py")
OPTIONS = (*SHORT, "--steps", "8", "--validation", "1")
RESULTS = (
    *("log.csv", "validation.csv"),
    *("checkpoints/last.safetensors", "checkpoints/best.safetensors"),
)
NAMES = [moment.__name__ for moment in MOMENTS]
SHARPEST = ["half_a_log_line", "half_a_checkpoint"]


def last_of(run: Path) -> Path:
    return run / "checkpoints" / "last.safetensors"


def kill_runs(root: Path, moments: list[str]) -> None:
    environment = os.environ | {"SEGPL_CACHE": str(root / "cache")}
    done = subprocess.run(
        [sys.executable, str(KILLED), str(root), ",".join(moments), str(root / "data"), *OPTIONS],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [word for name in moments for word in (name, "-9")], done.stderr


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A dataset, and the uninterrupted run `whole`."""
    root = tmp_path_factory.mktemp("killed")
    data = make_dataset(root / "data", dims=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEGPL_CACHE", str(root / "cache"))
        assert main(["train", str(data), "--out", str(root / "whole"), *OPTIONS]) == 0
    return root


def check_resumes(segpl, root: Path, moment: str) -> None:
    """Every checkpoint left behind is readable, and resuming repeats the uninterrupted run."""
    for path in (root / moment / "checkpoints").glob("[!.]*"):
        assert read_checkpoint(path).step > 0
    answer = segpl("train", root / "data", "--out", root / moment, *OPTIONS, "--resume")
    assert answer.code == 0, answer.err
    for name in RESULTS:
        assert (root / moment / name).read_bytes() == (root / "whole" / name).read_bytes(), name


@pytest.mark.slow
def test_killed_run_resumes_to_the_same_bytes(segpl, root):
    kill_runs(root, SHARPEST)
    steps = [read_checkpoint(p).step if (p := last_of(root / n)).exists() else 0 for n in SHARPEST]
    assert steps == [4, 4]
    for moment in SHARPEST:
        check_resumes(segpl, root, moment)


@pytest.mark.slow
def test_run_killed_at_any_moment_resumes_to_the_same_bytes(segpl, root):
    others = [name for name in NAMES if name not in SHARPEST]
    kill_runs(root, others)
    for moment in others:
        check_resumes(segpl, root, moment)


@pytest.mark.parametrize(
    ("last", "number", "share"),
    [(1, signal.SIGINT, 0.0), (5, signal.SIGTERM, sampler.RESIDENT_SHARE)],
    ids=["crops from disk", "resident volumes"],
)
def test_run_stopped_by_a_signal_resumes_to_the_same_bytes(
    segpl, root, monkeypatch, last, number, share
):
    """Log lines are written at even steps: the means of an odd one are in the checkpoint."""
    original, name = Sampler.batch, f"stopped-{last}"
    monkeypatch.setattr(sampler, "RESIDENT_SHARE", share)

    def batch(self: Sampler, step: int, *crops: StepCrops) -> Batch:
        assert bool(crops) == (share == 0)
        if step == last - 1:
            os.kill(os.getpid(), number)
        return original(self, step, *crops)

    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "batch", batch)
        answer = segpl("train", root / "data", "--out", root / name, *OPTIONS)
    assert answer.code == 128 + number
    assert read_checkpoint(last_of(root / name)).step == last
    check_resumes(segpl, root, name)


def test_a_run_saves_its_step_before_its_slurm_job_is_requeued(segpl, root, monkeypatch):
    original, name = Sampler.batch, "requeued"

    def batch(self: Sampler, step: int, *crops: StepCrops) -> Batch:
        if step == 2:
            os.kill(os.getpid(), signal.SIGUSR2)
        return original(self, step, *crops)

    def requeue(*_: object) -> None:
        """As the handler of submitit does."""
        raise SystemExit(read_checkpoint(last_of(root / name)).step)

    before = signal.signal(signal.SIGUSR2, requeue)
    try:
        with monkeypatch.context() as patch:
            patch.setenv("SUBMITIT_EXECUTOR", "slurm")
            patch.setattr(Sampler, "batch", batch)
            answer = segpl("train", root / "data", "--out", root / name, *OPTIONS)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert answer.code == 3
    check_resumes(segpl, root, name)


def test_a_step_that_takes_too_long_does_not_prevent_requeueing(monkeypatch):
    monkeypatch.setenv("SUBMITIT_EXECUTOR", "slurm")
    monkeypatch.setattr(interrupt, "REQUEUE_SECONDS", 0.1)
    received = list[int]()
    before = signal.signal(signal.SIGUSR2, lambda number, _: received.append(number))
    try:
        with interrupt.StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGUSR2)
            end = time.monotonic() + 60
            while not received and time.monotonic() < end:
                time.sleep(0.01)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert stop.number == signal.SIGUSR2
    assert received == [signal.SIGUSR2]


def test_an_ignored_signal_stays_ignored():
    """A shell starts background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupt.StopSignal() as stop:
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
    assert stop.number == 0


def test_a_run_in_bfloat16_resumes_exactly_and_predicts(
    segpl, shared_pictures, monkeypatch, tmp_path
):
    """As on a CPU with AMX."""
    original = Sampler.batch

    def batch(self: Sampler, step: int, *crops: StepCrops) -> Batch:
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, step, *crops)

    command = ("train", shared_pictures, "--method", "supervised", *QUICK, "--steps", 3)
    assert segpl(*command, "--out", tmp_path / "float32").code == 0
    monkeypatch.setattr("segpl.engine.device.has_amx", lambda: True)
    assert segpl(*command, "--out", tmp_path / "whole").code == 0
    with monkeypatch.context() as patch:
        patch.setattr(Sampler, "batch", batch)
        assert segpl(*command, "--out", tmp_path / "parts").code == 130
    assert read_checkpoint(last_of(tmp_path / "parts")).step == 2
    assert segpl(*command, "--out", tmp_path / "parts", "--resume").code == 0
    whole, parts, single = (
        [(tmp_path / run / name).read_bytes() for name in ("log.csv", RESULTS[2])]
        for run in ("whole", "parts", "float32")
    )
    assert whole == parts
    assert whole[0] != single[0]
    assert segpl("predict", tmp_path / "whole", "--out", tmp_path / "masks").code == 0


def test_second_control_c_stops_at_once(segpl, root, monkeypatch, tmp_path):
    def batch(self: Sampler, step: int) -> Batch:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the step went on")

    monkeypatch.setattr(Sampler, "batch", batch)
    answer = segpl("train", root / "data", "--out", tmp_path / "run", *OPTIONS)
    assert answer.code == 130
    assert "No checkpoint was written yet" in answer.err


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 300
    while not path.exists():
        assert process.poll() is None, "the run ended too early"
        assert time.monotonic() < deadline, f"{path} was never written"
        time.sleep(0.01)


def test_control_c_saves_the_current_step_and_says_how_to_resume(shared_pictures, tmp_path):
    run = tmp_path / "run"
    # the only checkpoint before the millionth step is the one of the signal
    rare = ("--set", "train.checkpoint_every=1000000", "--set", "train.validate_every=1000000")
    options = ("--method", "supervised", *SHORT, "--steps", "1000000", *rare, "--out", str(run))
    process = subprocess.Popen(
        [sys.executable, "-m", "segpl", "train", str(shared_pictures), *options],
        stderr=subprocess.PIPE,
        text=True,
        # a shell starts background jobs with SIGINT ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for(run / "log.csv", process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    (stopped, saved) = re.findall(r"stopped at step (\d+)\. The checkpoint of step (\d+)", err)[0]
    assert stopped == saved == str(read_checkpoint(last_of(run)).step)
    assert err.endswith("interrupted. To continue, run the same command with --resume.\n")


class TestResume:
    def test_finished_run_stays_unchanged(self, segpl, finished):
        before = {name: (finished / name).read_bytes() for name in RESULTS}
        assert segpl("train", "--out", finished, "--resume").code == 0
        assert {name: (finished / name).read_bytes() for name in RESULTS} == before

    def test_more_steps_extend_the_run(self, segpl, finished):
        """Leftovers of a killed process do no harm."""
        for folder in (finished, finished / "checkpoints"):
            (folder / ".01234567.draft.0123456789abcdef.safetensors").write_bytes(b"half a")
        (finished / ".01234567.draft.0123456789abcdef.toml").write_text("[tra")
        lines = (finished / "log.csv").read_text().splitlines()
        assert segpl("train", "--out", finished, "--resume", "--steps", 10).code == 0
        longer = (finished / "log.csv").read_text().splitlines()
        assert longer[: len(lines)] == lines
        assert [line.split(",")[0] for line in longer[1:]] == ["2", "4", "6", "8", "10"]
        assert read_checkpoint(last_of(finished)).step == 10
        assert segpl("predict", finished, "--out", finished / "predictions").code == 0

    @pytest.mark.parametrize(
        ("option", "words"),
        [
            (("--steps", "4"), "has already been trained for 6 steps, more than the 4 requested"),
            (("--set", "method.alpha=0.875"), r"method.alpha \(.* -> 0.875\)"),
            (("--method", "segpl-vi"), "was trained with method 'segpl', not 'segpl-vi'"),
            (("--set", "train.lr=0.5"), r"train.lr \(0.01 -> 0.5\)"),
            (("--set", "data.path=/elsewhere"), "was trained with other settings: data.path"),
        ],
    )
    def test_other_settings_are_rejected_by_name(self, segpl, finished, option, words):
        config = (finished / "config.toml").read_bytes()
        answer = segpl("train", "--out", finished, "--resume", *option)
        assert answer.code == 1
        assert re.search(words, answer.err)
        assert (finished / "config.toml").read_bytes() == config

    def test_lr_0_means_the_planned_rate(self, segpl, finished):
        """The saved config states the rate that 0 stood for."""
        again = ("train", "--out", finished, "--resume", "--steps", 8, "--set", "train.lr=0")
        assert segpl(*again).code == 0
        config = finished / "config.toml"
        config.write_text(config.read_text().replace("\nlr = 0.01\n", "\nlr = 0.5\n"))
        answer = segpl(*again)
        assert answer.code == 1
        assert "train.lr (0.5 -> 0.01)" in answer.err

    @pytest.mark.parametrize("group", ["labeled", "unlabeled", "validation"])
    def test_missing_case_is_named(self, segpl, finished, tmp_path, group):
        name = json.loads((finished / "split.json").read_text())[group][0]
        for path in (tmp_path / "data").glob(f"*/*/{name}.png"):
            path.unlink()
        answer = segpl("train", "--out", finished, "--resume", "--steps", 8)
        assert answer.code == 1
        assert f"'{name}'" in answer.err
        assert "no longer" in answer.err

    def test_missing_label_leaves_the_settings_unchanged(self, segpl, finished, tmp_path):
        name = json.loads((finished / "split.json").read_text())["labeled"][0]
        (tmp_path / "data" / "labeled" / "lbls" / f"{name}.png").unlink()
        config = (finished / "config.toml").read_bytes()
        answer = segpl("train", "--out", finished, "--resume", "--steps", 8)
        assert answer.code == 1
        assert f"case {name}: its label is missing" in answer.err
        assert (finished / "config.toml").read_bytes() == config

    def test_without_a_run_a_new_one_starts(self, train, shared_pictures, tmp_path):
        train(shared_pictures, "--method", "segpl", "--out", tmp_path / "new", "--resume")
        assert read_checkpoint(last_of(tmp_path / "new")).step == 6

    def test_second_process_cannot_train_in_the_same_folder(self, segpl, finished):
        config = (finished / "config.toml").read_bytes()
        with RunFolder(finished).locked():
            answer = segpl("train", "--out", finished, "--resume", "--steps", 99)
        assert answer.code == 1
        assert "another process is training in" in answer.err
        assert (finished / "config.toml").read_bytes() == config


def test_resume_works_after_the_run_was_copied(segpl, finished, tmp_path):
    shutil.copytree(finished, tmp_path / "copy")
    taken = read_checkpoint(last_of(finished)).step
    answer = segpl("train", "--out", tmp_path / "copy", "--resume", "--steps", 8)
    assert answer.code == 0, answer.err
    assert f"Resuming after step {taken} of 8." in answer.err
