"""`segpl compare`: methods share cases, plan and network, and only the method differs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import SHORT, Answer, Command, make_dataset, rows_of, wait_for
from PIL import Image

from segpl.assembly import require_readable
from segpl.cli.main import RESUME_ADVICE
from segpl.data import inspect as inspection
from segpl.data.layouts import read_dataset
from segpl.data.phantom import PhantomSettings, vessel_phantom
from segpl.data.split import Split, SplitSettings, make_split
from segpl.engine.budget import TrainingSpeed
from segpl.engine.folder import RunFolder
from segpl.errors import DivergedError
from segpl.experiments import compare, estimate, phantom_data
from segpl.experiments.engines.base import EngineOptions, Update
from segpl.experiments.engines.local import LocalEngine
from segpl.experiments.estimate import estimate_comparison
from segpl.experiments.experiment import make_experiment
from segpl.experiments.jobs import TrainingJob
from segpl.methods.segpl import SegPL
from segpl.report.collection import collect_runs

FAST = (*SHORT, "--steps", 2)
BASIC = (*FAST, "--methods", "segpl", "--seeds", 0)
EXPERIMENT = """
title = "Thresholds"
[datasets.small]
path = "many"
seeds = [0, 1]
[datasets.small.split]
labeled = 2
validation = 2
test = 1
[train]
steps = 2
batch = 1
[network]
width = 4
[methods.low]
method = "segpl"
threshold = 0.4
split = { unlabeled = 1 }
[methods.unused]
method = "segpl"
[[questions]]
id = "fixed"
text = "Is 0.4 better than 0.5?"
reference = "segpl"
variants = ["low"]
[[questions]]
id = "test"
text = "Is it better than supervised training?"
reference = "supervised"
variants = ["low"]
cases = "test"
"""
OTHER = """
[datasets.other]
path = "gone"
seeds = [4]
[datasets.other.split]
labeled = 1
validation = 1
test = 1
"""


def run_of(out: Path, name: str) -> Path:
    """The folder of a run, whose name ends in a hash of its settings."""
    (found,) = out.glob(f"runs/{name}-????????")
    return found


def split_of(out: Path, run: str) -> dict[str, list[str]]:
    return json.loads((run_of(out, run) / "split.json").read_text())


@pytest.fixture(autouse=True)
def skip_pages(request, monkeypatch) -> None:
    """Pages take seconds; only the test that looks at one writes it."""
    if request.function.__name__ != "test_questions_are_answered_and_nothing_is_trained_twice":
        monkeypatch.setattr(compare, "write_report", lambda *_, **__: None)


@pytest.fixture
def many(tmp_path) -> Path:
    return make_dataset(tmp_path / "many", dims=2, labeled=8, unlabeled=0, test=0)


def test_every_method_is_trained_with_every_seed_and_scored(segpl, many, tmp_path):
    out = tmp_path / "out"
    options = ("--methods", "segpl", "--labeled", 3, "--test", 2, "--seeds", 0, 1)
    answer = segpl("compare", many, *FAST, *options, "--out", out)
    assert answer.code == 0, answer.err
    rows = rows_of(out / "comparison.csv")
    assert [(row["method"], row["seed"]) for row in rows] == [
        ("supervised", "0"),
        ("segpl", "0"),
        ("supervised", "1"),
        ("segpl", "1"),
    ]
    assert all(0 <= float(row["test_dice"]) <= 1 and int(row["parameters"]) > 0 for row in rows)
    assert "Which methods improve on supervised training?" in answer.out
    assert "p cannot reach 0.05" in answer.out
    assert "Run 1 of 4: supervised, seed 0" in answer.err
    assert re.search(r"Run 3 of 4, about [\dms]+ left: supervised, seed 1", answer.err)
    assert "1 of 4 runs done, 0 running, about " in answer.err
    assert "4 of 4 runs done, 0 running." in answer.err

    # one split per seed; another seed has other labels and the same test cases
    splits = [split_of(out, run) for run in ("supervised-0", "segpl-0", "segpl-1")]
    assert splits[0]["labeled"] == splits[1]["labeled"] != splits[2]["labeled"]
    assert splits[0]["test"] == splits[1]["test"] == splits[2]["test"]
    plans = [
        (run_of(out, f"{name}-0") / "plan.json").read_text() for name in ("supervised", "segpl")
    ]
    assert plans[0] == plans[1]


def test_tables_mark_a_reconstructed_method(segpl, pictures, tmp_path):
    out = tmp_path / "out"
    variant = ("--set", "methods.slow.method=self-loop", "--methods", "slow", "--seeds", 0)
    answer = segpl("compare", pictures, *FAST, *variant, "--out", out)
    assert answer.code == 0, answer.err
    assert "slow (reconstruction)" in answer.out
    assert "slow (reconstruction)" in answer.err  # scores so far
    assert [row["method"] for row in rows_of(out / "comparison.csv")] == ["supervised", "slow"]
    runs = [run_of(out, name) for name in ("supervised-0", "slow-0")]
    assert collect_runs(runs).labels == ["supervised", "self-loop (reconstruction)"]


def test_interrupted_comparison_resumes_with_the_same_command(segpl, many, tmp_path, monkeypatch):
    def interrupt(self: SegPL, batch: object, progress: float) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    options = ("compare", many, *BASIC, "--labeled", 3, "--test", 2, "--out", out)
    with monkeypatch.context() as patch:
        patch.setattr(SegPL, "step", interrupt)
        answer = segpl(*options)
    assert answer.code == 130
    assert answer.err.endswith(f"interrupted. {RESUME_ADVICE['compare']}\n")
    assert [row["method"] for row in rows_of(out / "comparison.csv")] == ["supervised"]
    finished = [*run_of(out, "supervised-0").glob("checkpoints/*.safetensors")]
    assert finished
    before = [path.stat().st_mtime_ns for path in finished]
    assert segpl(*options).code == 0
    assert [path.stat().st_mtime_ns for path in finished] == before
    assert [row["method"] for row in rows_of(out / "comparison.csv")] == ["supervised", "segpl"]

    # other settings need other runs; other cases would mix two datasets
    answer = segpl(*options, "--set", "train.lr=0.5")
    assert answer.code == 0, answer.err
    assert [path.stat().st_mtime_ns for path in finished] == before
    assert len(list(out.glob("runs/segpl-0-*"))) == 2
    for part in ("imgs", "lbls"):
        folder = many / "labeled" / part
        (folder / "a9.png").write_bytes((folder / "a0.png").read_bytes())
    answer = segpl(*options)
    assert answer.code == 1
    assert f"{many} has changed" in answer.err


@pytest.mark.parametrize("error", [DivergedError("term 'pseudo' is nan."), RuntimeError("BAD")])
def test_failed_run_does_not_stop_the_others(segpl, pictures, tmp_path, monkeypatch, error):
    def step(self, batch, progress):
        raise error

    monkeypatch.setattr(SegPL, "step", step)
    out = tmp_path / "out"
    answer = segpl("compare", pictures, *BASIC, "--out", out)
    assert answer.code == 1
    assert "segpl, seed 0 failed: " in answer.out
    assert str(error) in answer.out
    assert "left out: segpl, seed 0." in answer.out
    first, second = rows_of(out / "comparison.csv")
    assert float(first["test_dice"]) >= 0
    assert str(error) in second["error"]
    traced = (run_of(out, "segpl-0") / "error.txt").exists()
    assert traced == isinstance(error, RuntimeError)  # a traceback only for bugs


def file_of(data: Path, kind: str, role: str) -> Path:
    """The image ("imgs") or label ("lbls") of the case that is held out for `role`."""
    (case,) = getattr(make_split(read_dataset(data), SplitSettings(validation=1, test=1)), role)
    return data / "labeled" / kind / f"{case}.png"


HELD_OUT = ("--test", 1, "--set", "split.validation=1")


@pytest.mark.parametrize("role", ["test", "validation"])
@pytest.mark.parametrize(
    ("kind", "damage", "words"),
    [
        ("imgs", lambda path: path.write_bytes(path.read_bytes()[:60]), "corrupt or truncated"),
        ("lbls", lambda path: path.write_bytes(b""), "corrupt or truncated"),
        ("lbls", lambda path: Image.new("L", (5, 7), 1).save(path), "different grids"),
    ],
)
def test_damaged_held_out_case_is_an_error_before_anything_is_trained(
    segpl, many, tmp_path, role, kind, damage, words
):
    file = file_of(many, kind, role)
    damage(file)
    answer = segpl("compare", many, *BASIC, *HELD_OUT, "--out", tmp_path / "out")
    assert answer.code == 1
    assert f"case {file.stem}: " in answer.err
    assert words in answer.err
    assert "`segpl check " in answer.err
    assert not list(tmp_path.glob("out/runs/*"))
    assert words in segpl("check", many).out


def test_a_held_out_label_without_foreground_can_be_scored(many, tmp_path):
    file = file_of(many, "lbls", "test")
    Image.fromarray(np.zeros_like(np.asarray(Image.open(file)))).save(file)
    dataset = read_dataset(many)
    split = make_split(dataset, SplitSettings(test=1))
    assert file.stem in split.test
    require_readable(dataset, split, quiet=True)  # raises for cases that cannot be scored


def test_held_out_cases_are_read_once_and_influence_no_plan(many, tmp_path, monkeypatch):
    read_case, read = inspection._read_case, []

    def watched(case, *arguments):
        read.append(case.name)
        return read_case(case, *arguments)

    def plans(out: str, *seeds: int) -> list[str]:
        split = {"labeled": 2, "test": 1, "validation": 1}
        dataset = {"path": many.name, "seeds": seeds, "split": split}
        given = make_experiment({"datasets": {"many": dataset}}, "", methods=["segpl"])
        where = {"root": tmp_path, "only": (), "derive_plans": True, "quiet": True}
        jobs = compare.gather_jobs(given, tmp_path / out, **where)
        compare.check_held_out(jobs, quiet=True)
        return [job.plan.read_text() for job in jobs]

    monkeypatch.setattr(inspection, "_read_case", watched)
    plans("first", 0, 1)
    known = plans("second", 2)
    assert [read.count(file_of(many, "imgs", role).stem) for role in ("test", "validation")] == [
        1,
        1,
    ]

    for role in ("test", "validation"):
        image, label = (file_of(many, kind, role) for kind in ("imgs", "lbls"))
        Image.fromarray(255 - np.asarray(Image.open(image))).resize((20, 30)).save(image)
        Image.new("L", (20, 30), 1).save(label)
    monkeypatch.setenv("SEGPL_CACHE", str(tmp_path / "empty"))
    assert plans("third", 2) == known


def test_repeated_comparison_trains_a_run_that_failed_before_its_first_step(
    segpl, pictures, tmp_path, monkeypatch
):
    def build(self, build, settings):
        raise RuntimeError("BAD")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(SegPL, "__init__", build)
        assert segpl("compare", pictures, *BASIC, "--out", out).code == 1
    assert "BAD" in (run_of(out, "segpl-0") / "error.txt").read_text()
    answer = segpl("compare", pictures, *BASIC, "--out", out)
    assert answer.code == 0, answer.out
    assert not (run_of(out, "segpl-0") / "error.txt").exists()
    assert [row["error"] for row in rows_of(out / "comparison.csv")] == ["", ""]


def test_variant_with_other_test_cases_is_rejected(segpl, many, tmp_path):
    own = ("--set", "methods.segpl.split.test=3", "--labeled", 3, "--test", 2)
    answer = segpl("compare", many, *BASIC, *own, "--out", tmp_path / "out")
    assert answer.code == 1
    assert "[methods.segpl] has other validation or test cases" in answer.err
    assert not (tmp_path / "out/runs").exists()


def test_runs_depend_on_the_content_of_a_named_plan_not_on_its_path(segpl, pictures, tmp_path):
    """A moved comparison keeps its runs."""
    plan, out, moved = tmp_path / "a.json", tmp_path / "out", tmp_path / "moved"
    assert segpl("plan", pictures, "--out", plan).code == 0

    def runs_of(out: Path, plan: Path) -> set[str]:
        options = (*BASIC, "--set", "train.batch=2", "--set", f"data.plan={plan}")
        answer = segpl("compare", pictures, *options, "--out", out)
        assert answer.code == 0, answer.err
        return {path.name for path in (out / "runs").iterdir()}

    first = runs_of(out, plan)
    assert len(first) == 2
    weights = {path: path.read_bytes() for path in out.glob("runs/*/checkpoints/last.*")}
    out.rename(moved)
    assert runs_of(moved, plan.rename(tmp_path / "b.json")) == first
    for path, content in weights.items():
        assert (moved / path.relative_to(out)).read_bytes() == content
    plan = tmp_path / "b.json"
    content = json.loads(plan.read_text())
    plan.write_text(json.dumps({**content, "width": content["width"] + 1}))
    assert len(runs_of(moved, plan) - first) == 2


def test_dry_run_counts_runs_and_estimates_their_time(segpl, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(estimate, "MEASURED_BUDGET", 1.0)
    out = tmp_path / "out"
    given = ("compare", pictures, *FAST, "--methods", "segpl", "--out", out)
    answer = segpl(*given, "--seeds", 0, 1, "--jobs", 2, "--dry-run")
    assert answer.code == 0, answer.err
    counts, times = answer.out.splitlines()
    assert counts == "4 runs: 0 done, 4 to train."
    assert "each method takes a few training steps" in answer.err
    assert "measuring methods: 2 of 2" in answer.err
    assert "(measured on this machine)" in times
    assert "with 2 at the same time" in times
    assert not out.exists()

    assert segpl(*given, "--seeds", 0).code == 0
    answer = segpl(*given, "--seeds", 0, 1, "--dry-run")
    counts, times = answer.out.splitlines()
    assert counts == "4 runs: 2 done, 2 to train."
    assert "(from the finished runs)" in times
    assert segpl(*given, "--seeds", 0, "--dry-run").out == "2 runs: 2 done, 0 to train.\n"
    answer = segpl(*given, "--seeds", 0, "--print")
    assert "--print needs --on slurm" in answer.err


def test_dry_run_measures_runs_that_differ_in_their_labels_only_once(pictures, monkeypatch):
    """Two methods on two datasets, and one of the two with all labels: two measurements."""
    warm: list[bool] = []

    def measured(trainer, budget, *, is_warm):
        warm.append(is_warm)
        return TrainingSpeed(float(len(warm)))

    monkeypatch.setattr(estimate, "measure_speed", measured)
    split = {"test": 1}
    content = {
        "train": {"steps": 98, "batch": 1, "device": "cpu"},
        "network": {"width": 4},
        "datasets": {
            "few": {"path": pictures.name, "seeds": [0], "split": {**split, "labeled": 1}},
            "many": {"path": pictures.name, "seeds": [0, 1], "split": {**split, "labeled": 2}},
        },
        "methods": {"all-labels": {"method": "supervised", "split": {"labeled": 0}}},
    }
    experiment = make_experiment(content, "test", methods=["segpl", "all-labels"])
    found = estimate_comparison(
        experiment, Path("none"), LocalEngine(EngineOptions()), root=pictures.parent
    )
    assert warm == [False, True]
    assert sorted(found.seconds) == pytest.approx([100.0] * 6 + [200.0] * 3)


def test_restart_of_a_killed_run_is_reported(tmp_path, capsys):
    class Killed(LocalEngine):
        def run(self, tasks):
            yield Update(tasks[0])
            yield Update(tasks[0], was_killed=True)
            yield Update(tasks[0], "an error")

    split = Split(("a",), (), (), ("b",), ())
    job = TrainingJob("", "segpl", 0, tmp_path / "run", {"method": {"name": "segpl"}}, split)
    engine = Killed(EngineOptions(jobs=2))
    tasks = compare.waiting_tasks([job], engine, quiet=False)
    found = compare.run_jobs([job], tasks, engine, tmp_path, quiet=False)
    assert found == {job.folder: "an error"}
    words = capsys.readouterr().err
    assert words.count("The process of 'segpl, seed 0' was killed") == 1
    assert "restarted once" in words


def test_two_comparisons_in_one_folder_are_refused(segpl, pictures, tmp_path):
    out = tmp_path / "out"
    with RunFolder(out).locked():
        answer = segpl("compare", pictures, *BASIC, "--out", out)
    assert answer.code == 1
    assert f"another process is running a comparison in {out}" in answer.err
    assert not out.exists()


@pytest.mark.slow
def test_parallel_runs_give_the_results_of_sequential_ones(segpl, pictures, tmp_path):
    outs = [tmp_path / "one", tmp_path / "two"]
    for jobs, out in enumerate(outs, 1):
        assert segpl("compare", pictures, *BASIC, "--jobs", jobs, "--out", out).code == 0
    first, second = (
        [(row["method"], float(row["test_dice"])) for row in rows_of(out / "comparison.csv")]
        for out in outs
    )
    assert [name for name, _ in first] == [name for name, _ in second]
    # both processes use one thread each, but may sum in another order
    assert [dice for _, dice in first] == pytest.approx([dice for _, dice in second], abs=0.05)


def test_generated_scans_need_no_data(segpl, tmp_path, monkeypatch):
    small = partial(vessel_phantom, settings=PhantomSettings(shape=(16, 16, 16)))
    monkeypatch.setattr(phantom_data, "vessel_phantom", small)
    monkeypatch.setattr(phantom_data, "UNLABELED", 2)
    monkeypatch.setattr(phantom_data, "TEST", 1)
    monkeypatch.setattr(phantom_data, "PATCH", 16)
    out = tmp_path / "out"
    answer = segpl("compare", "--phantom", *BASIC, "--out", out)
    assert answer.code == 0, answer.err
    assert len(rows_of(out / "comparison.csv")) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give either a dataset, a TOML file, or --phantom"),
        (("DATA", "--phantom"), "give either a dataset, a TOML file, or --phantom"),
        (("DATA", "--only", "brain"), "--only needs a TOML file"),
        (("DATA", "--methods", "fixmach"), "error: --methods: no method named 'fixmach'"),
        (("DATA", "--seeds", 1, 1), "give one or more different numbers"),
        (("DATA", "--jobs", 0), "must be at least 1"),
        (("absent.toml",), "absent.toml does not exist"),
        (("absent",), "absent is not a folder. Pass a dataset folder, or a TOML file."),
        (("DATA", "--set", "train.stepz=4"), "'train.stepz'"),
        (("DATA", "--set", "method.alpha=1"), "no setting 'method'. Did you mean 'methods'?"),
        (("DATA", "--set", "methods.sgpl.alpha=1"), "'sgpl' is not a method"),
        (("DATA", "--set", "train.seed=9"), "use seeds (--seeds) instead"),
        (("--phantom", "--set", "data.plan=a.json"), "generated scans have their own plan"),
    ],
)
def test_invalid_options_are_rejected(segpl, pictures, tmp_path, arguments, words):
    given = [pictures if argument == "DATA" else argument for argument in arguments]
    answer = segpl("compare", *given, "--out", tmp_path / "out")
    assert answer.code == 1
    assert words in answer.err


def test_test_cases_without_labels_are_rejected_before_training(segpl, tmp_path):
    data = make_dataset(tmp_path / "data", dims=2)
    (data / "test" / "lbls" / "t0.png").unlink()
    answer = segpl("compare", data, *BASIC, "--out", tmp_path / "out")
    assert answer.code == 1
    assert f"no test case of {data} has a label. Add labels, or hold out" in answer.err
    assert not (tmp_path / "out" / "runs").exists()


def test_dataset_without_test_cases_and_folder_of_a_run_are_rejected(segpl, train, tmp_path):
    data = make_dataset(tmp_path / "data", dims=2, test=0)
    answer = segpl("compare", data, *BASIC, "--out", tmp_path / "out")
    assert answer.code == 1
    assert "has no test cases. Hold some out with --test N" in answer.err
    assert not (tmp_path / "out").exists()
    train(data, "--method", "segpl", "--out", tmp_path / "run")
    answer = segpl("compare", data, *BASIC, "--out", tmp_path / "run")
    assert answer.code == 1
    assert "is the folder of a run" in answer.err


@pytest.mark.parametrize("name", ["report.html", "comparison.csv"])
def test_files_of_others_are_an_error_before_training(segpl, many, tmp_path, name):
    (tmp_path / name).write_text("mine")
    answer = segpl("compare", many, "--test", 2, *FAST, "--out", tmp_path)
    assert f"{name} exists and was not written by segpl. Choose another --out." in answer.err
    assert not (tmp_path / "runs").exists()


class TestExperimentFile:
    @pytest.fixture
    def experiment(self, segpl, tmp_path) -> Command:
        make_dataset(tmp_path / "many", dims=2, labeled=7, unlabeled=0, test=0)
        path = tmp_path / "file.toml"
        path.write_text(EXPERIMENT)

        def call(*options: object) -> Answer:
            return segpl("compare", path, "--data", tmp_path, "--out", tmp_path / "out", *options)

        return call

    def test_questions_are_answered_and_nothing_is_trained_twice(
        self, experiment, tmp_path, monkeypatch
    ):
        answer = experiment()
        assert answer.code == 0, answer.err
        out = tmp_path / "out"
        rows = rows_of(out / "comparison.csv")
        assert [(row["dataset"], row["method"], row["seed"]) for row in rows] == [
            ("small", method, seed) for seed in "01" for method in ("segpl", "low", "supervised")
        ]
        assert all(0 <= float(row["validation_dice"]) <= 1 for row in rows)
        assert len(Split.read(run_of(out / "small", "low-0") / "split.json").unlabeled) == 1
        assert "Is 0.4 better than 0.5? (small)" in answer.out
        assert "2 seeds, 2 validation cases" in answer.out
        assert "2 seeds, 1 test case." in answer.out
        page = (out / "report.html").read_text()
        assert "<title>Thresholds</title>" in page
        assert '<section id="questions">' in page
        assert "Test scores must not be used to choose between variants" in page
        for text in (answer.err, page):
            assert re.search(r"Each run takes \d+ steps\. .*segpl train.* takes as many", text)

        def train(*_: object, **__: object) -> None:
            raise AssertionError("trained again")

        monkeypatch.setattr(compare, "train", train)
        monkeypatch.setattr(compare, "write_report", lambda *_, **__: None)
        again = experiment()
        assert again.code == 0, again.err
        assert again.out == answer.out

    def test_only_trains_some_datasets_and_keeps_the_runs_of_the_others(self, experiment, tmp_path):
        file = tmp_path / "file.toml"
        file.write_text(EXPERIMENT + OTHER)
        answer = experiment()
        assert answer.code == 1
        assert f"dataset 'other': {tmp_path / 'gone'} is not a folder" in answer.err
        assert not (tmp_path / "out/small/runs").exists()
        answer = experiment("--only", "small")
        assert answer.code == 0, answer.err
        assert "(other)" not in answer.out

        make_dataset(tmp_path / "gone", dims=2, labeled=4, unlabeled=0, test=0)
        (tmp_path / "many").rename(tmp_path / "elsewhere")
        scores = run_of(tmp_path / "out/small", "low-1") / "scores.csv"
        scores.unlink()  # as if interrupted there
        answer = experiment("--only", "other")
        assert answer.code == 0, answer.err
        assert "left out: small, low, seed 1." in answer.out
        assert "(other)" in answer.out
        assert [row["dataset"] for row in rows_of(tmp_path / "out" / "comparison.csv")] == [
            "small"
        ] * 5 + ["other"] * 3

        file.write_text(EXPERIMENT + OTHER + "[datasets.small.train]\nsteps = 8\n")
        answer = experiment("--only", "other")
        assert answer.code == 0, answer.err
        assert [row["dataset"] for row in rows_of(tmp_path / "out" / "comparison.csv")] == [
            "other"
        ] * 3
        answer = experiment("--only", "smal")
        assert "--only: no dataset named 'smal'. Did you mean 'small'?" in answer.err


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_comparison(volumes, tmp_path, sign):
    """Orphaned processes would keep a GPU from others."""
    out = tmp_path / "out"
    long = ("--steps", "100000", "--set", "network.width=4", "--set", "train.batch=1")
    command = ("compare", volumes, *long, "--methods", "segpl", "cps", "--jobs", "2", "--out", out)
    parent = subprocess.Popen(
        [sys.executable, "-m", "segpl", *map(str, command)],
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # background jobs of a shell ignore SIGINT
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        wait_for(lambda: len(list(out.glob("runs/*/log.csv"))) == 2)
        if sign == signal.SIGINT:
            os.killpg(parent.pid, sign)
            assert parent.wait(120) == 130
        else:
            parent.kill()
            parent.wait(120)
        wait_for(lambda: not living(parent.pid))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait(120)


def living(session: int) -> list[str]:
    """Processes of a session, as the system lists them."""
    found = subprocess.run(
        ["ps", "-o", "stat=", "-s", str(session)], capture_output=True, text=True
    )
    return [line for line in found.stdout.split() if not line.startswith("Z")]
