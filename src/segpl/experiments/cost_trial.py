"""Training steps on random crops, to be measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from segpl.assembly import build_method
from segpl.data.plan import Plan
from segpl.engine.device import autocast, compile_in_place, memory_format, should_compile
from segpl.engine.step import optimizer_for, take_step
from segpl.methods.base import Method
from segpl.settings import Config
from segpl.types import Batch, Labeled, Unlabeled

LATE = 1.0  # progress after all ramps, where every loss term counts


@dataclass(frozen=True, slots=True)
class Workload:
    """The random crops of one step, the same for every method."""

    plan: Plan  # its patch, channels, classes, strides and width are used
    labeled: int  # crops
    unlabeled: int  # crops


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
        self.device, self.compile_mode = device, config.train.compile
        self.labeled, self.unlabeled = random_crops(workload, self.method, device, self.layout)
        # as many validation crops as labeled ones
        crops = Labeled(self.labeled.image.clone(), self.labeled.label.clone())
        self.validation = crops if self.method.needs_validation else None
        self.steps = 0

    def compile(self) -> None:
        """Compile the networks if the settings say so."""
        if should_compile(self.device, self.compile_mode):
            for network in self.method.networks():
                compile_in_place(network.body)

    def synchronize(self) -> None:
        """Wait until the device has finished."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

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
        for crops in (self.labeled, self.unlabeled, self.validation):
            if crops is not None:
                parts = (getattr(crops, field.name) for field in fields(crops))
                yield from (part for part in parts if isinstance(part, Tensor))


def random_crops(
    workload: Workload, method: Method, device: torch.device, layout: torch.memory_format
) -> tuple[Labeled, Unlabeled | None]:
    """The same images for all methods; all of them labeled for a method without unlabeled crops."""
    plan, count = workload.plan, workload.labeled + workload.unlabeled
    generator = torch.Generator().manual_seed(0)
    image = torch.randn((count, len(plan.channels), *plan.patch), generator=generator)
    label = torch.randint(len(plan.classes), (count, *plan.patch), generator=generator)
    image, label = image.to(device).to(memory_format=layout), label.to(device)
    if not method.needs_unlabeled:
        return Labeled(image, label), None
    first = workload.labeled
    inside = torch.ones((workload.unlabeled, *plan.patch), dtype=torch.bool, device=device)
    return Labeled(image[:first], label[:first].clone()), Unlabeled(image[first:], inside)
