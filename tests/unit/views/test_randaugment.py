from __future__ import annotations

import numpy as np
import pytest
import torch

from segpl.views.geometry import GEOMETRY, rotate, translate
from segpl.views.intensity import INTENSITY
from segpl.views.randaugment import ViewRecipe, draw_recipe, strong_view

SIDES = (12, 12)


def drawn(seed: int, sides: tuple[int, ...] = SIDES, **options: object) -> ViewRecipe:
    asked = {"operations": 2, "magnitude": 1.0, "geometry": True, **options}
    return draw_recipe(sides, np.random.default_rng(seed), **asked)


def view(image: torch.Tensor, labels: torch.Tensor, *recipes: ViewRecipe, seed: int = 0):
    return strong_view(image, labels, recipes, torch.Generator().manual_seed(seed))


def blocks(count: int, *sides: int) -> torch.Tensor:
    """Images whose bright half is also the label."""
    image = torch.zeros((count, 1, *sides))
    image[..., : sides[-1] // 2] = 1
    return image


def test_every_operation_is_drawn_about_equally_often(monkeypatch):
    counts = dict.fromkeys([*INTENSITY, *GEOMETRY], 0)
    for name in GEOMETRY:

        def counting(amount, axes, sides, name=name):
            counts[name] += 1
            return np.eye(3)

        monkeypatch.setitem(GEOMETRY, name, counting)
    for seed in range(1300):
        for name, _ in drawn(seed, operations=1).changes:
            counts[name] += 1
    assert sum(counts.values()) == 1300
    assert all(60 < count < 145 for count in counts.values())


def test_motions_use_the_axes_in_random_order(monkeypatch):
    monkeypatch.setattr("segpl.views.randaugment.INTENSITY", {})
    monkeypatch.setattr("segpl.views.randaugment.GEOMETRY", {"translate": translate})
    matrices = [drawn(seed, operations=1).motion for seed in range(20)]
    assert {int(np.abs(matrix[:-1, -1]).argmax()) for matrix in matrices} == {0, 1}


def test_amounts_span_the_range_of_the_magnitude():
    recipes = [drawn(seed, magnitude=0.4, geometry=False) for seed in range(200)]
    amounts = [amount for recipe in recipes for _, amount in recipe.changes]
    assert -0.4 <= min(amounts) < -0.35
    assert 0.35 < max(amounts) <= 0.4
    assert len(set(amounts)) == 400


def test_motions_of_one_image_multiply_in_order(monkeypatch):
    given = [rotate(1.0, [0, 1], SIDES), translate(1.0, [0], SIDES), rotate(0.5, [1, 0], SIDES)]
    left = list(given)
    monkeypatch.setattr("segpl.views.randaugment.INTENSITY", {})
    monkeypatch.setattr(
        "segpl.views.randaugment.GEOMETRY", {"next": lambda amount, axes, sides: left.pop(0)}
    )
    recipe = drawn(0, operations=3)
    assert recipe.changes == ()
    assert np.allclose(recipe.motion, given[0] @ given[1] @ given[2])


@pytest.mark.parametrize("sides", [(64, 8), (64, 8, 8)])
def test_patch_with_a_single_wide_axis_gets_no_motion(sides):
    assert all(drawn(seed, sides).motion is None for seed in range(30))


def test_thin_axis_gets_no_motion():
    motions = [drawn(seed, (16, 3, 16), operations=6).motion for seed in range(30)]
    moved = np.stack([motion for motion in motions if motion is not None])
    assert np.array_equal(moved[:, 1], np.tile([0.0, 1.0, 0.0, 0.0], (len(moved), 1)))
    assert np.array_equal(moved[:, :, 1], np.tile([0.0, 1.0, 0.0, 0.0], (len(moved), 1)))
    assert not np.allclose(moved[:, 0, 2], 0)


@pytest.mark.parametrize("sides", [(16, 24), (16, 16, 3)])
def test_image_and_labels_move_together(sides):
    image = blocks(6, *sides)
    drawings = [drawn(seed, sides, operations=4).motion for seed in range(60)]
    motions = [motion for motion in drawings if motion is not None][:6]
    seen, labels = view(image, image, *(ViewRecipe(motion, ()) for motion in motions))
    assert (labels != image).float().mean() > 0.02
    assert torch.allclose(seen, labels, atol=1e-5)


def test_label_is_zero_outside_the_image():
    image = torch.ones(1, 1, 8, 8)
    _, labels = view(image, image, ViewRecipe(translate(1.0, [1, 0], (8, 8)), ()))
    assert torch.allclose(labels[..., :6], torch.ones(()), atol=1e-5)
    assert torch.allclose(labels[..., 6:], torch.zeros(()), atol=1e-5)


def test_intensity_changes_the_image_and_never_the_labels():
    image = blocks(1, 12, 12)
    seen, labels = view(image, image, ViewRecipe(None, (("brightness", 1.0), ("noise", 1.0))))
    assert not torch.equal(seen, image)
    assert torch.equal(labels, image)


def test_intensity_changes_after_the_motion():
    """Brightness first would leave the region outside the image at 0."""
    image = torch.ones(1, 1, 8, 8)
    recipe = ViewRecipe(translate(1.0, [1, 0], (8, 8)), (("brightness", 1.0),))
    seen, _ = view(image, image, recipe)
    assert seen[..., 7].eq(0.5).all()


def test_every_image_follows_its_own_recipe():
    image = blocks(3, 12, 12)
    still = ViewRecipe(None, ())
    turned = ViewRecipe(rotate(1.0, [0, 1], (12, 12)), ())
    bright = ViewRecipe(None, (("brightness", 1.0),))
    seen, labels = view(image, image, still, turned, bright)
    assert torch.equal(seen[0], image[0])
    assert not torch.equal(labels[1], image[1])
    assert torch.equal(seen[2], image[2] + 0.5)
    assert torch.equal(labels[2], image[2])


def test_views_are_computed_in_float32_under_bfloat16_autocast():
    image = torch.randn((1, 1, 16, 16), generator=torch.Generator().manual_seed(0))
    motion = rotate(1.0, [0, 1], (16, 16))
    recipe = ViewRecipe(motion, (("blur", 1.0), ("sharpen", 1.0)))
    expected = view(image, image, recipe)[0]
    with torch.autocast("cpu", torch.bfloat16):
        seen, labels = view(image, image, recipe)
    assert seen.dtype == labels.dtype == torch.float32
    assert torch.equal(seen, expected)


def test_labels_stay_between_0_and_1():
    """Interpolation weights in float32 sum to 1 only up to rounding."""
    image = torch.ones(8, 1, 32, 32)
    motions = [rotate(0.1 * n, [0, 1], (32, 32)) for n in range(8)]
    _, labels = view(image, image, *(ViewRecipe(motion, ()) for motion in motions))
    assert labels.max() == 1
    assert labels.min() >= 0


def test_changes_are_applied_in_order():
    image = torch.tensor([[[[-1.0, 3.0]]]])
    seen, _ = view(image, image, ViewRecipe(None, (("brightness", 1.0), ("contrast", 1.0))))
    factor = np.exp(0.5)
    assert seen.flatten().tolist() == pytest.approx([1.5 - 2 * factor, 1.5 + 2 * factor])
