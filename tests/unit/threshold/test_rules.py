from __future__ import annotations

import pytest
import torch

from segpl.threshold.rules import binarize


def test_probability_above_the_threshold_is_foreground():
    pseudo = binarize(torch.tensor([[[0.1, 0.5, 0.50001, 0.9]]]), 0.5)
    assert pseudo.target.tolist() == [[[0, 0, 1, 1]]]


def test_every_voxel_counts():
    assert binarize(torch.rand(2, 3, 4, 4), 0.5).weight.eq(1).all()


@pytest.mark.parametrize(("threshold", "share"), [(1.2, 0), (-0.1, 1)])
def test_threshold_outside_of_probabilities_labels_everything_alike(threshold, share):
    assert binarize(torch.rand(1, 1, 8), torch.tensor(threshold)).target.mean() == share


def test_labels_carry_no_gradient_to_probability_or_threshold():
    probability = torch.rand(1, 1, 8, requires_grad=True)
    threshold = torch.tensor(0.5, requires_grad=True)
    pseudo = binarize(probability, threshold)
    assert not pseudo.target.requires_grad
    assert not pseudo.weight.requires_grad
