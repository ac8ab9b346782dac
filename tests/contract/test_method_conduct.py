"""How every method behaves: what it predicts, what it draws, and that it waits for nothing."""

from __future__ import annotations

import pytest
import torch
from marks import both_dims, both_tasks, every_method
from tiny import SIDE, build, make_batch, total_of
from torch.utils._python_dispatch import TorchDispatchMode


@every_method
@both_dims
@both_tasks
def test_predictions_are_probabilities_on_the_input_grid(name, dims, classes):
    method = build(name, dims, classes=classes).eval()
    for sides in ((SIDE,) * 3, (24, 8, 20)):
        image = torch.randn((2, 1, *sides[:dims]), generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            answer = method.predict(image)
        assert answer.shape == (2, 1 if classes == 2 else classes, *sides[:dims])
        assert answer.dtype == torch.float32
        assert 0 <= answer.min() < answer.max() <= 1


@every_method
@both_dims
def test_prediction_of_an_image_does_not_depend_on_its_neighbors(name, dims):
    method = build(name, dims).eval()
    image = make_batch(dims).labeled.image
    with torch.no_grad():
        together, alone = method.predict(image)[:1], method.predict(image[:1])
    assert torch.allclose(together, alone, atol=1e-5)


@every_method
@both_dims
@both_tasks
def test_same_seed_gives_the_same_terms_to_the_bit(name, dims, classes):
    first, second = (
        build(name, dims, classes=classes, seed=4).step(make_batch(dims, classes=classes), 0.5)
        for _ in range(2)
    )
    assert first.terms.keys() == second.terms.keys()
    for key in first.terms:
        assert torch.equal(first.terms[key].value, second.terms[key].value), key
    for key in first.monitors:
        assert torch.equal(first.monitors[key], second.monitors[key]), key


@every_method
@both_dims
def test_another_seed_gives_another_loss(name, dims):
    first, second = (
        build(name, dims, seed=seed).step(make_batch(dims), 0.5).terms["supervised"].value
        for seed in (0, 1)
    )
    assert not torch.equal(first, second)


@every_method
@both_dims
def test_step_draws_nothing_from_global_randomness(name, dims):
    method, batch = build(name, dims), make_batch(dims)
    before = torch.get_rng_state()
    method.step(batch, 1.0)
    assert torch.equal(before, torch.get_rng_state())


class Waiting(TorchDispatchMode):
    """Counts what makes the host wait for a device: a tensor's value, a shape that needs one."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        words = ("_local_scalar_dense", "nonzero", "unique", "bincount", "masked_select")
        self.found += [str(func) for word in words if word in str(func)]
        return func(*args, **(kwargs or {}))


@every_method
@both_dims
@both_tasks
def test_step_never_waits_for_the_device(name, dims, classes):
    method, batch = build(name, dims, classes=classes), make_batch(dims, classes=classes)
    with Waiting() as waiting:
        total_of(method.step(batch, 1.0)).backward()
        method.after_update(1)
    assert waiting.found == []


@every_method
@both_dims
@both_tasks
def test_one_image_of_each_kind_is_enough(name, dims, classes):
    method = build(name, dims, classes=classes)
    output = method.step(make_batch(dims, classes=classes, images=1), 1.0)
    total_of(output).backward()
    assert all(term.value.isfinite() for term in output.terms.values())


@every_method
@both_dims
def test_terms_are_finite_float32_under_bfloat16(name, dims):
    method = build(name, dims)
    with torch.autocast("cpu", torch.bfloat16):
        output = method.step(make_batch(dims), 1.0)
    for key, term in output.terms.items():
        assert term.value.dtype == torch.float32, key
        assert term.value.isfinite(), key
    total_of(output).backward()
    for key, parameter in method.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, f"{key} is never trained"
            assert parameter.grad.isfinite().all(), key


@every_method
def test_unknown_loss_is_refused_with_the_nearest(name):
    with pytest.raises(KeyError, match=r"no loss named 'dise'\. Did you mean 'dice'"):
        build(name, 2, settings={"loss": "dise"})


@every_method
def test_summary_is_one_line(name):
    method = build(name, 2)
    assert method.name == name
    assert method.summary
    assert "\n" not in method.summary
