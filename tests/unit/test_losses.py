from __future__ import annotations

import pytest
import torch

from segpl.errors import InputError
from segpl.losses import (
    LOSSES,
    class_fractions,
    dice_loss,
    foreground_fraction,
    supervised_loss,
)


def test_label_with_a_channel_axis_is_rejected_with_the_fix():
    logits, label = torch.zeros(2, 1, 4, 4), torch.zeros(2, 1, 4, 4, dtype=torch.int64)
    with pytest.raises(InputError, match=r"does not fit logits.*drop it with label\.squeeze\(1\)"):
        supervised_loss(logits, label, dice_loss)


def test_label_of_another_shape_is_rejected_with_both_shapes():
    logits, label = torch.zeros(2, 1, 4, 4), torch.zeros(2, 4, 5, dtype=torch.int64)
    with pytest.raises(InputError, match=r"label \(2, 4, 5\) does not fit logits \(2, 1, 4, 4\)"):
        supervised_loss(logits, label, dice_loss)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_loss_is_finite_for_confident_wrong_predictions(loss):
    target = torch.tensor([[[1.0, 0.0]]])
    logits = torch.tensor([[[-1e4, 1e4]]], requires_grad=True)
    value = loss(logits, target, torch.ones_like(target))
    value.backward()
    assert value.isfinite()
    assert logits.grad.isfinite().all()


def test_foreground_fraction_respects_the_weight_of_each_channel():
    """By hand: two voxels count, one of them as class 1; the third has no weight."""
    target = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 1.0]]])
    weight = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]])
    assert foreground_fraction(target, weight).item() == pytest.approx(0.5)


def test_foreground_fraction_counts_a_voxel_of_two_classes_once():
    """By hand: one of two voxels is foreground."""
    target = torch.tensor([[[0.0, 1.0], [1.0, 0.0], [1.0, 0.0]]])
    assert foreground_fraction(target, torch.ones_like(target)).item() == pytest.approx(0.5)


def test_class_fractions_are_relative_to_all_weighted_voxels():
    """By hand: 1 and 0.5 of 1.5 weighted voxels, and 0 for a channel without weight."""
    target = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]]])
    weight = torch.tensor([[[1.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 0.0, 0.0]]])
    assert class_fractions(target, weight).tolist() == pytest.approx([2 / 3, 1 / 3, 0.0])
