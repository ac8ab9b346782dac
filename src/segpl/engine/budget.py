"""Time budgets: the number of training steps that a given time allows."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from segpl.engine.acceleration import WARM_UP
from segpl.engine.device import synchronize
from segpl.engine.meter import Meter
from segpl.engine.trainer import MOST_STEPS, Trainer, TrainSettings
from segpl.errors import InputError
from segpl.methods.base import Method

NUMBER = r"(\d+(?:\.\d+)?)"
DURATION = re.compile(rf"(?:{NUMBER}h)? ?(?:{NUMBER}m)? ?(?:{NUMBER}s)?", re.ASCII)
EXAMPLES = "Write hours, minutes and seconds, such as '2h', '30m', '1h30m' or '90s'."
LONGEST = 30 * 24 * 3600  # seconds
FEWEST_STEPS = 100
MOST_DEFAULT_STEPS = 2_000  # longer runs were not better on every dataset
# measure at least this many steps and seconds, but at most this fraction of the budget
MEASURED_STEPS = 10
MEASURED_SECONDS = 5.0
MEASURED_SHARE = 0.03
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

    def times(self, runs: int) -> Budget:
        return replace(self, seconds=runs * self.seconds)


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


def parse_duration(text: str, option: str = "--time") -> float:
    """Seconds of a time such as `2h`, `30m`, `1h30m` or `90s`."""
    found = DURATION.fullmatch(str(text).strip().lower())  # a number from Python has no unit
    if found is None or not any(found.groups()):
        raise InputError(f"cannot read {option} '{text}'. {EXAMPLES}")
    hours, minutes, rest = map(float, found.groups("0"))
    seconds = 3600 * hours + 60 * minutes + rest
    if seconds == 0:
        raise InputError(f"{option} '{text}' leaves no time for training. {EXAMPLES}")
    if seconds > LONGEST:
        raise InputError(f"{option} '{text}' is too long: the limit is {format_duration(LONGEST)}.")
    return seconds


def format_duration(seconds: float) -> str:
    """`1h30m`, `4m`, `2m30s` or, below two minutes, `90s`; rounded to a second or three digits."""
    if seconds < 120:
        return f"{seconds:.3g}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = (
        f"{hours}h" if hours else "",
        f"{minutes}m" if minutes else "",
        f"{rest}s" if rest else "",
    )
    return "".join(parts)


def format_rounded(seconds: float) -> str:
    """A duration in whole minutes, or in whole seconds below two minutes."""
    unit = 60 if seconds >= 120 else 1
    return format_duration(unit * max(1, round(seconds / unit)))


def format_seconds(seconds: float) -> str:
    """`2.1 s`, `430 ms` or `4.3 ms`."""
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.{1 if seconds < 0.01 else 0}f} ms"


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
            f"{subject} allows {steps} steps ({speed}), but training "
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
    trainer: Trainer, budget: float, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Mean seconds of a training step, excluding the first ones, which are slower.

    Takes real steps and then restores the weights. Afterwards, only a new trainer can train the
    method. Global random generators are not restored, because every step of a run seeds them.
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
            seconds_of(1)
            second = seconds_of(WARM_UP - 2)
            if not trial.networks and second > HOPELESS * budget / FEWEST_STEPS:
                return second
            one = seconds_of(1)
            wanted = max(MEASURED_SECONDS, MEASURED_STEPS * one)
            steps = max(3, int(min(wanted, MEASURED_SHARE * budget) / max(one, 1e-6)))
            return seconds_of(steps) / steps
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
