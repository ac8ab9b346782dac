from __future__ import annotations

import os
import signal
import time
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import active_children
from pathlib import Path

import pytest
import torch

from segpl.engine.interrupt import StopSignal
from segpl.errors import InputError
from segpl.experiments.engines.base import EngineOptions, Task
from segpl.experiments.engines.local import (
    VISIBLE,
    LocalEngine,
    Worker,
    gpus_to_assign,
    run_in_workers,
)


def visible_gpu(meeting: Path, name: str) -> str:
    """The GPU of this worker, after both workers have started."""
    (meeting / name).touch()
    while len(list(meeting.iterdir())) < 2:
        time.sleep(0.05)
    return os.environ[VISIBLE]


def die() -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def train(started: Path) -> str:
    """Steps of training that end with a checkpoint, also if a signal arrives meanwhile."""
    deadline = time.monotonic() + 60
    with StopSignal() as stop:
        started.touch()
        while not stop.number:
            assert time.monotonic() < deadline, "it was not stopped"
            time.sleep(0.05)
        time.sleep(1)
        started.with_name("saved").touch()
    return ""


def fail() -> str:
    return "an error"


def errors(engine: LocalEngine, tasks: list[Task]) -> dict[str, str]:
    updates = list(engine.run(tasks))
    names = dict.fromkeys(u.task.name for u in updates if u.error is None)
    assert list(names) == [task.name for task in tasks]
    return {u.task.name: u.error for u in updates if u.error is not None}


def test_tasks_run_in_this_process_one_after_another_by_default():
    engine = LocalEngine(EngineOptions())
    assert engine.in_process
    assert errors(engine, [Task("a", str), Task("b", fail)]) == {"a": "", "b": "an error"}


def test_a_task_whose_process_is_killed_runs_once_more_after_the_others(monkeypatch):
    monkeypatch.setattr(Worker, "new_pool", lambda self: ThreadPoolExecutor(1))
    calls = []

    def call(name: str, deaths: int) -> str:
        calls.append(name)
        if calls.count(name) <= deaths:
            raise BrokenExecutor
        return ""

    tasks = [
        Task(name, partial(call, name, deaths))
        for name, deaths in zip("abc", (1, 9, 0), strict=True)
    ]
    updates = list(run_in_workers(tasks, 1))
    found = [u for u in updates if u.error is not None]
    assert [u.task.name for u in updates if u.was_killed] == ["a", "b"]
    assert calls == ["a", "b", "c", "a", "b"]
    assert [u.task.name for u in found] == ["c", "a", "b"]
    assert found[0].error == found[1].error == ""
    assert "its process was killed twice" in found[2].error


@pytest.mark.slow
@pytest.mark.parametrize("is_for_all", [False, True])
def test_sigterm_stops_training_after_its_step(tmp_path, is_for_all):
    """Whether the system sends it to this process only or to its workers, too."""
    running = run_in_workers([Task("a", partial(train, tmp_path / "started"))], 1)
    next(running)
    deadline = time.monotonic() + 120
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    (worker,) = active_children()
    if is_for_all:
        worker.terminate()
    with pytest.raises(KeyboardInterrupt):
        running.throw(KeyboardInterrupt(signal.SIGTERM))
    worker.join(60)
    assert (tmp_path / "saved").exists()


@pytest.mark.slow
def test_a_killed_worker_stops_no_other_task_and_every_worker_has_its_gpu(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv(VISIBLE, "4,7")
    engine = LocalEngine(EngineOptions(jobs=2))
    calls = {"a": die, "b": fail, **{n: partial(visible_gpu, tmp_path, n) for n in "cd"}}
    found = errors(engine, [Task(name, call) for name, call in calls.items()])
    assert "its process was killed" in found["a"]
    assert found["b"] == "an error"
    assert {found["c"], found["d"]} == {"4", "7"}


def test_gpus_are_distributed_only_if_there_are_several_and_no_task_names_one(monkeypatch):
    monkeypatch.delenv(VISIBLE, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    tasks = [Task("a", fail), Task("b", fail, "cuda")]
    assert gpus_to_assign(tasks) == ["0", "1"]
    assert gpus_to_assign([*tasks, Task("c", fail, "cuda:1")]) == []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert gpus_to_assign(tasks) == []


def test_a_missing_gpu_is_an_error_before_anything_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="needs a CUDA GPU, but torch finds none"):
        LocalEngine(EngineOptions()).check([Task("a", fail, "cuda")])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"jobs": 0}, "--jobs is 0, but must be at least 1"),
        ({"address": "host:1"}, "--address needs --on ray"),
        ({"gpus": 1}, "--gpus needs --on ray or --on slurm"),
        ({"time_limit": "4h"}, "--time-limit needs --on slurm"),
    ],
)
def test_options_of_other_engines_are_rejected(options, words):
    with pytest.raises(InputError, match=words):
        LocalEngine(EngineOptions(**options))
