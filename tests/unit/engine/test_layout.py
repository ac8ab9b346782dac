"""Changing the memory layout of a batch changes nothing else."""

from __future__ import annotations

import pytest
import torch

from segpl.engine.trainer import with_layout
from segpl.types import Batch, Labeled, Unlabeled

LAYOUTS = {2: torch.channels_last, 3: torch.channels_last_3d}


@pytest.mark.parametrize("dims", [2, 3])
def test_images_of_all_parts_change_their_layout_and_nothing_else(dims):
    image = torch.rand((2, 3, *[4] * dims), generator=torch.Generator().manual_seed(0))
    label = torch.ones((2, *[4] * dims), dtype=torch.int64)
    inside = label.bool()
    plain = Batch(Labeled(image, label), Unlabeled(image + 1, inside), torch.Generator())
    batch = with_layout(plain, LAYOUTS[dims])
    for part in ("labeled", "unlabeled"):
        before, after = getattr(plain, part).image, getattr(batch, part).image
        assert torch.equal(before, after)
        assert not before.is_contiguous(memory_format=LAYOUTS[dims])
        assert after.is_contiguous(memory_format=LAYOUTS[dims])
    assert batch.labeled.label is label
    assert batch.unlabeled.inside is inside
    assert batch.generator is plain.generator
