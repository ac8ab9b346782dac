"""What every method promises where coarser levels of its networks learn from the labels too."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from marks import both_dims, both_tasks, every_method, every_user_of_unlabeled
from tiny import build, make_batch, moved, total_of

from segpl.losses import labeled_loss
from segpl.methods.base import Method
from segpl.networks.network import NetworkSettings
from segpl.types import IGNORE, Batch

DEEP = NetworkSettings(deep=1)


def deep(name: str, dims: int, classes: int = 2) -> Method:
    return build(name, dims, classes=classes, network=DEEP)


def side_weights(method: Method) -> list[torch.Tensor]:
    """Of the networks that learn; each has one coarser level."""
    students = [network for network in method.networks() if not network.is_frozen]
    return [side.weight for network in students for side in network.body.sides]


@every_method
@both_dims
def test_supervised_term_moves_the_layer_of_every_coarser_level(name, dims):
    method = deep(name, dims, classes=3)
    term = method.step(make_batch(dims, classes=3), 1.0).terms["supervised"].value
    sides = side_weights(method)
    assert sides
    assert all(moved(term, [weight]) for weight in sides)


@every_method
@both_dims
def test_other_terms_leave_coarser_levels_alone(name, dims):
    method = deep(name, dims)
    for key, term in method.step(make_batch(dims), 1.0).terms.items():
        if key != "supervised":
            assert not moved(term.value, side_weights(method)), key


@every_user_of_unlabeled
@both_dims
def test_coarser_levels_learn_from_labeled_images_only(name, dims):
    """The slope of a side layer is made of the images that it learns from."""
    method, batch = deep(name, dims), make_batch(dims)
    unlabeled = batch.unlabeled.image.requires_grad_()
    labeled = batch.labeled.image.requires_grad_()
    term = method.step(batch, 1.0).terms["supervised"].value
    slopes = torch.autograd.grad(term, side_weights(method), create_graph=True)
    reached = torch.stack([slope.square().sum() for slope in slopes]).sum()
    assert moved(reached, [labeled])
    assert not moved(reached, [unlabeled])


@every_method
@both_dims
def test_ignored_voxels_teach_coarser_levels_nothing(name, dims):
    batch = make_batch(dims)
    label = torch.full_like(batch.labeled.label, IGNORE)
    nothing = replace(batch, labeled=replace(batch.labeled, label=label))
    method = deep(name, dims)
    term = method.step(nothing, 1.0).terms["supervised"].value
    assert not moved(term, side_weights(method))


@every_method
@both_dims
def test_prediction_is_the_same_with_and_without_coarser_levels(name, dims):
    """The same weights: side layers are no part of what is predicted."""
    method, plain = deep(name, dims), build(name, dims)
    weights = {key: value for key, value in method.state_dict().items() if ".sides." not in key}
    plain.load_state_dict(weights)
    image = make_batch(dims).labeled.image
    assert torch.equal(method.eval().predict(image), plain.eval().predict(image))


@every_method
def test_coarser_levels_learn_under_bfloat16(name):
    method = deep(name, 2)
    with torch.autocast("cpu", torch.bfloat16):
        output = method.step(make_batch(2), 1.0)
    total_of(output).backward()
    for weight in side_weights(method):
        assert weight.grad.isfinite().all()
        assert weight.grad.abs().sum() > 0


@both_dims
@both_tasks
def test_supervised_term_is_the_loss_over_the_levels_of_labeled_images(dims, classes):
    method, batch = deep("segpl", dims, classes), make_batch(dims, classes=classes)
    term = method.step(batch, 1.0).terms["supervised"].value
    alone = method.network(batch.labeled.image)
    assert len(alone.coarse) == 1
    expected = labeled_loss(alone, batch.labeled.label, method.loss)
    assert term.item() == pytest.approx(expected.item(), rel=1e-5)


@every_user_of_unlabeled
def test_thin_axis_that_is_kept_is_kept_on_coarser_grids(name):
    patch, strides = (4, 16, 16), ((1, 2, 2), (2, 2, 2))
    method = build(name, 3, network=DEEP, patch=patch, strides=strides)
    batch: Batch = make_batch(3, patch=patch)
    output = method.step(batch, 1.0)
    assert all(term.value.isfinite() for term in output.terms.values())
    assert all(moved(output.terms["supervised"].value, [w]) for w in side_weights(method))
