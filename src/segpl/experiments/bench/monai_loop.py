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


class MonaiLoop:
    """Eager steps with crops from a cached dataset on the device, Dice and cross-entropy, and Adam.

    As in MONAI's fast training tutorial, a thread prepares the next batch, and the positions of
    foreground and background are cached. There is no augmentation besides cropping.
    """

    def __init__(
        self,
        config: Config,
        workload: Workload,
        volumes: Sequence[Volume],
        device: torch.device,
        precision: str,
    ) -> None:
        from monai.losses.dice import DiceCELoss  # importing MONAI takes seconds

        plan = workload.plan
        self.network = build_method(config, plan).network.to(device).train()
        self.optimizer = torch.optim.Adam(self.network.parameters(), config.learning_rate(plan))
        is_binary = plan.outputs == 1
        self.loss = DiceCELoss(sigmoid=is_binary, softmax=not is_binary, to_onehot_y=not is_binary)
        self.context = autocast(device, precision)
        self.batches = cached_batches(workload, volumes, device)

    def close(self) -> None:
        """Stop the thread."""
        self.batches.close()

    def step(self) -> Tensor:
        batch = next(self.batches)
        self.optimizer.zero_grad(set_to_none=True)
        with self.context:
            logits = self.network(batch["image"]).logits
            loss: Tensor = self.loss(logits, batch["label"])
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.detach()


def cached_batches(
    workload: Workload, volumes: Sequence[Volume], device: torch.device
) -> Generator[dict[str, Any]]:
    from monai.data.dataset import CacheDataset
    from monai.data.thread_buffer import ThreadBuffer
    from monai.data.utils import list_data_collate
    from monai.transforms.compose import Compose
    from monai.transforms.croppad.dictionary import RandCropByPosNegLabeld
    from monai.transforms.utility.dictionary import EnsureTyped, FgBgToIndicesd
    from torch.utils.data import DataLoader, RandomSampler

    keys = ("image", "label")
    transforms = [
        FgBgToIndicesd("label", fg_postfix="_fg", bg_postfix="_bg"),
        EnsureTyped(keys, device=device, track_meta=False),
        RandCropByPosNegLabeld(
            keys,
            label_key="label",
            spatial_size=workload.plan.patch,
            pos=1,
            neg=2,
            fg_indices_key="label_fg",
            bg_indices_key="label_bg",
        ),
    ]
    cases = [
        {"image": one.image, "label": np.asarray(one.label, np.float32)[None]} for one in volumes
    ]
    dataset = CacheDataset(cases, Compose(transforms), progress=False)
    loader = DataLoader(
        dataset,
        batch_size=workload.crops,
        sampler=RandomSampler(dataset, replacement=True, num_samples=MANY),
        collate_fn=list_data_collate,
    )
    batches: Generator[dict[str, Any]] = iter(ThreadBuffer(loader))
    return batches
