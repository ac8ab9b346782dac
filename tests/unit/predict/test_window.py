from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import PICTURES

from segpl.data.plan import Plan
from segpl.errors import InputError
from segpl.experiments.bench.counts import TensorMemory
from segpl.predict import window
from segpl.predict.window import (
    blend_rows,
    blend_windows,
    predict_windows,
    require_overlap,
    window_profiles,
    window_starts,
    windows_per_batch,
)

CPU = torch.device("cpu")


def plan_for(patch: tuple[int, ...]) -> Plan:
    return replace(PICTURES, dims=len(patch), spacing=(1.0,) * len(patch), patch=patch)


@pytest.mark.parametrize(
    ("shape", "patch"),
    [
        ((20, 17), (8, 8)),
        ((5, 30), (8, 16)),
        ((12, 9, 11), (8, 8, 8)),
        ((3, 4, 2), (8, 8, 8)),
        ((20, 18, 5), (16, 16, 1)),
    ],
)
def test_blending_reproduces_a_pointwise_network(shape, patch):
    """Blending weights sum to 1, so windows do not change a network without context."""
    image = torch.from_numpy(np.random.default_rng(0).normal(size=(1, *shape)).astype("f"))
    whole = predict_windows(image, torch.sigmoid, plan_for(patch))
    assert whole.shape == image.shape
    assert torch.allclose(whole, torch.sigmoid(image), atol=1e-5)


@pytest.mark.parametrize("at_once", [False, True])
def test_the_parts_of_an_image_are_reported_while_it_is_predicted(at_once):
    parts, answers = [], []

    def network(windows: torch.Tensor) -> torch.Tensor:
        answers.append(sum(parts))
        return windows

    image, plan = torch.zeros(1, 20, 17), plan_for((8, 8))
    rows = blend_rows(image, network, plan, window_batch=2, at_once=at_once, advance=parts.append)
    for _ in rows:
        pass
    assert answers == sorted(set(answers))
    assert sum(parts) == pytest.approx(1)


def neighbors_matter(windows: torch.Tensor) -> torch.Tensor:
    """Two channels that depend on where the window lies, as those of a network do."""
    windows = windows + 0.1  # padding counts, too
    sums = windows.cumsum(-1) + 0.5 * windows.cumsum(2)
    return torch.cat([sums.sigmoid(), sums.cos()], 1)


@pytest.mark.parametrize(
    ("shape", "patch"),
    [((20, 17), (8, 8)), ((13, 9, 11), (8, 6, 4)), ((3, 12, 2), (8, 8, 4)), ((8, 8), (8, 8))],
)
@pytest.mark.parametrize("overlap", [0.0, 0.5, 0.7])
def test_blending_equals_that_of_monai(shape, patch, overlap):
    from monai.inferers.utils import sliding_window_inference

    image = torch.rand(1, *shape, generator=torch.Generator().manual_seed(0))
    starts = window_starts(shape, patch, overlap)
    steps = [axis[1] if len(axis) > 1 else wide for axis, wide in zip(starts, patch, strict=True)]
    weights = torch.ones(())
    for profile in window_profiles(patch):
        weights = weights[..., None] * profile
    reference = sliding_window_inference(
        image[None],
        roi_size=patch,
        sw_batch_size=1,
        predictor=neighbors_matter,
        overlap=[max(0, 1 - (s + 0.5) / w) for s, w in zip(steps, patch, strict=True)],
        roi_weight_map=weights,
    )[0]
    ours = predict_windows(image, neighbors_matter, plan_for(patch), overlap=overlap, outputs=2)
    assert torch.allclose(ours, reference, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "patch"), [((20, 17), (8, 8)), ((19, 9, 11), (8, 6, 4)), ((3, 12, 2), (8, 8, 4))]
)
@pytest.mark.parametrize("window_batch", [1, 5])
def test_rows_that_leave_the_device_when_finished_change_nothing(
    monkeypatch, shape, patch, window_batch
):
    """Neither the prediction nor its gradient."""
    answers, gradients = [], []
    for fits in (True, False):
        monkeypatch.setattr(window, "fits_on_device", lambda *_, fits=fits: fits)
        image = torch.linspace(-1, 1, int(np.prod(shape))).view(1, *shape).requires_grad_()
        whole = blend_windows(
            image, neighbors_matter, plan_for(patch), window_batch=window_batch, outputs=2
        )
        (gradient,) = torch.autograd.grad(whole.square().sum(), image)
        answers.append(whole.detach())
        gradients.append(gradient)
    assert torch.allclose(*answers, atol=1e-6)
    assert torch.allclose(*gradients, atol=1e-4)
    assert gradients[0].abs().min() > 0


def test_rows_need_the_memory_of_one_row_of_windows():
    """The sums of a window's rows; a window, its answer and its weights; no whole prediction."""
    image, patch, outputs = torch.rand(1, 96, 16, 16), (8, 8, 8), 10

    def predict(windows):
        return windows.expand(-1, outputs, *patch)

    with torch.no_grad(), TensorMemory() as memory:
        rows = sum(
            part.shape[1] for part in blend_rows(image, predict, plan_for(patch), window_batch=1)
        )
    assert rows == 96
    voxels = outputs * 8 * 16 * 16 + 4 * outputs * 8**3
    assert memory.peak - image.nbytes < 4 * voxels < outputs * image.nbytes / 4


