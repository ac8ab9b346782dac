"""Several processes train one run, as if they were one process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from conftest import make_dataset
from pair import TIMED_STEPS, stop_at
from tiny import build, make_batch

from segpl.cli.main import main
from segpl.display import TrainingDisplay
from segpl.engine.acceleration import WARM_UP, AcceleratedNetworks
from segpl.engine.checkpoint import read_checkpoint
from segpl.engine.device import autocast
from segpl.engine.distributed import ALONE, Processes
from segpl.engine.folder import RunFolder
from segpl.engine.log import read_log
from segpl.engine.step import optimizer_for, take_step
from segpl.evaluate.validation import read_validation
from segpl.methods.base import METHODS
from segpl.settings import read_config
from segpl.types import Batch, Labeled, Unlabeled

PAIR = Path(__file__).with_name("pair.py")
TESTS = PAIR.parents[1]
TOLERANCE = 1e-5
OPTIONS = (
    *("--device", "cpu", "--set", "network.width=4", "--set", "train.batch=2"),
    *("--set", "train.log_every=1", "--set", "train.checkpoint_every=2"),
    *("--set", "train.precision=float32"),  # some CPUs train in bfloat16
)
STEPS = ("--steps", "6", "--validation", "1")
INTERRUPTED = 128 + signal.SIGTERM


def train(root: Path, name: str, *options: str) -> list[str]:
    return ["train", str(root / "data"), "--out", str(root / name), *OPTIONS, *options]


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Runs of one process, `one`, and of two, `two`; `resumed` by 1, 2, 1 processes."""
    root = tmp_path_factory.mktemp("torchrun")
    make_dataset(root / "data", dims=2)
    commands = {
        "two": train(root, "two", *STEPS),
        "resumed": train(root, "resumed", *STEPS, "--resume"),
        "timed": train(root, "timed", "--time", "10s"),
        "uneven": train(root, "uneven", *STEPS, "--set", "train.batch=3"),
    }
    (root / "commands.json").write_text(json.dumps(commands))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEGPL_CACHE", str(root / "cache"))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]))
        patch.setattr(TrainingDisplay, "on_step", TrainingDisplay.on_step)
        assert main(train(root, "one", *STEPS)) == 0
        stop_at(2)
        assert main(train(root, "resumed", *STEPS)) == INTERRUPTED
        stop_at(0)
        launch_pair(root)
        assert read_checkpoint(RunFolder(root / "resumed").last).step == 4
        assert main([*commands["resumed"]]) == 0
    return root


@contextmanager
def torchrun(root: Path, *command: str) -> Iterator[subprocess.Popen[bytes]]:
    """`segpl` in two processes, with their output in `root/output.txt`."""
    start = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "segpl"]
    with (root / "output.txt").open("w") as output:
        agent = subprocess.Popen(
            [sys.executable, "-m", *start, *command], stdout=output, stderr=output
        )
    try:
        yield agent
    finally:
        agent.terminate()  # torchrun then stops its processes
        try:
            agent.wait(60)
        except subprocess.TimeoutExpired:
            agent.kill()
            raise


def launch_pair(root: Path) -> None:
    # a process that has used several threads cannot compute after a fork
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PAIR), str(root)]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    ) as parent:
        try:
            _, errors = parent.communicate(timeout=120)
        finally:
            with suppress(ProcessLookupError):  # all have ended
                os.killpg(parent.pid, signal.SIGKILL)
    assert parent.returncode == 0, errors + said(root, 0) + said(root, 1)


def said(root: Path, rank: int) -> str:
    return (root / f"{rank}.txt").read_text()


def results(root: Path, rank: int) -> dict[str, Any]:
    return dict(json.loads((root / f"{rank}.json").read_text()))


