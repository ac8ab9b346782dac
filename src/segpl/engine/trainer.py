"""One loop: no hooks, no callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch

from segpl.data.sampler import Sampler
from segpl.engine.checkpoint import (
    load_optimizer,
    load_weights,
    read_checkpoint,
    require_finite,
    save_checkpoint,
)
from segpl.engine.device import (
    COMPILE,
    PRECISIONS,
    compile_in_place,
    memory_format,
    peak_memory,
    precision,
    should_compile,
)
from segpl.engine.events import EventLog
from segpl.engine.folder import RunFolder
from segpl.engine.hidden import compared, scored
from segpl.engine.log import CsvLog
from segpl.engine.meter import Meter
from segpl.engine.step import optimizer_for, take_step
from segpl.engine.watch import GUARDS, CollapseWatch
from segpl.errors import InputError, unknown
from segpl.methods.base import Method
from segpl.schedules import polynomial_decay
from segpl.types import Batch


@dataclass(frozen=True, slots=True)
class TrainSettings:
    steps: int = 2000
    lr: float = 0.0  # learning rate at the start; 0: as planned
    lr_decay: float = 0.9  # power of the polynomial fall of the learning rate; 0: constant (paper)
    weight_decay: float = 0.0
    batch: int = 0  # labeled crops in a step; 0: as planned
    ratio: int = 2  # unlabeled crops for each labeled one
    foreground: float = 0.33  # share of labeled crops centered on foreground
    balance: bool = False  # center foreground crops on every class equally often
    seed: int = 0  # of weights, crops and draws; the split has its own
    log_every: int = 10  # steps
    checkpoint_every: int = 100  # steps
    validate_every: int = 0  # steps; 0: ten times in a training, where there are validation cases
    device: str = "auto"
    precision: str = "auto"  # `float32` or `bfloat16`; auto: bfloat16 on a GPU that has it
    compile: str = "auto"  # `on` or `off`; auto: on a GPU
    guard: str = "warn"  # or `pause`: what to do when pseudo-labels collapse
    agreement: int = 10  # unlabeled cases to measure agreement on, without validation; 0: none
    watch_hidden: bool = False  # open hidden labels, to log how well pseudo-labels agree with them
    track: bool = False  # write TensorBoard events too; needs `segpl[track]`

    def __post_init__(self) -> None:
        for name in ("steps", "log_every", "checkpoint_every"):
            if not 0 < getattr(self, name) < math.inf:
                raise InputError(f"train.{name} is {getattr(self, name)}: it must be above 0.")
        counts = ("batch", "ratio", "validate_every", "agreement")
        for name in (*counts, "lr", "weight_decay", "lr_decay"):
            if not 0 <= getattr(self, name) < math.inf:
                raise InputError(
                    f"train.{name} is {getattr(self, name)}: it must be finite and not negative."
                )
        if not 0 <= self.foreground <= 1:
            raise InputError(f"train.foreground is {self.foreground}: it must be between 0 and 1.")
        if not 0 <= self.seed < 2**32:
            raise InputError(f"train.seed is {self.seed}: it must lie from 0 to {2**32 - 1}.")
        for name, known in (("precision", PRECISIONS), ("compile", COMPILE), ("guard", GUARDS)):
            if getattr(self, name) not in known:
                raise unknown(f"train.{name}", getattr(self, name), known)
        if self.checkpoint_every % self.log_every or self.validate_every % self.log_every:
            raise InputError(
                f"train.checkpoint_every ({self.checkpoint_every}) and train.validate_every "
                f"({self.validate_every}) must be multiples of train.log_every ({self.log_every}), "
                "since a resumed run starts with a fresh log line."
            )

    def lr_at(self, step: int) -> float:
        """Learning rate of the step that follows `step` finished ones."""
        return self.lr * polynomial_decay(step / self.steps, power=self.lr_decay)


class Observer(Protocol):
    """Who is told how the training goes."""

    def logged(self, step: int, row: Mapping[str, float]) -> None: ...
    def advanced(self, step: int) -> None: ...
    def warned(self, message: str) -> None: ...


class Trainer:
    def __init__(
        self,
        method: Method,
        sampler: Sampler,
        settings: TrainSettings,
        folder: RunFolder,
        observer: Observer,
        validate: Callable[[int], float] | None = None,
        # share of each class but the background in the labeled scans, where it is known
        foreground: Mapping[str, float] | None = None,
    ) -> None:
        self.method = method
        self.sampler = sampler
        self.settings = settings
        self.folder = folder
        self.observer = observer
        self.validate = validate
        self.foreground = foreground
        self.device = sampler.device
        self.layout = memory_format(self.device, method.network.dims)
        self.method.to(self.device).to(memory_format=self.layout).train()  # type: ignore[call-overload]  # torch's stubs lack it
        self.optimizer = optimizer_for(method, settings.lr, settings.weight_decay)
        self.log = CsvLog(folder.log)
        self.times = CsvLog(folder.times)
        self.events: EventLog | None = None
        self.step = 0
        self.facts: dict[str, Any] = {}

    def resume(self) -> None:
        """Go on from the last checkpoint, or from the start where a run died before its first."""
        if self.folder.last.exists():
            checkpoint = read_checkpoint(self.folder.last)
            load_weights(self.method, checkpoint, self.folder.last)
            load_optimizer(self.optimizer, checkpoint)
            self.step, self.facts = checkpoint.step, checkpoint.facts
        for log in (self.log, self.times, CsvLog(self.folder.validation)):
            log.cut_after(self.step)

    def run(self) -> None:
        settings, meter = self.settings, Meter()
        watch = self.watch()
        self.events = EventLog(self.folder.events, after=self.step) if settings.track else None
        context = precision(self.device, settings.precision)
        if should_compile(self.device, settings.compile):
            for network in self.method.networks():
                compile_in_place(network.body)
        spent, began, first = self.times.last("seconds"), time.perf_counter(), self.step
        while self.step < settings.steps:
            lr = settings.lr_at(self.step)
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            # dropout inside networks draws from here; everything else from the batch's generator
            torch.manual_seed(settings.seed * 1_000_003 + self.step)
            batch = self.arranged(self.sampler.batch(self.step))
            progress = self.step / settings.steps
            output, total = take_step(
                self.method,
                self.optimizer,
                batch,
                progress,
                context,
                taken=self.step,
                paused=watch.is_paused,
            )
            if self.sampler.hidden:
                output = compared(output, self.sampler.hidden_labels(self.step))
            self.step += 1
            meter.add(output, total, self.step)
            self.observer.advanced(self.step)
            if self.step % settings.log_every and self.step != settings.steps:
                continue

            row = scored(meter.row(lr))
            self.log.add({"step": self.step, **row})
            if self.events:
                self.events.add(self.step, row)
            seconds = time.perf_counter() - began
            self.times.add(
                {
                    "step": self.step,
                    "seconds": spent + seconds,
                    "steps_per_second": (self.step - first) / seconds,
                    "peak_bytes": peak_memory(self.device),
                }
            )
            self.observer.logged(self.step, row)
            if warning := watch.look(self.step, row):
                self.observer.warned(warning)
            if settings.guard == "pause":
                self.facts["guard"] = watch.state()
            self.keep()

    def watch(self) -> CollapseWatch:
        """A watch over the pseudo-labels, as it stood at the checkpoint that is resumed."""
        watch = CollapseWatch(self.settings.steps, self.foreground, self.settings.guard)
        if "guard" in self.facts:
            watch.restore(self.facts["guard"])
        return watch

    def arranged(self, batch: Batch) -> Batch:
        """The same batch in the memory order that the device likes."""
        order, labeled, unlabeled, held = (
            self.layout,
            batch.labeled,
            batch.unlabeled,
            batch.validation,
        )
        return replace(
            batch,
            labeled=replace(labeled, image=labeled.image.to(memory_format=order)),
            unlabeled=unlabeled
            and replace(unlabeled, image=unlabeled.image.to(memory_format=order)),
            validation=held and replace(held, image=held.image.to(memory_format=order)),
        )

    def keep(self) -> None:
        """Validate and write checkpoints where the settings say so, and at the end."""
        settings = self.settings
        is_end = self.step == settings.steps
        every = settings.validate_every or tenth(settings)
        if self.validate and (is_end or self.step % every == 0):
            score = self.validate(self.step)
            if self.events:
                self.events.add(self.step, {"validation_dice": score})
            if score > self.facts.get("best_score", -1.0):
                self.facts |= {"best_score": score, "best_step": self.step}
                self.save(self.folder.best)
        if is_end or self.step % settings.checkpoint_every == 0:
            self.save(self.folder.last)

    def save(self, path: Path) -> None:
        require_finite(self.method, f"step {self.step}")
        save_checkpoint(
            path, step=self.step, module=self.method, optimizer=self.optimizer, facts=self.facts
        )


def tenth(settings: TrainSettings) -> int:
    """A tenth of the training, in whole log lines."""
    return max(1, settings.steps // 10 // settings.log_every) * settings.log_every
