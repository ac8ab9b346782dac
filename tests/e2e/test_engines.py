"""`segpl compare` and `segpl predict` on real clusters of one machine."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import slurm
from conftest import SHORT, make_dataset, rows_of, scan, train_runs, wait_for, write_picture
from PIL import Image

from segpl.data.manifest import read_manifest
from segpl.engine.checkpoint import read_checkpoint
from segpl.engine.folder import RunFolder
from segpl.errors import InputError
from segpl.experiments import compare
from segpl.experiments.engines import ray
from segpl.experiments.engines.base import EngineOptions, Task
from segpl.experiments.engines.ray import RayEngine
from segpl.predict.shards import read_shards

EXPERIMENT = """
[train]
steps = 4
batch = 1
precision = "float32"
[network]
width = 4
[datasets.few]
path = "data"
seeds = [0, 1]
split = { labeled = 1, test = 2 }
[datasets.more]
path = "data"
seeds = [0, 1]
split = { labeled = 3, test = 2 }
[[questions]]
id = "all"
text = "Do they help?"
reference = "supervised"
variants = ["segpl", "cps"]
cases = "test"
"""
LONG = (
    *("--steps", "150", "--set", "network.width=4", "--set", "train.batch=1"),
    *("--set", "train.log_every=5", "--set", "train.checkpoint_every=10"),
    *("--methods", "segpl", "--seeds", "0", "1", "--test", "2"),
)


@pytest.fixture(autouse=True)
def skip_pages(monkeypatch) -> None:
    """Pages take seconds."""
    monkeypatch.setattr(compare, "write_report", lambda *_, **__: None)


@pytest.fixture(scope="module")
def ray_cluster() -> Iterator[Any]:
    """Two nodes with a core each."""
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def ray_address(ray_cluster) -> str:
    return str(ray_cluster.address)


@pytest.fixture(scope="module")
def slurm_config(tmp_path_factory) -> Iterator[Path]:
    pytest.importorskip("submitit")
    if reason := slurm.missing():
        pytest.skip(reason)
    with slurm.running_slurm(tmp_path_factory.mktemp("slurm") / "here") as config:
        yield config


@pytest.fixture
def options(request, monkeypatch) -> tuple[object, ...]:
    """The options of an engine, which starts if needed."""
    if request.param == "ray":
        return ("--on", "ray", "--address", request.getfixturevalue("ray_address"))
    if request.param == "slurm":
        monkeypatch.setenv("SLURM_CONF", str(request.getfixturevalue("slurm_config")))
        return ("--on", "slurm")
    return ("--on", "local", "--jobs", 2)


on_clusters = pytest.mark.parametrize("options", ["ray", "slurm"], indirect=True)


def scores(out: Path) -> dict[tuple[str, ...], float]:
    keys = ("dataset", "method", "seed")
    return {
        tuple(row[key] for key in keys): float(row["test_dice"])
        for row in rows_of(out / "comparison.csv")
    }


def test_a_cluster_that_does_not_answer_is_an_error_before_anything_runs(
    segpl, tmp_path, monkeypatch
):
    pytest.importorskip("ray")
    # reading the test cases of a large dataset takes minutes
    monkeypatch.setattr(compare, "check_held_out", lambda *_, **__: pytest.fail("read scans"))
    data = make_dataset(tmp_path / "data", dims=2)
    (port,) = slurm.free_ports(1)
    given = ("--on", "ray", "--address", f"127.0.0.1:{port}", "--out", tmp_path / "out")
    answer = segpl("compare", data, *SHORT, "--methods", "segpl", *given)
    assert answer.code == 1
    assert f"no Ray cluster answers at 127.0.0.1:{port}" in answer.err
    assert not list((tmp_path / "out").rglob("*.csv"))


def test_a_port_without_ray_behind_it_is_an_error(monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setattr(ray, "ANSWER_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match=f"no Ray cluster answered at {address} within 2 s"):
            RayEngine(EngineOptions(address=address)).check([Task("a", str)])


def test_ray_gives_the_scores_of_this_process_and_refuses_what_no_node_has(
    segpl, ray_address, tmp_path
):
    data = make_dataset(tmp_path / "data", dims=2)
    # unlike this process, those of Ray compute in bfloat16 on some CPUs
    exact = ("--set", "train.precision=float32")
    given = ("compare", data, *SHORT, *exact, "--methods", "segpl", "--seeds", 0)
    on_ray = ("--on", "ray", "--address", ray_address, "--out", tmp_path / "ray")
    answer = segpl(*given, *on_ray, "--gpus", 1)
    assert answer.code == 1
    assert "no node of the Ray cluster has 1 CPU, 1 GPU for a task" in answer.err
    for more in (on_ray, ("--out", tmp_path / "here")):
        answer = segpl(*given, *more)
        assert answer.code == 0, answer.err + answer.out
    assert "2 of 2 runs done" in answer.err
    assert scores(tmp_path / "ray") == pytest.approx(scores(tmp_path / "here"), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("options", ["ray", "slurm"], indirect=True)
def test_clusters_give_the_scores_of_this_machine(segpl, options, local_scores, tmp_path):
    experiment, expected = local_scores
    out = tmp_path / "out"
    answer = segpl("compare", experiment, "--data", experiment.parent, *options, "--out", out)
    assert answer.code == 0, answer.err + answer.out
    assert len(expected) == 12
    assert scores(out) == pytest.approx(expected, abs=1e-3)


@pytest.fixture(scope="module")
def local_scores(tmp_path_factory) -> tuple[Path, dict[tuple[str, ...], float]]:
    """3 methods x 2 budgets x 2 seeds, two at a time on this machine."""
    root = tmp_path_factory.mktemp("local")
    make_dataset(root / "data", dims=2, labeled=6, unlabeled=1, test=0)
    (root / "experiment.toml").write_text(EXPERIMENT)
    given = (root / "experiment.toml", "--data", root, "--jobs", 2, "--out", root / "out")
    assert start(*given).wait(300) == 0
    return root / "experiment.toml", scores(root / "out")


def start(*arguments: object, command: str = "compare") -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "segpl", command, *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)


def processes_with(place: Path) -> list[int]:
    """Processes that have opened a file or folder."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or it is protected
            for link in os.scandir(process / "fd"):
                with suppress(OSError):  # it was closed
                    if os.readlink(link.path) == str(place):
                        found.add(int(process.name))
    return sorted(found)


