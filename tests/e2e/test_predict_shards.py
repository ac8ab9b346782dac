"""`segpl predict` with an engine: shards of scans, resumed after any interruption."""

from __future__ import annotations

import json
import pickle
import shutil
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import scan, write_picture

from segpl.data.manifest import read_manifest
from segpl.engine.folder import RunFolder
from segpl.errors import InputError
from segpl.experiments import prediction
from segpl.experiments.engines.base import Engine, EngineOptions, Update
from segpl.experiments.engines.local import LocalEngine
from segpl.experiments.prediction import PredictionRequest, predict_on, predict_shard, shard_size
from segpl.predict import predictor, shards
from segpl.predict.options import PredictOptions
from segpl.predict.predictor import IncompleteError
from segpl.run import Run, load_run

NAMES = [f"s{number}" for number in range(5)]
PLAIN = LocalEngine(EngineOptions())


class InThisProcess(Engine):
    """Tasks travel as on a cluster, but run here; those in `lost` do not run."""

    name = "local"

    def __init__(self, *lost: int, workers: int = 2) -> None:
        super().__init__(EngineOptions())
        self.lost, self.workers = lost, workers
        self.names: list[str] = []  # of its tasks

    def check(self, tasks):
        pass

    def slots(self, tasks):
        return self.workers

    def run(self, tasks):
        for number, task in enumerate(tasks):
            self.names.append(task.name)
            yield Update(task)
            call = pickle.loads(pickle.dumps(task.call))
            yield Update(task, "its process was killed." if number in self.lost else call())


@pytest.fixture(autouse=True)
def load_once(monkeypatch) -> None:
    """Loading a run takes longer than predicting the scans."""
    monkeypatch.setattr(prediction, "load_run", cached_run)


@cache
def cached_run(path: Path, **options: Any) -> Run:
    return load_run(path, **options)


@pytest.fixture
def scans(tmp_path) -> Path:
    for number, name in enumerate(NAMES):
        write_picture(tmp_path / "scans" / f"{name}.png", scan(2, 9000 + number)[0])
    return tmp_path / "scans"


@pytest.fixture
def request_of(trained_once) -> PredictionRequest:
    return PredictionRequest(
        trained_once / "run", (), "last", "cpu", False, PredictOptions(fast=True)
    )


@pytest.fixture
def predicted(monkeypatch) -> list[str]:
    """The scans that the network has predicted, in order."""
    found, infer = [], predictor.Inference.__call__

    def record(self: Any, case: str, scan: Any) -> Any:
        found.append(case)
        return infer(self, case, scan)

    monkeypatch.setattr(predictor.Inference, "__call__", record)
    return found


def content(out: Path) -> dict[str, object]:
    """Every file of an output folder; the manifest without its order."""
    return {
        str(path.relative_to(out)): json.loads(path.read_text())
        if path.suffix == ".json"
        else path.read_bytes()
        for path in out.rglob("*")
        if path.is_file()
    }


