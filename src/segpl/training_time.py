"""How long to train: the budget of `--time` or of the device, and the steps that fit into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from segpl.display import say, stopwatch
from segpl.durations import format_duration, format_rounded, parse_duration
from segpl.engine.budget import Budget, TrainingSpeed, affordable_steps, measure_step
from segpl.engine.device import choose_device, total_memory
from segpl.engine.folder import RunFolder
from segpl.engine.trainer import Trainer
from segpl.errors import InputError, count_noun
from segpl.run import Run
from segpl.settings import Config
from segpl.validate.validator import Validator

LARGE_GPU = 40 * 10**9  # bytes of memory
DEFAULT_SECONDS = {True: 30 * 60, False: 60 * 60}  # of a training run; True: on a large GPU


def time_budget(time: str | None, settings: Mapping[str, Any]) -> Budget | None:
    """The budget of `--time`; raises if the number of steps is given as well."""
    if time is None:
        return None
    if has_steps(settings):
        raise InputError(
            "--time chooses the number of steps, so it cannot be combined with --steps or "
            "train.steps."
        )
    return Budget(parse_duration(time))


def default_budget(settings: Mapping[str, Any], device: str) -> Budget | None:
    """The budget of a run without `--time`; None if the settings give the number of steps."""
    if has_steps(settings):
        return None
    chosen = choose_device(device)
    is_large = chosen.type == "cuda" and total_memory(chosen) >= LARGE_GPU
    return Budget(DEFAULT_SECONDS[is_large], is_default=True)


def has_steps(settings: Mapping[str, Any]) -> bool:
    given = settings.get("train")
    return isinstance(given, Mapping) and "steps" in given


def budget_of_run(
    budget: Budget | None,
    settings: Mapping[str, Any],
    config: Config,
    folder: RunFolder,
    *,
    quiet: bool,
) -> Budget | None:
    """The given budget of a new run or its default; a resumed run keeps its number of steps."""
    if not folder.config.exists():
        return budget or default_budget(settings, config.train.device)
    if budget is not None and not quiet:
        say(
            f"note: {folder.path} keeps its {count_noun(config.train.steps, 'step')}, because "
            "--time applies to new runs only. To train it longer, use --steps."
        )
    return None


def steps_within(budget: Budget, run: Run, trainer: Trainer) -> int:
    """Number of steps that fit into `budget`, measured with steps of `trainer`."""
    with stopwatch("Measuring the time of a step.", quiet=run.quiet):
        speed = measure_speed(trainer, budget.seconds)
    settings = run.config.train
    steps = affordable_steps(budget, speed, settings)
    if not run.quiet and budget.is_default:
        expected = format_rounded(speed.duration(replace(settings, steps=steps)))
        device = "GPU" if run.device.type == "cuda" else "CPU"
        say(
            f"Training takes about {expected} on this {device} ({steps:,} steps, {speed}). --time "
            "or --steps changes that."
        )
    elif not run.quiet:
        say(f"A budget of {format_duration(budget.seconds)} allows {steps:,} steps ({speed}).")
    return steps


def with_steps(run: Run, steps: int) -> Run:
    return replace(run, config=replace(run.config, train=replace(run.config.train, steps=steps)))


def measure_speed(trainer: Trainer, budget: float, *, is_warm: bool = False) -> TrainingSpeed:
    step = measure_step(trainer, budget, trainer.processes.clock, is_warm=is_warm)
    if not isinstance(trainer.validate, Validator):
        return TrainingSpeed(step)
    return TrainingSpeed(step, trainer.validate.measure_seconds())
