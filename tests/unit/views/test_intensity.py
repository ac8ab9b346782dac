from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch.nn import functional as F

from segpl.views.intensity import DRAWING, INTENSITY, gaussian_blur

every_operation = pytest.mark.parametrize("name", list(INTENSITY))
both_dims = pytest.mark.parametrize("sides", [(12, 10), (8, 12, 10)])


def picture(*sides: int, channels: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn((channels, *sides), generator=generator)


def changed(name: str, image: torch.Tensor, amount: float, seed: int = 0) -> torch.Tensor:
    return INTENSITY[name](image, amount, torch.Generator().manual_seed(seed))


@every_operation
@both_dims
@pytest.mark.parametrize("amount", [-1.0, 1.0])
def test_operation_returns_finite_values_on_the_same_grid(name, sides, amount):
    image = picture(*sides)
    answer = changed(name, image, amount)
    assert answer.shape == image.shape
    assert answer.dtype == image.dtype
    assert answer.isfinite().all()


@every_operation
@both_dims
def test_amount_of_zero_changes_nothing(name, sides):
    image = picture(*sides)
    assert torch.allclose(changed(name, image, 0.0), image, atol=1e-5)


@every_operation
@pytest.mark.parametrize("value", [0.0, 3.0])
def test_flat_image_stays_finite(name, value):
    assert changed(name, torch.full((1, 8, 8), value), 1.0).isfinite().all()


@every_operation
def test_operation_does_not_modify_its_input(name):
    image = picture(8, 8)
    before = image.clone()
    changed(name, image, 1.0)
    assert torch.equal(image, before)


@every_operation
def test_gradient_through_an_operation_is_finite(name):
    image = picture(8, 8).requires_grad_()
    (gradient,) = torch.autograd.grad(changed(name, image, -1.0).sum(), [image])
    assert gradient.isfinite().all()
    assert gradient.abs().sum() > 0


@every_operation
def test_randomness_comes_from_the_generator(name):
    image = picture(8, 8)
    before = torch.get_rng_state()
    assert torch.equal(changed(name, image, 1.0), changed(name, image, 1.0))
    assert torch.equal(torch.get_rng_state(), before)
    is_same = torch.equal(changed(name, image, 1.0), changed(name, image, 1.0, seed=1))
    assert is_same == (name not in DRAWING)


@pytest.mark.parametrize("name", ["noise", "blur", "sharpen", "low-resolution", "shading"])
def test_sign_is_ignored_where_one_direction_makes_sense(name):
    image = picture(12, 10)
    assert torch.equal(changed(name, image, 0.7), changed(name, image, -0.7))


@pytest.mark.parametrize("name", [name for name in INTENSITY if name != "shading"])
@both_dims
def test_channels_with_their_own_amounts_change_as_they_would_alone(name, sides):
    image, amounts = picture(*sides, channels=3), np.array([0.7, 0.0, -0.4])
    generator = torch.Generator().manual_seed(0)
    alone = [
        INTENSITY[name](channel[None], amount, generator)
        for channel, amount in zip(image, amounts.tolist(), strict=True)
    ]
    assert torch.allclose(changed(name, image, amounts), torch.cat(alone), atol=1e-5)


def test_brightness_adds_at_most_half_a_standard_deviation():
    image = picture(8, 8)
    assert torch.allclose(changed("brightness", image, 1.0), image + 0.5)
    assert torch.allclose(changed("brightness", image, -0.4), image - 0.2)


def test_contrast_scales_around_the_mean_of_each_channel():
    image = torch.tensor([[[0.0, 2.0]], [[10.0, 14.0]]])
    factor = math.exp(0.5)
    expected = torch.tensor([[[1 - factor, 1 + factor]], [[12 - 2 * factor, 12 + 2 * factor]]])
    assert torch.allclose(changed("contrast", image, 1.0), expected)


def test_gamma_keeps_the_range_and_bends_the_middle():
    """By hand: 0 lies halfway from -2 to 2, and 0.5 ** exp(0.5) = 0.3189."""
    image = torch.tensor([[[-2.0, 0.0, 2.0]]])
    darker = changed("gamma", image, 1.0)
    assert darker.flatten().tolist() == pytest.approx([-2, -2 + 4 * 0.3189, 2], abs=1e-3)
    assert changed("gamma", image, -1.0)[0, 0, 1] > 0


def test_noise_has_a_standard_deviation_of_at_most_0_4():
    change = changed("noise", torch.zeros(1, 60, 60), -1.0)
    assert change.std().item() == pytest.approx(0.4, rel=0.05)


@pytest.mark.parametrize("std", [0.2, 0.5, 1.5, 4.0])
@pytest.mark.parametrize("sides", [(12, 10), (8, 12, 10), (20, 20, 5)])
def test_gaussian_blur_agrees_with_scipy(sides, std):
    """Scipy truncates the kernel at `radius` voxels, and repeats edge values by `nearest`."""
    image = picture(*sides)
    widths = [std if 2 * side >= max(sides) else 0 for side in sides]
    expected = gaussian_filter(
        image.double().numpy(), [0, *widths], mode="nearest", radius=math.ceil(3 * std)
    )
    torch.testing.assert_close(gaussian_blur(image, std), torch.from_numpy(expected).float())


@pytest.mark.parametrize("amount", [0.1, 0.37, 1.0])
@pytest.mark.parametrize("sides", [(12, 10), (8, 12, 10), (20, 20, 5)])
def test_low_resolution_averages_cells_and_interpolates_linearly(sides, amount):
    image = picture(*sides)
    coarse = [round(n / (1 + amount)) if 2 * n >= max(sides) else n for n in sides]
    averages = F.interpolate(image[None], coarse, mode="area")
    mode = {2: "bilinear", 3: "trilinear"}[len(sides)]
    expected = F.interpolate(averages, sides, mode=mode)[0]
    torch.testing.assert_close(changed("low-resolution", image, amount), expected)


def test_blur_weakens_and_sharpening_strengthens_detail():
    image = picture(16, 16)
    assert changed("blur", image, 1.0).std() < 0.5 * image.std()
    assert changed("sharpen", image, 1.0).std() > 1.5 * image.std()


def test_shading_is_smooth_and_keeps_the_darkest_value():
    image = torch.ones(1, 32, 32)
    image[0, 0, 0] = 0
    factor = changed("shading", image, 1.0)[0]
    assert factor[0, 0] == 0
    steps = (factor[2:, 1:] - factor[1:-1, 1:]).abs()
    assert 0 < steps.max() < 0.15 * factor.max()
