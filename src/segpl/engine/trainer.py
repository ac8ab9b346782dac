"""The training loop: one function from top to bottom, without hooks or callbacks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from segpl.data.prefetch import Prefetch
from segpl.data.sampler import Sampler
from segpl.display import TrainingDisplay
from segpl.engine.acceleration import AcceleratedNetworks
from segpl.engine.checkpoint import (
    Facts,
    load_optimizer,
    load_weights,
    read_checkpoint,
    require_finite,
    save_checkpoint,
)
from segpl.engine.collapse import GUARDS, CollapseWatch
from segpl.engine.device import (
    COMPILE_MODES,
    PRECISIONS,
    autocast,
    has_bfloat16,
    lacks_bfloat16,
    memory_format,
    peak_memory,
    seed_global_generators,
    should_compile,
)
from segpl.engine.distributed import ALONE, Processes
from segpl.engine.environment import record_fallback
from segpl.engine.events import EventLog
from segpl.engine.folder import RunFolder
from segpl.engine.hidden import count_hidden, with_hidden_scores
from segpl.engine.interrupt import StopSignal
from segpl.engine.log import CsvLog
from segpl.engine.meter import Meter
from segpl.engine.step import optimizer_for, take_step
from segpl.errors import InputError, require_range, unknown
from segpl.methods.base import Method
from segpl.types import Batch, StepOutput

MOST_STEPS = 10**9
MOST_CROPS = 4096  # per step; a typo beyond it would fill the memory
CHECKPOINT_SECONDS = 60.0  # between checkpoints if `checkpoint_every` is 0


@dataclass(frozen=True, slots=True)
class TrainSettings:
    steps: int = 2000  # optimizer steps; if unset, `segpl train` fits them to `--time`
    lr: float = 0.0  # initial learning rate; 0: from the plan
    lr_decay: float = 0.9  # power of the polynomial decay of lr; 0: constant, as in the paper
    batch: int = 0  # labeled crops per step; 0: from the plan
    ratio: int = 2  # unlabeled crops per labeled crop
    foreground: float = 0.33  # fraction of labeled crops centered on foreground
    balance: bool = False  # center foreground crops on every class equally often
    seed: int = 0  # seed of weights, crops and sampling; the split has its own
    start: str = ""  # run folder with the initial weights; empty: random weights
    log_every: int = 10  # steps between rows of log.csv
    checkpoint_every: int = 0  # steps between checkpoints; 0: one about every minute
    validate_every: int = 0  # steps between validations; 0: a tenth of the training
    device: str = "auto"  # `cpu`, `cuda` or `cuda:N`; auto: the first GPU, otherwise the CPU
    # `float32` or `bfloat16`; auto: bfloat16 on GPUs that support it and on CPUs with AMX
    precision: str = "auto"
    compile: str = "auto"  # `on` or `off`; auto: on for GPUs
    guard: str = "warn"  # when pseudo-labels collapse: `warn`, or `pause` learning from them
    watch_hidden: bool = False  # read hidden labels to log the Dice of pseudo-labels
    track: bool = False  # write TensorBoard events; needs `segpl[track]`

    def __post_init__(self) -> None:
        for low, high, names in (
            (1, MOST_STEPS, ("steps", "log_every")),
            (0, MOST_STEPS, ("checkpoint_every", "validate_every")),
            (0, MOST_CROPS, ("batch", "ratio")),
            (0, math.inf, ("lr", "lr_decay")),
            (0, 1, ("foreground",)),
            (0, 2**32 - 1, ("seed",)),
        ):
            require_range(self, low, high, *names, section="train")
        choices = {"precision": PRECISIONS, "compile": COMPILE_MODES, "guard": GUARDS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise unknown(f"train.{name}", getattr(self, name), known)
        if self.checkpoint_every % self.log_every or self.validate_every % self.log_every:
            # a resumed run starts with a new log line
            raise InputError(
                f"train.checkpoint_every ({self.checkpoint_every}) and train.validate_every "
                f"({self.validate_every}) must be multiples of train.log_every ({self.log_every})."
            )

    def lr_at(self, step: int) -> float:
        """Learning rate after `step` steps: a polynomial that falls to 0 at the last one."""
        return float(self.lr * (1 - step / self.steps) ** self.lr_decay)

    @property
    def validation_interval(self) -> int:
        """`validate_every`, or a tenth of the training in whole log lines."""
        tenth = max(1, self.steps // 10 // self.log_every) * self.log_every
        return self.validate_every or tenth


class Trainer:
    def __init__(
        self,
        method: Method,
        sampler: Sampler,
        settings: TrainSettings,
        folder: RunFolder,
        observer: TrainingDisplay,
        validate: Callable[[int], float] | None = None,
        # fraction of voxels of each foreground class in the labeled scans, to detect a collapse
        foreground: Mapping[str, float] | None = None,
        processes: Processes = ALONE,
    ) -> None:
        self.method = method
        self.sampler = sampler
        self.batches = Prefetch(sampler, settings.steps)
        self.settings = settings
        self.folder = folder
        self.observer = observer
        self.validate = validate
        self.foreground = foreground
        self.processes = processes
        self.device = sampler.device
        self.layout = memory_format(self.device, method.network.dims)
        self.method.to(self.device).to(memory_format=self.layout).train()  # type: ignore[call-overload]  # missing in torch's stubs
        self.context = autocast(self.device, settings.precision)
        self.networks: AcceleratedNetworks | None = None
        if should_compile(self.device, settings.compile):
            retry = self.fall_back if processes.count == 1 else stop_without_acceleration
            self.networks = AcceleratedNetworks(method, self.device, self.context, retry)
        self.optimizer = optimizer_for(method, settings.lr)
        self.log = CsvLog(folder.log)
        self.times = CsvLog(folder.times)
        self.events: EventLog | None = None
        self.saved = time.monotonic()  # when the last checkpoint was written
        self.step = 0
        self.facts: Facts = {}

    def with_steps(self, steps: int, observer: TrainingDisplay) -> Trainer:
        """A new trainer of the same method that takes `steps` steps."""
        settings = replace(self.settings, steps=steps)
        parts = (self.method, self.sampler, settings, self.folder, observer)
        return Trainer(*parts, self.validate, self.foreground, self.processes)

    def resume(self) -> None:
        """Load the last checkpoint. A run killed before its first checkpoint starts again."""
        if self.folder.last.exists():
            checkpoint = read_checkpoint(self.folder.last)
            load_weights(self.method, checkpoint, self.folder.last)
            load_optimizer(self.optimizer, checkpoint, self.folder.last)
            self.step, self.facts = checkpoint.step, checkpoint.facts
        if self.processes.is_first:
            for log in (self.log, self.times, CsvLog(self.folder.validation)):
                log.cut_after(self.step)

    def run(self) -> None:
        """Take the remaining steps. SIGINT or SIGTERM saves the current step and stops."""
        self.processes.equalize(self.method)
        try:
            with StopSignal() as stop, self.batches:
                self.take_steps(stop)
        finally:
            if self.networks:
                self.networks.release()
                self.networks = None  # it refers to this trainer, which holds the volumes

    def take_steps(self, stop: StopSignal) -> None:
        settings, processes, meter, begin = self.settings, self.processes, Meter(), self.step
        if "meter" in self.facts:
            meter.restore(self.facts.pop("meter"), self.device)
        collapse = CollapseWatch(settings.steps, self.foreground or {}, settings.guard)
        if "guard" in self.facts:
            collapse.restore(self.facts["guard"])
        if settings.track and processes.is_first:
            self.events = EventLog(self.folder.events, after=self.step)
        if settings.precision == "auto" and lacks_bfloat16(self.device) and processes.is_first:
            self.fall_back("the GPU does not support bfloat16, so training uses float32.")
        emulates = settings.precision == "bfloat16" and not has_bfloat16(self.device)
        if emulates and processes.is_first:
            self.fall_back(
                "this device does not report fast bfloat16, so training may be many times slower "
                "than in float32, and on a CPU its gradients may be wrong. Use "
                "train.precision=float32."
            )
        start, spent = time.perf_counter(), self.times.last("seconds")
        waited = self.times.last("waiting_seconds")
        number = 0  # of a signal to stop
        while self.step < settings.steps:
            number, is_paused = processes.agree(stop.number, paused=collapse.is_paused)
            if number:
                break
            lr = settings.lr_at(self.step)
            self.learn(meter, lr, paused=is_paused)
            self.observer.on_step(self.step)
            is_line = self.step % settings.log_every == 0 or self.step == settings.steps
            if not (is_line and processes.is_first):
                continue

            row = with_hidden_scores(meter.row(lr))
            self.log.add({"step": self.step, **row})
            if self.events:
                self.events.add(self.step, row)
            seconds = time.perf_counter() - start
            times = {
                "step": self.step,
                "seconds": spent + seconds,
                "steps_per_second": (self.step - begin) / seconds,
                "waiting_seconds": waited + self.batches.waited,
                "peak_bytes": peak_memory(self.device),
            }
            self.times.add(times)
            self.observer.on_log(self.step, row)
            if warning := collapse.check(self.step, row):
                self.observer.on_warning(warning)
            if settings.guard == "pause":
                self.facts["guard"] = collapse.state()
            self.validate_and_save()
        if self.step < settings.steps:
            if self.step > begin and processes.is_first:
                if meter.count:
                    self.facts["meter"] = meter.state()
                self.save(self.folder.last)
            processes.leave()
            stop.requeue()
            raise KeyboardInterrupt(number)

    def learn(self, meter: Meter, lr: float, *, paused: bool = False) -> None:
        """Take the next step and add its terms to `meter`."""
        self.optimizer.lr = lr
        advance = partial(self.advance, paused=paused)
        output, total = self.networks.run(advance) if self.networks else advance()
        if self.sampler.hidden:
            output = count_hidden(output, self.sampler.hidden_labels(self.step))
        self.step += 1
        meter.add(output, total, self.step)

    def advance(self, *, paused: bool) -> tuple[StepOutput, Tensor]:
        """Take the next step. Repeating it after a failure uses the same random numbers."""
        # for dropout inside networks, also in CUDA graphs, which read seed and offset at every
        # replay; everything else uses the generator of the batch
        seed = self.settings.seed * 1_000_003 + self.step + self.processes.rank * 2**53
        seed_global_generators(self.device, seed)
        return take_step(
            self.method,
            self.optimizer,
            with_layout(self.processes.gather_batch(self.batches.batch(self.step)), self.layout),
            self.step / self.settings.steps,
            self.context,
            taken=self.step,
            paused=paused,
            processes=self.processes,
        )

    def fall_back(self, message: str) -> None:
        """Show why training is slower than it could be, and record it in `environment.json`."""
        self.observer.on_warning(message)
        record_fallback(self.folder.environment, message)

    def validate_and_save(self) -> None:
        settings = self.settings
        is_end = self.step == settings.steps
        if self.validate and (is_end or self.step % settings.validation_interval == 0):
            validate = partial(self.validate, self.step)
            score = self.networks.run(validate) if self.networks else validate()
            if self.events:
                self.events.add(self.step, {"validation_dice": score})
            if score > self.facts.get("best_score", -1.0):
                self.facts |= {"best_score": score, "best_step": self.step}
                self.save(self.folder.best)
        if settings.checkpoint_every:
            is_due = self.step % settings.checkpoint_every == 0
        else:
            is_due = time.monotonic() - self.saved >= CHECKPOINT_SECONDS
        if is_end or is_due:
            self.save(self.folder.last)
            self.saved = time.monotonic()

    def save(self, path: Path) -> None:
        require_finite(self.method, f"step {self.step}")
        save_checkpoint(
            path, step=self.step, module=self.method, optimizer=self.optimizer, facts=self.facts
        )


def stop_without_acceleration(message: str) -> None:
    """Raise: if one of several processes repeated a step, the others would wait for it."""
    raise InputError(
        f"{message} This is not possible with several processes. Restart with --set "
        "train.compile=off, or with a smaller batch if memory is full."
    )


def with_layout(batch: Batch, layout: torch.memory_format) -> Batch:
    """The batch with its images in the memory layout that is fastest on the device."""
    labeled, unlabeled = batch.labeled, batch.unlabeled
    return replace(
        batch,
        labeled=replace(labeled, image=labeled.image.to(memory_format=layout)),
        unlabeled=unlabeled and replace(unlabeled, image=unlabeled.image.to(memory_format=layout)),
    )
