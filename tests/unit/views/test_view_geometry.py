from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from mutations import Mutation

from segpl.types import IGNORE
from segpl.views import geometry
from segpl.views.geometry import (
    GEOMETRY,
    affine_grids,
    rotate,
    sample_at,
    sample_labels,
    sample_mask,
    scale,
    shear,
    translate,
    wide_axes,
)

every_motion = pytest.mark.parametrize("name", list(GEOMETRY))


def warp(values: torch.Tensor, matrices: list[np.ndarray]) -> torch.Tensor:
    return sample_at(values, affine_grids(matrices, values))


def numbered(*sides: int) -> torch.Tensor:
    return torch.arange(math.prod(sides), dtype=torch.float32).view(1, 1, *sides) + 1


def spot(sides: tuple[int, ...], place: tuple[int, ...]) -> torch.Tensor:
    """One bright voxel."""
    image = torch.zeros((1, 1, *sides))
    image[(0, 0, *place)] = 1
    return image


def center(image: torch.Tensor) -> list[float]:
    """Center of mass, in voxels from the middle."""
    weights = image[0, 0] / image.sum()
    axes = [torch.arange(side) - (side - 1) / 2 for side in weights.shape]
    grids = torch.meshgrid(*axes, indexing="ij")
    return [(weights * grid).sum().item() for grid in grids]


@pytest.mark.parametrize(
    ("sides", "axes"),
    [
        ((64, 64), [0, 1]),
        ((64, 31), [0]),
        ((64, 32), [0, 1]),
        ((176, 176, 3), [0, 1]),
        ((3, 176, 176), [1, 2]),
        ((40, 56, 40), [0, 1, 2]),
        ((192, 16, 192), [0, 2]),
    ],
)
def test_wide_axes_are_at_least_half_as_long_as_the_longest(sides, axes):
    assert wide_axes(sides) == axes


@pytest.mark.parametrize("axis", [0, 2])
def test_translation_by_whole_voxels_copies_them(axis):
    """A quarter of 8 voxels is 2: the view starts at the third slice and ends with zeros."""
    sides = [12, 12, 12]
    sides[axis] = 8
    image = numbered(*sides)
    matrix = translate(1.0, [axis], sides)
    view = warp(image, [matrix])
    expected = torch.zeros_like(image)
    expected.narrow(2 + axis, 0, 6).copy_(image.narrow(2 + axis, 2, 6))
    assert torch.allclose(view, expected, atol=0.01)


def test_rotation_is_in_voxels_on_a_non_square_patch():
    """By hand: the view at angle a shows the image at a + 30, so the content turns back."""
    sides = (41, 61)
    image = spot(sides, (20, 40))  # 10 voxels from the middle, along the second axis
    view = warp(image, [rotate(1.0, [0, 1], sides)])
    expected = [10 * math.sin(math.radians(30)), 10 * math.cos(math.radians(30))]
    assert center(view) == pytest.approx(expected, abs=0.1)


@pytest.mark.parametrize("axes", [(0, 1), (1, 0), (0, 2), (2, 1)])
def test_three_rotations_by_30_degrees_are_a_quarter_turn(axes):
    """Two axes rotate; the third keeps its slices."""
    sides = (7, 7, 7)
    image = numbered(*sides)
    matrix = np.linalg.matrix_power(rotate(1.0, axes, sides), 3)
    view = warp(image, [matrix])
    expected = torch.rot90(image, -1, (2 + axes[0], 2 + axes[1]))
    assert torch.allclose(view, expected, atol=0.01)


def test_scaling_is_isotropic_on_a_non_square_patch():
    sides = (41, 61)
    matrix = scale(1.0, [0, 1], sides)
    factor = math.exp(-0.3)
    for place, offset in (((20, 40), [0, 10 * factor]), ((30, 30), [10 * factor, 0])):
        view = warp(spot(sides, place), [matrix])
        assert center(view) == pytest.approx(offset, abs=0.3)


def test_shear_shifts_the_first_axis_in_proportion_to_the_second():
    """By hand: 10 voxels along the second axis, the shift along the first is 3."""
    sides = (41, 61)
    view = warp(spot(sides, (20, 40)), [shear(1.0, [0, 1], sides)])
    assert center(view) == pytest.approx([-3, 10], abs=0.01)


def test_matrix_product_applies_both_motions():
    image = spot((41, 41), (20, 30))
    first, second = rotate(1.0, [0, 1], (41, 41)), translate(0.5, [0], (41, 41))
    both = warp(image, [first @ second])
    stepwise = warp(warp(image, [first]), [second])
    assert center(both) == pytest.approx(center(stepwise), abs=0.05)


