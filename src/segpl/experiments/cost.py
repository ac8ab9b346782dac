"""What a step of training and a prediction cost, for every method on one network."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from segpl.assembly import build_method
from segpl.data.plan import Normalization, Plan
from segpl.data.planner import choose_strides
from segpl.engine.device import (
    autocast,
    choose_device,
    compile_in_place,
    is_compiler_error,
    is_out_of_memory,
    memory_format,
    peak_memory,
    should_compile,
)
from segpl.engine.step import optimizer_for, take_step
from segpl.errors import InputError, did_you_mean
from segpl.experiments.tensor_memory import TensorMemory
from segpl.methods.base import METHODS, Method
from segpl.report.tables import count_noun
from segpl.settings import Config, resolve, select_known
from segpl.types import Batch, Labeled, Unlabeled

REFERENCE = "supervised"
WIDTHS = {2: 16, 3: 8}  # the paper's
LATE = 1.0  # progress at which every ramp has ended and every term counts
VARIANTS = 256  # of one network that may be compiled: methods differ in batch and in mode


@dataclass(frozen=True, slots=True)
class Workload:
    """What one step is given: random crops, the same for every method."""

    plan: Plan  # of which patch, channels, classes, strides and width are used
    labeled: int  # crops
    unlabeled: int  # crops

    def __post_init__(self) -> None:
        for name in ("labeled", "unlabeled"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"--{name} is {getattr(self, name)}: a step needs at least 1 {name} crop."
                )

    @property
    def crops(self) -> int:
        return self.labeled + self.unlabeled

    def describe(self) -> str:
        return (
            f"{self.labeled} labeled and {self.unlabeled} unlabeled crops of "
            f"{'x'.join(map(str, self.plan.patch))} voxels, "
            f"{count_noun(len(self.plan.channels), 'channel')}, {len(self.plan.classes)} classes"
        )


@dataclass(frozen=True, slots=True)
class Cost:
    method: str
    parameters: int  # all that a training holds, those of teachers too
    trainable: int  # those that the optimizer moves
    predicting: int  # those of the networks that predict
    step_flops: int
    predict_flops: int  # of one crop
    peak_bytes: int
    seconds: float  # of one step


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
    unrest: float  # middle over fastest step, of the method where that is most

    def ratio(self, cost: Cost, name: str) -> float:
        """To supervised training on the same images, all of them labeled."""
        value, reference = getattr(cost, name), getattr(self.costs[0], name)
        return float(value / reference)


def plan_for_patch(patch: Sequence[int], *, channels: int, classes: int) -> Plan:
    """A plan with the paper's width, and strides as they would be derived for cubic voxels."""
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
    """Settings of each method, the reference first; no names: every method there is.

    A setting of a method is given to those methods that have it; a table of settings to those
    that have such a table, and a plain value to those that have a value.
    """
    given = content.get("method", {})
    if "name" in given:
        raise InputError(
            f"--set method.name={given['name']} is not how methods are chosen here. Name them as "
            f"arguments: segpl cost {given['name']}."
        )
    kinds: dict[str, Any] = {
        name: METHODS.get(name) for name in dict.fromkeys([REFERENCE, *(names or METHODS.names)])
    }
    own = {name: select_known(kind.Settings, given) for name, kind in kinds.items()}
    for key in given:
        if not any(key in settings for settings in own.values()):
            known = {entry.name for kind in kinds.values() for entry in fields(kind.Settings)}
            raise InputError(
                f"--set method.{key}: no method of the table has this setting. "
                f"{did_you_mean(key, known)}"
            )
    return [
        resolve({**content, "method": {"name": name, **settings}}, "--set")
        for name, settings in own.items()
    ]


class Rehearsal:
    """A method in training on the same random crops again and again."""

    def __init__(self, config: Config, workload: Workload, device: torch.device) -> None:
        self.method = build_method(config, workload.plan)
        self.layout = memory_format(device, workload.plan.dims)
        self.method.to(device).to(memory_format=self.layout).train()  # type: ignore[call-overload]  # torch's stubs lack it
        self.optimizer = optimizer_for(
            self.method, config.learning_rate(workload.plan), config.train.weight_decay
        )
        self.context = autocast(device, config.train.precision)
        self.device = device
        self.labeled, self.unlabeled = random_crops(workload, self.method, device, self.layout)
        self.validation = held_crops(self.method, self.labeled)
        self.steps = 0

    def compile(self) -> None:
        for network in self.method.networks():
            compile_in_place(network.body)

    def step(self) -> None:
        """What the trainer does in a step, its log and its crops left out."""
        generator = torch.Generator(self.device).manual_seed(self.steps)
        batch = Batch(self.labeled, self.unlabeled, generator, self.validation)
        take_step(self.method, self.optimizer, batch, LATE, self.context, taken=self.steps)
        self.steps += 1

    @torch.no_grad()
    def predict(self) -> None:
        self.method.eval()
        self.method.predict(self.labeled.image[:1])
        self.method.train()

    def held(self) -> Iterator[Tensor]:
        """Everything that lives from one step to the next."""
        for parameter in self.method.parameters():
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
        yield from self.method.buffers()
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))
        yield from (self.labeled.image, self.labeled.label)
        if self.unlabeled is not None:
            yield self.unlabeled.image
            if self.unlabeled.inside is not None:
                yield self.unlabeled.inside
        if self.validation is not None:
            yield from (self.validation.image, self.validation.label)


