"""What a training method is: an objective, and the networks it owns."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from segpl.errors import InputError
from segpl.losses import class_fractions, foreground_fraction, targets_of
from segpl.networks.network import Network
from segpl.registry import Registry
from segpl.schedules import linear_ramp
from segpl.threshold.base import Distribution
from segpl.types import Batch, Labeled, NetOutput, PseudoLabels, StepOutput, Unlabeled


@dataclass(frozen=True, slots=True)
class Thresholded:
    """What a method with a learned threshold says of images."""

    probability: Tensor  # (B, K, *S)
    threshold: Distribution  # its tensors broadcast against the probabilities
    selects: bool = False  # it decides which voxels are sure, not which are foreground


class Method(nn.Module, ABC):
    """A training objective and the networks it owns.

    It never sees a file, a loader, an optimizer or a device. Every file of this folder reads as an
    E-step (what are the labels of the unlabeled voxels?) and then an M-step (what is minimized?).
    """

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for lists
    needs_unlabeled: ClassVar[bool] = True
    # with several classes each term is the mean of the terms of one class against the rest
    one_vs_rest: ClassVar[bool] = False
    # terms beside the supervised one that look at labeled images too
    looks_at_labeled: ClassVar[frozenset[str]] = frozenset()
    # terms that no network learns from, but another part of the method, such as a threshold
    spares_networks: ClassVar[frozenset[str]] = frozenset()
    # learns the distribution of a threshold, of which `thresholded` tells
    has_threshold: ClassVar[bool] = False

    @dataclass(frozen=True, slots=True)
    class Settings:
        """Filled in by each method. `loss` is always the loss of the supervised term.

        `alpha` is always the weight of the unlabeled images, whatever letter a paper gives it.
        """

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__()
        self.settings = settings
        self.network = build()

    @property
    def needs_validation(self) -> bool:
        """Whether batches bring crops of validation cases; no network may learn from them."""
        return False

    @abstractmethod
    def step(self, batch: Batch, progress: float) -> StepOutput:
        """The terms to minimize for one batch, at `progress` in [0, 1] of the training.

        `supervised` is the loss on given labels, `pseudo` the one on labels that the E-step made.
        The names are the same at every step.
        """

    def predictors(self) -> list[Network]:
        """The networks whose mean probability is the prediction."""
        return [self.network]

    def named_networks(self) -> dict[str, Network]:
        """All networks that answer the question, each by a name; how far they agree can be asked.

        The mean probability of those that are `predictors` is the prediction.
        """
        return {"network": self.network}

    def predict(self, image: Tensor) -> Tensor:
        """Probabilities (B, K, *S) of (B, C, *S) images, each channel on its own."""
        answers = [network(image).logits.sigmoid() for network in self.predictors()]
        return answers[0] if len(answers) == 1 else torch.stack(answers).mean(0)

    def thresholded(self, image: Tensor) -> Thresholded | None:
        """Probabilities of (B, C, *S) images and the threshold that they are held against.

        None without `has_threshold`. Draws of the threshold make different masks of one prediction.
        """
        return None

    def after_update(self, steps: int) -> None:
        """Called after each optimizer step, with how many were taken; teachers move here."""

    def networks(self) -> list[Network]:
        """Those that run in training, for compilation; teachers are among them."""
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
    return output.images(slice(first)), output.images(slice(first, None))


@torch.no_grad()
def as_in_prediction(network: Network, image: Tensor) -> Tensor:
    """Logits (B, K, *S) without dropout and with stored statistics, which the images do not move.

    The network itself stays in training, where it is compiled.
    """
    network.body.eval()
    try:
        logits: Tensor = network(image).logits
    finally:
        network.body.train(network.training)
    return logits


def mask_padding(unlabeled: Unlabeled, weight: Tensor) -> Tensor:
    """`weight` (B, K, *S) with what lies beyond the scans left out."""
    return weight if unlabeled.inside is None else weight * unlabeled.inside.unsqueeze(1)


def labeled_share(label: Tensor, outputs: int) -> Tensor:
    """Share of foreground in given labels, to hold pseudo-labels against."""
    return foreground_fraction(*targets_of(label, outputs))


def shares(label: Tensor, *pseudo: PseudoLabels) -> dict[str, Tensor]:
    """Monitors: the share of foreground in given labels and in pseudo-labels.

    With several channels also that of each one but the first, which is background. Pseudo-labels
    by several networks count as the mean of their shares.
    """
    parts = [(one.target, one.weight) for one in pseudo]
    found = {
        "labeled_foreground": labeled_share(label, parts[0][0].shape[1]),
        "pseudo_foreground": torch.stack([foreground_fraction(*part) for part in parts]).mean(),
    }
    if parts[0][0].shape[1] > 1:
        by_channel = torch.stack([class_fractions(*part) for part in parts]).mean(0)  # (K,)
        for number, share in enumerate(by_channel[1:].unbind(), start=1):
            found[f"pseudo_foreground_{number}"] = share
    return found


def require(settings: Any, low: float, high: float, *names: str) -> None:
    """Refuse settings outside of [low, high] by their names."""
    for name in names:
        value = getattr(settings, name)
        if not low <= value <= high or value == math.inf:
            allowed = (
                f"{low:g} or more, and finite" if high == math.inf else f"from {low:g} to {high:g}"
            )
            raise InputError(f"method.{name} is {value}: it must be {allowed}.")


def alpha_at(settings: Any, progress: float) -> float:
    """Weight of the unlabeled images: a straight line from `ramp_begin` to `ramp_end`."""
    ramp = linear_ramp(progress, begin=settings.ramp_begin, end=settings.ramp_end)
    return float(settings.alpha * ramp)


def require_ramp(settings: Any) -> None:
    """Refuse an `alpha` below 0, and a ramp that ends before it begins."""
    require(settings, 0, math.inf, "alpha", "ramp_begin", "ramp_end")
    if settings.ramp_begin > settings.ramp_end:
        raise InputError(
            f"method.ramp_begin is {settings.ramp_begin} and method.ramp_end "
            f"{settings.ramp_end}: the weight rises from the one to the other."
        )