def runs_with(out: Path, name: str) -> set[Path]:
    return {path for path in out.glob("runs/*") if (path / name).exists()}


@pytest.mark.slow
@on_clusters
def test_lost_worker_and_driver_do_not_repeat_a_finished_run(options, tmp_path):
    data = make_dataset(tmp_path / "data", dims=2, labeled=6, unlabeled=0, test=0)
    out = tmp_path / "out"
    given = (data, *LONG, "--labeled", 3, *options, "--jobs", 1, "--out", out)
    driver = start(*given)
    try:
        wait_for(lambda: runs_with(out, "scores.csv"))
        (finished,) = runs_with(out, "scores.csv")
        wait_for(lambda: runs_with(out, "checkpoints/last.safetensors") - {finished})
        (lost,) = runs_with(out, "checkpoints/last.safetensors") - {finished}
        before = (finished / "checkpoints/last.safetensors").stat().st_mtime_ns
        workers = processes_with(lost)
        assert workers
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        wait_for(lambda: runs_with(out, "log.csv") - {finished, lost} or processes_with(lost))
        assert driver.poll() is None
    finally:
        driver.kill()
        driver.wait(60)
    assert start(*given).wait(300) == 0
    assert len(rows_of(out / "comparison.csv")) == 4
    assert not [row["error"] for row in rows_of(out / "comparison.csv") if row["error"]]
    assert (finished / "checkpoints/last.safetensors").stat().st_mtime_ns == before
    assert len(list(out.glob("runs/*"))) == 4


