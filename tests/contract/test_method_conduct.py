"""How every method behaves: its predictions, its randomness, its use of the device."""

from __future__ import annotations

import math
from dataclasses import fields
from itertools import product

import pytest
import torch
from marks import (
    SynchronizationCounter,
    build_case,
    every_method,
    every_task,
    first_step,
    take_first_step,
)
from tiny import SIDES, make_batch, total_of, trainable, without_onednn

from segpl.engine.device import autocast
from segpl.errors import InputError
from segpl.methods.base import METHODS


@every_method
@every_task
def test_predictions_are_probabilities_on_the_grid_of_the_image(name, dims, classes):
    method = build_case(name, dims, classes=classes).eval()
    for sides in ((SIDES[dims],) * 3, (12, 4, 10)):
        image = torch.randn((2, 1, *sides[:dims]), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            answer = method.predict(image)
        assert answer.shape == (2, 1 if classes == 2 else classes, *sides[:dims])
        assert answer.dtype == torch.float32
        assert 0 <= answer.min() < answer.max() <= 1


@every_method
def test_prediction_does_not_depend_on_other_images_of_the_batch(name):
    method = build_case(name, 2).eval()
    image = make_batch(2).labeled.image
    with torch.no_grad():
        together, alone = method.predict(image)[:1], method.predict(image[:1])
    torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


@every_method
@torch.no_grad()
def test_method_predicts_a_threshold_only_if_it_declares_one(name):
    method, image = build_case(name, 2).eval(), make_batch(2).labeled.image
    found = method.predict_threshold(image)
    assert (found is not None) == method.has_threshold
    if found is not None:
        assert torch.equal(found.probability, method.predict(image))


@pytest.mark.parametrize("name", [n for n in METHODS.names if METHODS.get(n).has_threshold])
@torch.no_grad()
def test_prediction_infers_the_threshold_as_in_training(name):
    method, batch = build_case(name, 2), make_batch(2)
    for weight in (value for key, value in method.named_parameters() if "head." in key):
        torch.nn.init.normal_(weight, std=0.3)  # a new head hardly depends on the features
    monitors = method.step(batch, 1.0).monitors
    found = method.predict_threshold(batch.unlabeled.image)
    for values, key in zip(found.threshold.moments, ("threshold", "threshold_std"), strict=True):
        assert values.mean().item() == pytest.approx(monitors[key].item(), rel=1e-3)


@every_method
def test_equal_seeds_give_equal_steps_to_the_bit(name):
    first = first_step(name, 2, 3).output
    second = take_first_step(name, 2, 3).output
    assert first.terms.keys() == second.terms.keys()
    for key in first.terms:
        assert torch.equal(first.terms[key].value, second.terms[key].value), key
    for key in first.monitors:
        assert torch.equal(first.monitors[key], second.monitors[key]), key


@every_method
def test_different_seeds_give_different_weights(name):
    first, second = (trainable(build_case(name, 2, seed=seed)) for seed in (0, 1))
    assert not all(torch.equal(*pair) for pair in zip(first, second, strict=True))


@every_method
@every_task
def test_step_neither_synchronizes_nor_draws_global_random_numbers(name, dims, classes):
    step = first_step(name, dims, classes)
    assert step.synchronizations == []
    assert not step.draws_globally


@every_method
def test_update_does_not_synchronize(name):
    method, batch = build_case(name, 2), make_batch(2, images=1)
    with SynchronizationCounter() as counter:
        total_of(method.step(batch, 1.0)).backward()
        method.after_update(1)
    assert counter.found == []


@every_method
def test_terms_and_gradients_are_finite_float32_under_bfloat16(name):
    method = build_case(name, 2, classes=3)
    with without_onednn():
        with autocast(torch.device("cpu"), "bfloat16"):
            output = method.step(make_batch(2, classes=3), 1.0)
        total_of(output).backward()
    for key, term in output.terms.items():
        assert term.value.dtype == torch.float32, key
        assert term.value.isfinite(), key
    for key, parameter in method.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, f"{key} is never trained"
            assert parameter.grad.isfinite().all(), key


@every_method
def test_every_number_in_the_settings_is_checked(name):
    """By the class that declares it or by its bases, before anything is built."""
    kind = METHODS.get(name).Settings
    numbers = [one.name for one in fields(kind) if type(one.default) in (int, float)]
    for setting, value in product(numbers, (-1.0, math.nan, math.inf)):
        with pytest.raises(InputError, match=rf"method\.{setting} is {value}: "):
            kind(**{setting: value})


@every_method
def test_unknown_loss_is_rejected_with_a_suggestion(name):
    with pytest.raises(KeyError, match=r"loss named 'dise'\. Did you mean 'dice'"):
        build_case(name, 2, settings={"loss": "dise"})