def random_crops(
    workload: Workload, method: Method, device: torch.device, layout: torch.memory_format
) -> tuple[Labeled, Unlabeled | None]:
    """All crops labeled for a method that learns from labels alone: the images are the same."""
    plan, count = workload.plan, workload.crops
    generator = torch.Generator().manual_seed(0)
    image = torch.randn((count, len(plan.channels), *plan.patch), generator=generator)
    label = torch.randint(len(plan.classes), (count, *plan.patch), generator=generator)
    image, label = image.to(device).to(memory_format=layout), label.to(device)
    if not method.needs_unlabeled:
        return Labeled(image, label), None
    first = workload.labeled
    inside = torch.ones((workload.unlabeled, *plan.patch), dtype=torch.bool, device=device)
    return Labeled(image[:first], label[:first].clone()), Unlabeled(image[first:], inside)


def held_crops(method: Method, labeled: Labeled) -> Labeled | None:
    """As many as there are labeled ones, for a method that wants crops of validation cases."""
    if not method.needs_validation:
        return None
    return Labeled(labeled.image.clone(), labeled.label.clone())


def measure(
    configs: Sequence[Config],
    workload: Workload,
    *,
    steps: int,
    advance: Callable[[], None] = lambda: None,
) -> CostReport:
    """Cost of each method; `configs` begins with the reference.

    First one method at a time, so that no other takes memory: weights, FLOPs, peak. Then all of
    them in turn, round by round, so that whatever else the machine does slows them alike.
    `advance` is called `moves` times.
    """
    if steps < 1:
        raise InputError(f"--steps is {steps}: at least 1 step has to be timed.")
    assert configs[0].method == REFERENCE
    train, network = configs[0].train, configs[0].network
    device = choose_device(train.device)
    compiled = should_compile(device, train.compile)
    with rehearsing(workload, device, compiled=compiled):
        alone: list[Cost] = []
        for config in configs:
            alone.append(cost_alone(Rehearsal(config, workload, device), compiled=compiled))
            gc.collect()
            advance()
        rehearsals = [Rehearsal(config, workload, device) for config in configs]
        seconds = time_in_turn(rehearsals, steps=steps, compiled=compiled, advance=advance)
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
        unrest=max(statistics.median(spent) / min(spent) for spent in seconds),
    )


def moves(configs: Sequence[Config], steps: int) -> int:
    """How often `measure` advances: each method alone, a step to warm up, and the timed ones."""
    return len(configs) * (1 + 1 + steps)


@contextmanager
def rehearsing(workload: Workload, device: torch.device, *, compiled: bool) -> Iterator[None]:
    """Leave torch's randomness as it was, and turn what may go wrong into words."""
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)
            if not compiled:
                yield
                return
            from torch import _dynamo

            settings: Any = _dynamo.config
            # past its limit torch would run a network uncompiled, and say so in a warning only
            with settings.patch(recompile_limit=VARIANTS, accumulated_recompile_limit=VARIANTS):
                yield
    except Exception as error:
        if is_out_of_memory(error):
            raise InputError(
                f"the {device} is out of memory with {workload.describe()}. Use a smaller "
                "--patch, fewer crops (--labeled, --unlabeled) or a smaller --set network.width."
            ) from error
        if not is_compiler_error(error):
            raise
        raise InputError(
            f"the network could not be compiled: {str(error).splitlines()[0]} Measure it without "
            "--compile."
        ) from error


def cost_alone(rehearsal: Rehearsal, *, compiled: bool) -> Cost:
    """Everything but the time, while no other method is there."""
    method = rehearsal.method
    step_flops = flops_of(rehearsal.step)  # it also gives the optimizer its state
    predict_flops = flops_of(rehearsal.predict)
    if rehearsal.device.type == "cuda":
        if compiled:
            rehearsal.compile()
            rehearsal.step()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(rehearsal.device)
        rehearsal.step()
        torch.cuda.synchronize(rehearsal.device)
        peak = peak_memory(rehearsal.device)
    else:
        # the size of the process says nothing about one method: it never shrinks
        with TensorMemory(rehearsal.held()) as memory:
            rehearsal.step()
        peak = memory.peak
    return Cost(
        method=method.name,
        parameters=weights(method),
        trainable=sum(p.numel() for p in method.parameters() if p.requires_grad),
        predicting=weights(*method.predictors()),
        step_flops=step_flops,
        predict_flops=predict_flops,
        peak_bytes=peak,
        seconds=0.0,
    )


def weights(*modules: nn.Module) -> int:
    """Parameters of all modules, each counted once."""
    return sum(p.numel() for p in {p for module in modules for p in module.parameters()})


def flops_of(work: Callable[[], None]) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return int(counter.get_total_flops())


def time_in_turn(
    rehearsals: Sequence[Rehearsal],
    *,
    steps: int,
    compiled: bool,
    advance: Callable[[], None] = lambda: None,
) -> list[list[float]]:
    """Seconds of every step of each method, all methods in each round, after one step untimed."""
    for rehearsal in rehearsals:
        if compiled:
            rehearsal.compile()
        rehearsal.step()
        advance()
    seconds: list[list[float]] = [[] for _ in rehearsals]
    for _ in range(steps):
        for rehearsal, spent in zip(rehearsals, seconds, strict=True):
            finish(rehearsal.device)
            began = time.perf_counter()
            rehearsal.step()
            finish(rehearsal.device)
            spent.append(time.perf_counter() - began)
            advance()
    return seconds


def finish(device: torch.device) -> None:
    """Wait until the device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def describe_device(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    return f"cpu with {count_noun(torch.get_num_threads(), 'thread')}"
