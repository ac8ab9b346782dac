"""Time budgets: the steps that fit, and the measurement, which leaves no traces."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Mapping

import pytest
import torch
from test_trainer import Ones, Recorder, curve, trainer_in

from segpl.durations import LONGEST, parse_duration
from segpl.engine.budget import (
    MEASURED_SECONDS,
    MEASUREMENTS,
    MOST_DEFAULT_STEPS,
    Budget,
    TrainingSpeed,
    affordable_steps,
    measure_step,
)
from segpl.engine.trainer import MOST_STEPS, TrainSettings
from segpl.errors import InputError

HOUR = 3600.0


def test_steps_are_the_budget_divided_by_the_step_time():
    """2 % are kept for checkpoints: 0.98 * 3600 / 0.1 = 35,280, rounded down."""
    assert affordable_steps(Budget(HOUR), TrainingSpeed(0.1), TrainSettings()) == 35_200


@pytest.mark.parametrize("every", [0, 500])
@pytest.mark.parametrize("validation", [0.0, 7.0, 90.0])
def test_training_ends_within_the_budget_and_uses_most_of_it(every, validation):
    settings = TrainSettings(validate_every=every)
    speed = TrainingSpeed(0.043, validation)
    steps = affordable_steps(Budget(HOUR), speed, settings)
    validations = -(-steps // TrainSettings(steps=steps, validate_every=every).validation_interval)
    spent = 0.043 * steps + validations * validation
    assert 0.95 * HOUR < spent < 0.98 * HOUR


def test_longer_training_with_fewer_validations_is_found():
    """An automatic interval validates 11 times in 110 steps, but 10 times in 800."""
    assert affordable_steps(Budget(HOUR / 2), TrainingSpeed(0.3, 150.0), TrainSettings()) == 800


def test_number_of_steps_is_limited():
    assert affordable_steps(Budget(LONGEST), TrainingSpeed(1e-9), TrainSettings()) == MOST_STEPS


def test_default_budget_has_a_limit_of_steps():
    speed, settings = TrainingSpeed(0.01), TrainSettings()
    steps = affordable_steps(Budget(HOUR, is_default=True), speed, settings)
    assert steps == MOST_DEFAULT_STEPS < affordable_steps(Budget(HOUR), speed, settings)


@pytest.mark.parametrize(
    ("is_default", "subject"),
    [(False, "--time '1m30s' allows"), (True, "the default time of 1m30s allows")],
)
def test_suggested_budget_for_too_short_a_one_is_enough(monkeypatch, is_default, subject):
    monkeypatch.setattr("segpl.errors.Spelling.is_command_line", True)
    speed, settings = TrainingSpeed(2.0, 5.0), TrainSettings()
    with pytest.raises(InputError, match=r"\d+ steps \(2\.0 s each; a valid") as caught:
        affordable_steps(Budget(90, is_default=is_default), speed, settings)
    words = str(caught.value)
    assert words.startswith(subject)
    assert "at least 100" in words
    assert "--steps" in words
    suggested = words.split("Use --time '")[1].split("'")[0]
    assert 100 <= affordable_steps(Budget(parse_duration(suggested)), speed, settings) < 130


class Timed(Ones):
    """A sampler that advances the clock: steps differ, and the first one of a run is slow."""

    def __init__(self, seconds: float, others: Mapping[int, float] | None = None) -> None:
        super().__init__()
        self.seconds = seconds
        self.others = {0: 60.0, **(others or {})}  # step -> its seconds
        self.now = 0.0

    def batch(self, step):
        self.now += self.others.get(step, self.seconds)
        return super().batch(step)


@pytest.mark.parametrize(
    ("seconds", "budget", "steps"),
    [
        (0.125, HOUR, 1 + MEASURED_SECONDS / 0.125),
        (0.125, 10.0, 1 + MEASUREMENTS * 2),
        (2.0, HOUR, MEASUREMENTS),
        (8.0, HOUR, MEASUREMENTS),
        (2.0, 10.0, 1),
    ],
    ids=["some seconds", "a short budget", "slow", "slower", "hopeless"],
)
def test_step_time_is_measured_without_the_first_step(tmp_path, seconds, budget, steps):
    sampler = Timed(seconds)
    trainer = trainer_in(tmp_path, sampler=sampler)
    measured = measure_step(trainer, budget, clock=lambda: sampler.now)
    assert measured == pytest.approx(seconds)
    assert len(sampler.asked) == 1 + steps


def test_one_slow_step_is_enough_in_a_process_that_has_trained_before(tmp_path):
    sampler = Timed(2.0)
    trainer = trainer_in(tmp_path, sampler=sampler)
    assert measure_step(trainer, 10.0, lambda: sampler.now, is_warm=True) == pytest.approx(60.0)
    assert len(sampler.asked) == 1


@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("other", [20.0, 0.5], ids=["busy machine", "cheap augmentation"])
def test_one_of_three_measurements_does_not_determine_the_step_time(tmp_path, step, other):
    sampler = Timed(2.0, {step: other})
    trainer = trainer_in(tmp_path, sampler=sampler)
    assert measure_step(trainer, HOUR, clock=lambda: sampler.now) == pytest.approx(2.0)


def test_measuring_does_not_depend_on_the_number_of_steps_of_the_trainer(tmp_path):
    """Five seconds may be more steps than the default has."""
    sampler = Timed(0.01)
    trainer = trainer_in(tmp_path, sampler=sampler, steps=5)
    assert measure_step(trainer, HOUR, clock=lambda: sampler.now) == pytest.approx(0.01)
    assert max(sampler.asked) > 400
    assert max(trainer.method.progress) < 0.01


class WithState(Recorder):
    """Also changes buffers, one of which is not part of checkpoints."""

    def __init__(self) -> None:
        super().__init__(curve)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.ones(3), persistent=False)

    def after_update(self, steps: int) -> None:
        super().after_update(steps)
        self.count += 1
        self.scratch *= 2


def test_training_after_measuring_equals_training_without(tmp_path):
    plain = trainer_in(tmp_path / "plain", WithState(), lr=0.1)
    plain.run()

    sampler = Timed(1.0)
    trial = trainer_in(tmp_path / "run", WithState(), sampler=sampler, lr=0.1, steps=7)
    measure_step(trial, HOUR, clock=lambda: sampler.now)
    method = trial.method
    assert (method.count.item(), method.scratch.tolist()) == (0, [1.0] * 3)
    assert method.weight.item() == 1.0
    assert method.weight.grad is None
    assert list((tmp_path / "run").iterdir()) == []

    trainer = trial.with_steps(20, trial.observer)
    seen = len(method.progress)
    trainer.run()
    assert method.progress[seen:] == plain.method.progress
    assert method.draws[seen:] == plain.method.draws
    for name in ("log.csv", "checkpoints/last.safetensors"):
        found, wanted = (tmp_path / run / name for run in ("run", "plain"))
        assert found.read_bytes() == wanted.read_bytes()


def test_measured_trainer_is_freed_without_garbage_collection(tmp_path, monkeypatch):
    """It holds the volumes, which would take memory of the device from the next training."""
    from test_acceleration import compile_with, no_compiler

    monkeypatch.setattr("segpl.engine.acceleration.compile_in_place", compile_with(no_compiler))
    sampler = Timed(1.0)
    trainer = trainer_in(tmp_path, sampler=sampler, compile="on")
    measure_step(trainer, HOUR, clock=lambda: sampler.now)
    reference = weakref.ref(trainer)
    gc.disable()
    try:
        del trainer
        assert reference() is None
    finally:
        gc.enable()


def test_weights_are_restored_if_measuring_is_interrupted(tmp_path):
    trainer = trainer_in(tmp_path, sampler=Ones(dies_at=2))
    with pytest.raises(KeyboardInterrupt):
        measure_step(trainer, HOUR)
    assert trainer.method.weight.item() == 1.0


def test_measuring_writes_no_fallback_but_training_does(tmp_path, monkeypatch):
    """The run does not exist before its number of steps is known."""
    from test_acceleration import compile_with, no_compiler

    monkeypatch.setattr("segpl.engine.acceleration.compile_in_place", compile_with(no_compiler))
    sampler = Timed(1.0)
    trainer = trainer_in(tmp_path, sampler=sampler, compile="on")
    measure_step(trainer, HOUR, clock=lambda: sampler.now)
    assert trainer.observer.warnings == []
    assert list(tmp_path.iterdir()) == []
    trainer.with_steps(2, trainer.observer).run()
    assert "could not be compiled" in trainer.observer.warnings[0]
    assert trainer.folder.environment.exists()