MUTATIONS = [
    Mutation(
        "rotates a non-square patch like a square one",
        " * sides[None, :] / sides[:, None]",
        "",
        "test_rotation_is_in_voxels_on_a_non_square_patch",
        file="views/geometry.py",
    ),
    Mutation(
        "takes the nearest voxel",
        'mode="bilinear"',
        'mode="nearest"',
        "test_rotation_is_in_voxels_on_a_non_square_patch",
        file="views/geometry.py",
    ),
]


@every_motion
def test_other_axes_keep_their_slices(name):
    sides = (8, 8, 3)
    image = torch.arange(3.0).expand(1, 1, *sides) + 1
    view = warp(image, [GEOMETRY[name](1.0, [1, 0], sides)])
    shown = warp(torch.ones_like(image), [GEOMETRY[name](1.0, [1, 0], sides)])
    assert torch.allclose(view, image * shown, atol=1e-3)
    assert (shown > 0.9).any()


def test_every_image_uses_its_own_matrix():
    images = numbered(8, 8).expand(2, 1, 8, 8)
    still, shifted = np.eye(3), translate(1.0, [0], (8, 8))
    view = warp(images, [still, shifted])
    assert torch.allclose(view[0], images[0], atol=1e-3)
    assert torch.allclose(view[1, :, :6], images[1, :, 2:], atol=1e-3)


def shifted(label: torch.Tensor, voxels: float) -> torch.Tensor:
    """Positions of a row (1, X) of labels moved by `voxels`."""
    matrix = np.eye(3)
    matrix[1, 2] = voxels
    return affine_grids([matrix], label[:, None].float())


def test_label_is_the_class_with_most_weight():
    """By hand: 0.4 voxels to the right, the weights of a voxel and its neighbor are 0.6 and 0.4."""
    label = torch.tensor([[[0, 1, 2, IGNORE, IGNORE, 1]]])
    moved = sample_labels(label, shifted(label, 0.4), 3)
    assert moved.tolist() == [[[0, 1, 2, IGNORE, IGNORE, 1]]]
    moved = sample_labels(label, shifted(label, 0.6), 3)
    assert moved.tolist() == [[[1, 2, IGNORE, IGNORE, 1, IGNORE]]]  # outside at the end


def test_class_needs_most_of_the_known_weight_only():
    """By hand: between four voxels of weight 1/4, the class with two of them wins over IGNORE."""
    matrix = np.eye(3)
    matrix[:2, 2] = 0.5
    label = torch.tensor([[[2, 2], [0, IGNORE]], [[2, 2], [IGNORE, IGNORE]]])
    label[1, 0, 0] = IGNORE
    grid = affine_grids([matrix, matrix], label[:, None].float())
    assert sample_labels(label, grid, 3)[:, 0, 0].tolist() == [2, IGNORE]


@pytest.mark.parametrize("at_once", [1, 3])
def test_classes_are_interpolated_a_few_at_a_time(at_once, monkeypatch):
    """One-hot labels of 100 classes would not fit in memory."""
    label = torch.randint(-1, 8, (2, 9, 8, 7), generator=torch.Generator().manual_seed(0))
    sides = label.shape[1:]
    grid = affine_grids([rotate(0.7, [0, 1], sides), scale(-0.5, [2], sides)], label[:, None] + 0.0)
    expected = sample_labels(label, grid, 8)
    channels = []

    def recorded(values, grid):
        channels.append(values.shape[1])
        return sample_at(values, grid)

    monkeypatch.setattr(geometry, "CLASSES_AT_ONCE", at_once)
    monkeypatch.setattr(geometry, "sample_at", recorded)
    assert torch.equal(sample_labels(label, grid, 8), expected)
    assert sum(channels) == 8
    assert max(channels) == at_once
    assert set(expected.unique().tolist()) == set(range(-1, 8))


@pytest.mark.parametrize("at_once", [1, 8])
def test_ties_go_to_the_lower_class(at_once, monkeypatch):
    monkeypatch.setattr(geometry, "CLASSES_AT_ONCE", at_once)
    label = torch.tensor([[[2, 1, 1, 0]]])
    assert sample_labels(label, shifted(label, 0.5), 3)[0, 0, :3].tolist() == [1, 1, 0]


def test_mask_is_true_where_most_of_it_is():
    mask = torch.tensor([[[True, False, True, True]]])
    assert sample_mask(mask, shifted(mask, 0.4)).tolist() == [[[True, False, True, True]]]
    assert sample_mask(mask, shifted(mask, 0.6)).tolist() == [[[False, True, True, False]]]
