"""Measure training steps and predictions, in rounds over all that are compared."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from segpl.data.sampler import Resident, place_volumes
from segpl.engine.device import autocast, is_out_of_memory, peak_memory, should_compile
from segpl.engine.environment import describe_environment
from segpl.errors import InputError
from segpl.experiments.bench.counts import (
    ConvolutionTraffic,
    copy_rate,
    count_flops,
    count_weights,
    matrix_rate,
    synchronize,
)
from segpl.experiments.bench.monai_loop import MonaiLoop
from segpl.experiments.bench.results import (
    BenchResult,
    MethodResult,
    OtherResult,
    SettingResult,
    StepTime,
)
from segpl.experiments.bench.tensor_memory import TensorMemory
from segpl.experiments.bench.trial import TrainingTrial
from segpl.experiments.bench.workload import Workload, generate_volumes
from segpl.methods.base import Method
from segpl.networks.network import Network
from segpl.settings import Config

MAX_RECOMPILATIONS = 256  # of one network: methods differ in batch size and mode
MOST_ROUNDS = 10
WARM_UP = 2  # steps before the clock starts
EVERYTHING = 2**62  # bytes: no volume is too large to be kept on the device
Advance = Callable[[], None]


class Repeatable(Protocol):
    """What can be timed again and again."""

    def step(self) -> object: ...


@contextmanager
def measuring(device: torch.device) -> Iterator[None]:
    """Keep torch's random state, and let it compile a network for every method."""
    from torch import _dynamo

    limits: Any = _dynamo.config
    # beyond its limit, torch runs a network uncompiled with only a warning
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        limits.patch(
            recompile_limit=MAX_RECOMPILATIONS, accumulated_recompile_limit=MAX_RECOMPILATIONS
        ),
    ):
        torch.manual_seed(0)
        try:
            yield
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise InputError(
                f"out of memory on {device}. Use a smaller --patch, fewer crops or a narrower "
                "network (--set network.width=N)."
            ) from error
        finally:
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def measure_device(config: Config, device: torch.device) -> BenchResult:
    """A result without measurements of training: the machine, and what it reaches at most."""
    environment = describe_environment(device)
    precision = precision_of(config, device)
    machine = {
        **{name: environment[name] for name in ("device", "threads", "platform", "segpl")},
        "commit": (environment["git"] or {}).get("commit"),
        **{name: environment["packages"][name] for name in ("torch", "monai")},
        "precision": str(precision).removeprefix("torch."),
        "compiled": should_compile(device, config.train.compile),
    }
    return BenchResult(machine, matrix_rate(device, precision), copy_rate(device))


def precision_of(config: Config, device: torch.device) -> torch.dtype:
    is_half = isinstance(autocast(device, config.train.precision), torch.autocast)
    return torch.bfloat16 if is_half else torch.float32


def measure_setting(
    configs: Sequence[Config],
    workload: Workload,
    device: torch.device,
    *,
    steps: int,
    advance: Advance = lambda: None,
) -> SettingResult:
    """All figures of every method; the first of `configs` is the reference.

    `advance` is called once for each method, and once for each of at most `MOST_ROUNDS` rounds.
    """
    volumes = generate_volumes(workload.plan, workload.cases)
    placed = place_volumes(volumes, device, EVERYTHING)
    found: list[MethodResult] = []
    ours: list[Repeatable] = []
    plain: list[Repeatable] = []
    peers: dict[int, Repeatable] = {}  # supervised training, by its number of crops
    with measuring(device), ExitStack() as stack:
        for config in configs:
            own, other, figures = prepare_method(config, workload, placed, device)
            ours.append(own)
            plain.append(other)
            found.append(figures)
            peers.setdefault(workload.crops, own)
            if (crops := figures.student_crops) not in peers:
                labeled = replace(workload, labeled=crops, unlabeled=0)
                peers[crops] = TrainingTrial(configs[0], labeled, placed, device)
            advance()
        has_half = precision_of(configs[0], device) is torch.bfloat16
        loops: dict[str, Repeatable] = {}
        for kind in ("float32", "bfloat16")[: 1 + has_half]:
            loop = MonaiLoop(configs[0], workload, volumes, device, precision=kind)
            stack.callback(loop.close)
            loops[f"MONAI loop, {kind}"] = loop
        trials = list(dict.fromkeys([*ours, *plain, *peers.values(), *loops.values()]))
        measured = time_steps(trials, device, steps=steps, advance=advance)
        times = dict(zip(trials, measured, strict=True))
    return SettingResult(
        facts_of(configs[0], workload, steps),
        [
            replace(
                figures,
                seconds=times[mine],
                plain=times[baseline],
                peer=times[peers[figures.student_crops]],
            )
            for figures, mine, baseline in zip(found, ours, plain, strict=True)
        ],
        [OtherResult(name, times[loop], workload.crops) for name, loop in loops.items()],
    )