def copied_at(call: int, out: Path, copy: Path, monkeypatch) -> None:
    """Copy the output folder when as many scans are written: a kill would leave such a folder."""
    write, calls = predictor._write_job, 0

    def written(*arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            shutil.copytree(out, copy)
        write(*arguments)

    monkeypatch.setattr(predictor, "_write_job", written)


def test_shards_give_the_files_of_an_unsharded_prediction(scans, request_of, predicted, tmp_path):
    (scans / "cut.png").write_bytes(b"cut")
    request = replace(request_of, probabilities=True)
    messages = []
    for engine, out in ((PLAIN, tmp_path / "a"), (InThisProcess(), tmp_path / "b")):
        predicted.clear()
        with pytest.raises(IncompleteError) as failure:
            predict_on(engine, request, [scans], out)
        assert sorted(predicted) == NAMES
        messages.append(str(failure.value).replace(str(out), "OUT"))
    assert messages[0] == messages[1]
    assert "[cut]" in messages[0]
    assert content(tmp_path / "a") == content(tmp_path / "b")


@pytest.mark.parametrize(
    ("engine", "overwrite"), [(PLAIN, True), (InThisProcess(), False)], ids=["plain", "shards"]
)
def test_a_killed_prediction_resumes_without_repeating_a_finished_scan(
    scans, request_of, predicted, tmp_path, monkeypatch, engine, overwrite
):
    """The process of a shard and the command are killed together, in the second shard."""
    out, copy = tmp_path / "out", tmp_path / "copy"
    monkeypatch.setattr(predictor, "MOST_AHEAD", 1)
    if overwrite:
        predict_on(PLAIN, request_of, [scans], out)
    copied_at(5, out, copy, monkeypatch)
    predict_on(InThisProcess(), request_of, [scans], out, overwrite=overwrite)
    predicted.clear()
    predict_on(engine, request_of, [scans], copy)
    assert predicted == [NAMES[4]]
    expected, found = content(out), content(copy)
    for path in expected:
        assert found[path] == expected[path], path
    assert engine is PLAIN or found.keys() == expected.keys()


def test_overwriting_repeats_the_finished_scans_of_a_killed_command(
    scans, request_of, predicted, tmp_path, monkeypatch
):
    """The scans, or options such as the overlap, may have changed since."""
    out, copy = tmp_path / "out", tmp_path / "copy"
    copied_at(5, out, copy, monkeypatch)
    predict_on(InThisProcess(), request_of, [scans], out)
    earlier = {path.name for path in (copy / "shards").iterdir()}
    predicted.clear()
    engine = InThisProcess()
    predict_on(engine, request_of, [scans], copy, overwrite=True)
    assert sorted(predicted) == NAMES
    assert len(earlier) == len(engine.names) == 2
    assert not earlier & {*engine.names}  # the tasks of the killed command may still be in a queue
    assert not (copy / "shards").exists()


def test_a_lost_shard_stops_no_other_and_is_finished_by_the_same_command(
    scans, request_of, predicted, tmp_path
):
    out, first, second = tmp_path / "out", InThisProcess(0), InThisProcess(workers=1)
    with pytest.raises(IncompleteError, match=r"3 of 5 .*\[s0, s1, s2\] its process was killed"):
        predict_on(first, request_of, [scans], out)
    assert predicted == NAMES[3:]
    rows = (out / "cases.csv").read_text()
    assert "s1,,,,,,not predicted: its process was killed." in rows
    predicted.clear()
    write_picture(scans / "new.png", scan(2, 9000)[0])
    predict_on(second, request_of, [scans], out)
    assert sorted(predicted) == ["new", *NAMES[:3]]
    assert second.names[0] == first.names[0]  # its job may still be in the queue of a cluster
    assert not (out / "shards").exists()


def test_scans_of_a_task_that_outlives_its_command_are_recorded(
    scans, request_of, predicted, tmp_path
):
    """The next command has fewer scans, and follows the task, as on Slurm."""
    out, tasks = tmp_path / "out", []
    trained = cached_run(request_of.run, device="cpu").split.labeled[0]
    write_picture(scans / f"{trained}.png", scan(2, 9000)[0])

    class Killed(InThisProcess):
        def run(self, given):
            tasks.extend(given)
            raise KeyboardInterrupt

    class Following(InThisProcess):
        def run(self, given):
            assert [task.name for task in given] == [task.name for task in tasks]
            yield Update(given[0], tasks[0].call())

    with pytest.raises(KeyboardInterrupt):
        predict_on(Killed(workers=1), request_of, [scans], out)
    predict_on(Following(), request_of, [scans / "s0.png"], out)
    manifest = read_manifest(out)
    assert sorted(manifest.summaries) == sorted([*NAMES, trained])
    assert [case for case in manifest.files if manifest.files[case].seen == "training"] == [trained]
    predict_on(InThisProcess(), request_of, [scans], out)
    assert sorted(predicted) == sorted([*NAMES, trained])


def test_a_repeated_task_predicts_only_what_is_missing(scans, request_of, predicted, tmp_path):
    out = tmp_path / "out"

    class Repeating(InThisProcess):
        def run(self, tasks):
            (task,) = tasks
            assert task.call() == ""
            assert predicted == NAMES
            (out / "s1.png").unlink()
            shutil.copy(out / "s4.png", out / "s3.png")
            yield Update(task, task.call())

    predict_on(Repeating(workers=1), request_of, [scans], out)
    assert predicted == [*NAMES, "s1", "s3"]


def test_an_unexpected_error_of_a_shard_is_written_down(scans, request_of, tmp_path, monkeypatch):
    locked = []

    def fail(*_: Any) -> None:
        locked.append(len(list(tmp_path.glob("out/shards/*/.lock"))))
        raise ZeroDivisionError("BAD")

    monkeypatch.setattr(predictor, "_load_job", fail)
    with pytest.raises(IncompleteError, match=r"ZeroDivisionError\('BAD'\); see .*error.txt"):
        predict_on(InThisProcess(), request_of, [scans], tmp_path / "out")
    traces = [path.read_text() for path in tmp_path.glob("out/shards/*/error.txt")]
    assert len(traces) == 2
    assert all("in fail" in text for text in traces)
    assert {*locked} == {1}  # no other process may predict the same shard


def test_restart_of_a_killed_process_is_reported(scans, request_of, tmp_path, capsys):
    class Killed(InThisProcess):
        def run(self, tasks):
            yield Update(tasks[0], was_killed=True)
            yield from super().run(tasks)

    assert len(predict_on(Killed(workers=1), request_of, [scans], tmp_path / "out")) == 5
    assert "A process that predicts 5 scans was killed" in capsys.readouterr().err


def test_lost_process_that_is_still_ending_is_no_error(scans, request_of, tmp_path):
    with ExitStack() as held:

        class Ending(InThisProcess):
            def run(self, tasks):
                yield from super().run(tasks)
                place = tmp_path / "out" / "shards" / tasks[0].name
                held.enter_context(RunFolder(place).locked())

        assert len(predict_on(Ending(workers=1), request_of, [scans], tmp_path / "out")) == 5


def test_two_commands_in_one_folder_are_refused(scans, request_of, tmp_path):
    class Twice(InThisProcess):
        def run(self, tasks):
            with pytest.raises(InputError, match="another process is predicting in"):
                predict_on(InThisProcess(), request_of, [scans], tmp_path / "out")
            yield from super().run(tasks)

    predict_on(Twice(), request_of, [scans], tmp_path / "out")


def test_two_scans_of_one_name_are_refused_before_anything_runs(scans, request_of, tmp_path):
    write_picture(tmp_path / "more" / "s0.png", scan(2, 9000)[0])
    inputs = [scans, tmp_path / "more" / "s0.png"]
    with pytest.raises(InputError, match="two inputs are named 's0'"):
        predict_on(InThisProcess(), request_of, inputs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_shard_that_still_runs_is_not_replaced(scans, request_of, tmp_path):
    """A command with other maps needs other shards."""
    out = tmp_path / "out"
    with pytest.raises(IncompleteError):
        predict_on(InThisProcess(0), request_of, [scans], out)
    (place,) = (out / "shards").iterdir()
    request = replace(request_of, probabilities=True)
    with (
        RunFolder(place).locked(),
        pytest.raises(InputError, match=f"another process is predicting in {place}"),
    ):
        predict_on(InThisProcess(), request, [scans], out)
    predict_on(InThisProcess(), request, [scans], out)
    assert not (out / "shards").exists()
    assert "does not exist. Choose an --out on a file system" in predict_shard(request, place, {})


def test_shard_that_another_command_removes_meanwhile_is_skipped(tmp_path, monkeypatch):
    def read_late(folder: Path) -> shards.Shard:
        shutil.rmtree(folder)
        return read(folder)

    read = shards.read_shard
    shards.Shard("run", (), ("s0",)).write(tmp_path / "shards" / "a", shards.Results())
    assert len(shards.read_shards(tmp_path)) == 1
    monkeypatch.setattr(shards, "read_shard", read_late)
    assert shards.read_shards(tmp_path) == {}


def test_run_that_changes_meanwhile_is_an_error(scans, request_of, tmp_path, monkeypatch):
    monkeypatch.setattr(prediction, "load_run", load_run)
    other = shutil.copytree(request_of.run, tmp_path / "run")

    class Changing(InThisProcess):
        def run(self, tasks):
            weights = other / "checkpoints" / "last.safetensors"
            *others, last = weights.read_bytes()
            weights.write_bytes(bytes([*others, last ^ 1]))
            yield from super().run(tasks)

    request = replace(request_of, run=other)
    with pytest.raises(IncompleteError, match="has changed since the command started"):
        predict_on(Changing(workers=1), request, [scans], tmp_path / "out")
    assert len(predict_on(InThisProcess(workers=1), request, [scans], tmp_path / "out")) == 5


def test_unfamiliar_scans_are_reported_as_without_shards(scans, request_of, tmp_path, capsys):
    write_picture(scans / "noise.png", np.random.default_rng(0).integers(0, 2, (90, 9), np.uint8))
    lines = []
    for engine, out in ((PLAIN, tmp_path / "a"), (InThisProcess(), tmp_path / "b")):
        capsys.readouterr()
        predict_on(engine, request_of, [scans], out)
        err = capsys.readouterr().err
        lines.append([line for line in err.splitlines() if line.startswith("warning")])
    assert any("noise is unlike the training images" in line for line in lines[0])
    assert lines[0] == lines[1]


def test_options_of_a_cluster_need_one(segpl, trained_once, tmp_path):
    options = ("--gpus", 1, "--out", tmp_path / "out")
    answer = segpl("predict", trained_once / "run", *options)
    assert answer.code == 1
    assert "--gpus needs --on ray or --on slurm" in answer.err


@pytest.mark.parametrize(
    ("scans", "workers", "size"),
    [
        (3, 2, 2),  # no worker idles
        (12, 1, 10),  # loading the run is cheap
        (400, 4, 25),  # workers end at about the same time
        (100_000, 8, 200),
        (50, None, 10),
        (100_000, None, 100),  # one job array
    ],
)
def test_shards_are_large_enough_to_load_a_run_for_and_keep_workers_busy(scans, workers, size):
    assert shard_size(scans, workers) == size
