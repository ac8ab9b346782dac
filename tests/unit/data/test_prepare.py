from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from tiny import PICTURES

from segpl.data import geometry
from segpl.data.case import Case
from segpl.data.plan import Normalization
from segpl.data.prepare import preparation_memory, prepare_image, prepare_label, restore
from segpl.data.readers import Grid, Image, Label
from segpl.errors import InputError, UnknownNameError

PLAN = replace(PICTURES, channels=("T1",), classes={"background": 0, "organ": 3})
VOLUME_PLAN = replace(
    PLAN, dims=3, orientation="RAS", spacing=(1.0, 1.0, 2.0), patch=(8, 8, 8), strides=()
)


def picture(*channels, spacing=(1.0, 1.0)) -> Image:
    array = np.array(channels, np.float32)
    return Image(array, Grid(array.shape[1:], spacing, None))


def label_picture(values) -> Label:
    array = np.array(values, np.int32)
    return Label(array, Grid(array.shape, (1.0,) * array.ndim, None))


def test_zscore_by_hand():
    """1, 3, 3, 5: mean 3, standard deviation sqrt(2)."""
    prepared = prepare_image(picture([[1, 3], [3, 5]]), PLAN)
    assert prepared[0].ravel() == pytest.approx([-(2**0.5), 0, 0, 2**0.5])


def test_zscore_nonzero_ignores_zeros_and_keeps_them():
    """2, 4 without the zeros: mean 3, standard deviation 1."""
    plan = replace(PLAN, normalization=(Normalization("zscore-nonzero"),))
    prepared = prepare_image(picture([[0, 0], [2, 4]]), plan)
    assert prepared[0].ravel() == pytest.approx([0, 0, -1, 1])


def test_zeros_of_one_channel_count_in_another():
    plan = replace(
        PLAN, channels=("T1", "T2"), normalization=(Normalization("zscore-nonzero"),) * 2
    )
    prepared = prepare_image(picture([[0, 0], [2, 4]], [[2, 4], [0, 0]]), plan)
    assert prepared.ravel() == pytest.approx([0, 0, -1, 1, -1, 1, 0, 0])


def test_voxels_that_are_mostly_zero_after_resampling_stay_zero():
    """0, 0, 4, 8 on half the spacing: 0, 0, 0, 1, 3, 5, 7, 8; the 1 is 3 parts of 0, 1 of 4."""
    plan = replace(PLAN, normalization=(Normalization("zscore-nonzero"),))
    prepared = prepare_image(picture([[0, 0, 4, 8]], spacing=(1.0, 2.0)), plan)[0, 0]
    values = np.array([3, 5, 7, 8])
    assert prepared == pytest.approx([0] * 4 + list((values - values.mean()) / values.std()))


def test_ct_clips_and_uses_the_statistics_of_the_dataset():
    rule = Normalization("ct", low=-100, high=300, mean=100, std=50)
    image, plan = picture([[-1000, 0], [100, 3000]]), replace(PLAN, normalization=(rule,))
    prepared = prepare_image(image, plan)
    assert prepared[0].ravel() == pytest.approx([-4, -2, 0, 4])


def test_each_channel_has_its_own_normalization():
    rules = (Normalization("zscore"), Normalization("ct", 0, 10, 0, 10))
    plan = replace(PLAN, channels=("T1", "CT"), normalization=rules)
    prepared = prepare_image(picture([[1, 3], [3, 5]], [[0, 5], [10, 20]]), plan)
    assert prepared[0].mean() == pytest.approx(0, abs=1e-6)
    assert prepared[1].ravel() == pytest.approx([0, 0.5, 1, 1])


@pytest.mark.parametrize("kind", ["zscore", "zscore-nonzero"])
@pytest.mark.parametrize("value", [0, 7.3])
def test_constant_image_is_rejected(kind, value):
    plan = replace(PLAN, normalization=(Normalization(kind),))
    with pytest.raises(InputError, match="channel 'T1' is constant"):
        prepare_image(picture(np.full((4, 4), value)), plan)


def test_unknown_normalization_is_rejected_with_the_nearest_name():
    plan = replace(PLAN, normalization=(Normalization("zscor"),))
    with pytest.raises(UnknownNameError, match="Did you mean 'zscore'"):
        prepare_image(picture([[1, 2], [3, 6]]), plan)


def test_ct_rule_without_a_range_is_rejected():
    plan = replace(PLAN, normalization=(Normalization("ct", mean=3, std=0),))
    with pytest.raises(InputError, match=r"std must be positive.*plan\.json"):
        prepare_image(picture([[1, 2], [3, 6]]), plan)


def test_wrong_number_of_channels_is_rejected():
    with pytest.raises(InputError, match=r"2 channels, but the plan has 1: T1"):
        prepare_image(picture([[1, 2]], [[1, 2]]), PLAN)
    with pytest.raises(InputError, match=r"three axes, but the plan is for 2D images"):
        prepare_image(picture(*[[[1, 2]]] * 5), PLAN)  # the slices of a scan


def test_target_spacing_refers_to_the_reoriented_axes():
    affine = np.array([[0, 0, 1, 0], [1, 0, 0, 0], [0, 4, 0, 0], [0, 0, 0, 1]], float)  # A S R
    array = np.random.default_rng(0).random((1, 5, 6, 7), np.float32)
    image = Image(array, Grid((5, 6, 7), (1.0, 4.0, 1.0), affine))
    assert prepare_image(image, VOLUME_PLAN).shape == (1, 7, 5, 12)


