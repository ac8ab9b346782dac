"""Engines of clusters without a cluster; tests/e2e/test_engines.py uses real ones."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from segpl.errors import InputError
from segpl.experiments import compare, engines
from segpl.experiments.compare import run_job, run_jobs, waiting_tasks
from segpl.experiments.engines import slurm
from segpl.experiments.engines.base import Engine, EngineOptions, Task, Update
from segpl.experiments.engines.ray import RayEngine
from segpl.experiments.engines.slurm import JOBS_FILE, SlurmEngine
from segpl.experiments.jobs import TrainingJob

TASKS = [Task("a", str), Task("b", str)]


class Queue:
    """A Slurm queue whose jobs end as soon as they are submitted; `ends` says how."""

    def __init__(self, ends: dict[str, list[Any]]) -> None:
        self.ends = ends  # task -> result of each job: (kind, value), or the state of a lost job
        self.states: dict[str, str] = {}  # job -> state after it has left the queue
        self.submitted: list[str] = []

    def submit(self, engine: SlurmEngine, tasks: list[Task]) -> None:
        engine.folder.mkdir(exist_ok=True)
        for task in tasks:
            job = f"{len(self.submitted)}_0"
            self.submitted.append(task.name)
            engine.submitted[task.name] = job
            end = self.ends[task.name].pop(0)
            if isinstance(end, str):
                self.states[job] = end
            else:
                (engine.folder / f"{job}_0_result.pkl").write_bytes(pickle.dumps(end))


def run_on(queue: Queue, folder: Path, monkeypatch, **options: Any) -> dict[str, str]:
    """The errors of both tasks."""
    monkeypatch.setattr(SlurmEngine, "submit", lambda self, tasks: queue.submit(self, tasks))
    monkeypatch.setattr(slurm, "states_in_queue", dict)
    monkeypatch.setattr(slurm, "final_state", queue.states.get)
    monkeypatch.setattr(slurm, "LOST_SECONDS", 0.0)
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.0)
    engine = SlurmEngine(EngineOptions(**options), folder)
    return {one.task.name: one.error for one in engine.run(TASKS) if one.error is not None}


def test_lost_slurm_job_is_submitted_again(tmp_path, monkeypatch):
    queue = Queue({"a": ["NODE_FAIL", ("success", "")], "b": [("success", "an error")]})
    assert run_on(queue, tmp_path, monkeypatch) == {"a": "", "b": "an error"}
    assert queue.submitted == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("state", "retries", "words"),
    [
        ("NODE_FAIL", 0, "Slurm job 0_0 ended without a result (node_fail)."),
        ("CANCELLED", 3, "Slurm job 0_0 ended without a result (cancelled)."),
        ("OUT_OF_MEMORY", 3, "Slurm job 0_0 ran out of memory. Increase --memory."),
    ],
)
def test_job_that_a_retry_would_not_help_is_an_error(tmp_path, monkeypatch, state, retries, words):
    queue = Queue({"a": [state], "b": [("success", "")]})
    errors = run_on(queue, tmp_path, monkeypatch, retries=retries)
    assert errors == {"a": f"{words} Its log: {tmp_path / '0_0_0_log.err'}", "b": ""}


def test_error_of_a_job_is_the_last_line_of_its_traceback(tmp_path, monkeypatch):
    queue = Queue({"a": [("error", "Traceback\nKeyError: 1\n")], "b": [("success", "")]})
    errors = run_on(queue, tmp_path, monkeypatch)
    assert errors["a"] == f"KeyError: 1; see {tmp_path / '0_0_0_log.err'}"


def test_restarted_driver_follows_the_jobs_in_the_queue(tmp_path, monkeypatch):
    (tmp_path / JOBS_FILE).write_text(json.dumps({"a": "7_0", "b": "7_1", "other": "7_2"}))
    (tmp_path / "7_0_0_result.pkl").write_bytes(pickle.dumps(("success", "")))
    queue = Queue({"b": [("success", "")]})
    waiting = iter([{"7_0": "RUNNING", "7_2": "RUNNING"}])
    monkeypatch.setattr(SlurmEngine, "submit", lambda self, tasks: queue.submit(self, tasks))
    monkeypatch.setattr(slurm, "states_in_queue", lambda: next(waiting, {}))
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.0)
    updates = SlurmEngine(EngineOptions(), tmp_path).run(TASKS)
    assert {one.task.name: one.error for one in updates} == {"a": "", "b": ""}
    assert queue.submitted == ["b"]


UNREACHABLE = "sbatch: error: Unable to contact slurm controller (connect failure)"


def install_slurm(
    folder: Path, monkeypatch, *, failures: int, answer: str = "", said: str = UNREACHABLE
) -> None:
    """Slurm commands that fail a number of times, with the error `said`, then print `answer`."""
    folder.mkdir()
    for name in ("sbatch", "squeue", "srun", "scancel"):
        calls, program = folder / f"{name}.txt", folder / name
        program.write_text(
            f"#!/bin/sh\necho $* >> {calls}\n"
            f"if [ $(wc -l < {calls}) -gt {failures} ]; then echo '{answer}'; exit 0; fi\n"
            f"echo '{said}' >&2\nexit 1\n"
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm, "SUBMIT_PAUSES", (0.0, 0.0))
    monkeypatch.setattr(slurm, "POLL_SECONDS", 0.0)


UNCONFIGURED = """sbatch: error: fetch_config: DNS SRV lookup failed
sbatch: fatal: Could not establish a configuration source"""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (UNREACHABLE, r"answer: Unable to contact slurm controller \(connect failure\)\. Repeat"),
        (UNCONFIGURED, "lookup failed; Could not establish a configuration source. Repeat"),
    ],
)
def test_a_controller_that_does_not_answer_is_not_blamed_on_options(
    tmp_path, monkeypatch, said, words
):
    pytest.importorskip("submitit")
    install_slurm(tmp_path / "bin", monkeypatch, failures=1, said=said)
    with pytest.raises(InputError, match=f"the Slurm controller does not .*{words}"):
        SlurmEngine(EngineOptions(), tmp_path).check(TASKS)


def test_a_failed_submission_is_repeated(tmp_path, monkeypatch, capsys):
    pytest.importorskip("submitit")
    install_slurm(tmp_path / "bin", monkeypatch, failures=2, answer="Submitted batch job 7")
    engine = SlurmEngine(EngineOptions(), tmp_path)
    engine.submit(TASKS)
    assert engine.submitted == {"a": "7_0", "b": "7_1"}
    assert capsys.readouterr().err.count("(connect failure). Trying again in 0 s.") == 2


def test_a_submission_that_keeps_failing_is_an_error(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    install_slurm(tmp_path / "bin", monkeypatch, failures=3)
    with pytest.raises(InputError, match=r"\(connect failure\)\. .* repeat the command to resume"):
        SlurmEngine(EngineOptions(), tmp_path).submit(TASKS)
    assert len((tmp_path / "bin/scancel.txt").read_text().splitlines()) == 3


def test_jobs_that_slurm_may_have_accepted_are_canceled_before_the_next_attempt(
    tmp_path, monkeypatch
):
    pytest.importorskip("submitit")
    install_slurm(tmp_path / "bin", monkeypatch, failures=1, answer="Submitted batch job 7")
    SlurmEngine(EngineOptions(), tmp_path).submit(TASKS)
    scripts = (tmp_path / "bin/sbatch.txt").read_text().split()
    (canceled,) = (tmp_path / "bin/scancel.txt").read_text().split()
    line = canceled.replace("--name", "#SBATCH --job-name") + "\n"
    assert [line in Path(script).read_text() for script in scripts] == [True, False]


def test_a_queue_that_does_not_answer_is_announced_once(tmp_path, monkeypatch, capsys):
    install_slurm(tmp_path / "bin", monkeypatch, failures=3, answer="7_0|RUNNING")
    monkeypatch.setattr(slurm, "SILENCE_SECONDS", 0.0)
    assert slurm.states_in_queue() == {"7_0": "RUNNING"}
    assert capsys.readouterr().err.count("squeue fails: Unable to contact slurm controller") == 1


@pytest.mark.parametrize("engine", ["ray", "slurm"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_resources_must_be_finite(engine, value):
    for name in ("gpus", "memory"):
        with pytest.raises(InputError, match=f"--{name} is {value}, but must be finite"):
            EngineOptions(**{name: value}).check(engine)


def test_slurm_needs_whole_gpus(tmp_path):
    with pytest.raises(InputError, match=r"--gpus is 0.5, but Slurm needs a whole number"):
        SlurmEngine(EngineOptions(gpus=0.5), tmp_path)


@pytest.mark.parametrize("gpus", [1.5, 0.00001])
def test_ray_needs_whole_gpus_or_a_fraction_of_one(gpus):
    with pytest.raises(InputError, match=f"--gpus is {gpus}, but Ray needs a whole number, or"):
        RayEngine(EngineOptions(gpus=gpus))
    assert [RayEngine(EngineOptions(gpus=one)).gpus_for(TASKS) for one in (0.33, 2.0)] == [0.33, 2]


def test_an_output_folder_with_placeholders_of_slurm_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"a%j contains %, which Slurm replaces.* another --out"):
        SlurmEngine(EngineOptions(), tmp_path / "a%j")


def test_a_time_limit_that_requeues_jobs_at_once_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"--time-limit is 2m, but must be at least 5m"):
        SlurmEngine(EngineOptions(time_limit="2m"), tmp_path)
    assert SlurmEngine(EngineOptions(time_limit="5m"), tmp_path).minutes == 5


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [("auto", None, 0), ("cpu", None, 0), ("cuda", None, 1), ("auto", 0.5, 0.5), ("cuda", 2, 2)],
)
def test_a_task_gets_a_gpu_if_it_asks_for_one(device, gpus, expected):
    assert RayEngine(EngineOptions(gpus=gpus)).gpus_for([Task("a", str, device)]) == expected


def test_a_task_on_a_gpu_without_gpus_is_refused():
    with pytest.raises(InputError, match="--device cuda needs a GPU, but --gpus is 0"):
        RayEngine(EngineOptions(gpus=0)).gpus_for([Task("a", str, "cuda")])


def test_ray_slots_are_limited_by_the_scarcest_resource_of_each_node(monkeypatch):
    nodes = [{"CPU": 8.0, "GPU": 2.0}, {"CPU": 3.0, "GPU": 4.0}, {"CPU": 64.0}]
    monkeypatch.setattr(RayEngine, "nodes", lambda self: nodes)
    assert RayEngine(EngineOptions(cpus=2, gpus=1)).slots(TASKS) == 2 + 1
    assert RayEngine(EngineOptions(cpus=2, gpus=1, jobs=2)).slots(TASKS) == 2
    with pytest.raises(InputError, match=r"has 9 CPU, 1 GPU for a task. The most on any node: 64"):
        RayEngine(EngineOptions(cpus=9, gpus=1)).check(TASKS)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("ConnectionError: Could not find any running Ray instance.", "no Ray cluster found on"),
        ("RuntimeError: Ray version mismatch: 2.9", r"mismatch: 2.9. Run the command on a machine"),
    ],
)
def test_a_cluster_that_rejects_this_machine_is_an_error(monkeypatch, words, expected):
    pytest.importorskip("ray")
    answer = subprocess.CompletedProcess([], 1, stderr=f"Traceback\n{words}\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)
    with pytest.raises(InputError, match=expected):
        RayEngine(EngineOptions()).nodes()


def test_the_reason_why_ray_cannot_connect_is_shown(monkeypatch):
    ray = pytest.importorskip("ray")

    def refuse(**_: Any) -> None:
        raise ConnectionError("Failed to connect") from RuntimeError("No node info found")

    monkeypatch.setattr(engines.ray, "require_cluster", str)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(InputError, match=r"No node info found. Run the command on a machine of"):
        RayEngine(EngineOptions()).nodes()


class Elsewhere(Engine):
    """Tasks succeed on a machine whose files this one does not see."""

    name = "elsewhere"

    def check(self, tasks):
        pass

    def slots(self, tasks):
        return None

    def run(self, tasks):
        for task in tasks:
            yield Update(task, "")


def job_in(folder: Path) -> TrainingJob:
    content = {"method": {"name": "segpl"}}
    return TrainingJob("", "segpl", 0, folder, content, split=cast(Any, "cases"))


def test_success_without_scores_is_an_error_about_the_file_system(tmp_path):
    jobs, engine = [job_in(tmp_path / "run")], Elsewhere(EngineOptions())
    tasks = waiting_tasks(jobs, engine, quiet=True)
    errors = run_jobs(jobs, tasks, engine, tmp_path, quiet=True)
    assert "file system that all machines share" in errors[tmp_path / "run"]


def test_a_run_that_another_process_has_scored_is_not_repeated(tmp_path, monkeypatch):
    def refuse(**_: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(compare, "train", refuse)
    assert "trained again" in run_job(job_in(tmp_path), quiet=True)
    (tmp_path / "scores.csv").touch()
    assert run_job(job_in(tmp_path), quiet=True) == ""
