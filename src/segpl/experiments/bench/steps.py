"""Training steps of all methods, accelerated and in plain PyTorch, and of MONAI's loop."""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from segpl.data.sampler import Resident, place_volumes
from segpl.engine.acceleration import WARM_UP
from segpl.engine.device import (
    autocast,
    has_bfloat16,
    is_out_of_memory,
    peak_memory,
    should_compile,
    synchronize,
)
from segpl.engine.environment import describe_environment
from segpl.errors import InputError
from segpl.experiments.bench import counts
from segpl.experiments.bench.counts import seconds_per_step
from segpl.experiments.bench.monai_loop import monai_losses
from segpl.experiments.bench.tables import Figures, spread
from segpl.experiments.bench.trial import TrainingTrial
from segpl.experiments.bench.workload import Workload, generate_volumes
from segpl.methods.base import Method
from segpl.networks.network import Network
from segpl.settings import Config

MAX_RECOMPILATIONS = 256  # of one network: methods differ in batch size and mode
TURN_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times steps in rounds over all trials that are compared.

    Other programs on the machine then slow all of them equally. A turn takes as many steps as fit
    into `TURN_SECONDS`, at least one, and waits for the device once.
    """

    device: torch.device
    rounds: int
    advance: Callable[[], None] = lambda: None  # called after the warm-up and after each round

    def time(self, works: Sequence[Callable[[], object]]) -> list[Figures]:
        """Time of one step of each, after a warm-up."""
        steps = []
        for work in works:
            for _ in range(WARM_UP if self.device.type == "cuda" else 1):
                spent_once = seconds_per_step(work, self.device)
            steps.append(max(1, int(TURN_SECONDS / spent_once)))
        self.advance()
        seconds: list[list[float]] = [[] for _ in works]
        for _ in range(self.rounds):
            for work, count, spent in zip(works, steps, seconds, strict=True):
                spent.append(seconds_per_step(work, self.device, count))
            self.advance()
        return [spread(spent) for spent in seconds]


@contextmanager
def measuring(device: torch.device) -> Iterator[None]:
    """Free what was measured before, and let torch compile a network for every method."""
    torch.compiler.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    from torch import _dynamo

    limits: Any = _dynamo.config
    try:
        # beyond its limit, torch runs a network uncompiled with only a warning
        with limits.patch(recompile_limit=MAX_RECOMPILATIONS):
            yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise InputError(
            f"out of memory on {device}. Use a smaller --patch, fewer crops (--set train.batch=N) "
            "or a narrower network (--set network.width=N)."
        ) from error


def precision_of(config: Config, device: torch.device) -> torch.dtype:
    is_half = isinstance(autocast(device, config.train.precision), torch.autocast)
    return torch.bfloat16 if is_half else torch.float32


def measure_machine(config: Config, device: torch.device) -> Figures:
    """The machine and its peak rates."""
    environment = describe_environment(device)
    precision = precision_of(config, device)
    # CPUs without bfloat16 emulate its products very slowly
    kind = precision if has_bfloat16(device) else torch.float32
    return {
        **{name: environment[name] for name in ("device", "threads", "platform", "segpl")},
        "commit": (environment["git"] or {}).get("commit"),
        **{name: environment["packages"][name] for name in ("torch", "monai")},
        "precision": str(precision).removeprefix("torch."),
        "compiled": should_compile(device, config.train.compile),
        "TFLOP/s": round(counts.matrix_rate(device, kind) / 1e12, 3),
        "GB/s": round(counts.copy_rate(device) / 1e9, 2),
    }


def facts_of(config: Config, workload: Workload) -> Figures:
    plan = workload.plan
    return {
        "setting": workload.name,
        "patch": "x".join(map(str, plan.patch)),
        "channels": len(plan.channels),
        "classes": len(plan.classes),
        "labeled": workload.labeled,
        "unlabeled": workload.unlabeled,
        "network": config.network.name,
        "width": config.network.width or plan.width,
        "residual": config.network.residual,
    }


def measure_steps(
    configs: Sequence[Config], workload: Workload, machine: Figures, stopwatch: Stopwatch
) -> list[Figures]:
    """A record of every method, the reference first, and of MONAI's loop."""
    device, reference = stopwatch.device, configs[0]
    volumes = generate_volumes(workload.plan, workload.cases)
    placed = place_volumes(volumes, device, math.inf)
    records: list[Figures] = []
    ours: list[TrainingTrial] = []
    plain: list[TrainingTrial] = []
    loops: list[Generator[Tensor]] = []
    peers: dict[int, TrainingTrial] = {}  # supervised training, by its number of crops
    with measuring(device), ExitStack() as stack:
        for config in configs:
            other, record = count_trial(config, workload, placed, device)
            trial, start = start_trial(config, workload, placed, device)
            stack.enter_context(trial.batches)
            plain.append(other)
            ours.append(trial)
            records.append(record | start)
            peers.setdefault(workload.crops, trial)
            if (crops := record["learned_crops"]) not in peers:
                labeled = replace(workload, labeled=crops, unlabeled=0)
                peers[crops], _ = start_trial(reference, labeled, placed, device)
                stack.enter_context(peers[crops].batches)
            stopwatch.advance()
        has_half = precision_of(reference, device) is torch.bfloat16
        for kind in ("float32", "bfloat16")[: 1 + has_half]:
            losses = monai_losses(reference, workload, volumes, device, kind)
            loops.append(stack.enter_context(closing(losses)))
            records.append({"name": f"MONAI loop, {kind}"})
        shown = [*(one.step for one in ours), *(one.__next__ for one in loops)]
        works = list(dict.fromkeys([*shown, *(one.step for one in (*plain, *peers.values()))]))
        found = dict(zip(works, stopwatch.time(works), strict=True))
    for record, step in zip(records, shown, strict=True):
        ms = found[step]["ms"]
        record |= found[step] | {
            "x": ms / found[shown[0]]["ms"],
            "crops_per_second": 1e3 * workload.crops / ms,
        }
    for record, trial, other in zip(records, ours, plain, strict=False):
        ms, size = record["ms"], precision_of(trial.config, device).itemsize
        record |= {
            "x_learned": ms / found[peers[record["learned_crops"]].step]["ms"],
            "plain_ms": found[other.step]["ms"],
            "speedup": found[other.step]["ms"] / ms,
            "matrix_share": record["step_gflops"] / ms / machine["TFLOP/s"],
            "memory_share": size * record["step_mvalues"] / ms / machine["GB/s"],
        }
    return records


