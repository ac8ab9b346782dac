from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from segpl.errors import InputError
from segpl.views.artifacts import (
    ARTIFACTS,
    MAX_DOWNSAMPLING,
    bias_field,
    blur_artifact,
    metal_streaks,
    motion_ghosts,
    out_of_distribution,
    require_severity,
    spikes,
    truncate_kspace,
)

every_artifact = pytest.mark.parametrize("name", ARTIFACTS)
every_shape = pytest.mark.parametrize("sides", [(33, 20), (24, 20, 5)])


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def image_of(sides: tuple[int, ...]) -> Tensor:
    """A smooth channel and a noise channel, both with mean 0 and standard deviation 1."""
    noise = torch.randn((2, *sides), generator=generator(0))
    noise[0] = blur_artifact(noise[:1], 0.5, generator())[0]
    axes = tuple(range(1, noise.dim()))
    return (noise - noise.mean(axes, keepdim=True)) / noise.std(axes, keepdim=True)


def distances(name: str, image: Tensor, severities: list[float]) -> Tensor:
    """Root mean square change per channel, (severities, C)."""
    changes = [ARTIFACTS[name](image, s, generator()) - image for s in severities]
    return torch.stack([c.square().flatten(1).mean(1).sqrt() for c in changes])


@every_artifact
@every_shape
def test_severity_zero_returns_the_image_bit_for_bit(name, sides):
    image = image_of(sides)
    assert torch.equal(ARTIFACTS[name](image, 0.0, generator()), image)


