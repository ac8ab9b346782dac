"""What a training method is: an objective, and the networks it owns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from segpl.errors import InputError
from segpl.losses import foreground_share, targets_of
from segpl.networks.network import Network
from segpl.registry import Registry
from segpl.types import Batch, Labeled, NetOutput, StepOutput, Unlabeled


class Method(nn.Module, ABC):
    """A training objective and the networks it owns.

    It never sees a file, a loader, an optimiser or a device. Every file of this folder reads as an
    E-step (what are the labels of the unlabelled voxels?) and then an M-step (what is minimised?).
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for lists
    needs_unlabeled: ClassVar[bool] = True

    @dataclass(frozen=True, slots=True)
    class Settings:
        """Filled in by each method."""

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__()
        self.settings = settings
        self.network = build()

    @abstractmethod
    def step(self, batch: Batch, progress: float) -> StepOutput:
        """The terms to minimise for one batch, at `progress` in [0, 1] of the training."""

    def predict(self, image: Tensor) -> Tensor:
        """Probabilities (B, K, *S) of (B, C, *S) images, each channel on its own."""
        output: NetOutput = self.network(image)
        return output.logits.sigmoid()

    def after_update(self) -> None:
        """Called after each optimiser step; teachers move here."""

    def networks(self) -> list[Network]:
        """Those that run in training, for compilation."""
        return [module for module in self.modules() if isinstance(module, Network)]


METHODS = Registry[Method]("method", "segpl.methods", Method)  # type: ignore[type-abstract]  # only its concrete children are ever built


def unlabeled_of(method: Method, batch: Batch) -> Unlabeled:
    if batch.unlabeled is None:
        raise InputError(
            f"method '{method.name}' needs unlabeled images, and the batch has labeled ones only. "
            "Give it unlabeled cases, or train with method 'supervised'."
        )
    return batch.unlabeled


def forward_together(
    network: Network, labeled: Labeled, unlabeled: Unlabeled
) -> tuple[NetOutput, NetOutput]:
    """One pass for both kinds of images: twice the network would cost twice the time."""
    output: NetOutput = network(torch.cat([labeled.image, unlabeled.image]))
    first = labeled.image.shape[0]
    return (
        NetOutput(output.logits[:first], output.features[:first]),
        NetOutput(output.logits[first:], output.features[first:]),
    )


def counted(unlabeled: Unlabeled, weight: Tensor) -> Tensor:
    """`weight` (B, K, *S) with what lies beyond the scans left out."""
    return weight if unlabeled.inside is None else weight * unlabeled.inside.unsqueeze(1)


def labeled_share(label: Tensor, outputs: int) -> Tensor:
    """Share of foreground in given labels, to hold pseudo-labels against."""
    return foreground_share(*targets_of(label, outputs))
