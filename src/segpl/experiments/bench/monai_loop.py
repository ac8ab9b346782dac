"""Supervised training as in MONAI's tutorials, with the same volumes and network."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segpl.assembly import build_method
from segpl.data.cache import Volume
from segpl.engine.device import autocast
from segpl.experiments.bench.workload import Workload
from segpl.settings import Config

MANY = 10**9  # crops; the loop never reaches the end of its dataset


def monai_losses(
    config: Config, load: Workload, volumes: Sequence[Volume], device: torch.device, precision: str
) -> Generator[Tensor]:
    """The loss of each eager step with Dice and cross-entropy, and Adam."""
    from monai.losses.dice import DiceCELoss  # importing MONAI takes seconds

    network = build_method(config, load.plan).network.to(device).train()
    optimizer = torch.optim.Adam(network.parameters(), config.learning_rate(load.plan))
    is_binary = load.plan.outputs == 1
    loss_of = DiceCELoss(sigmoid=is_binary, softmax=not is_binary, to_onehot_y=not is_binary)
    for batch in cached_batches(load, volumes, device):
        optimizer.zero_grad(set_to_none=True)
        with autocast(device, precision):
            loss: Tensor = loss_of(network(batch["image"]).logits, batch["label"])
        torch.autograd.backward(loss)
        optimizer.step()
        yield loss.detach()


def cached_batches(load: Workload, volumes: Sequence[Volume], device: torch.device) -> Any:
    """Crops from a cached dataset on the device, without augmentation.

    As in MONAI's fast training tutorial, a thread prepares the next batch, and the positions of
    foreground and background are cached.
    """
    from monai.data.dataset import CacheDataset
    from monai.data.thread_buffer import ThreadBuffer
    from monai.data.utils import list_data_collate
    from monai.transforms.compose import Compose
    from monai.transforms.croppad.dictionary import RandCropByPosNegLabeld
    from monai.transforms.utility.dictionary import EnsureTyped, FgBgToIndicesd
    from torch.utils.data import DataLoader, RandomSampler

    keys = ("image", "label")
    positions = {"fg_indices_key": "label_fg", "bg_indices_key": "label_bg"}
    transforms = [
        FgBgToIndicesd("label", fg_postfix="_fg", bg_postfix="_bg"),
        EnsureTyped(keys, device=device, track_meta=False),
        RandCropByPosNegLabeld(keys, "label", load.plan.patch, pos=1, neg=2, **positions),
    ]
    cases = [
        {"image": one.image, "label": np.asarray(one.label, np.float32)[None]} for one in volumes
    ]
    dataset = CacheDataset(cases, Compose(transforms), progress=False)
    order = RandomSampler(dataset, replacement=True, num_samples=MANY)
    loader = DataLoader(dataset, load.crops, sampler=order, collate_fn=list_data_collate)
    return ThreadBuffer(loader)
