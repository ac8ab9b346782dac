"""Training steps to measure, as the trainer takes them, on generated volumes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from segpl.assembly import build_method
from segpl.data.prefetch import Prefetch
from segpl.data.sampler import Resident, Sampler
from segpl.display import say
from segpl.engine.acceleration import AcceleratedNetworks
from segpl.engine.device import autocast, memory_format, seed_global_generators, should_compile
from segpl.engine.meter import Meter
from segpl.engine.step import optimizer_for, take_step
from segpl.engine.trainer import MOST_STEPS, with_layout
from segpl.experiments.bench.workload import Workload
from segpl.settings import Config
from segpl.types import Batch

LATE = 1.0  # progress after all ramps, where every loss term counts


class TrainingTrial:
    """A method that trains on crops of `volumes`.

    With `plain`, the same weights and losses run as plain PyTorch: eager, in float32, in torch's
    default memory layout.
    """

    def __init__(
        self,
        config: Config,
        workload: Workload,
        volumes: Sequence[Resident],
        device: torch.device,
        *,
        plain: bool = False,
    ) -> None:
        if plain:
            train = replace(config.train, precision="float32", compile="off")
            config = replace(config, train=train)
        self.config, self.workload, self.device = config, workload, device
        plan = workload.plan
        self.layout = torch.contiguous_format if plain else memory_format(device, plan.dims)
        self.method = build_method(config, plan)
        self.method.to(device).to(memory_format=self.layout).train()  # type: ignore[call-overload]  # torch's stubs lack it
        self.context = autocast(device, config.train.precision)
        self.networks: AcceleratedNetworks | None = None
        if should_compile(device, config.train.compile):
            self.networks = AcceleratedNetworks(self.method, device, self.context, say)
        rate = config.learning_rate(plan)
        own = optimizer_for(self.method, rate)
        self.optimizer = torch.optim.Adam(own.weights, lr=rate) if plain else own
        self.batches = self.batches_of(volumes)
        self.meter = Meter()
        self.steps = 0

    def batches_of(self, volumes: Sequence[Resident]) -> Prefetch:
        """Batches of crops; all crops are labeled if the method uses no unlabeled ones."""
        load, half, has_unlabeled = self.workload, len(volumes) // 2, self.method.needs_unlabeled
        sampler = Sampler(
            labeled=volumes[:half] if has_unlabeled else volumes,
            unlabeled=volumes[half:],
            patch=load.plan.patch,
            classes=len(load.plan.classes),
            labeled_crops=load.labeled if has_unlabeled else load.crops,
            unlabeled_crops=load.unlabeled if has_unlabeled else 0,
            foreground=self.config.train.foreground,
            augment=self.config.augment,
            seed=self.config.train.seed,
            device=self.device,
            mirror_axes=load.plan.mirror_axes,
            spacing=load.plan.spacing,
        )
        return Prefetch(sampler, MOST_STEPS)

    def batch(self) -> Batch:
        return with_layout(self.batches.batch(self.steps), self.layout)

    def learn(self, batch: Batch) -> Tensor:
        """Take one training step on `batch`; return its loss."""
        output, total = take_step(
            self.method, self.optimizer, batch, LATE, self.context, taken=self.steps
        )
        self.steps += 1
        self.meter.add(output, total, self.steps)
        return total.detach()

    def step(self) -> Tensor:
        return self.networks.run(self.advance) if self.networks else self.advance()

    def advance(self) -> Tensor:
        seed_global_generators(self.device, self.steps)
        return self.learn(self.batch())