def facts_of(config: Config, workload: Workload, steps: int) -> dict[str, Any]:
    """Conditions of a measurement."""
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
        "steps": steps,
    }


def prepare_method(
    config: Config, workload: Workload, volumes: Sequence[Resident], device: torch.device
) -> tuple[TrainingTrial, TrainingTrial, MethodResult]:
    """Our trial and the plain one, and the figures of the method that are not step times."""
    plain = TrainingTrial(config, workload, volumes, device, plain=True)
    figures = count_step(plain, workload)
    synchronize(device)
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    began = time.perf_counter()
    ours = TrainingTrial(config, workload, volumes, device)
    ours.step()
    synchronize(device)
    figures = replace(
        figures,
        first_step=time.perf_counter() - began,
        step_bytes=figures.step_bytes // 4 * precision_of(config, device).itemsize,
    )
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        ours.step()
        synchronize(device)
        figures = replace(figures, peak_bytes=peak_memory(device) - before)
    return ours, plain, figures


def count_step(trial: TrainingTrial, workload: Workload) -> MethodResult:
    """What can be counted in plain steps; times are 0."""
    method, batch = trial.method, trial.batch()
    with ConvolutionTraffic() as traffic, student_crops(method) as learned:
        step_flops = count_flops(lambda: trial.learn(batch))
    image = batch.labeled.image[:1]
    # the size of a process never shrinks and says nothing about one method; the first step has
    # created the state of the optimizer
    with TensorMemory(trial.resident_tensors()) as memory:
        trial.step()
    unknown = StepTime(0.0, 0.0, 0.0)
    return MethodResult(
        method=method.name,
        crops=workload.crops,
        seconds=unknown,
        plain=unknown,
        student_crops=max(learned.values()),
        peer=unknown,
        first_step=0.0,
        parameters=count_weights(method),
        trainable=sum(p.numel() for p in method.parameters() if p.requires_grad),
        predicting=count_weights(*method.predictors()),
        step_flops=step_flops,
        predict_flops=count_flops(lambda: trial.predict(image)),
        step_bytes=traffic.values * 4,
        peak_bytes=memory.peak,
    )


@contextmanager
def student_crops(method: Method) -> Iterator[Counter[Network]]:
    """Counts the crops that each network learns from."""
    counts: Counter[Network] = Counter()

    def count(network: Network, inputs: tuple[Tensor]) -> None:
        if torch.is_grad_enabled() and not network.is_frozen:
            counts[network] += inputs[0].shape[0]

    handles = [network.register_forward_pre_hook(count) for network in method.networks()]
    yield counts
    for handle in handles:
        handle.remove()


def time_steps(
    trials: Sequence[Repeatable],
    device: torch.device,
    *,
    steps: int,
    advance: Advance = lambda: None,
) -> list[StepTime]:
    """Time of a step of each trial, in rounds over all of them, after a warm-up.

    Other work on the machine then slows all of them alike. A round takes several steps of each
    trial and waits for the device once, as training does.
    """
    rounds = min(steps, MOST_ROUNDS)
    block = steps // rounds
    for trial in trials:
        for _ in range(WARM_UP):
            trial.step()
    seconds: list[list[float]] = [[] for _ in trials]
    for _ in range(rounds):
        for trial, spent in zip(trials, seconds, strict=True):
            synchronize(device)
            began = time.perf_counter()
            for _ in range(block):
                trial.step()
            synchronize(device)
            spent.append((time.perf_counter() - began) / block)
        advance()
    return [StepTime.of(spent) for spent in seconds]
