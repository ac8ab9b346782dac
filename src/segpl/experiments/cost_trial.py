"""Training steps on random crops, to be measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from segpl.assembly import build_method
from segpl.data.plan import Plan
from segpl.engine.device import autocast, compile_in_place, memory_format
from segpl.engine.step import optimizer_for, take_step
from segpl.errors import InputError
from segpl.methods.base import Method
from segpl.report.tables import count_noun
from segpl.settings import Config
from segpl.types import Batch, Labeled, Unlabeled

LATE = 1.0  # progress after all ramps, where every loss term counts


@dataclass(frozen=True, slots=True)
class Workload:
    """The random crops of one step, the same for every method."""

    plan: Plan  # its patch, channels, classes, strides and width are used
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


class TrainingTrial:
    """A method that trains on the same random crops in every step."""

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
        self.validation = validation_crops(self.method, self.labeled)
        self.steps = 0

    def compile(self) -> None:
        for network in self.method.networks():
            compile_in_place(network.body)

    def step(self) -> None:
        """One training step, without sampling and logging."""
        generator = torch.Generator(self.device).manual_seed(self.steps)
        batch = Batch(self.labeled, self.unlabeled, generator, self.validation)
        take_step(self.method, self.optimizer, batch, LATE, self.context, taken=self.steps)
        self.steps += 1

    @torch.no_grad()
    def predict(self) -> None:
        self.method.eval()
        self.method.predict(self.labeled.image[:1])
        self.method.train()

    def resident_tensors(self) -> Iterator[Tensor]:
        """Every tensor that stays in memory between steps."""
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
    """The same images for all methods; all of them labeled for a method without unlabeled crops."""
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


def validation_crops(method: Method, labeled: Labeled) -> Labeled | None:
    """As many validation crops as labeled ones, for methods that need them."""
    if not method.needs_validation:
        return None
    return Labeled(labeled.image.clone(), labeled.label.clone())