@pytest.mark.slow
def test_preempted_slurm_job_is_requeued_and_resumes(slurm_config, monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_CONF", str(slurm_config))
    data = make_dataset(tmp_path / "data", dims=2, labeled=6, unlabeled=0, test=0)
    out = tmp_path / "out"
    late = ("--steps", "400", "--set", "train.checkpoint_every=400", "--seeds", "0")
    given = (data, *LONG, *late, "--labeled", 3, "--on", "slurm", "--jobs", 1, "--out", out)
    driver = start(*given)
    try:
        wait_for(lambda: runs_with(out, "log.csv"))
        (run,) = runs_with(out, "log.csv")
        job = json.loads((out / "slurm/jobs.json").read_text())[str(run)]
        for worker in processes_with(run):
            os.kill(worker, signal.SIGUSR2)  # as Slurm does before it takes the node away
        log = out / "slurm" / f"{job}_0_log.out"
        wait_for(lambda: "Requeued job" in log.read_text())
        assert 0 < read_checkpoint(RunFolder(run).last).step < 400
        soon = ["scontrol", "update", f"JobId={job}", "StartTime=now"]

        def has_restarted() -> bool:
            subprocess.run(soon, capture_output=True)  # otherwise Slurm waits for two minutes
            return log.read_text().count("Starting with") == 2

        wait_for(has_restarted)
        assert driver.wait(300) == 0
    finally:
        driver.kill()
        driver.wait(60)
    assert [row["error"] for row in rows_of(out / "comparison.csv")] == [""] * 2


@pytest.fixture(scope="module")
def predictions(tmp_path_factory) -> tuple[tuple[object, ...], Path]:
    """The arguments of a prediction of 12 scans that takes seconds, and its masks."""
    root = tmp_path_factory.mktemp("predictions")
    train_runs(root, make_dataset(root / "data", dims=2), {"run": ("--method", "supervised")})
    for number in range(12):
        picture = np.tile(scan(2, 9000 + number)[0], (3, 3))
        write_picture(root / "scans" / f"s{number:02}.png", picture)
    given = (root / "run", root / "scans", "--overlap", 0.9, "--no-preview")
    assert start(*given, "--out", root / "masks", command="predict").wait(300) == 0
    return given, root / "masks"


def check_masks(out: Path, expected: Path) -> None:
    """Other processes may round differently, so a few voxels may differ."""
    masks = sorted(expected.glob("*.png"))
    assert len(masks) == 12
    assert sorted(path.name for path in out.glob("*.png")) == [path.name for path in masks]
    for mask in masks:
        both = [np.asarray(Image.open(folder / mask.name)) for folder in (out, expected)]
        assert (both[0] != both[1]).mean() < 0.01
    found, wanted = (read_manifest(folder) for folder in (out, expected))
    assert found.run == wanted.run
    assert found.failed == {}
    assert found.summaries.keys() == wanted.summaries.keys()


@pytest.mark.slow
@pytest.mark.parametrize("options", ["local", "ray", "slurm"], indirect=True)
def test_predictions_are_those_of_this_process(segpl, options, predictions, tmp_path):
    given, masks = predictions
    answer = segpl("predict", *given, *options, "--out", tmp_path / "out")
    assert answer.code == 0, answer.err
    assert "Wrote 12 masks" in answer.out
    check_masks(tmp_path / "out", masks)
    found, wanted = (read_manifest(folder).summaries for folder in (tmp_path / "out", masks))
    for case, summary in wanted.items():
        assert found[case].confidence == pytest.approx(summary.confidence, abs=1e-2)
    assert not (tmp_path / "out" / "shards").exists()


def finished_scans(out: Path) -> dict[str, int]:
    """The scans that shards have recorded, and when their masks were written."""
    return {
        case: (out / f"{case}.png").stat().st_mtime_ns
        for shard in read_shards(out).values()
        for case in shard.results.done
    }


@pytest.mark.slow
@on_clusters
def test_lost_worker_and_driver_do_not_repeat_a_finished_scan(options, predictions, tmp_path):
    (*given, masks), out = (*predictions[0], predictions[1]), tmp_path / "out"
    command = (*given, *options, "--jobs", 1, "--out", out)
    driver = start(*command, command="predict")
    try:
        wait_for(lambda: len(finished_scans(out)) > 1)
        locks = list(out.glob("shards/*/.lock"))
        workers = {worker for lock in locks for worker in processes_with(lock)} - {driver.pid}
        assert workers
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        before = finished_scans(out)
        assert len(before) < 10
        wait_for(lambda: len(finished_scans(out)) > len(before))  # a new worker continues
        assert driver.poll() is None
    finally:
        driver.kill()
        driver.wait(60)
    assert start(*command, command="predict").wait(300) == 0
    assert before == {case: (out / f"{case}.png").stat().st_mtime_ns for case in before}
    check_masks(out, masks)
    assert not (out / "shards").exists()


def wait_for_release(folder: Path, name: str) -> str:
    """Record the node of this attempt; once the test allows it, return the number of attempts."""
    import ray

    attempts = folder / name
    with attempts.open("a") as handle:
        handle.write(f"{ray.get_runtime_context().get_node_id()}\n")
    while not (folder / f"release-{name}").exists():
        time.sleep(0.05)
    return str(len(attempts.read_text().split()))


@pytest.mark.slow
def test_task_of_a_lost_node_starts_again_on_another(ray_cluster, tmp_path):
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # nodes cannot import this file
    node = ray_cluster.add_node(num_cpus=1)
    engine = RayEngine(EngineOptions(address=str(ray_cluster.address)))
    names, ended, started, lost = set("abc"), dict[str, str](), set[str](), ""
    tasks = [Task(name, partial(wait_for_release, tmp_path, name)) for name in sorted(names)]

    def nodes_of(name: str) -> list[str]:
        return (tmp_path / name).read_text().split() if (tmp_path / name).exists() else []

    for update in engine.run(tasks):
        if update.error is not None:
            ended[update.task.name] = update.error
        else:
            started.add(update.task.name)
        if started == names and not lost:  # one on every node
            wait_for(lambda: all(map(nodes_of, names)), 60)
            (lost,) = (name for name in names if node.node_id in nodes_of(name))
            ray_cluster.remove_node(node, allow_graceful=False)
            for name in names - {lost}:
                (tmp_path / f"release-{name}").touch()
        if len(ended) == 2:
            wait_for(partial(lambda name: len(nodes_of(name)) == 2, lost), 60)
            (tmp_path / f"release-{lost}").touch()
    assert ended == {**dict.fromkeys(names, "1"), lost: "2"}


@pytest.mark.parametrize("command", ["compare", "predict"])
def test_print_shows_the_batch_script(segpl, trained_once, tmp_path, monkeypatch, command):
    """Without submitting it: these programs cannot."""
    pytest.importorskip("submitit")
    for name in ("sbatch", "srun", "squeue"):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\nexit 1\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    given = {
        "compare": (trained_once / "data", *SHORT, "--methods", "segpl"),  # 2 methods, 3 seeds
        "predict": (trained_once / "run", trained_once / "data" / "labeled" / "imgs"),  # 3 scans
    }
    options = ("--jobs", 2, "--gpus", 1, "--partition", "gpu", "--time-limit", "90m", "--print")
    answer = segpl(command, *given[command], "--on", "slurm", *options, "--out", tmp_path / "o")
    assert answer.code == 0, answer.err
    array = {"compare": "0-5%2", "predict": "0-1%2"}[command]
    for words in (f"--array={array}", "--gpus-per-node=1", "--partition=gpu", "--time=90"):
        assert f"#SBATCH {words}\n" in answer.out
    assert not (tmp_path / "o").exists()


def test_slurm_needs_its_programs(segpl, tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    data = make_dataset(tmp_path / "data", dims=2)
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = segpl("compare", data, "--methods", "segpl", "--on", "slurm", "--out", tmp_path / "o")
    assert answer.code == 1
    assert "there is no sbatch on this machine" in answer.err