def start_trial(
    config: Config, workload: Workload, volumes: Sequence[Resident], device: torch.device
) -> tuple[TrainingTrial, Figures]:
    """Accelerated steps, the time until the end of the first one, and on a GPU their memory."""
    is_cuda = device.type == "cuda"
    synchronize(device)
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device) if is_cuda else 0
    began = time.perf_counter()
    trial = TrainingTrial(config, workload, volumes, device)
    trial.step()
    synchronize(device)
    record = {"first_step_seconds": time.perf_counter() - began}
    if is_cuda:
        for _ in range(WARM_UP - 1):
            trial.step()
        record["peak_mb"] = (peak_memory(device) - before) / 1e6
    return trial, record


def count_trial(
    config: Config, workload: Workload, volumes: Sequence[Resident], device: torch.device
) -> tuple[TrainingTrial, Figures]:
    """Plain PyTorch steps and their counts; on a CPU, also their memory."""
    with counts.TensorMemory() if device.type == "cpu" else nullcontext() as memory:
        trial = TrainingTrial(config, workload, volumes, device, plain=True)
        for _ in range(2):  # the first one creates the state of the optimizer
            trial.step()
    return trial, count_step(trial) | ({"peak_mb": memory.peak / 1e6} if memory else {})


def count_step(trial: TrainingTrial) -> Figures:
    """Parameters, FLOPs and memory traffic of a plain PyTorch step."""
    method, batch = trial.method, trial.batch()
    with learned_crops(method) as learned:
        step_flops, values = counts.count_operations(lambda: trial.learn(batch))
    image = batch.labeled.image[:1]
    predict_flops, _ = counts.count_operations(lambda: method.predict(image))
    return {
        "name": method.title(),
        "learned_crops": max(learned.values()),
        "parameters": counts.count_weights(method),
        "predicting": counts.count_weights(*method.predictors()),
        "step_gflops": step_flops / 1e9,
        "predict_gflops": predict_flops / 1e9,
        "step_mvalues": values / 1e6,  # that convolutions read and write
    }


@contextmanager
def learned_crops(method: Method) -> Iterator[Counter[Network]]:
    """Counts the crops that each network learns from."""
    counts: Counter[Network] = Counter()

    def count(network: Network, inputs: tuple[Tensor]) -> None:
        if torch.is_grad_enabled() and not network.is_frozen:
            counts[network] += inputs[0].shape[0]

    handles = [network.register_forward_pre_hook(count) for network in method.networks()]
    yield counts
    for handle in handles:
        handle.remove()
