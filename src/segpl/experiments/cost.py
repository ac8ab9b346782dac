"""The cost of a training step and of a prediction, for every method on the same network."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from segpl.data.plan import Normalization, Plan
from segpl.data.planner import choose_strides
from segpl.engine.device import (
    autocast,
    choose_device,
    is_compiler_error,
    is_out_of_memory,
    peak_memory,
    should_compile,
)
from segpl.errors import InputError, did_you_mean
from segpl.experiments.cost_trial import TrainingTrial, Workload
from segpl.experiments.tensor_memory import TensorMemory
from segpl.methods.base import METHODS
from segpl.report.tables import count_noun
from segpl.settings import Config, resolve, select_known

REFERENCE = "supervised"
WIDTHS = {2: 16, 3: 8}  # as in the paper
MAX_RECOMPILATIONS = 256  # of one network: methods differ in batch size and mode


@dataclass(frozen=True, slots=True)
class Cost:
    method: str
    parameters: int  # all weights in memory during training, including teachers
    trainable: int  # weights that the optimizer updates
    predicting: int  # weights that prediction needs
    step_flops: int
    predict_flops: int  # of one crop
    peak_bytes: int
    seconds: float  # of one step, median


@dataclass(frozen=True, slots=True)
class CostReport:
    costs: list[Cost]  # the reference first
    workload: Workload
    network: str
    width: int
    device: str
    precision: str
    compiled: bool
    steps: int
    timing_noise: float  # largest ratio of median to fastest step of any method

    def ratio(self, cost: Cost, name: str) -> float:
        """Relative to supervised training on the same images, all of them labeled."""
        value, reference = getattr(cost, name), getattr(self.costs[0], name)
        return float(value / reference)


def plan_for_patch(patch: Sequence[int], *, channels: int, classes: int) -> Plan:
    """A plan with the paper's width, and the strides for isotropic voxels."""
    dims = len(patch)
    if dims not in WIDTHS:
        raise InputError(
            f"--patch {' '.join(map(str, patch))} has {count_noun(dims, 'number')}: a crop "
            "has 2 or 3 sides. Write --patch 32 32 32, or --patch 256 256 for pictures."
        )
    if channels < 1:
        raise InputError(f"--channels is {channels}: an image has at least 1 channel.")
    if classes < 2:
        raise InputError(
            f"--classes is {classes}: background counts as one, so there are at least 2."
        )
    spacing = (1.0,) * dims
    plan = Plan(
        dims=dims,
        channels=tuple(f"channel-{index}" for index in range(channels)),
        classes={f"class-{index}": index for index in range(classes)},
        ignore=None,
        orientation=None,
        spacing=spacing,
        normalization=(Normalization(),) * channels,
        patch=tuple(patch),
        strides=choose_strides(patch, spacing),
        width=WIDTHS[dims],
        batch=1,
        reasons={},
    )
    plan.check("--patch")
    return plan


def configs_for(names: Sequence[str], content: Mapping[str, Any]) -> list[Config]:
    """Settings of each method, the reference first; all methods if no names are given.

    Method settings in `content` go to the methods that have them.
    """
    given = content.get("method", {})
    if "name" in given:
        raise InputError(
            f"--set method.name={given['name']}: name methods as arguments instead: segpl cost "
            f"{given['name']}."
        )
    kinds: dict[str, Any] = {
        name: METHODS.get(name) for name in dict.fromkeys([REFERENCE, *(names or METHODS.names)])
    }
    own = {name: select_known(kind.Settings, given) for name, kind in kinds.items()}
    for key in given:
        if not any(key in settings for settings in own.values()):
            known = {entry.name for kind in kinds.values() for entry in fields(kind.Settings)}
            raise InputError(
                f"--set method.{key}: none of these methods has this setting. "
                f"{did_you_mean(key, known)}"
            )
    return [
        resolve({**content, "method": {"name": name, **settings}}, "--set")
        for name, settings in own.items()
    ]


