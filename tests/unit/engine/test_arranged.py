"""A batch in the memory order that the device likes is the same batch."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from segpl.engine.trainer import Trainer
from segpl.types import Batch, Labeled, Unlabeled

ORDERS = {2: torch.channels_last, 3: torch.channels_last_3d}


def arranged(batch: Batch, dims: int = 2) -> Batch:
    return Trainer.arranged(SimpleNamespace(layout=ORDERS[dims]), batch)


@pytest.mark.parametrize("dims", [2, 3])
def test_images_of_all_three_kinds_change_their_order_and_nothing_else_changes(dims):
    image = torch.rand((2, 3, *[4] * dims), generator=torch.Generator().manual_seed(0))
    label = torch.ones((2, *[4] * dims), dtype=torch.int64)
    other = torch.zeros_like(label)
    inside = label.bool()
    plain = Batch(
        Labeled(image, label),
        Unlabeled(image + 1, inside),
        torch.Generator(),
        validation=Labeled(image + 2, other),
    )
    batch = arranged(plain, dims)
    for part in ("labeled", "unlabeled", "validation"):
        before, after = getattr(plain, part).image, getattr(batch, part).image
        assert torch.equal(before, after)
        assert not before.is_contiguous(memory_format=ORDERS[dims])
        assert after.is_contiguous(memory_format=ORDERS[dims])
    assert batch.labeled.label is label
    assert batch.unlabeled.inside is inside
    assert batch.validation.label is other
    assert batch.generator is plain.generator


def test_batch_without_unlabeled_and_held_crops_stays_without_them():
    image, label = torch.ones(1, 1, 4, 4), torch.ones(1, 4, 4, dtype=torch.int64)
    batch = arranged(Batch(Labeled(image, label), None, torch.Generator()))
    assert batch.unlabeled is None
    assert batch.validation is None
