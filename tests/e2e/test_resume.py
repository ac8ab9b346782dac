"""A run that was killed or stopped goes on as if nothing had happened."""

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
from conftest import ANY, SHORT, make_dataset
from killed import MOMENTS

from segpl.engine.checkpoint import read_checkpoint
from segpl.engine.folder import RunFolder

KILLED = Path(__file__).with_name("killed.py")
WATCHED = (*SHORT, "--steps", "8", "--validation", "1")
RESULTS = (
    *("log.csv", "validation.csv"),
    *("checkpoints/last.safetensors", "checkpoints/best.safetensors"),
)
NAMES = [moment.__name__ for moment in MOMENTS]


def last_of(run: Path) -> Path:
    return run / "checkpoints" / "last.safetensors"


@pytest.fixture(scope="module")
def victims(tmp_path_factory) -> Path:
    """Trainings killed at every moment, and a `whole` one."""
    root = tmp_path_factory.mktemp("killed")
    data = make_dataset(root / "data", dims=2)
    environment = os.environ | {"SEGPL_CACHE": str(root / "cache")}
    done = subprocess.run(
        [sys.executable, str(KILLED), str(root), str(data), *WATCHED],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == [word for name in NAMES for word in (name, "-9")], done.stderr
    return root


@pytest.fixture(scope="module")
def whole(victims) -> Path:
    from segpl.cli.main import main

    arguments = ["train", str(victims / "data"), "--out", str(victims / "whole"), *WATCHED]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEGPL_CACHE", str(victims / "cache"))
        assert main(arguments) == 0
    return victims / "whole"


@pytest.mark.parametrize("moment", NAMES)
def test_a_run_killed_at_any_moment_goes_on_to_the_same_curve(
    segpl, victims, whole, tmp_path, moment
):
    run = tmp_path / "run"
    shutil.copytree(victims / moment, run)
    answer = segpl("train", victims / "data", "--out", run, *WATCHED, "--resume")
    assert answer.code == 0, answer.err
    for name in RESULTS:
        assert (run / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.parametrize("moment", NAMES)
def test_a_kill_at_any_moment_leaves_no_unreadable_checkpoint(victims, moment):
    for path in (victims / moment / "checkpoints").glob("[!.]*"):
        assert read_checkpoint(path).step > 0


def test_the_moments_lie_before_between_and_after_checkpoints(victims):
    """Otherwise the test above would ask one question ten times."""
    found = {read_checkpoint(p).step if (p := last_of(victims / n)).exists() else 0 for n in NAMES}
    assert found == {0, 4}


def test_a_checkpoint_can_be_read_at_every_moment_and_sigkill_does_no_harm(segpl, train, tmp_path):
    data = make_dataset(tmp_path / "data", dims=2)
    every = ("--set", "train.log_every=1", "--set", "train.checkpoint_every=1", "--steps", "60")
    arguments = [str(data), *SHORT, *every]
    train(*arguments, "--out", tmp_path / "whole")
    run = tmp_path / "run"
    command = [sys.executable, "-m", "segpl", "train", *arguments, "--out", str(run)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(last_of(run), process)
        seen: set[int] = set()
        while len(seen) < 5 and process.poll() is None:
            seen.add(read_checkpoint(last_of(run)).step)
    finally:
        process.kill()
    assert process.wait() == -signal.SIGKILL
    step = read_checkpoint(last_of(run)).step
    assert 5 <= step < 60
    assert segpl("train", *arguments, "--out", run, "--resume").code == 0
    assert (run / "log.csv").read_bytes() == (tmp_path / "whole" / "log.csv").read_bytes()


def wait_for(path: Path, process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 180
    while not path.exists():
        assert process.poll() is None, "the training ended too early"
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.005)


def test_control_c_says_how_to_go_on(volumes, tmp_path):
    run = tmp_path / "run"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "segpl", "train", str(volumes), *SHORT),
            *("--steps", "100000", "--out", str(run)),
        ],
        stderr=subprocess.PIPE,
        text=True,
        # a shell's background jobs are started deaf to it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for(last_of(run), process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in err
    assert re.search(r"The checkpoint of step \d+ is kept\.", err)
    assert err.endswith("interrupted. Add --resume to the same command to resume.\n")


class TestResume:
    @pytest.fixture
    def run(self, train, volumes, tmp_path) -> Path:
        train(volumes, *ANY, "--validation", 1, "--out", tmp_path / "run")
        return tmp_path / "run"

    def test_of_a_finished_run_does_nothing(self, segpl, run):
        before = {name: (run / name).read_bytes() for name in RESULTS}
        assert segpl("train", "--out", run, "--resume").code == 0
        assert {name: (run / name).read_bytes() for name in RESULTS} == before

    def test_with_more_steps_goes_on(self, segpl, run):
        lines = (run / "log.csv").read_text().splitlines()
        assert segpl("train", "--out", run, "--resume", "--steps", 10).code == 0
        longer = (run / "log.csv").read_text().splitlines()
        assert longer[: len(lines)] == lines
        assert [line.split(",")[0] for line in longer[1:]] == ["2", "4", "6", "8", "10"]
        assert read_checkpoint(last_of(run)).step == 10

    def test_with_fewer_steps_is_refused(self, segpl, run):
        answer = segpl("train", "--out", run, "--resume", "--steps", 4)
        assert answer.code == 1
        assert "has already been trained for 6 steps, more than the 4 requested" in answer.err

    @pytest.mark.parametrize(
        ("option", "words"),
        [
            (("--set", "method.alpha=0.875"), r"method.alpha \(.* -> 0.875\)"),
            (("--labeled", "1"), r"split.labeled \(0 -> 1\)"),
            (("--seed", "3"), r"train.seed \(0 -> 3\)"),
            (("--method", "segpl-vi"), "was trained with method 'segpl', not 'segpl-vi'"),
            (("--set", "train.lr=0.5"), r"train.lr \(0.01 -> 0.5\)"),
            (("--set", "train.lrr=3"), "no setting 'train.lrr'. Did you mean 'lr'"),
        ],
    )
    def test_with_other_settings_is_refused_by_name(self, segpl, run, option, words):
        config = (run / "config.toml").read_bytes()
        answer = segpl("train", "--out", run, "--resume", *option)
        assert answer.code == 1
        assert re.search(words, answer.err)
        assert (run / "config.toml").read_bytes() == config

    def test_with_the_rate_of_the_plan_goes_on_where_that_was_the_rate(self, segpl, run):
        """The run has written down what 0 stood for."""
        again = ("train", "--out", run, "--resume", "--steps", 8, "--set", "train.lr=0")
        assert segpl(*again).code == 0
        config = run / "config.toml"
        config.write_text(config.read_text().replace("\nlr = 0.01\n", "\nlr = 0.5\n"))
        answer = segpl(*again)
        assert answer.code == 1
        assert "train.lr (0.5 -> 0.01)" in answer.err

    def test_with_other_data_is_refused(self, segpl, run, tmp_path):
        other = make_dataset(tmp_path / "other")
        answer = segpl("train", other, "--out", run, "--resume")
        assert answer.code == 1
        assert "was trained with other settings: data.path" in answer.err

    def test_passes_over_half_written_files(self, segpl, run):
        for folder in (run, run / "checkpoints"):
            (folder / ".123.draft.last.safetensors").write_bytes(b"half a")
        (run / ".123.draft.config.toml").write_text("[tra")
        assert segpl("train", "--out", run, "--resume", "--steps", 8).code == 0
        assert segpl("predict", run, "--out", run / "predictions").code == 0

    @pytest.mark.parametrize("group", ["labeled", "unlabeled", "validation"])
    def test_names_a_case_that_is_gone(self, segpl, run, volumes, group):
        name = json.loads((run / "split.json").read_text())[group][0]
        for path in volumes.glob(f"*/*/{name}.nii.gz"):
            path.unlink()
        answer = segpl("train", "--out", run, "--resume", "--steps", 8)
        assert answer.code == 1
        assert f"'{name}'" in answer.err
        assert "no longer in" in answer.err

    def test_where_nothing_is_starts_a_run(self, segpl, volumes, tmp_path):
        answer = segpl("train", volumes, "--out", tmp_path / "new", *SHORT, "--resume")
        assert answer.code == 0, answer.err
        assert read_checkpoint(last_of(tmp_path / "new")).step == 6


def test_a_second_process_may_not_train_in_the_same_folder(train, segpl, volumes, tmp_path):
    train(volumes, *ANY, "--out", tmp_path / "run")
    with RunFolder(tmp_path / "run").locked():
        answer = segpl("train", volumes, "--out", tmp_path / "run", "--resume")
        settings = (tmp_path / "run" / "config.toml").read_bytes()
        longer = segpl("train", "--out", tmp_path / "run", "--resume", "--steps", 99)
        assert (tmp_path / "run" / "config.toml").read_bytes() == settings
    assert answer.code == longer.code == 1
    assert "another process is training in" in answer.err