def test_two_processes_train_like_one(root):
    """One test, because workers of pytest-xdist would each start the processes."""
    check_all_methods_take_the_same_steps(root)
    check_batch_statistics_are_the_same_in_all_processes(root)
    check_curves_are_the_same(root, "two", "resumed")
    check_nccl_would_send_all_tensors(root)
    check_labels_and_logits_are_exchanged_but_no_images(root)
    check_a_signal_to_one_process_stops_both_at_the_same_step(root)
    check_both_take_the_number_of_steps_that_the_first_one_measured(root)
    check_a_batch_without_equal_shares_is_refused(root)
    check_a_process_whose_partner_failed_stops_and_says_so(root)
    check_only_the_first_process_shows_progress(root)


def check_all_methods_take_the_same_steps(root: Path) -> None:
    for rank in (0, 1):
        differences = results(root, rank)["differences"]
        assert differences.keys() == set(METHODS.names)
        wrong = {name: one for name, one in differences.items() if not one < TOLERANCE}
        assert not wrong, "a method that combines images gathers them with batch.shares first"


def check_batch_statistics_are_the_same_in_all_processes(root: Path) -> None:
    first, second = (results(root, rank)["statistics"] for rank in (0, 1))
    assert first == second
    assert any(first)


def check_curves_are_the_same(root: Path, *names: str) -> None:
    alone, validated = (read(root, "one") for read in (read_curve, validation_steps))
    for name in names:
        together = read_curve(root, name)
        assert together.keys() == alone.keys()
        for column, values in alone.items():
            assert together[column] == pytest.approx(values, abs=TOLERANCE), (name, column)
        assert validation_steps(root, name) == validated


def check_nccl_would_send_all_tensors(root: Path) -> None:
    assert [results(root, rank)["refused"] for rank in (0, 1)] == [[], []]


def check_labels_and_logits_are_exchanged_but_no_images(root: Path) -> None:
    """Two labeled and two unlabeled crops of 16 x 16 voxels: labels, padding and logits."""
    crop = 16 * 16
    expected = 2 * crop * 2 + 2 * crop * 1 + 4 * crop * 4
    assert [results(root, rank)["gathered"] for rank in (0, 1)] == [expected] * 2


def read_curve(root: Path, name: str) -> dict[str, list[float]]:
    return read_log(RunFolder(root / name).log)


def validation_steps(root: Path, name: str) -> list[int]:
    return [row.step for row in read_validation(RunFolder(root / name).validation)]


def check_a_signal_to_one_process_stops_both_at_the_same_step(root: Path) -> None:
    assert [results(root, rank)["resumed"] for rank in (0, 1)] == [INTERRUPTED] * 2


def check_both_take_the_number_of_steps_that_the_first_one_measured(root: Path) -> None:
    assert [results(root, rank)["timed"] for rank in (0, 1)] == [0, 0]
    folder = RunFolder(root / "timed")
    assert read_config(folder.config)["train"]["steps"] == TIMED_STEPS
    assert read_checkpoint(folder.last).step == TIMED_STEPS


def check_a_batch_without_equal_shares_is_refused(root: Path) -> None:
    assert "a batch of 3 labeled crops cannot be split equally over 2 processes" in said(root, 0)
    assert not (root / "uneven").exists()


def check_a_process_whose_partner_failed_stops_and_says_so(root: Path) -> None:
    assert "another process of this training run has stopped" in said(root, 1)


def check_only_the_first_process_shows_progress(root: Path) -> None:
    assert said(root, 0).count("step 6 of 6") == 1
    shown = [line for line in said(root, 1).splitlines() if line]
    assert [line.split(":")[0].split(".")[0] for line in shown] == ["error"]


@pytest.fixture(params=["cpu", "cuda"])
def itself(request) -> Iterator[tuple[Processes, torch.device]]:
    """A group of one process, which exchanges tensors with itself, and its device."""
    device = torch.device(request.param)
    if device.type == "cuda" and not torch.cuda.is_available():
        pytest.skip("NCCL needs a GPU")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    processes = Processes()
    processes.group = dist.new_group(backend="nccl" if device.type == "cuda" else "gloo")
    yield processes, device
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["bpl-mix", "cct", "fixmatch", "segpl-vi", "self-loop"])
def test_a_process_that_exchanges_tensors_with_itself_trains_as_alone(itself, name):
    """On a GPU, this is a test of NCCL, also between CUDA graphs."""
    processes, device = itself
    alone, together = (losses(name, one, device) for one in (ALONE, processes))
    tolerance = TOLERANCE if device.type == "cpu" else 0.01  # of the loss in bfloat16
    assert together == pytest.approx(alone, abs=tolerance)


