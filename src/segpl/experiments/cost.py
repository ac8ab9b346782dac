"""The cost of a training step and of a prediction, for every method on the same network."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from segpl.data.plan import Normalization, Plan
from segpl.data.planner import choose_strides
from segpl.engine.device import (
    autocast,
    choose_device,
    is_out_of_memory,
    peak_memory,
    should_compile,
)
from segpl.errors import InputError, count_noun, did_you_mean
from segpl.experiments.cost_trial import TrainingTrial, Workload
from segpl.experiments.tensor_memory import TensorMemory
from segpl.files import csv_text, write_text
from segpl.methods.base import METHODS
from segpl.report.tables import Table
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


# title in the table, field, unit, format, whether its ratio to the reference is shown
COST_COLUMNS: tuple[tuple[str, str, float, str, bool], ...] = (
    ("parameters", "parameters", 1, ",", True),
    ("trainable", "trainable", 1, ",", False),
    ("predicting", "predicting", 1, ",", False),
    ("step\nGFLOPs", "step_flops", 1e9, ",.3f", True),
    ("predict\nGFLOPs", "predict_flops", 1e9, ",.3f", True),
    ("peak\nMB", "peak_bytes", 1e6, ",.1f", True),
    ("seconds\n/step", "seconds", 1, ".4f", True),
)


def plan_for_patch(patch: Sequence[int], *, channels: int, classes: int) -> Plan:
    """A plan with the paper's width, and the strides for isotropic voxels."""
    dims = len(patch)
    if dims not in WIDTHS or channels < 1 or classes < 2:
        raise InputError(
            "--patch needs 2 or 3 numbers, --channels at least 1, and --classes at least 2, "
            "because the background is a class."
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
    kinds = {
        name: METHODS.get(name).Settings
        for name in dict.fromkeys([REFERENCE, *(names or METHODS.names)])
    }
    own = {name: select_known(kind, given) for name, kind in kinds.items()}
    for key in given:
        if not any(key in settings for settings in own.values()):
            known = {entry.name for kind in kinds.values() for entry in fields(kind)}
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
) -> list[Cost]:
    """The cost of every method; the first of `configs` is the reference.

    Weights, FLOPs and memory are measured one method at a time. Times are measured in rounds over
    all methods, so that other work on the machine slows them all alike. `advance` is called
    `steps + 2` times per method.
    """
    if min(steps, workload.labeled, workload.unlabeled) < 1:
        raise InputError("--steps, --labeled and --unlabeled must be at least 1.")
    device = choose_device(configs[0].train.device)
    with measuring(device):
        alone: list[Cost] = []
        for config in configs:
            alone.append(cost_except_time(TrainingTrial(config, workload, device)))
            gc.collect()
            advance()
        trials = [TrainingTrial(config, workload, device) for config in configs]
        seconds = time_steps(trials, steps=steps, advance=advance)
    return [
        Cost(**asdict(cost) | {"seconds": statistics.median(spent)})
        for cost, spent in zip(alone, seconds, strict=True)
    ]


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


def cost_except_time(trial: TrainingTrial) -> Cost:
    """Weights, FLOPs and peak memory, while no other method is in memory."""
    method = trial.method
    step_flops = count_flops(trial.step)  # also creates the state of the optimizer
    predict_flops = count_flops(trial.predict)
    if trial.device.type == "cuda":
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
    trials: Sequence[TrainingTrial], *, steps: int, advance: Callable[[], None] = lambda: None
) -> list[list[float]]:
    """Seconds of every step of each method, in rounds over all methods, after a warm-up step."""
    for trial in trials:
        trial.compile()
        trial.step()
        advance()
    seconds: list[list[float]] = [[] for _ in trials]
    for _ in range(steps):
        for trial, spent in zip(trials, seconds, strict=True):
            trial.synchronize()
            began = time.perf_counter()
            trial.step()
            trial.synchronize()
            spent.append(time.perf_counter() - began)
            advance()
    return seconds


def conditions(config: Config, workload: Workload, steps: int) -> dict[str, object]:
    """Conditions of the measurement."""
    device, plan = choose_device(config.train.device), workload.plan
    is_cuda = device.type == "cuda"
    context = autocast(device, config.train.precision)
    return {
        "patch": "x".join(map(str, plan.patch)),
        "channels": len(plan.channels),
        "classes": len(plan.classes),
        "labeled": workload.labeled,
        "unlabeled": workload.unlabeled,
        "network": config.network.name,
        "width": config.network.width or plan.width,
        "steps": steps,
        "device": torch.cuda.get_device_name(device) if is_cuda else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "precision": "bfloat16" if isinstance(context, torch.autocast) else "float32",
        "compiled": should_compile(device, config.train.compile),
    }


def cost_ratio(cost: Cost, name: str, reference: Cost) -> float:
    """Relative to supervised training on the same images, all of them labeled."""
    return float(getattr(cost, name) / getattr(reference, name))


def cost_table(costs: Sequence[Cost], facts: Mapping[str, object]) -> Table:
    columns, rows = ["method"], [[cost.method] for cost in costs]
    for title, name, unit, form, has_ratio in COST_COLUMNS:
        columns += [title, *(["x"] if has_ratio else [])]
        for cost, row in zip(costs, rows, strict=True):
            value = getattr(cost, name)
            row.append(format(value if unit == 1 else value / unit, form))
            if has_ratio:
                row.append(f"{cost_ratio(cost, name, costs[0]):.3f}")
    peak = "live tensors, less than the process takes"
    peak = peak if facts["device"] == "cpu" else "memory allocated by torch"
    return Table(
        columns=columns,
        rows=rows,
        note=f"x: relative to {REFERENCE} training on the same images, all labeled. Predicting: "
        "weights that prediction needs; its FLOPs are for one crop. FLOPs: of convolutions and "
        f"matrix products, a multiply-add counts as 2. Peak: {peak}. Seconds: median of "
        f"{count_noun(int(str(facts['steps'])), 'step')}; other programs on the machine distort "
        f"it.\n{', '.join(f'{name} {value}' for name, value in facts.items())}.",
    )


def write_costs(path: Path, costs: Sequence[Cost], facts: Mapping[str, object]) -> None:
    """One row per method, with its ratios and the conditions of the measurement."""
    names = [name for _, name, _, _, has_ratio in COST_COLUMNS if has_ratio]
    rows = [
        {
            **asdict(cost),
            **{f"{name}_ratio": cost_ratio(cost, name, costs[0]) for name in names},
            **facts,
        }
        for cost in costs
    ]
    write_text(path, csv_text([list(rows[0]), *(list(row.values()) for row in rows)]))