def test_networks_compute_in_the_precision_of_the_device(monkeypatch):
    seen = []

    def predict(windows):
        seen.append((windows.dtype, torch.is_autocast_enabled("cpu")))
        return windows

    monkeypatch.setattr("segpl.engine.device.has_amx", lambda: True)
    whole = predict_windows(torch.rand(1, 9, 9), predict, plan_for((8, 8)))
    assert set(seen) == {(torch.float32, True)}
    assert whole.dtype == torch.float32


def test_a_batch_of_windows_is_limited_by_voxels_and_by_memory(monkeypatch):
    plan = plan_for((32, 32, 32))
    monkeypatch.setattr(window, "free_memory", lambda _: 2**40)
    assert windows_per_batch(plan, torch.device("cuda")) == 2**22 // 32**3
    assert windows_per_batch(plan_for((256, 256, 256)), torch.device("cuda")) == 1
    monkeypatch.setattr(window, "free_memory", lambda _: 2 * 32 * 4 * 3 * 32**3)
    assert windows_per_batch(plan, torch.device("cuda")) == 3
    monkeypatch.setattr(window, "free_memory", lambda _: 0)
    assert windows_per_batch(plan, CPU) == 1


def test_batches_have_about_the_same_size():
    sizes = []

    def predict(windows):
        sizes.append(len(windows))
        return windows

    predict_windows(torch.rand(1, 8, 52), predict, plan_for((8, 8)), window_batch=5)
    assert sum(sizes) == 12
    assert sizes == [4, 4, 4]


@pytest.mark.parametrize("window_batch", [1, 3])
def test_the_image_is_not_modified(window_batch):
    image = torch.rand(1, 9, 9)
    before = image.clone()
    predict_windows(image, lambda windows: windows, plan_for((4, 4)), window_batch=window_batch)
    assert torch.equal(image, before)


def test_every_window_has_the_shape_of_the_patch():
    shapes = []

    def predict(windows):
        shapes.append(tuple(windows.shape))
        return windows[:, :1]

    predict_windows(torch.rand(2, 5, 21), predict, plan_for((8, 8)), window_batch=2)
    assert {shape[1:] for shape in shapes} == {(2, 8, 8)}
    assert max(shape[0] for shape in shapes) == 2


def test_half_precision_output_becomes_float32():
    whole = predict_windows(torch.rand(1, 9, 9), lambda w: w.bfloat16(), plan_for((4, 4)))
    assert whole.dtype == torch.float32


def test_weights_are_symmetric_and_highest_in_the_center():
    even, odd = window_profiles((8, 5))
    assert torch.equal(even, even.flip(0))
    assert torch.equal(odd, odd.flip(0))
    assert (odd.argmax().item(), odd.max().item()) == (2, 1.0)


def test_standard_deviation_of_the_weights_is_an_eighth_of_each_side():
    """By hand: the voxels next to the center of an even side are half a voxel away from it."""
    first, second = window_profiles((8, 16))
    assert first[4].item() == pytest.approx(math.exp(-(0.5**2) / 2))
    assert second[8].item() == pytest.approx(math.exp(-(0.25**2) / 2))


@pytest.mark.parametrize("dims", [2, 3])
def test_windows_blend_at_the_border_of_the_image_as_in_its_center(dims):
    """The network errs at one end of its window; rows at the image border must show no more."""
    side = 32

    def predict(windows):
        return torch.linspace(0, 1, side).pow(4).expand_as(windows)

    whole = predict_windows(torch.zeros(1, *(48,) * dims), predict, plan_for((side,) * dims))
    rows = whole[0].flatten(0, -2)  # (rows, 48)
    assert torch.allclose(rows, rows[:1].expand_as(rows), atol=1e-4)
    inside = rows[:, :40]  # the image ends with the last window, errors and all
    assert inside.diff(dim=1).abs().max() < 0.1


@pytest.mark.parametrize(
    ("side", "overlap", "starts"),
    [
        (8, 0.5, [0]),
        (9, 0.5, [0, 1]),
        (12, 0.5, [0, 2, 4]),  # [0, 4] would leave the center of the image at window borders
        (13, 0.5, [0, 3, 5]),
        (16, 0.5, [0, 4, 8]),
        (17, 0.5, [0, 3, 6, 9]),  # not 0, 4, 8, 9
        (12, 0.0, [0, 4]),
        (20, 0.0, [0, 6, 12]),
        (24, 0.0, [0, 8, 16]),
        (32, 0.0, [0, 8, 16, 24]),
        (16, 0.75, [0, 2, 4, 6, 8]),
    ],
)
def test_windows_are_evenly_spaced_with_one_in_the_center(side, overlap, starts):
    """Every voxel holds its row number, which shows where a window starts."""
    seen: list[int] = []

    def predict(windows):
        seen.extend(windows[:, 0, 0, 0].int().tolist())
        return windows

    rows = torch.arange(float(side)).view(1, side, 1).expand(1, side, 4)
    predict_windows(rows, predict, plan_for((8, 4)), overlap=overlap)
    assert sorted(seen) == starts


def test_no_gradient_is_kept():
    weight = torch.ones((), requires_grad=True)
    whole = predict_windows(torch.rand(1, 9, 9), lambda w: w * weight, plan_for((4, 4)))
    assert not whole.requires_grad


@pytest.mark.parametrize("overlap", [-0.1, 1.0])
def test_an_invalid_overlap_is_an_error(overlap):
    with pytest.raises(InputError, match=rf"overlap is {overlap}, .* below 1"):
        require_overlap(overlap)
