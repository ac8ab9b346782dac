"""Two processes that train together: pair.py FOLDER. See `test_torchrun.py`."""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tiny import BATCH_NORM, build, make_batch

import segpl.engine.budget
import segpl.engine.device
import segpl.training
from segpl.cli.main import main
from segpl.display import TrainingDisplay
from segpl.engine.distributed import ALONE, Processes, join_processes
from segpl.engine.step import optimizer_for, take_step
from segpl.methods.base import METHODS
from segpl.types import IGNORE, Batch

STEPS = 2  # a teacher moves after the first one
SETTINGS: dict[str, dict[str, Any]] = {
    "ensemble": {"members": 2},
    "self-loop": {"rounds": 2},
    "ua-mt": {"draws": 2},
    "fixmatch": {"confidence": 0.55},  # new networks are less confident than the default
}
TIMED_STEPS = 4


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


def curve(name: str, processes: Processes, settings: dict[str, Any]) -> list[torch.Tensor]:
    """All terms, monitors and gradients of a few steps."""
    method = build(name, 2, settings=settings).train()
    optimizer, found = optimizer_for(method, 0.01), []
    for step in range(STEPS):
        output, total = take_step(
            method,
            optimizer,
            uneven_batch(step),
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
    return {name: curve(name, processes, SETTINGS.get(name, {})) for name in METHODS.names}


def difference(alone: list[torch.Tensor], together: list[torch.Tensor]) -> float:
    pairs = zip(alone, together, strict=True)
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def batch_statistics(processes: Processes) -> list[float]:
    """Sums of the running statistics after a step of a teacher and its student."""
    method = build("mean-teacher", 2, network=BATCH_NORM).train()
    optimizer = optimizer_for(method, 0.01)
    context = nullcontext()
    take_step(method, optimizer, uneven_batch(0), 1.0, context, taken=0, processes=processes)
    return [float(value.double().sum()) for value in method.buffers()]


def stop_at(step: int) -> None:
    """Send SIGTERM to this process after `step`."""

    def on_step(display: TrainingDisplay, number: int) -> None:
        if number == step:
            signal.raise_signal(signal.SIGTERM)

    TrainingDisplay.on_step = on_step  # type: ignore[method-assign]


def run_all(folder: Path, rank: int, alone: dict[str, list[torch.Tensor]]) -> int:
    shared = {"TORCHELASTIC_RUN_ID": "pair", "MASTER_ADDR": "127.0.0.1"}
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update(shared, **{name: str(value) for name, value in ranks.items()})
    ports, commands = json.loads((folder / "commands.json").read_text())
    found: dict[str, Any] = {}
    segpl.training.affordable_steps = lambda *_: TIMED_STEPS
    segpl.engine.budget.MEASUREMENT = 0.0  # measure single steps
    os.environ["MASTER_PORT"] = str(ports.pop())
    processes = join_processes()
    processes.connect(torch.device("cpu"))
    together = curves(processes)
    found["differences"] = {name: difference(alone[name], together[name]) for name in alone}
    found["statistics"] = batch_statistics(processes)
    for name, arguments in commands.items():
        if dist.is_initialized():  # the run before was interrupted
            dist.destroy_process_group()
        if name == "resumed":
            stop_at(4 if rank == 1 else 0)
        os.environ["MASTER_PORT"] = str(ports.pop())
        found[name] = main(arguments)
        (folder / f"{rank}.json").write_text(json.dumps(found))
    return int(found[name])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    segpl.engine.device.has_amx = lambda: False  # as in the tests
    alone = curves(ALONE)
    children = []
    for rank in (0, 1):
        if (child := os.fork()) == 0:
            output = os.open(folder / f"{rank}.txt", os.O_WRONLY | os.O_CREAT)
            os.dup2(output, sys.stdout.fileno())
            os.dup2(output, sys.stderr.fileno())
            code = run_all(folder, rank, alone)
            sys.stdout.flush()
            os._exit(code)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(codes != [1, 1])  # of the last command