def measure(
    configs: Sequence[Config],
    workload: Workload,
    *,
    steps: int,
    advance: Callable[[], None] = lambda: None,
) -> CostReport:
    """Measure every method; the first of `configs` is the reference.

    Weights, FLOPs and memory are measured one method at a time. Times are measured in rounds over
    all methods, so that other work on the machine slows them all alike. `advance` is called
    `count_measurements` times.
    """
    if steps < 1:
        raise InputError(f"--steps is {steps}, but must be at least 1.")
    assert configs[0].method == REFERENCE
    train, network = configs[0].train, configs[0].network
    device = choose_device(train.device)
    compiled = should_compile(device, train.compile)
    with measuring(workload, device, compiled=compiled):
        alone: list[Cost] = []
        for config in configs:
            alone.append(
                cost_except_time(TrainingTrial(config, workload, device), compiled=compiled)
            )
            gc.collect()
            advance()
        trials = [TrainingTrial(config, workload, device) for config in configs]
        seconds = time_steps(trials, steps=steps, compiled=compiled, advance=advance)
    context = autocast(device, train.precision)
    return CostReport(
        costs=[
            Cost(**asdict(cost) | {"seconds": statistics.median(spent)})
            for cost, spent in zip(alone, seconds, strict=True)
        ],
        workload=workload,
        network=network.name,
        width=network.width or workload.plan.width,
        device=describe_device(device),
        precision="bfloat16" if isinstance(context, torch.autocast) else "float32",
        compiled=compiled,
        steps=steps,
        timing_noise=max(statistics.median(spent) / min(spent) for spent in seconds),
    )


def count_measurements(configs: Sequence[Config], steps: int) -> int:
    """How often `measure` advances: once alone, one warm-up step and all timed steps per method."""
    return len(configs) * (1 + 1 + steps)


@contextmanager
def measuring(workload: Workload, device: torch.device, *, compiled: bool) -> Iterator[None]:
    """Keep torch's random state, and explain failures."""
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            if not compiled:
                yield
                return
            from torch import _dynamo

            settings: Any = _dynamo.config
            # beyond its limit, torch runs a network uncompiled with only a warning
            with settings.patch(
                recompile_limit=MAX_RECOMPILATIONS, accumulated_recompile_limit=MAX_RECOMPILATIONS
            ):
                yield
    except Exception as error:
        if is_out_of_memory(error):
            raise InputError(
                f"{device} is out of memory with {workload.describe()}. Use a smaller "
                "--patch, fewer crops (--labeled, --unlabeled) or a smaller --set network.width."
            ) from error
        if not is_compiler_error(error):
            raise
        raise InputError(
            f"the network could not be compiled: {str(error).splitlines()[0]} Leave out --compile."
        ) from error


def cost_except_time(trial: TrainingTrial, *, compiled: bool) -> Cost:
    """Weights, FLOPs and peak memory, while no other method is in memory."""
    method = trial.method
    step_flops = count_flops(trial.step)  # also creates the state of the optimizer
    predict_flops = count_flops(trial.predict)
    if trial.device.type == "cuda":
        if compiled:
            trial.compile()
            trial.step()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(trial.device)
        trial.step()
        torch.cuda.synchronize(trial.device)
        peak = peak_memory(trial.device)
    else:
        # the size of the process never shrinks and says nothing about one method
        with TensorMemory(trial.resident_tensors()) as memory:
            trial.step()
        peak = memory.peak
    return Cost(
        method=method.name,
        parameters=count_weights(method),
        trainable=sum(p.numel() for p in method.parameters() if p.requires_grad),
        predicting=count_weights(*method.predictors()),
        step_flops=step_flops,
        predict_flops=predict_flops,
        peak_bytes=peak,
        seconds=0.0,
    )


def count_weights(*modules: nn.Module) -> int:
    """Parameters of all modules; shared ones count once."""
    return sum(p.numel() for p in {p for module in modules for p in module.parameters()})


def count_flops(work: Callable[[], None]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def time_steps(
    trials: Sequence[TrainingTrial],
    *,
    steps: int,
    compiled: bool,
    advance: Callable[[], None] = lambda: None,
) -> list[list[float]]:
    """Seconds of every step of each method, in rounds over all methods, after a warm-up step."""
    for trial in trials:
        if compiled:
            trial.compile()
        trial.step()
        advance()
    seconds: list[list[float]] = [[] for _ in trials]
    for _ in range(steps):
        for trial, spent in zip(trials, seconds, strict=True):
            synchronize(trial.device)
            began = time.perf_counter()
            trial.step()
            synchronize(trial.device)
            spent.append(time.perf_counter() - began)
            advance()
    return seconds


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def describe_device(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"cpu with {count_noun(torch.get_num_threads(), 'thread')}"
