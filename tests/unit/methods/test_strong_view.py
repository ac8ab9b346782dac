"""Strong views of images, and the labels that go with them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import count_work
from torch import Tensor
from torch.nn import functional as F

from segpl.methods.strong_view import harden, make_strong_view
from segpl.types import Batch, CropShares, Labeled, PseudoLabels, Unlabeled
from segpl.views.randaugment import ViewRecipe, draw_recipe, strong_view

SETTINGS = SimpleNamespace(operations=4, magnitude=1.0, geometry=True)


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed))


def batch_of(image: Tensor, inside: Tensor | None = None) -> Batch:
    label = torch.zeros_like(image[:, 0], dtype=torch.int64)
    generator = torch.Generator().manual_seed(1)
    return Batch(Labeled(image, label), Unlabeled(image, inside), generator)


def view_of(pseudo: PseudoLabels, inside: Tensor | None = None):
    batch = batch_of(pseudo.weight[:, :1], inside)
    return make_strong_view(batch.unlabeled, pseudo, batch, SETTINGS)


def recipes_for(image: Tensor) -> list[ViewRecipe]:
    """What `view_of` draws."""
    rng = batch_of(image).choices("strong view")
    return [draw_recipe(image.shape[2:], rng, **vars(SETTINGS)) for _ in image]


def moved_with(values: Tensor) -> Tensor:
    """Values (B, J, *S) interpolated like the labels of `view_of`, without padding."""
    image = values[:, :1]
    return strong_view(image, values, recipes_for(image), torch.Generator())[1]


@pytest.mark.parametrize("sides", [(12, 16), (12, 12, 6)])
def test_loss_of_a_constant_prediction_is_the_interpolated_loss(sides):
    """Weights and targets are interpolated together: an excluded voxel moves no target."""
    target, weight = rand(4, 2, *sides), rand(4, 2, *sides, seed=1)
    weight = weight * (weight > 0.3)
    _, labels, _ = view_of(PseudoLabels(target, weight))

    def loss(target: Tensor, weight: Tensor) -> Tensor:
        logits = torch.full_like(target, 0.3)
        # at most 1, as the labels of a strong view must be
        return weight * F.binary_cross_entropy_with_logits(logits, target, reduction="none")

    expected = moved_with(loss(target, weight))
    assert not torch.allclose(expected, loss(target, weight), atol=0.1)
    assert torch.allclose(loss(labels.target, labels.weight), expected, atol=1e-5)


def test_targets_and_weights_stay_between_0_and_1():
    target, weight = (rand(8, 2, 16, 16) > 0.5).float(), rand(8, 2, 16, 16, seed=1).round()
    _, labels, shown = view_of(PseudoLabels(target, weight))
    for part in (labels.target, labels.weight, shown):
        assert part.min() == 0
        assert part.max() == 1
        assert ((part > 0.01) & (part < 0.99)).any()
    assert (labels.weight <= shown).all()


def test_padding_has_no_weight_and_moves_no_target():
    """All of the scan is foreground, and all of the padding background."""
    inside = torch.zeros(8, 16, 16, dtype=torch.bool)
    inside[:, 3:12] = True
    target = inside.unsqueeze(1).float()
    _, labels, shown = view_of(PseudoLabels(target, torch.ones_like(target)), inside)
    assert torch.equal(labels.weight, shown)
    assert not shown[~inside.unsqueeze(1)].any()
    assert torch.allclose(labels.target[shown > 0], torch.ones(()))
    assert (shown[inside.unsqueeze(1)] < 0.9).any()


def test_hard_labels_keep_the_shape_of_a_moved_disk():
    """Compared with the moved disk itself: Dice 0.975 over 16 disks."""
    axis = np.arange(24) - 11.5
    position = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1)  # (*S, 2)
    centers = np.random.default_rng(0).uniform(-3, 3, (16, 2))
    disks = [np.square(position - center).sum(-1) < 16 for center in centers]
    target = torch.from_numpy(np.stack(disks)).unsqueeze(1).float()
    _, labels, shown = view_of(PseudoLabels(target, torch.ones_like(target)))
    hard = harden(labels)
    assert set(hard.target.unique().tolist()) == {0.0, 1.0}
    assert torch.equal(hard.weight, labels.weight)
    truth = []
    for recipe, center in zip(recipes_for(target), centers, strict=True):
        motion = np.eye(3) if recipe.motion is None else recipe.motion
        source = position @ motion[:2, :2].T + motion[:2, 2]
        truth.append(np.square(source - center).sum(-1) < 16)
    is_shown = shown > 0.99
    expected = torch.from_numpy(np.stack(truth)).unsqueeze(1)[is_shown]
    found = hard.target[is_shown]
    dice = 2 * (found * expected).sum() / (found.sum() + expected.sum())
    assert dice > 0.96


class Half(CropShares):
    """One of two processes that do not communicate."""

    def __init__(self, rank: int) -> None:
        self.own = slice(rank, None, 2)


def test_two_processes_share_the_work_of_one(monkeypatch):
    """Together they return the views of one process, and compute no view twice."""
    pseudo = PseudoLabels(rand(8, 2, 12, 12), rand(8, 2, 12, 12, seed=1))
    inside = rand(8, 12, 12, seed=2) > 0.2
    counts = count_work(monkeypatch)

    def make(shares: CropShares) -> tuple[list[Tensor], Tensor]:
        batch = replace(batch_of(pseudo.weight[:, :1], inside), shares=shares)
        view, labels, shown = make_strong_view(batch.unlabeled, pseudo, batch, SETTINGS)
        return [
            view,
            labels.weight * labels.target,
            labels.weight,
            shown,
        ], batch.generator.get_state()

    whole, state = make(CropShares())
    alone = counts.copy()
    counts.clear()
    for rank in (0, 1):
        parts, after = make(Half(rank))
        for part, expected in zip(parts, whole, strict=True):
            assert torch.allclose(part, expected[rank::2], atol=1e-5)
        assert torch.equal(after, state)
    assert counts == alone
    assert alone.keys() == {"sample", "change"}
