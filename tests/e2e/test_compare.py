"""Methods are compared on the same cases, and nothing but the method differs."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import SHORT, make_dataset

from segpl.experiments import phantom_data
from segpl.methods.segpl import SegPL

BASIC = (*SHORT, "--methods", "segpl")


def rows_of(out: Path) -> list[dict[str, str]]:
    with (out / "comparison.csv").open(newline="") as handle:
        return list(csv.DictReader(handle))


def split_of(out: Path, run: str) -> dict[str, list[str]]:
    return json.loads((out / "runs" / run / "split.json").read_text())


@pytest.fixture
def many(tmp_path) -> Path:
    return make_dataset(tmp_path / "many", labeled=8, unlabeled=0, test=0)


def test_every_method_is_trained_with_every_seed_and_scored(segpl, many, tmp_path):
    out = tmp_path / "out"
    options = ("--labeled", 3, "--test", 2, "--seeds", 0, 1)
    answer = segpl("compare", many, *BASIC, *options, "--out", out)
    assert answer.code == 0, answer.err
    rows = rows_of(out)
    assert [(row["method"], row["seed"]) for row in rows] == [
        ("supervised", "0"),
        ("segpl", "0"),
        ("supervised", "1"),
        ("segpl", "1"),
    ]
    assert all(0 <= float(row["dice"]) <= 1 and float(row["seconds"]) > 0 for row in rows)
    assert "segpl" in answer.out
    assert (out / "comparison.md").read_text().count("| segpl |") == 1
    for text in (answer.out, (out / "comparison.md").read_text()):
        assert text.count("segpl against supervised: ") == 1
        assert "only 2 seeds" in text

    # one split for a seed, other labels and the same test cases for another
    splits = [split_of(out, run) for run in ("supervised-0", "segpl-0", "segpl-1")]
    assert splits[0]["labeled"] == splits[1]["labeled"] != splits[2]["labeled"]
    assert splits[0]["test"] == splits[1]["test"] == splits[2]["test"]
    plans = [(out / "runs" / f"{name}-0/plan.json").read_text() for name in ("supervised", "segpl")]
    assert plans[0] == plans[1]


def test_what_is_there_is_kept_when_a_comparison_is_repeated(segpl, volumes, tmp_path):
    out = tmp_path / "out"
    options = (*BASIC, "--seeds", 0, "--out", out)
    assert segpl("compare", volumes, *options).code == 0
    before = (out / "runs/segpl-0/checkpoints/last.safetensors").stat().st_mtime_ns
    (out / "runs/supervised-0/scores.csv").unlink()  # as if it had been interrupted there
    assert segpl("compare", volumes, *options).code == 0
    assert (out / "runs/segpl-0/checkpoints/last.safetensors").stat().st_mtime_ns == before
    assert len(rows_of(out)) == 2


def test_an_interrupted_comparison_goes_on_by_the_same_command_as_it_says(
    segpl, volumes, tmp_path, monkeypatch
):
    def interrupted(self: SegPL, batch: object, progress: float) -> None:
        raise KeyboardInterrupt

    options = ("compare", volumes, *BASIC, "--seeds", 0, "--out", tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(SegPL, "step", interrupted)
        answer = segpl(*options)
    assert answer.code == 130
    assert "stopped at step 0. No checkpoint was written yet." in answer.err
    assert "interrupted. The same command resumes where it stopped." in answer.err
    assert "--resume" not in answer.err
    assert [row["method"] for row in rows_of(tmp_path / "out")] == ["supervised"]  # it had ended
    assert segpl(*options).code == 0
    assert [row["method"] for row in rows_of(tmp_path / "out")] == ["supervised", "segpl"]


def test_other_settings_in_the_same_folder_are_refused(segpl, volumes, tmp_path):
    options = (*BASIC, "--seeds", 0, "--out", tmp_path / "out")
    assert segpl("compare", volumes, *options).code == 0
    answer = segpl("compare", volumes, *options, "--set", "train.lr=0.5")
    assert answer.code == 1
    assert "was trained with other settings: train.lr (0.01 -> 0.5)" in answer.err
    config = tmp_path / "out/runs/segpl-0/config.toml"
    config.write_text(config.read_text().replace("\nlr = 0.01\n", "\nlr = 0.5\n"))
    answer = segpl("compare", volumes, *options)
    assert answer.code == 1
    assert "was trained with other settings: train.lr (0.5 -> 0.01)" in answer.err


def test_a_training_that_fails_hides_no_other(segpl, volumes, tmp_path, monkeypatch):
    from segpl.errors import DivergedError

    def step(self, batch, progress):
        raise DivergedError("step 1: term 'pseudo' is nan.")

    monkeypatch.setattr(SegPL, "step", step)
    out = tmp_path / "out"
    answer = segpl("compare", volumes, *BASIC, "--seeds", 0, "--out", out)
    assert answer.code == 1
    assert "segpl (1 failed)" in answer.out
    assert "term 'pseudo' is nan" in answer.out
    assert float(rows_of(out)[0]["dice"]) >= 0


def test_a_config_gives_single_methods_their_settings(segpl, volumes, tmp_path):
    config = tmp_path / "compare.toml"
    config.write_text(
        '[compare]\nmethods = ["segpl"]\nseeds = [3]\n[train]\nlr = 0.004\n'
        "[methods.segpl]\nalpha = 0.7\n"
    )
    out = tmp_path / "out"
    answer = segpl("compare", volumes, *SHORT, "--config", config, "--out", out)
    assert answer.code == 0, answer.err
    saved = (out / "runs/segpl-3/config.toml").read_text()
    assert "alpha = 0.7" in saved
    assert "lr = 0.004" in saved


def test_settings_of_one_method_may_be_of_its_network_too(segpl, volumes, tmp_path):
    out = tmp_path / "out"
    special = ("--set", "methods.segpl.alpha=0.7", "--set", "methods.segpl.network.dropout=0.3")
    answer = segpl("compare", volumes, *BASIC, *special, "--seeds", 0, "--out", out)
    assert answer.code == 0, answer.err
    ours, theirs = (
        (out / f"runs/{name}-0/config.toml").read_text() for name in ("segpl", "supervised")
    )
    assert "dropout = 0.3" in ours
    assert "alpha = 0.7" in ours
    assert "dropout = 0.0" in theirs


def test_supervised_training_gets_no_more_labels_than_the_others(segpl, tmp_path):
    """Alone it would take all labels of a benchmark, and the comparison would be no comparison."""
    data = make_dataset(tmp_path / "data", labeled=12, unlabeled=0, test=0)
    out = tmp_path / "out"
    answer = segpl("compare", data, *BASIC, "--seeds", 0, "--out", out)
    assert answer.code == 0, answer.err
    splits = [split_of(out, run) for run in ("supervised-0", "segpl-0")]
    assert splits[0]["labeled"] == splits[1]["labeled"]
    assert len(splits[0]["labeled"]) < 10


def test_supervised_training_alone_has_all_labels_where_they_are_asked_for(segpl, tmp_path):
    data = make_dataset(tmp_path / "data", labeled=12, unlabeled=0, test=0)
    options = (*SHORT, "--methods", "supervised", "--seeds", 0, "--test", 2)
    for name, asked in (("few", ()), ("all", ("--labeled", 0))):
        answer = segpl("compare", data, *options, *asked, "--out", tmp_path / name)
        assert answer.code == 0, answer.err
    counts = [len(split_of(tmp_path / name, "supervised-0")["labeled"]) for name in ("few", "all")]
    assert counts == [2, 10]


def test_a_variant_with_fewer_unlabeled_cases_goes_on(segpl, many, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('[methods.few]\nmethod = "segpl"\nsplit = { unlabeled = 1 }\n')
    options = ("--config", config, "--methods", "few", *SHORT, "--seeds", 0, "--labeled", 3)
    for _ in range(2):
        answer = segpl("compare", many, *options, "--test", 2, "--out", tmp_path / "out")
        assert answer.code == 0, answer.err
    sizes = [
        len(split_of(tmp_path / "out", f"{name}-0")["unlabeled"]) for name in ("few", "supervised")
    ]
    assert sizes == [1, 3]


def test_a_variant_with_test_cases_of_its_own_is_refused(segpl, many, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('[methods.other]\nmethod = "segpl"\nsplit = { test = 3 }\n')
    options = ("--config", config, "--methods", "other", *SHORT, "--seeds", 0, "--labeled", 3)
    answer = segpl("compare", many, *options, "--test", 2, "--out", tmp_path / "out")
    assert answer.code == 1
    assert "[methods.other] has other test cases than the rest" in answer.err
    assert not (tmp_path / "out/runs").exists()


def test_another_plan_in_the_same_folder_is_refused(segpl, volumes, tmp_path):
    plans = [tmp_path / "a.json", tmp_path / "b.json"]
    for plan in plans:
        assert segpl("plan", volumes, "--out", plan).code == 0
    content = json.loads(plans[1].read_text())
    plans[1].write_text(json.dumps({**content, "width": content["width"] + 1}))
    options = (*BASIC, "--seeds", 0, "--out", tmp_path / "out")
    assert segpl("compare", volumes, *options, "--set", f"data.plan={plans[0]}").code == 0
    answer = segpl("compare", volumes, *options, "--set", f"data.plan={plans[1]}")
    assert answer.code == 1
    assert "was begun with another plan" in answer.err


def test_a_named_plan_with_a_batch_of_the_settings_goes_on(segpl, volumes, tmp_path):
    plan = tmp_path / "plan.json"
    assert segpl("plan", volumes, "--out", plan).code == 0
    batch = json.loads(plan.read_text())["batch"] + 1
    settings = ("--set", f"data.plan={plan}", "--set", f"train.batch={batch}")
    for _ in range(2):
        answer = segpl(
            "compare", volumes, *BASIC, "--seeds", 0, "--out", tmp_path / "out", *settings
        )
        assert answer.code == 0, answer.err


def test_an_error_of_the_program_hides_no_other_training_and_is_kept(
    segpl, volumes, tmp_path, monkeypatch
):
    def step(self, batch, progress):
        raise RuntimeError("CUDNN_STATUS_BAD")

    monkeypatch.setattr(SegPL, "step", step)
    out = tmp_path / "out"
    answer = segpl("compare", volumes, *BASIC, "--seeds", 0, "--out", out)
    assert answer.code == 1
    assert "CUDNN_STATUS_BAD" in answer.out
    assert "Traceback" in (out / "runs/segpl-0/error.txt").read_text()


def test_two_trainings_at_once_give_what_one_after_the_other_gives(segpl, volumes, tmp_path):
    outs = [tmp_path / "one", tmp_path / "two"]
    for jobs, out in enumerate(outs, 1):
        options = ("--seeds", 0, "--jobs", jobs, "--out", out)
        assert segpl("compare", volumes, *BASIC, *options).code == 0
    first, second = (
        [(row["method"], row["dice"], row["iou"]) for row in rows_of(out)] for out in outs
    )
    assert first == second


def test_generated_scans_need_no_data(segpl, tmp_path, monkeypatch):
    from functools import partial

    from segpl.data.phantom import PhantomSettings, write_phantom_dataset

    small = partial(write_phantom_dataset, settings=PhantomSettings(shape=(32, 32, 32)))
    monkeypatch.setattr(phantom_data, "write_phantom_dataset", small)
    monkeypatch.setattr(phantom_data, "UNLABELED", 2)
    monkeypatch.setattr(phantom_data, "TEST", 1)
    monkeypatch.setattr(phantom_data, "PATCH", 16)
    out = tmp_path / "out"
    answer = segpl("compare", "--phantom", *BASIC, "--seeds", 5, "--out", out)
    assert answer.code == 0, answer.err
    assert len(rows_of(out)) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "name one dataset, or give --phantom"),
        (("DATA", "--phantom"), "name one dataset, or give --phantom"),
        (("DATA", "--methods", "fixmach"), "no method named 'fixmach'"),
        (("DATA", "--seeds", 1, 1), "give one seed or more, each once"),
        (("DATA", "--jobs", 0), "at least one training has to run"),
        (("DATA", "--config", "absent.toml"), "config absent.toml does not exist"),
        (("DATA", "--set", "train.stepz=4"), "no setting 'train.stepz'"),
        (("DATA", "--set", "method.alpha=1"), "write --set methods.NAME.KEY=VALUE"),
        (("DATA", "--set", "methods.segpl.alfa=1"), "no setting 'method.alfa'"),
        (("DATA", "--set", "methods.sgpl.alpha=1"), "no method named 'sgpl'"),
        (("DATA", "--set", "compare.seeds=3"), "a list of whole numbers is needed"),
        (("DATA", "--set", "compare.seed=3"), "no setting 'compare.seed'"),
        (("DATA", "--set", "train.seed=9"), "Give --seeds instead"),
        (("DATA", "--set", "split.draw=9"), "Give --seeds instead"),
        (("DATA", "--set", "methods.cps.alhpa=1"), "no setting 'method.alhpa'"),
        (("DATA", "--set", "methods.segpl.name=cps"), "has a name already"),
        (("DATA", "--set", "methods.cps.alpha=-1"), "method.alpha is -1"),
        (("DATA", "--set", "train=3"), "section.key=value"),
        (("--phantom", "--set", "data.plan=a.json"), "--phantom has a plan of its own"),
    ],
)
def test_what_cannot_be_compared_is_refused(segpl, volumes, tmp_path, arguments, words):
    given = [volumes if argument == "DATA" else argument for argument in arguments]
    answer = segpl("compare", *given, "--out", tmp_path / "out")
    assert answer.code == 1
    assert words in answer.err


def test_dataset_without_test_cases_is_refused(segpl, tmp_path):
    data = make_dataset(tmp_path / "data", test=0)
    answer = segpl("compare", data, *BASIC, "--out", tmp_path / "out")
    assert answer.code == 1
    assert "has no test cases to compare the methods on" in answer.err


def test_changed_dataset_is_not_mixed_with_finished_runs(segpl, many, tmp_path):
    options = (*SHORT, "--labeled", 3, "--test", 2, "--seeds", 0, "--out", tmp_path / "out")
    assert segpl("compare", many, *options, "--methods", "segpl").code == 0
    for part in ("imgs", "lbls"):
        folder = many / "labeled" / part
        (folder / "a9.nii.gz").write_bytes((folder / "a0.nii.gz").read_bytes())
    answer = segpl("compare", many, *options, "--methods", "segpl", "cps")
    assert answer.code == 1
    assert "the dataset has changed" in answer.err


def test_folder_of_a_run_is_no_folder_for_a_comparison(segpl, train, volumes, tmp_path):
    train(volumes, "--method", "segpl", "--out", tmp_path / "run")
    answer = segpl("compare", volumes, *BASIC, "--out", tmp_path / "run")
    assert answer.code == 1
    assert "is the folder of a run" in answer.err


def test_config_with_a_number_for_a_section_is_refused(segpl, volumes, tmp_path):
    config = tmp_path / "compare.toml"
    config.write_text("train = 1\n")
    answer = segpl("compare", volumes, "--config", config, "--out", tmp_path / "out")
    assert answer.code == 1
    assert "'train' is 1, but it must be a section" in answer.err


def wait_for(condition: Callable[[], bool], seconds: float = 40) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_comparison(volumes, tmp_path, sign):
    """Processes that go on alone would keep a GPU from others."""
    out = tmp_path / "out"
    long = ("--steps", "100000", "--set", "network.width=4", "--set", "train.batch=1")
    command = ("compare", volumes, *long, "--methods", "segpl", "cps", "--jobs", "2", "--out", out)
    parent = subprocess.Popen(
        [sys.executable, "-m", "segpl", *map(str, command)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # a shell's background jobs are started deaf to it
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for(lambda: len(list(out.glob("runs/*/log.csv"))) == 2)
        if sign == signal.SIGINT:
            os.killpg(parent.pid, sign)
            assert parent.wait(30) == 130
        else:
            parent.kill()
            parent.wait(30)
        wait_for(lambda: not living(parent.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait(30)


def living(session: int) -> list[str]:
    """Processes of a session, as the system lists them."""
    found = subprocess.run(
        ["ps", "-o", "stat=", "-s", str(session)], capture_output=True, text=True
    )
    return [line for line in found.stdout.split() if not line.startswith("Z")]