@pytest.mark.parametrize(
    ("changes", "numbers", "indices", "kind"),
    [
        ({}, [0, 3], [0, 1], np.int8),
        ({"ignore": 255}, [0, 255, 3], [0, -1, 1], np.int8),
        # in the order of the plan
        ({"classes": {"background": 0, "b": 9, "a": 4}}, [9, 4, 0], [1, 2, 0], np.int8),
        ({"classes": {str(number): number for number in range(200)}}, [199], [199], np.int16),
    ],
)
def test_label_numbers_become_class_indices(changes, numbers, indices, kind):
    prepared = prepare_label(label_picture([numbers]), replace(PLAN, **changes))
    assert (prepared.tolist(), prepared.dtype) == ([indices], kind)


@pytest.mark.parametrize("stranger", [2, -5, 70_000])
def test_number_without_a_class_is_rejected(stranger):
    with pytest.raises(
        InputError, match=rf"the label contains {stranger}, .* 0 background, 3 organ"
    ):
        prepare_label(label_picture([[0, stranger, 3]]), PLAN)


def test_label_and_image_end_on_the_same_grid():
    affine = np.diag([-1.0, 3.0, 0.7, 1.0])
    grid = Grid((5, 6, 7), (1.0, 3.0, 0.7), affine)
    array = np.random.default_rng(0).random((1, 5, 6, 7), np.float32)
    image = prepare_image(Image(array, grid), VOLUME_PLAN)
    label = prepare_label(Label((array[0] > 0.5).astype(np.int32) * 3, grid), VOLUME_PLAN)
    assert label.shape == image.shape[1:]


def test_restore_undoes_the_reorientation():
    affine = np.array([[0, 0, -1, 0], [1, 0, 0, 0], [0, -2, 0, 0], [0, 0, 0, 1]], float)
    grid = Grid((5, 6, 7), (1.0, 2.0, 1.0), affine)
    label = np.zeros((5, 6, 7), np.int32)
    label[1, 4, 2] = 3
    there = prepare_label(Label(label, grid), VOLUME_PLAN)
    back = restore(there[None].astype(np.float32), grid, VOLUME_PLAN)
    assert back.shape == (1, 5, 6, 7)
    assert np.argwhere(back[0] > 0.5).tolist() == [[1, 4, 2]]


def test_restored_probabilities_are_interpolated():
    """Voxels twice as large have their centers at 0.5 and 2.5 of the small ones."""
    plan = replace(PLAN, spacing=(1.0, 2.0))
    back = restore(np.array([[[0.2, 0.6]]], np.float32), Grid((1, 4), (1.0, 1.0), None), plan)
    assert back[0, 0].tolist() == pytest.approx([0.2, 0.3, 0.5, 0.6])


@pytest.mark.parametrize("kind", ["ct", "zscore", "zscore-nonzero"])
@pytest.mark.parametrize("spacing", [(1.0, 1.0, 1.0), (1.3, 1.0, 0.9)])
def test_preparing_needs_little_more_memory_than_its_result(kind, spacing, monkeypatch):
    monkeypatch.setattr(geometry, "SLAB_VOXELS", 2**10)
    rule = Normalization(kind, low=0, high=1, mean=0.5, std=0.3)
    plan = replace(VOLUME_PLAN, spacing=spacing, normalization=(rule,))
    array = np.random.default_rng(0).random((1, 32, 32, 32), np.float32)
    image = Image(array, Grid((32,) * 3, (1.0,) * 3, np.diag([-1.0, 1.0, 1.0, 1.0])))
    prepare_image(image, plan)  # imports take memory too
    tracemalloc.start()
    size = prepare_image(image, plan).nbytes
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2.2 * size


def test_preparing_does_not_modify_a_volume_with_the_orientation_of_the_plan():
    array = np.arange(8, dtype=np.float32).reshape(1, 2, 2, 2)
    prepare_image(
        Image(array, Grid((2, 2, 2), (1.0, 1.0, 2.0), np.diag([1.0, 1, 2, 1]))), VOLUME_PLAN
    )
    assert array.ravel().tolist() == list(range(8))


def test_image_is_resampled_to_the_spacing_of_the_plan():
    image = picture(np.random.default_rng(0).random((10, 6)), spacing=(2.0, 0.5))
    assert prepare_image(image, PLAN).shape == (1, 20, 3)


@pytest.mark.parametrize(
    ("prepare", "scan"),
    [
        (prepare_image, Image(np.zeros((1, 4, 4), np.float32), Grid((4, 4), (1e4, 1e4), None))),
        (prepare_label, Label(np.zeros((4, 4), np.int32), Grid((4, 4), (1e4, 1e4), None))),
    ],
)
def test_a_scan_too_large_after_resampling_is_rejected_before_it_is_resampled(prepare, scan):
    plan = replace(PLAN, spacing=(0.1, 0.1))
    with pytest.raises(InputError, match="160,000,000,000 values, but the limit is 1,000,000,000"):
        prepare(scan, plan)


def test_memory_is_estimated_from_the_header(tmp_path):
    """8 bytes per voxel and channel of the file, 5 per voxel and channel of the result."""
    files = tuple(tmp_path / f"{name}.npz" for name in "ab")
    for file in files:
        np.savez(file, image=np.zeros((6, 4), np.float32), spacing=(2.0, 1.0))
    assert preparation_memory(Case("a", files), PLAN) == 2 * (8 * 24 + 5 * 48)
    assert preparation_memory(Case("b", (tmp_path / "missing.npy",)), PLAN) == 0