def losses(name: str, processes: Processes, device: torch.device) -> list[float]:
    """The loss of each step; on a GPU, the first ones record CUDA graphs."""
    method = build(name, 2).to(device).train()
    processes.equalize(method)
    context, found = autocast(device, "auto"), []
    networks, steps = None, 1
    if device.type == "cuda":
        networks, steps = AcceleratedNetworks(method, device, context, pytest.fail), WARM_UP + 1
    optimizer = optimizer_for(method, 0.01)
    for step in range(steps):
        batch = processes.gather_batch(on_device(make_batch(2, seed=step), device))
        advance = partial(
            take_step, method, optimizer, batch, 1.0, context, taken=step, processes=processes
        )
        _, total = networks.run(advance) if networks else advance()
        found.append(total.item())
    return found


def on_device(batch: Batch, device: torch.device) -> Batch:
    labeled, unlabeled = batch.labeled, batch.unlabeled
    assert unlabeled is not None
    return Batch(
        Labeled(labeled.image.to(device), labeled.label.to(device)),
        Unlabeled(unlabeled.image.to(device)),
        torch.Generator(device).manual_seed(batch.generator.initial_seed()),
    )


@pytest.mark.slow
def test_torchrun_trains_like_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("SEGPL_CACHE", str(tmp_path / "cache"))
    make_dataset(tmp_path / "data", dims=2)
    assert main(train(tmp_path, "one", *STEPS)) == 0
    with torchrun(tmp_path, *train(tmp_path, "two", *STEPS)) as agent:
        assert agent.wait(timeout=120) == 0, (tmp_path / "output.txt").read_text()
    check_curves_are_the_same(tmp_path, "two")
    assert (tmp_path / "output.txt").read_text().count("step 6 of 6") == 1


@contextmanager
def endless_torchrun(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Train `root/run` in two processes; starts with the first log line."""
    make_dataset(root / "data", dims=2)
    options = ("--steps", "1000000", "--method", "segpl")
    with torchrun(root, *train(root, "run", *options)) as agent:
        deadline = time.monotonic() + 120
        while not (root / "run" / "log.csv").exists():
            assert agent.poll() is None, (root / "output.txt").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        yield agent


def workers_of(agent: subprocess.Popen[bytes]) -> dict[str, int]:
    """Process numbers by rank."""
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()
    found = {}
    for child in children:
        variables = Path(f"/proc/{child}/environ").read_text().split("\0")
        found |= {v.removeprefix("RANK="): int(child) for v in variables if v.startswith("RANK=")}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_torchrun_saves_the_step_and_stops_all(tmp_path, number):
    with endless_torchrun(tmp_path) as agent:
        workers = workers_of(agent)
        agent.send_signal(number)
        assert agent.wait(timeout=60) != 0
        log = read_log(tmp_path / "run" / "log.csv")
        assert read_checkpoint(RunFolder(tmp_path / "run").last).step == log["step"][-1]
        assert not any(Path(f"/proc/{number}").exists() for number in workers.values())


@pytest.mark.slow
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_killed_process_stops_all(tmp_path, rank):
    with endless_torchrun(tmp_path) as agent:
        workers = workers_of(agent)
        os.kill(workers[rank], signal.SIGKILL)
        assert agent.wait(timeout=60) != 0
        assert not any(Path(f"/proc/{number}").exists() for number in workers.values())
        if rank == "1":
            words = "another process of this training run has"
            assert words in (tmp_path / "output.txt").read_text()
