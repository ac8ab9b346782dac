"""Measure training steps and predictions, in rounds over all that are compared."""

from __future__ import annotations

import gc
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from segpl.data.sampler import Resident, place_volumes
from segpl.display import bar
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
MOST_ROUNDS = 6
WARM_UP = 2  # steps before the clock starts
Work = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Stopwatch:
    """Times steps in rounds over all that are compared.

    Other work on the machine then slows all of them alike. A round takes several steps of each and
    waits for the device once, as training does.
    """

    device: torch.device
    steps: int  # of each
    advance: Callable[[], None] = lambda: None  # called after each of the `rounds`

    @classmethod
    @contextmanager
    def shown(
        cls, title: str, device: torch.device, steps: int, others: int = 0
    ) -> Iterator[Stopwatch]:
        """A stopwatch with a progress bar over its rounds and `others` advances."""
        with bar(title, others + cls(device, steps).rounds) as advance:
            yield cls(device, steps, advance)

    @property
    def rounds(self) -> int:
        return min(self.steps, MOST_ROUNDS)

    def time(self, works: Sequence[Work]) -> list[StepTime]:
        """Time of one step of each, after a warm-up."""
        block = self.steps // self.rounds
        for work in works:
            for _ in range(WARM_UP):
                work()
        seconds: list[list[float]] = [[] for _ in works]
        for _ in range(self.rounds):
            for work, spent in zip(works, seconds, strict=True):
                synchronize(self.device)
                began = time.perf_counter()
                for _ in range(block):
                    work()
                synchronize(self.device)
                spent.append((time.perf_counter() - began) / block)
            self.advance()
        return [StepTime.of(spent) for spent in seconds]


@contextmanager
def measuring(device: torch.device) -> Iterator[None]:
    """Free what was measured before, and let torch compile a network for every method.

    The random state of torch is kept.
    """
    from torch import _dynamo

    limits: Any = _dynamo.config
    _dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
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
    # CPUs without bfloat16 emulate its products very slowly
    kind = precision if device.type == "cuda" else torch.float32
    return BenchResult(machine, matrix_rate(device, kind), copy_rate(device))


def precision_of(config: Config, device: torch.device) -> torch.dtype:
    is_half = isinstance(autocast(device, config.train.precision), torch.autocast)
    return torch.bfloat16 if is_half else torch.float32


def measure_setting(
    configs: Sequence[Config], workload: Workload, stopwatch: Stopwatch
) -> SettingResult:
    """All figures of every method; the first of `configs` is the reference."""
    device = stopwatch.device
    volumes = generate_volumes(workload.plan, workload.cases)
    placed = place_volumes(volumes, device, math.inf)
    found: list[tuple[MethodResult, Work, Work]] = []
    peers: dict[int, Work] = {}  # supervised training, by its number of crops
    loops: dict[str, Work] = {}
    with measuring(device), ExitStack() as stack:
        for config in configs:
            ours, plain, figures = prepare_method(config, workload, placed, device)
            found.append((figures, ours.step, plain.step))
            peers.setdefault(workload.crops, ours.step)
            if (crops := figures.student_crops) not in peers:
                labeled = replace(workload, labeled=crops, unlabeled=0)
                peers[crops] = TrainingTrial(configs[0], labeled, placed, device).step
            stopwatch.advance()
        has_half = precision_of(configs[0], device) is torch.bfloat16
        for kind in ("float32", "bfloat16")[: 1 + has_half]:
            loop = MonaiLoop(configs[0], workload, volumes, device, precision=kind)
            stack.callback(loop.close)
            loops[f"MONAI loop, {kind}"] = loop.step
        own, baselines = [step for _, step, _ in found], [step for _, _, step in found]
        works = list(dict.fromkeys([*own, *baselines, *peers.values(), *loops.values()]))
        times = dict(zip(works, stopwatch.time(works), strict=True))
    return SettingResult(
        facts_of(configs[0], workload, stopwatch.steps),
        [
            replace(one, seconds=times[a], plain=times[b], peer=times[peers[one.student_crops]])
            for one, a, b in found
        ],
        [OtherResult(name, times[step], workload.crops) for name, step in loops.items()],
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
