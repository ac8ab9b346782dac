"""What every method promises over several steps: it learns, and it resumes exactly."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from marks import build_case, every_method
from tiny import make_batch, phantom_batch

from segpl.engine.adam import Adam
from segpl.engine.checkpoint import load_optimizer, load_weights, read_checkpoint, save_checkpoint
from segpl.engine.step import optimizer_for, take_step
from segpl.methods.base import Method
from segpl.types import Batch


def terms_of_step(
    method: Method, optimizer: Adam, batch: Batch, progress: float, *, taken: int
) -> dict[str, float]:
    """One optimizer step after `taken` others."""
    output, _ = take_step(method, optimizer, batch, progress, nullcontext(), taken=taken)
    return {name: term.value.item() for name, term in output.terms.items()}


@every_method
def test_training_lowers_the_supervised_loss(name):
    """By a third or more within eight steps; the bound leaves a wide margin."""
    method, batch = build_case(name, 2), phantom_batch(2)
    optimizer = optimizer_for(method, 0.02)
    losses = [
        terms_of_step(method, optimizer, batch, step / 8, taken=step)["supervised"]
        for step in range(8)
    ]
    assert losses[-1] < 0.85 * losses[0]


@every_method
def test_resumed_training_repeats_the_uninterrupted_one_to_the_bit(name, tmp_path):
    """Also with weights in channels-last order, which a file does not store: sums would round
    differently.
    """

    def fresh(seed: int) -> tuple[Method, Adam]:
        method = build_case(name, 2, classes=3, seed=seed).to(memory_format=torch.channels_last)
        return method, optimizer_for(method, 0.01)

    def train(method: Method, optimizer: Adam, first: int) -> list[dict[str, float]]:
        return [
            terms_of_step(
                method,
                optimizer,
                make_batch(2, classes=3, images=1, seed=step),
                step / 4,
                taken=step,
            )
            for step in (first, first + 1)
        ]

    method, optimizer = fresh(0)
    train(method, optimizer, 0)
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, step=2, module=method, optimizer=optimizer, facts={"best_score": 0.25})
    uninterrupted = train(method, optimizer, 2)

    method, optimizer = fresh(99)
    checkpoint = read_checkpoint(path)
    load_weights(method, checkpoint, path)
    load_optimizer(optimizer, checkpoint, path)
    assert checkpoint.step == 2
    assert checkpoint.facts == {"best_score": 0.25}
    assert train(method, optimizer, 2) == uninterrupted


@every_method
def test_checkpoint_can_be_saved_before_the_first_step(name, tmp_path):
    method = build_case(name, 2)
    path = tmp_path / "last.safetensors"
    save_checkpoint(path, step=0, module=method, optimizer=optimizer_for(method, 0.01), facts={})
    checkpoint = read_checkpoint(path)
    load_weights(method, checkpoint, path)
    load_optimizer(optimizer_for(method, 0.01), checkpoint, path)
    assert checkpoint.optimizer == {}
