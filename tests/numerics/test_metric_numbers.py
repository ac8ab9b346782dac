"""Overlap metrics against counts by hand and against MONAI."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from monai.metrics import (
    DiceHelper,
    MeanIoU,
    compute_confusion_matrix_metric,
    get_confusion_matrix,
)
from numpy.typing import NDArray

from segpl.evaluate.metrics import dice, iou, precision, recall, volume_error


def masks(seed: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    rng = np.random.default_rng(seed)
    return rng.random((8, 9, 10)) < 0.3, rng.random((8, 9, 10)) < 0.4


def test_overlap_of_two_of_three_against_four_by_hand():
    prediction = np.array([1, 1, 1, 0, 0, 0], bool)
    truth = np.array([0, 1, 1, 1, 1, 0], bool)
    assert dice(prediction, truth) == pytest.approx(2 * 2 / (3 + 4))
    assert iou(prediction, truth) == pytest.approx(2 / 5)
    assert precision(prediction, truth) == pytest.approx(2 / 3)
    assert recall(prediction, truth) == pytest.approx(2 / 4)
    assert volume_error(prediction, truth) == pytest.approx(-1 / 4)


@pytest.mark.parametrize("seed", [0])
def test_dice_agrees_with_monai(seed):
    prediction, truth = (torch.from_numpy(mask)[None, None].float() for mask in masks(seed))
    helper = DiceHelper(include_background=True, get_not_nans=False, activate=False)
    assert dice(*masks(seed)) == pytest.approx(float(helper(prediction, truth)), abs=1e-5)


@pytest.mark.parametrize("seed", [0])
def test_iou_agrees_with_monai(seed):
    prediction, truth = (torch.from_numpy(mask)[None, None].float() for mask in masks(seed))
    value = MeanIoU(include_background=True)(prediction, truth)
    assert iou(*masks(seed)) == pytest.approx(float(value), abs=1e-5)


@pytest.mark.parametrize(("name", "metric"), [("precision", precision), ("recall", recall)])
@pytest.mark.parametrize("seed", [0])
def test_precision_and_recall_agree_with_monai(name, metric, seed):
    prediction, truth = (torch.from_numpy(mask)[None, None].float() for mask in masks(seed))
    table = get_confusion_matrix(prediction, truth, include_background=True)
    value = compute_confusion_matrix_metric(name, table)
    assert metric(*masks(seed)) == pytest.approx(value.item(), abs=1e-5)


@pytest.mark.parametrize("seed", [0])
def test_volume_error_is_recall_over_precision_minus_one(seed):
    ratio = recall(*masks(seed)) / precision(*masks(seed))
    assert volume_error(*masks(seed)) == pytest.approx(ratio - 1)


@pytest.mark.parametrize("seed", [0])
def test_iou_is_dice_over_two_minus_dice(seed):
    d = dice(*masks(seed))
    assert iou(*masks(seed)) == pytest.approx(d / (2 - d))
