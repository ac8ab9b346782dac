from __future__ import annotations

import math

import pytest
import torch
from mutations import Mutation
from torch import Tensor

from segpl.views.features import (
    CUTOUT_SIDE,
    PERTURBATIONS,
    cut_out_boxes,
    drop_channels,
    drop_objects,
    drop_strongest,
    feature_noise,
    objects_in,
)

both_dims = pytest.mark.parametrize("dims", [2, 3])
every_kind = pytest.mark.parametrize("kind", list(PERTURBATIONS))


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def make_trunk(dims: int, *, images: int = 2, side: int = 12) -> Tensor:
    return torch.randn((images, 6, *[side] * dims), generator=drawn(7)) + 0.1


def half_object(dims: int, *, images: int = 2, side: int = 12) -> Tensor:
    """A binary prediction with an object in the first half of the last axis."""
    probability = torch.full((images, 1, *[side] * dims), 0.2)
    probability[..., : side // 2] = 0.9
    return probability


@every_kind
@both_dims
def test_every_perturbation_changes_some_features_of_every_image(kind, dims):
    trunk = make_trunk(dims)
    view = PERTURBATIONS[kind](trunk, half_object(dims), drawn())
    assert view.shape == trunk.shape
    assert view.dtype == trunk.dtype
    for image, seen in zip(trunk, view, strict=True):
        assert not torch.equal(image, seen)
        assert seen.any()


@every_kind
def test_every_perturbation_lets_gradients_through_and_keeps_its_input(kind):
    trunk = make_trunk(2).requires_grad_()
    PERTURBATIONS[kind](trunk, half_object(2), drawn()).sum().backward()
    assert trunk.grad.any()
    assert torch.equal(trunk, make_trunk(2))


@every_kind
def test_every_perturbation_keeps_half_precision(kind):
    trunk = make_trunk(2).to(torch.bfloat16)
    view = PERTURBATIONS[kind](trunk, half_object(2), drawn())
    assert view.dtype == torch.bfloat16
    assert view.isfinite().all()


@every_kind
def test_every_perturbation_uses_only_its_generator(kind):
    before = torch.get_rng_state()
    first, same = (PERTURBATIONS[kind](make_trunk(2), half_object(2), drawn(3)) for _ in range(2))
    assert torch.equal(first, same)
    assert torch.equal(before, torch.get_rng_state())


def test_noise_changes_each_feature_by_up_to_30_percent():
    trunk = make_trunk(2)
    change = feature_noise(trunk, half_object(2), drawn()) / trunk - 1
    assert change.min() == pytest.approx(-0.3, abs=0.01)
    assert change.max() == pytest.approx(0.3, abs=0.01)
    assert change.mean() == pytest.approx(0, abs=0.02)


def test_noise_is_the_same_for_all_images_of_a_batch():
    trunk = make_trunk(2)
    change = feature_noise(trunk, half_object(2), drawn()) / trunk
    assert torch.allclose(change[0], change[1], atol=1e-5)


def strengths(values: list[float]) -> Tensor:
    """One image of two channels whose mean activation at each voxel is given."""
    row = torch.tensor(values).view(1, 1, -1, 1)
    return torch.cat([0.5 * row, 1.5 * row], 1)


@pytest.mark.parametrize("sign", [1, -1])
def test_dropout_uses_the_largest_absolute_value_of_each_image(sign):
    trunk = sign * torch.cat([strengths([1.0, 10.0]), strengths([0.1, 1.0])])
    view = drop_strongest(trunk, torch.zeros(2, 1, 2, 1), drawn())
    assert torch.equal(view[:, :, 0], trunk[:, :, 0])
    assert not view[:, :, 1].any()


def test_dropped_channels_are_zero_and_the_others_are_doubled():
    trunk = torch.ones((4, 500, 2, 2))
    view = drop_channels(trunk, half_object(2), drawn())
    assert set(view.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(view.amin((2, 3)), view.amax((2, 3)))
    assert view.mean() == pytest.approx(1, abs=0.1)
    assert not torch.equal(view[0], view[1])


@both_dims
@pytest.mark.parametrize("side", [12, 4])  # also if the trunk is coarser than the prediction
def test_objects_are_removed_and_their_context_stays(dims, side):
    trunk = make_trunk(dims, side=side)
    view = drop_objects(trunk, half_object(dims), drawn())
    assert not view[..., : side // 2].any()
    assert torch.equal(view[..., side // 2 :], trunk[..., side // 2 :])


def test_object_is_where_any_foreground_channel_exceeds_one_half():
    probability = torch.zeros((1, 3, 1, 5))
    probability[0, :, 0] = torch.tensor(
        [[0.9, 0.9, 0.1, 0.1, 0.9], [0.1, 0.6, 0.5, 0.2, 0.2], [0.1, 0.1, 0.1, 0.7, 0.5]]
    )
    found = objects_in(probability, torch.zeros(1, 2, 1, 5))
    assert found.tolist() == [[[[False, True, False, True, False]]]]


def box_of(mask: Tensor) -> list[tuple[int, int]]:
    """First and last index of a mask (*S) on each axis."""
    places = mask.nonzero()
    return list(zip(places.amin(0).tolist(), places.amax(0).tolist(), strict=True))


@both_dims
def test_cutout_is_a_box_inside_the_bounding_box_of_the_objects(dims):
    """Sides are 40 percent of the box around both objects, rounded up."""
    probability = torch.zeros((1, 1, *[12] * dims))
    probability[(0, 0, *[2] * dims)] = 0.8
    probability[(0, 0, *[8, 9, 4][:dims])] = 0.8
    lengths = [7, 8, 3][:dims]
    for seed in range(20):
        cut = cut_out_boxes(torch.ones((1, 2, *[12] * dims)), probability, drawn(seed)) == 0
        assert torch.equal(cut[0, 0], cut[0, 1])
        for (first, last), length in zip(box_of(cut[0, 0]), lengths, strict=True):
            assert 2 <= first <= last < 2 + length
            assert last - first + 1 == math.ceil(CUTOUT_SIDE * length)
        volume = math.prod(math.ceil(CUTOUT_SIDE * length) for length in lengths)
        assert int(cut[0, 0].sum()) == volume, "the box has holes"


def test_cutout_lies_within_the_objects_of_its_own_image():
    probability = torch.zeros((2, 1, 12, 12))
    probability[0, :, :5, :5] = 0.9
    probability[1, :, 7:, 7:] = 0.9
    cut = cut_out_boxes(torch.ones(2, 1, 12, 12), probability, drawn()) == 0
    assert cut[0, 0, :5, :5].sum() == cut[0].sum() == 4
    assert cut[1, 0, 7:, 7:].sum() == cut[1].sum() == 4


def test_cutout_covers_an_object_of_one_voxel():
    probability = torch.zeros((1, 1, 4, 4))
    probability[0, 0, 1, 2] = 0.9
    cut = cut_out_boxes(torch.ones(1, 1, 4, 4), probability, drawn()) == 0
    assert cut.nonzero().tolist() == [[0, 0, 1, 2]]


MUTATIONS = [
    Mutation(
        "removes the context instead of the objects",
        "masked_fill(objects_in(probability, trunk), 0)",
        "masked_fill(~objects_in(probability, trunk), 0)",
        "test_objects_are_removed_and_their_context_stays",
        {"dims": 2, "side": 12},
        file="views/features.py",
    ),
    Mutation(
        "cuts out beside the objects",
        "start = first + (drawn",
        "start = (drawn",
        "test_cutout_lies_within_the_objects_of_its_own_image",
        file="views/features.py",
    ),
]


@pytest.mark.parametrize("kind", ["noise", "dropout", "channels", "cutouts"])
def test_random_perturbations_differ_between_steps(kind):
    generator = drawn()
    views = [PERTURBATIONS[kind](make_trunk(2), half_object(2), generator) for _ in range(4)]
    assert any(not torch.equal(views[0], view) for view in views[1:])


def test_dropout_threshold_spans_70_to_90_percent_of_the_maximum():
    trunk = strengths([step / 100 for step in range(101)])
    empty = torch.zeros(1, 1, 101, 1)
    kept = [
        int((drop_strongest(trunk, empty, drawn(seed))[0, 0, 1:] > 0).sum()) / 100
        for seed in range(200)
    ]
    assert min(kept) == pytest.approx(0.7, abs=0.02)
    assert max(kept) == pytest.approx(0.9, abs=0.02)


def test_nothing_is_cut_without_an_object():
    trunk = make_trunk(2)
    assert torch.equal(cut_out_boxes(trunk, torch.zeros_like(trunk[:, :1]), drawn()), trunk)
