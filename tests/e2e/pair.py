"""Two processes that train together: pair.py FOLDER. See `test_torchrun.py`."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tiny import BATCH_NORM, build, make_batch

import segpl.engine.budget
import segpl.engine.device
import segpl.training_time
from segpl.cli.main import main
from segpl.display import TrainingDisplay
from segpl.engine.distributed import ALONE, Processes, join_processes
from segpl.engine.step import optimizer_for, take_step
from segpl.methods.base import METHODS
from segpl.types import IGNORE, Batch, Labeled, Unlabeled

STEPS = 2  # a teacher moves after the first one
SETTINGS: dict[str, dict[str, Any]] = {
    "ensemble": {"members": 2},
    "self-loop": {"rounds": 2},
    "ua-mt": {"draws": 2},
    "fixmatch": {"confidence": 0.55},  # new networks are less confident than the default
}
TIMED_STEPS = 4
NCCL_TYPES = (
    *(torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
)


class Traffic:
    """The tensors that this process sends to the others."""

    def __init__(self) -> None:
        self.refused: list[str] = []  # what NCCL would not send
        self.gathered = 0  # bytes

    def watch(self) -> None:
        """Check every exchange from now on."""
        for name in ("all_gather", "all_reduce", "broadcast"):
            setattr(dist, name, partial(self.exchange, getattr(dist, name), name))

    def exchange(self, function: Any, name: str, *args: Any, **options: Any) -> Any:
        tensor = args[1] if name == "all_gather" else args[0]
        if "group" not in options and tensor.is_floating_point():
            self.refused.append(f"{name} through the group for the CPU")
        if not tensor.is_contiguous() or tensor.dtype not in NCCL_TYPES:
            self.refused.append(f"{name} of {tensor.dtype}, strides {tensor.stride()}")
        self.gathered += tensor.nbytes if name == "all_gather" else 0
        return function(*args, **options)


def uneven_batch(step: int) -> Batch:
    """Four labeled and four unlabeled images; the shares have different numbers of voxels."""
    batch = make_batch(2, images=4, seed=step)
    assert batch.unlabeled is not None
    label, inside = batch.labeled.label.clone(), torch.ones(4, 16, 16, dtype=torch.bool)
    label[0, :, 8:], inside[:3, 4:], inside[3, :2] = IGNORE, False, False
    return replace(
        batch,
        labeled=replace(batch.labeled, label=label),
        unlabeled=replace(batch.unlabeled, inside=inside),
    )


def share_of_batch(step: int, processes: Processes) -> Batch:
    """The batch of a step as a trainer of one of the processes gets it."""
    batch, own = uneven_batch(step), processes.own
    labeled, unlabeled = batch.labeled, batch.unlabeled
    assert unlabeled is not None
    assert unlabeled.inside is not None
    return processes.gather_batch(
        replace(
            batch,
            labeled=Labeled(labeled.image[own], labeled.label[own]),
            unlabeled=Unlabeled(unlabeled.image[own], unlabeled.inside[own]),
        )
    )


def curve(name: str, processes: Processes) -> list[torch.Tensor]:
    """All terms, monitors and gradients of a few steps."""
    method = build(name, 2, settings=SETTINGS.get(name)).train()
    optimizer, found = optimizer_for(method, 0.01), []
    for step in range(STEPS):
        output, total = take_step(
            method,
            optimizer,
            share_of_batch(step, processes),
            (step + 1) / STEPS,
            nullcontext(),
            taken=step,
            processes=processes,
        )
        found += [total, *(term.value for term in output.terms.values())]
        found += output.monitors.values()
        # not the weights: Adam enlarges the rounding of gradients that are 0 in theory
        found += [w.grad for w in method.parameters() if w.grad is not None]
    return found


def curves(processes: Processes) -> dict[str, list[torch.Tensor]]:
    """The curve of every method."""
    return {name: curve(name, processes) for name in METHODS.names}


def difference(alone: list[torch.Tensor], together: list[torch.Tensor]) -> float:
    """The largest one; NaN if any is, which `max` of Python might ignore."""
    pairs = zip(alone, together, strict=True)
    return float(torch.stack([(a.double() - b.double()).abs().max() for a, b in pairs]).max())


def batch_statistics(processes: Processes) -> list[float]:
    """Sums of the running statistics after a step of a teacher and its student."""
    method = build("mean-teacher", 2, network=BATCH_NORM).train()
    optimizer = optimizer_for(method, 0.01)
    context = nullcontext()
    batch = share_of_batch(0, processes)
    take_step(method, optimizer, batch, 1.0, context, taken=0, processes=processes)
    return [float(value.double().sum()) for value in method.buffers()]


def stop_at(step: int) -> None:
    """Send SIGTERM to this process after `step`."""

    def on_step(display: TrainingDisplay, number: int) -> None:
        if number == step:
            signal.raise_signal(signal.SIGTERM)

    TrainingDisplay.on_step = on_step  # type: ignore[method-assign]


def run_all(
    folder: Path, rank: int, alone: dict[str, list[torch.Tensor]], ports: Sequence[int]
) -> int:
    shared = {"TORCHELASTIC_RUN_ID": "pair", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    shared["MASTER_ADDR"] = "127.0.0.1"
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update(shared, **{name: str(value) for name, value in ranks.items()})
    found: dict[str, Any] = {}
    segpl.training_time.affordable_steps = lambda *_: TIMED_STEPS
    segpl.engine.budget.MEASUREMENT = 0.0  # measure single steps
    first, *others = map(str, ports)
    os.environ["MASTER_PORT"] = first
    processes = join_processes()
    processes.connect(torch.device("cpu"))
    traffic = Traffic()
    traffic.watch()
    together = curves(processes)
    found["differences"] = {name: difference(alone[name], together[name]) for name in alone}
    found["statistics"] = batch_statistics(processes)
    traffic.gathered = 0
    curve("segpl", processes)
    found["gathered"] = traffic.gathered / STEPS
    processes.leave()
    for (name, arguments), port in zip(read_commands(folder).items(), others, strict=True):
        if name == "resumed":
            stop_at(4 if rank == 1 else 0)
        os.environ["MASTER_PORT"] = port
        found[name] = main(arguments)
        found["refused"] = traffic.refused
        (folder / f"{rank}.json").write_text(json.dumps(found))
    return int(found[name])


def read_commands(folder: Path) -> dict[str, list[str]]:
    return dict(json.loads((folder / "commands.json").read_text()))


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    segpl.engine.device.has_amx = lambda: False  # as in the tests
    alone = curves(ALONE)
    # as torchrun, this process serves the stores: a port that is free now may be taken later
    stores = [
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for _ in ("methods", *read_commands(folder))
    ]
    children = []
    for rank in (0, 1):
        if (child := os.fork()) == 0:
            output = os.open(folder / f"{rank}.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(output, sys.stdout.fileno())
            os.dup2(output, sys.stderr.fileno())
            code = run_all(folder, rank, alone, [store.port for store in stores])
            sys.stdout.flush()
            os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(codes != [1, 1])  # of the last command
