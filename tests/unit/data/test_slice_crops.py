"""Crops of one slice of a volume: they are changed as pictures are, and windows follow them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from segpl.data.augment import AugmentSettings, augment, scanned
from segpl.data.cache import Volume
from segpl.data.sampler import Sampler, settle
from segpl.predict.window import predict_windows
from segpl.types import IGNORE
from segpl.views.mixing import draw_box

SPACING = (0.4, 0.4, 8.0)
TURNED = AugmentSettings(flip=0.0, rotate=0.0, affine=1.0, mirror=0.0, scanner=0.0)


def pictures() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    image = torch.randn((4, 2, 24, 20), generator=generator)
    return image, (image[:, 0] > 0.5).long()


def both() -> list[np.random.Generator]:
    return [np.random.default_rng(1) for _ in range(2)]


def test_slice_is_turned_and_scaled_as_a_picture_is():
    image, label = pictures()
    draws = torch.Generator()
    first, second = both()
    flat, flat_label = augment(image, label, TURNED, first, draws, (), SPACING[:2])
    thick, thick_label = augment(
        image[..., None], label[..., None], TURNED, second, draws, (), SPACING
    )
    assert torch.equal(thick_label[..., 0], flat_label)
    assert torch.allclose(thick[..., 0], flat, atol=1e-5)
    assert not torch.allclose(flat, image)


def test_scanners_change_a_slice_as_they_do_a_picture():
    image, _ = pictures()
    flat, thick = (
        scanned(values, 1.0, rng, torch.Generator().manual_seed(3))
        for values, rng in zip((image, image[..., None]), both(), strict=True)
    )
    assert torch.allclose(thick[..., 0], flat, atol=1e-5)
    assert not torch.allclose(flat, image)


def test_boxes_of_a_slice_have_the_share_that_was_drawn():
    rng = np.random.default_rng(0)
    for _ in range(50):
        box = draw_box((24, 20, 1), rng)
        voxels = np.zeros((24, 20, 1))
        voxels[box] = 1
        assert 0.08 <= voxels.mean() <= 0.55
        assert box[2] == slice(0, 1)


def volume(name: str, *, labeled: bool) -> Volume:
    """A volume whose voxels tell their slice, with foreground in slice 3 alone."""
    image = np.broadcast_to(np.arange(5, dtype=np.float32), (1, 12, 12, 5)).copy()
    if not labeled:
        return Volume(name, image, None, None)
    label = np.zeros((12, 12, 5), np.int8)
    label[4:6, 4:6, 3] = 1
    return Volume(name, image, label, np.argwhere(label).astype(np.int32))


@pytest.mark.parametrize("foreground", [0.0, 1.0])
def test_crops_are_single_slices_and_all_of_them_are_seen(foreground):
    cpu = torch.device("cpu")
    sampler = Sampler(
        labeled=settle([volume("a", labeled=True)], cpu, 2**30),
        unlabeled=settle([volume("u", labeled=False)], cpu, 2**30),
        patch=(16, 8, 1),
        labeled_crops=4,
        unlabeled_crops=4,
        foreground=foreground,
        augment=AugmentSettings(affine=0.0, mirror=0.0, scanner=0.0),
        seed=0,
        device=cpu,
    )
    seen: dict[str, set[float]] = {"labeled": set(), "unlabeled": set()}
    for step in range(10):
        batch = sampler.batch(step)
        assert batch.labeled.image.shape == (4, 1, 16, 8, 1)
        shown = batch.labeled.label != IGNORE
        seen["labeled"] |= set(batch.labeled.image[:, 0][shown].unique().tolist())
        shown = batch.unlabeled.inside
        seen["unlabeled"] |= set(batch.unlabeled.image[:, 0][shown].unique().tolist())
    assert seen["unlabeled"] == {0, 1, 2, 3, 4}
    assert seen["labeled"] == ({3} if foreground else {0, 1, 2, 3, 4})


def test_windows_of_one_slice_answer_for_their_slice():
    image = torch.randn((1, 20, 18, 5), generator=torch.Generator().manual_seed(0))
    shapes: set[tuple[int, ...]] = set()

    def predict(windows: torch.Tensor) -> torch.Tensor:
        shapes.add(tuple(windows.shape[1:]))
        return windows

    whole = predict_windows(image, predict, SimpleNamespace(patch=(16, 16, 1), outputs=1))
    assert shapes == {(1, 16, 16, 1)}
    assert torch.allclose(whole, image, atol=1e-5)
