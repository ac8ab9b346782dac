from __future__ import annotations

import numpy as np
import pytest
import torch

from segpl.data.plan import Normalization, Plan
from segpl.errors import InputError
from segpl.predict.window import predict_windows


def plan_for(patch: tuple[int, ...]) -> Plan:
    return Plan(
        dims=len(patch),
        channels=("a",),
        classes={"background": 0, "organ": 1},
        ignore=None,
        orientation=None,
        spacing=(1.0,) * len(patch),
        normalization=(Normalization(),),
        patch=patch,
        strides=(),
        width=4,
        batch=1,
        reasons={},
    )


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


def test_several_outputs_keep_their_channels():
    whole = predict_windows(
        torch.zeros(1, 9, 9), lambda w: torch.cat([w, w + 1, w + 2], 1), plan_for((4, 4))
    )
    assert whole[:, 4, 4].tolist() == pytest.approx([0, 1, 2])


def test_half_precision_output_becomes_float32():
    whole = predict_windows(torch.rand(1, 9, 9), lambda w: w.bfloat16(), plan_for((4, 4)))
    assert whole.dtype == torch.float32


def test_the_center_of_a_window_has_more_weight_than_its_border():
    """Each window predicts its number; a Gaussian does not average neighbors evenly."""
    order = iter(range(100))

    def predict(windows):
        return torch.full_like(windows, float(next(order)))

    whole = predict_windows(
        torch.zeros(1, 8, 16), predict, plan_for((8, 8)), window_batch=1, overlap=0.5
    )
    row = whole[0, 4]
    assert row[0] == pytest.approx(0)
    assert row[5] < 0.5 < row[6]
    assert row[-1] == pytest.approx(2)


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
        predict_windows(torch.rand(1, 9, 9), torch.sigmoid, plan_for((4, 4)), overlap=overlap)
