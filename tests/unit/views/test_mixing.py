from __future__ import annotations

import numpy as np
import pytest
import torch
from mutations import Mutation

from segpl.views.mixing import BOX_VOLUMES, Box, TrainingCrops, draw_box

DRAWS = 1000


def boxes_in(*sides: int, draws: int = DRAWS) -> list[Box]:
    rng = np.random.default_rng(0)
    return [draw_box(sides, rng) for _ in range(draws)]


def lengths(boxes: list[Box]) -> np.ndarray:
    return np.array([[side.stop - side.start for side in box] for box in boxes])  # (n, d)


def crops_of(*values: float) -> TrainingCrops:
    """Constant images; the target is a tenth of the value and the weight a hundredth."""
    image = torch.tensor(values).view(-1, 1, 1, 1).expand(-1, 2, 3, 4)
    return TrainingCrops(image, image[:, :1] / 10, image[:, :1] / 100)


@pytest.mark.parametrize(
    "sides",
    [(1, 1), (2, 9), (5, 1, 6), (1, 1, 1), (9, 40, 12)],
)
def test_box_lies_inside_the_crop_and_is_not_empty(sides):
    for box in boxes_in(*sides):
        assert len(box) == len(sides)
        for part, side in zip(box, sides, strict=True):
            assert 0 <= part.start < part.stop <= side


@pytest.mark.parametrize("sides", [(64, 64), (24, 24, 24), (64, 64, 2)])
def test_volume_of_a_box_is_uniform_for_any_crop_shape(sides):
    """Longer sides compensate for the rounding of thin ones."""
    volumes = lengths(boxes_in(*sides)).prod(1) / np.prod(sides)
    low, high = BOX_VOLUMES
    assert low - 0.02 < volumes.min() < low + 0.03
    assert high - 0.03 < volumes.max() < high + 0.02
    assert volumes.mean() == pytest.approx((low + high) / 2, abs=0.02)
    assert np.quantile(volumes, 0.25) == pytest.approx(low + (high - low) / 4, abs=0.025)
    assert np.quantile(volumes, 0.75) == pytest.approx(high - (high - low) / 4, abs=0.025)


def test_boxes_cover_the_crop_symmetrically():
    covered = np.zeros((12, 12))
    for box in boxes_in(12, 12):
        covered[box] += 1 / DRAWS
    assert 0.02 < covered.min() < covered.max() < 0.7
    assert np.allclose(covered, covered[::-1], atol=0.06)
    assert np.allclose(covered, covered[:, ::-1], atol=0.06)


def test_paste_replaces_a_box_of_image_target_and_weight():
    box, crops, source = (slice(0, 2), slice(1, 3)), crops_of(1.0, 2.0), crops_of(3.0, 4.0)
    mixed = crops.concat(crops_of())
    mixed.paste(1, box, source, 0)
    inside = torch.zeros(3, 4, dtype=torch.bool)
    inside[box] = True
    for part, scale in ((mixed.image, 1), (mixed.target, 10), (mixed.weight, 100)):
        assert (scale * part[0]).allclose(torch.tensor(1.0))
        expected = torch.where(inside, 3.0, 2.0).expand(part.shape[1:])
        torch.testing.assert_close(scale * part[1], expected)


MUTATIONS = [
    Mutation(
        "starts all boxes in the corner",
        "start = int(rng.integers(side - length + 1))",
        "start = 0",
        "test_boxes_cover_the_crop_symmetrically",
        file="views/mixing.py",
    ),
    Mutation(
        "rounds the longest axis first",
        "np.argsort(sides), strict=True",
        "np.argsort(sides)[::-1], strict=True",
        "test_volume_of_a_box_is_uniform_for_any_crop_shape",
        {"sides": (64, 64, 2)},
        file="views/mixing.py",
    ),
]


def test_paste_modifies_no_crops_that_were_concatenated():
    first, second = crops_of(1.0), crops_of(2.0)
    first.concat(second).paste(0, (slice(0, 3), slice(0, 4)), second, 0)
    assert first.image.eq(1).all()
    assert second.image.eq(2).all()
