from __future__ import annotations

import numpy as np
import pytest

from segpl.data.masks import volume
from segpl.evaluate.metrics import (
    DEFAULT_METRICS,
    EMPTY_POLICY,
    METRICS,
    Masks,
    empty_policy,
    unit_of,
)

KINDS = {name: metric.kind for name, metric in METRICS.items()}
every_share = pytest.mark.parametrize("name", [n for n, kind in KINDS.items() if kind == "share"])
every_distance = pytest.mark.parametrize("name", ["hd95", "assd"])

EMPTY = np.zeros((4, 4), bool)
FULL = np.ones((4, 4), bool)
CORNER = np.pad(np.ones((1, 1), bool), ((0, 3), (0, 3)))


def score(name, prediction, truth, **options):
    return METRICS[name].score(Masks(prediction, truth, **options))


@every_share
def test_two_empty_masks_score_one(name):
    assert score(name, EMPTY, EMPTY) == 1.0


@every_share
def test_one_empty_mask_scores_zero_whichever_it_is(name):
    assert score(name, EMPTY, FULL) == 0.0
    assert score(name, FULL, EMPTY) == 0.0


def test_tolerance_does_not_help_an_empty_mask():
    assert score("surface_dice", EMPTY, CORNER, tolerance=1000) == 0.0


@every_distance
def test_two_empty_masks_have_distance_zero(name):
    assert score(name, EMPTY, EMPTY) == 0.0


@every_distance
def test_one_empty_mask_has_the_image_diagonal_as_distance(name):
    """4 voxels of 3 mm by 4 voxels of 4 mm: 12 mm by 16 mm, whatever the size of the other mask."""
    for pair in ((EMPTY, FULL), (CORNER, EMPTY)):
        assert score(name, *pair, spacing=(3.0, 4.0)) == pytest.approx(20.0)


def test_volume_error_of_empty_masks():
    assert score("volume_error", EMPTY, EMPTY) == 0.0
    assert score("volume_error", CORNER, EMPTY) == 1.0
    assert score("volume_error", EMPTY, CORNER) == -1.0


def test_volume_error_is_positive_for_over_segmentation():
    assert score("volume_error", FULL, FULL[:, ::-1] & CORNER) == 15.0
    assert score("volume_error", CORNER, FULL) == -15 / 16


def test_volumes_are_in_milliliters_and_areas_in_square_millimeters():
    cube = np.ones((10, 10, 10), bool)
    assert volume(cube, (1.0, 1.0, 1.0)) == 1.0
    assert volume(cube, (0.5, 2.0, 3.0)) == pytest.approx(3.0)
    assert volume(FULL, (0.5, 0.5)) == pytest.approx(4.0)
    assert volume(cube, None) == 1000.0


@pytest.mark.parametrize(
    ("dims", "spacing", "units"),
    [
        (3, (1.0, 1.0, 1.0), ("mm", "ml", "at 2 mm")),
        (3, None, ("voxel", "voxel", "at 2 voxel")),
        (2, (1.0, 1.0), ("mm", "mm²", "at 2 mm")),
        (2, None, ("px", "px", "at 2 px")),
    ],
)
def test_units_depend_on_dimensions_and_spacing(dims, spacing, units):
    mask = np.ones((2,) * dims, bool)
    masks = Masks(mask, mask, spacing, 2.0)
    assert tuple(unit_of(m, masks) for m in ("hd95", "volume", "surface_dice")) == units
    assert unit_of("dice", masks) == unit_of("volume_error", masks) == ""


def test_empty_policy_covers_each_kind_of_metric():
    assert "diagonal of the image if only one is" in empty_policy(["hd95"])
    assert "+100 % if only the label is" in empty_policy(["volume_error"])
    assert empty_policy(["volume"]) == ""


def test_surface_distances_are_computed_once_for_all_metrics(monkeypatch):
    calls: list[None] = []
    real = METRICS["hd95"].score.__globals__["surface_distances"]

    def counted(*arguments: object) -> object:
        calls.append(None)
        return real(*arguments)

    monkeypatch.setattr("segpl.evaluate.metrics.surface_distances", counted)
    masks = Masks(CORNER, FULL)
    for name in ("hd95", "assd", "surface_dice", "dice"):
        METRICS[name].score(masks)
    assert len(calls) == 1


def test_label_volume_is_that_of_the_label():
    assert score("volume", CORNER, FULL) == 1.0
    assert score("label_volume", CORNER, FULL) == 16.0


def test_empty_policy_of_dice_and_iou():
    assert empty_policy(DEFAULT_METRICS) == EMPTY_POLICY
    assert EMPTY_POLICY == "Empty masks: overlaps are 1 if both are empty, 0 if only one is."


def test_overlap_of_two_of_three_against_four_by_hand():
    prediction = np.array([1, 1, 1, 0, 0, 0], bool)
    truth = np.array([0, 1, 1, 1, 1, 0], bool)
    assert score("dice", prediction, truth) == pytest.approx(2 * 2 / (3 + 4))
    assert score("iou", prediction, truth) == pytest.approx(2 / 5)
    assert score("precision", prediction, truth) == pytest.approx(2 / 3)
    assert score("recall", prediction, truth) == pytest.approx(2 / 4)
    assert score("volume_error", prediction, truth) == pytest.approx(-1 / 4)
