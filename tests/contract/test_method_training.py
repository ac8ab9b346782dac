"""What every method promises over several steps: it learns, and it goes on where it stopped."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from marks import both_dims, both_tasks, every_method
from tiny import build, make_batch, phantom_batch

from segpl.engine.checkpoint import load_optimizer, load_weights, read_checkpoint, save_checkpoint
from segpl.engine.step import optimizer_for, take_step
from segpl.methods.base import Method
from segpl.types import Batch


def adam(method: Method, lr: float = 0.01) -> torch.optim.Adam:
    return optimizer_for(method, lr)


def values_of_step(
    method: Method, optimizer: torch.optim.Optimizer, batch: Batch, progress: float, *, taken: int
) -> dict[str, float]:
    """One optimizer step after `taken` others."""
    output, _ = take_step(method, optimizer, batch, progress, nullcontext(), taken=taken)
    return {name: term.value.item() for name, term in output.terms.items()}


@every_method
@both_dims
@pytest.mark.parametrize(("classes", "steps"), [(2, 30), (3, 45)])
def test_few_steps_halve_the_supervised_loss(name, dims, classes, steps):
    method = build(name, dims, classes=classes, settings={"loss": "dice-cross-entropy"})
    optimizer = adam(method, lr=0.02)
    batch = phantom_batch(dims, classes=classes)
    values = [
        values_of_step(method, optimizer, batch, step / steps, taken=step) for step in range(steps)
    ]
    assert values[-1]["supervised"] < 0.5 * values[0]["supervised"]


@every_method
@both_dims
@both_tasks
def test_checkpoint_continues_the_curve_to_the_bit(name, dims, classes, tmp_path: Path):
    def batch(step: int) -> Batch:
        return make_batch(dims, classes=classes, images=1, seed=step)

    method = build(name, dims, classes=classes)
    optimizer = adam(method)
    whole = [
        values_of_step(method, optimizer, batch(step), step / 6, taken=step) for step in range(6)
    ]

    method = build(name, dims, classes=classes)
    optimizer = adam(method)
    for step in range(3):
        values_of_step(method, optimizer, batch(step), step / 6, taken=step)
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, step=3, module=method, optimizer=optimizer, facts={"best_score": 0.25})

    method = build(name, dims, classes=classes, seed=99)
    optimizer = adam(method)
    checkpoint = read_checkpoint(path)
    load_weights(method, checkpoint, path)
    load_optimizer(optimizer, checkpoint)
    rest = [
        values_of_step(method, optimizer, batch(step), step / 6, taken=step) for step in range(3, 6)
    ]

    assert checkpoint.step == 3
    assert checkpoint.facts == {"best_score": 0.25}
    assert rest == whole[3:]


@every_method
@both_dims
def test_checkpoint_of_channels_last_weights_continues_to_the_bit(name, dims, tmp_path: Path):
    """The order in memory decides how sums round, and a file keeps no such order."""
    layout = torch.channels_last if dims == 2 else torch.channels_last_3d

    def fresh(seed: int) -> tuple[Method, torch.optim.Adam]:
        method = build(name, dims, seed=seed).to(memory_format=layout)
        return method, adam(method)

    method, optimizer = fresh(0)
    batches = [make_batch(dims, images=1, seed=step) for step in range(4)]
    for step in range(2):
        values_of_step(method, optimizer, batches[step], 0.5, taken=step)
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, step=2, module=method, optimizer=optimizer, facts={})
    batches = [make_batch(dims, images=1, seed=step) for step in range(4)]
    whole = [values_of_step(method, optimizer, batches[step], 0.5, taken=step) for step in (2, 3)]

    method, optimizer = fresh(99)
    checkpoint = read_checkpoint(path)
    load_weights(method, checkpoint, path)
    load_optimizer(optimizer, checkpoint)
    batches = [make_batch(dims, images=1, seed=step) for step in range(4)]
    rest = [values_of_step(method, optimizer, batches[step], 0.5, taken=step) for step in (2, 3)]
    assert rest == whole


@every_method
def test_training_without_steps_can_be_saved(name, tmp_path: Path):
    method = build(name, 2)
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, step=0, module=method, optimizer=adam(method), facts={})
    checkpoint = read_checkpoint(path)
    load_weights(method, checkpoint, path)
    load_optimizer(adam(method), checkpoint)
    assert checkpoint.optimizer == {}