@every_artifact
@every_shape
def test_higher_severity_changes_every_channel_more(name, sides):
    image = image_of(sides)
    fine = distances(name, image, [n / 20 for n in range(21)])
    assert (fine.diff(dim=0) >= -1e-5).all()
    coarse = distances(name, image, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    assert (coarse.diff(dim=0) > 0).all()
    assert coarse[-1].min() > 0.1


@every_artifact
@every_shape
def test_artifact_depends_only_on_its_generator_and_keeps_shape_and_dtype(name, sides):
    image = image_of(sides)
    before = image.clone()
    first, same, other = (ARTIFACTS[name](image, 0.6, generator(seed)) for seed in (1, 1, 2))
    assert first.shape == image.shape
    assert first.dtype == image.dtype
    assert first.isfinite().all()
    assert torch.equal(first, same)
    assert torch.equal(image, before)
    assert torch.equal(first, other) == (name in ("blur", "low-resolution"))


@every_artifact
def test_channel_does_not_depend_on_the_intensities_of_others(name):
    image = image_of((20, 18))
    other = torch.stack([image[0], 5 + 3 * image[1]])
    first, second = (ARTIFACTS[name](given, 0.6, generator())[0] for given in (image, other))
    torch.testing.assert_close(first, second, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", ["gamma", "ghosts", "spikes", "streaks"])
def test_half_the_severity_gives_half_of_the_same_disturbance(name):
    image = image_of((20, 18))
    half, whole = (ARTIFACTS[name](image, s, generator()) - image for s in (0.5, 1.0))
    torch.testing.assert_close(2 * half, whole, rtol=0, atol=1e-5)


@every_artifact
def test_constant_image_stays_finite(name):
    image = torch.full((1, 16, 16), 0.3)
    assert ARTIFACTS[name](image, 1.0, generator()).isfinite().all()


@pytest.mark.parametrize("severity", [-0.1, 1.01, math.nan])
def test_severity_outside_its_range_is_rejected(severity):
    with pytest.raises(InputError, match=r"outside \[0, 1\]: 0 leaves the image unchanged"):
        require_severity(severity)


def test_gamma_of_one_changes_contrast_and_adds_unit_noise():
    """The channel mean stays; regression on the image recovers factor and noise."""
    image = 5 + torch.randn((1, 200, 200), generator=generator(0))
    factors = []
    for seed in range(40):
        changed = out_of_distribution(image, 1.0, generator(seed))
        assert changed.mean().item() == pytest.approx(5, abs=0.05)
        centered = image - image.mean()
        factors.append(((changed - 5) * centered).mean().item() / centered.square().mean().item())
        rest = changed - image.mean() - factors[-1] * centered
        assert rest.std().item() == pytest.approx(1, abs=0.02)
    sizes = np.abs(np.log(factors))
    assert sizes.min() > 0.45
    assert sizes.max() < 1.05
    assert 10 < sum(factor > 1 for factor in factors) < 30


def test_bias_field_is_a_smooth_gain_of_at_most_three():
    image = image_of((40, 40))[1:]
    low = image.min()
    inside = image > low + 0.5
    gain = ((bias_field(image, 1.0, generator()) - low) / (image - low))[inside]
    assert gain.max() <= 3.001
    assert gain.min() >= 1 / 3.001
    flat = torch.ones((1, 40, 40))
    flat[0, 0, 0] = 0  # the darkest value
    field = bias_field(flat, 1.0, generator())[0, 1:, 1:].log()
    assert max(field.diff(dim=0).abs().max(), field.diff(dim=1).abs().max()) < 0.25
    assert field.abs().max().item() == pytest.approx(math.log(3), rel=0.02)


def test_logarithm_of_the_bias_field_has_mean_0():
    """Every cosine with a positive frequency has; the voxel that only marks the range is 1/900."""
    flat = torch.ones((1, 30, 30))
    flat[0, 0, 0] = 0
    for seed in range(5):
        field = bias_field(flat, 1.0, generator(seed))[0].flatten()[1:].log()
        assert abs(field.mean().item()) < 2 * math.log(3) / 900


def test_all_channels_share_the_bias_field():
    image = image_of((20, 20))[1:].expand(2, -1, -1)
    first, second = bias_field(image, 0.7, generator())
    assert torch.equal(first, second)


def test_ghosts_change_only_every_nth_line_of_k_space():
    image = image_of((32, 32))[1:]
    before, after = (torch.fft.fft2(x[0]) for x in (image, motion_ghosts(image, 1.0, generator())))
    kept = (
        torch.isclose(before, after, atol=1e-3).all(1),
        torch.isclose(before, after, atol=1e-3).all(0),
    )
    lines = max(kept, key=lambda axis: int(axis.sum() < 32) * int(axis.sum()))
    period = 32 / (32 - lines.sum().item() + 1)  # a shift does not change frequency 0
    assert round(period) in (2, 3, 4)
    # away from the Nyquist line, a shift changes only the phase
    inner = slice(1, 15)
    torch.testing.assert_close(
        before.abs()[inner, inner], after.abs()[inner, inner], rtol=0, atol=1e-2
    )


def test_ghosts_have_two_three_or_four_periods():
    """Other lines of k-space than every second, third or fourth one do not change."""
    point = torch.zeros((1, 32, 32))
    point[0, 16, 16] = 1  # all of k-space is 1
    found = set()
    for seed in range(20):
        change = torch.fft.fft2(motion_ghosts(point, 1.0, generator(seed))[0] - point[0]).abs()
        lines = min((change > 1e-3).any(axis).sum().item() for axis in (0, 1))
        found.add(round(32 / (lines + 1)))  # the line of frequency 0 does not change
    assert found == {2, 3, 4}


def test_spikes_are_three_points_of_k_space_and_their_conjugates():
    image = image_of((64, 64))[1:]
    change = spikes(image, 1.0, generator()) - image
    window = torch.hann_window(64)[:, None] * torch.hann_window(64)
    power = torch.fft.fft2(change[0] * window).abs().square()
    largest = power.flatten().sort(descending=True).values
    assert largest[:54].sum() / power.sum() > 0.98  # nine values around each of six points
    assert change.square().mean().item() == pytest.approx(1.5, rel=0.1)  # three cosines
    assert all(change[0].diff(dim=axis).abs().max() > 0.1 for axis in (0, 1))  # oblique stripes


def test_low_resolution_removes_frequencies_above_the_coarse_grid():
    image = image_of((32, 32))[1:]
    lines = truncate_kspace(image, 1.0, generator())[0]
    mirrored = torch.cat([lines, lines.flip(-1)], -1)
    spectrum = torch.fft.rfft(mirrored).abs()
    assert spectrum[:, 32 // int(MAX_DOWNSAMPLING) :].max() < 1e-4
    assert spectrum[:, : 32 // int(MAX_DOWNSAMPLING)].min(0).values.max() > 1e-3


def test_low_resolution_keeps_constants_and_thin_axes():
    flat = torch.full((1, 16, 16), 2.0)
    torch.testing.assert_close(truncate_kspace(flat, 1.0, generator()), flat)
    stack = torch.zeros((1, 16, 16, 4))
    stack[..., 1] = 1  # one bright slice
    coarse = truncate_kspace(stack, 1.0, generator())
    torch.testing.assert_close(coarse, stack, rtol=0, atol=1e-5)


def test_streaks_surround_a_bright_spot_and_fade():
    noise = torch.randn((1, 96, 96), generator=generator(0))
    change = (metal_streaks(noise, 1.0, generator()) - noise)[0]
    row, column = divmod(int(change.argmax()), 96)
    assert 0.25 * 96 < row < 0.75 * 96
    assert 0.25 * 96 < column < 0.75 * 96
    assert change.max() > 4
    rows, columns = torch.meshgrid(torch.arange(96) - row, torch.arange(96) - column, indexing="ij")
    radius = torch.hypot(rows.float(), columns.float())
    near, far = (change[(radius > low) & (radius < low + 10)] for low in (8, 32))
    assert near.min() < -0.5
    assert near.max() > 0.5
    assert far.abs().mean() < near.abs().mean()


def test_streaks_are_confined_to_slices_near_the_metal():
    change = metal_streaks(torch.randn((1, 32, 32, 30), generator=generator(0)), 1.0, generator())
    change = change - torch.randn((1, 32, 32, 30), generator=generator(0))
    by_slice = change[0].square().mean((0, 1))
    assert 8 < int(by_slice.argmax()) < 22
    assert max(by_slice[0], by_slice[-1]) < 0.5 * by_slice.max()


def test_blur_at_full_severity_is_a_gaussian_of_three_voxels():
    point = torch.zeros((1, 41, 41))
    point[0, 20, 20] = 1
    spread = blur_artifact(point, 1.0, generator())[0].sum(0)
    place = torch.arange(41.0) - 20
    assert (spread * place**2).sum().sqrt().item() == pytest.approx(3, rel=0.03)
