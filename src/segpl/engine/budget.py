"""Time budgets: the number of training steps that a given time allows."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from segpl.durations import format_duration, format_seconds
from segpl.engine.acceleration import WARM_UP
from segpl.engine.device import synchronize
from segpl.engine.meter import Meter
from segpl.engine.trainer import MOST_STEPS, Trainer, TrainSettings
from segpl.errors import InputError, count_noun
from segpl.methods.base import Method

FEWEST_STEPS = 100
MOST_DEFAULT_STEPS = 6_000  # the longest runs measured on every 3D dataset
# measure at least this many times, and for this many seconds or fraction of a shorter budget
MEASUREMENTS = 3
MEASURED_SECONDS = 5.0
MEASURED_SHARE = 0.03
MEASUREMENT = 1.0  # seconds, or all of a shorter time, or one step if that takes longer
HOPELESS = 2.0  # on a CPU, if the second step is this many times too slow, measure no others
OVERHEAD = 0.02  # fraction of the budget for checkpoints and log lines
SUGGESTED_MARGIN = 1.1  # factor on a suggested budget: the next measurement may be slower


@dataclass(frozen=True, slots=True)
class Budget:
    """Time for one training run."""

    seconds: float
    is_default: bool = False  # the user chose neither a time nor a number of steps

    def __str__(self) -> str:
        return f"{'up to' if self.is_default else 'about'} {format_duration(self.seconds)}"


@dataclass(frozen=True, slots=True)
class TrainingSpeed:
    """Measured times in seconds."""

    step: float
    validation: float = 0.0  # of all validation cases, once

    def __str__(self) -> str:
        more = f"; a validation takes {format_seconds(self.validation)}" if self.validation else ""
        return f"{format_seconds(self.step)} each{more}"

    def duration(self, settings: TrainSettings) -> float:
        """Expected seconds of a training run."""
        validations = math.ceil(settings.steps / settings.validation_interval)
        return (settings.steps * self.step + validations * self.validation) / (1 - OVERHEAD)


def affordable_steps(budget: Budget, speed: TrainingSpeed, settings: TrainSettings) -> int:
    """The most steps that fit into `budget`, with three significant digits."""
    most = MOST_DEFAULT_STEPS if budget.is_default else MOST_STEPS

    def duration(steps: int) -> float:
        return speed.duration(replace(settings, steps=steps))

    # try all of them: a longer run may validate less often and take less time
    candidates = (steps for steps in rounded_steps() if steps <= most)
    steps = max((steps for steps in candidates if duration(steps) <= budget.seconds), default=0)
    if steps < FEWEST_STEPS:
        enough = SUGGESTED_MARGIN * duration(FEWEST_STEPS)
        unit = 60 if enough >= 120 else 1
        needed = format_duration(unit * math.ceil(enough / unit))
        given = format_duration(budget.seconds)
        subject = f"the default time of {given}" if budget.is_default else f"--time '{given}'"
        raise InputError(
            f"{subject} allows {count_noun(steps, 'step')} ({speed}), but training "
            f"needs at least {FEWEST_STEPS}. Use --time '{needed}' or more, or choose the number "
            "of steps with --steps."
        )
    return steps


def rounded_steps() -> Iterator[int]:
    """Numbers of steps up to `MOST_STEPS` with at most three significant digits."""
    yield from range(1, min(100, MOST_STEPS + 1))
    for unit in (10**zeros for zeros in range(len(str(MOST_STEPS)))):
        yield from range(100 * unit, min(1000 * unit, MOST_STEPS + 1), unit)


def measure_step(
    trainer: Trainer,
    budget: float,
    clock: Callable[[], float] = time.perf_counter,
    *,
    is_warm: bool = False,
) -> float:
    """Seconds of a training step: the median of several measurements, since augmentation varies.

    The first steps, which are slower, do not count. If `is_warm`, this process has trained before:
    on a CPU, the first step counts, too. Takes real steps and then restores the weights, but not
    the global random generators, which every step seeds. Only a new trainer can then train.
    """
    # `steps` must exceed the steps that will be measured; the speed does not depend on it
    trial = trainer.with_steps(MOST_STEPS, trainer.observer)
    if trial.networks and trial.processes.count == 1:
        # the run does not exist yet; its own first step will fail in the same way and record it
        trial.networks.on_failure = lambda message: None
    meter, settings = Meter(), trial.settings

    def seconds_of(steps: int) -> float:
        start = clock()
        for number in range(1, steps + 1):
            trial.learn(meter, settings.lr)
            if number % settings.log_every == 0 or number == steps:
                synchronize(trial.device)  # as a log line does
        return clock() - start

    try:
        with weights_restored(trial.method), trial.batches:
            if trial.networks or not is_warm:
                seconds_of(WARM_UP - 1 if trial.networks else 1)
            one = seconds_of(1)
            if not trial.networks and one > HOPELESS * budget / FEWEST_STEPS:
                return one
            needed = min(MEASURED_SECONDS, MEASURED_SHARE * budget)
            steps = max(1, int(min(MEASUREMENT, needed) / max(one, 1e-6)))
            times = [one] if steps == 1 else []  # otherwise its batch may have been waiting
            while len(times) < MEASUREMENTS or steps * sum(times) < needed:
                times.append(seconds_of(steps) / steps)
            return statistics.median(times)
    finally:
        if trial.networks:
            trial.networks.release()
        trainer.networks = None  # it refers to this trainer, which holds the volumes


@contextmanager
def weights_restored(method: Method) -> Iterator[None]:
    """Undo every change of weights and buffers inside the block."""
    tensors = [*method.parameters(), *method.buffers()]
    before = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
        method.zero_grad(set_to_none=True)
