"""The interface of a training method: an E-step, an M-step, and the networks it owns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from segpl.errors import InputError, mark_reconstruction
from segpl.losses import LOSSES, Loss, class_fractions, foreground_fraction, supervised_loss
from segpl.methods.settings import MethodSettings
from segpl.networks.graphs import Function, Recordable
from segpl.networks.network import Network
from segpl.registry import Registry
from segpl.threshold.base import Distribution
from segpl.types import (
    IGNORE,
    Batch,
    LabelSets,
    NetOutput,
    PseudoLabels,
    StepOutput,
    Term,
    Unlabeled,
)


@dataclass(frozen=True, slots=True)
class ThresholdPrediction:
    """Probabilities, and the distribution of the threshold that turns them into labels."""

    probability: Tensor  # (B, K, *S)
    threshold: Distribution  # its tensors broadcast against the probabilities
    selects: bool = False  # the threshold selects confident voxels instead of foreground


class Method(nn.Module, ABC):
    """A training objective, read as expectation maximization, and the networks it owns.

    The trainer calls `step`, which runs the E-step, `label`, and hands its result to the M-step,
    `objective`. The optimizer then takes one step down the objective. A method never sees a file,
    a loader, an optimizer or a device.

    To add a method, derive from this class in a new file of this folder.
    """

    name: ClassVar[str]  # on the command line
    summary: ClassVar[str]  # one line, for lists
    use: ClassVar[str]  # when to use it, after the words "Use it"
    is_reconstruction: ClassVar[bool] = False  # the paper is known only in part; see `title`
    needs_unlabeled: ClassVar[bool] = True
    # fields of `NetOutput` that it uses; processes that train together exchange only these
    reads: ClassVar[tuple[str, ...]] = ("logits",)
    has_threshold: ClassVar[bool] = False  # infers a threshold, see `predict_threshold`
    # defaults of [network] that differ for this method; only for the U-Net
    network_defaults: ClassVar[Mapping[str, Any]] = {}

    Settings: ClassVar[type[MethodSettings]] = MethodSettings
    settings: MethodSettings

    def __init__(self, build: Callable[[], Network], settings: MethodSettings) -> None:
        super().__init__()
        self.settings = settings
        self.loss = TrainingLoss(LOSSES[settings.loss])
        self.network = build()

    @classmethod
    def title(cls, label: str = "") -> str:
        """`label`, or the name, as tables show it."""
        shown = label or cls.name
        return mark_reconstruction(shown) if cls.is_reconstruction else shown

    def step(self, batch: Batch, progress: float) -> StepOutput:
        """One EM iteration on a batch, at `progress` in [0, 1] of the training."""
        if self.needs_unlabeled:
            self.unlabeled(batch)
        return self.objective(batch, self.label(batch, progress), progress)

    def label(self, batch: Batch, progress: float) -> LabelSets:
        """E-step: label the unlabeled images; no sets if the method makes no labels."""
        return ()

    @abstractmethod
    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        """M-step: the terms to minimize, given the labels of the E-step.

        `supervised` is the loss on given labels, `pseudo` the loss on pseudo-labels. A method
        returns the same terms and monitors at every step.
        """

    def supervised(self, output: NetOutput, batch: Batch) -> Term:
        """The loss of an output for the labeled images."""
        return Term(supervised_loss(output.logits, batch.labeled.label, self.loss))

    def semi_supervised(
        self,
        batch: Batch,
        on_labeled: NetOutput,
        pseudo: PseudoLabels,
        pseudo_loss: Tensor,
        progress: float,
    ) -> StepOutput:
        r"""The objective of most methods, $L_L + \alpha L_U$ plus the terms of the E-step."""
        terms = {
            "supervised": self.supervised(on_labeled, batch),
            "pseudo": Term(pseudo_loss, self.settings.alpha_at(progress)),
            **pseudo.terms,
        }
        monitors = {**foreground_monitors(batch.labeled.label, pseudo), **pseudo.monitors}
        # without its forward pass: the trainer keeps the labels, and activations are large
        return StepOutput(terms, monitors, (replace(pseudo, outputs=()),))

    def unlabeled(self, batch: Batch) -> Unlabeled:
        if batch.unlabeled is None:
            raise InputError(
                f"method '{self.name}' needs unlabeled images, but the batch has none. "
                "Add unlabeled cases, or train with method 'supervised'."
            )
        return batch.unlabeled

    def predictors(self) -> list[Network]:
        """The networks whose mean probability is the prediction."""
        return [self.network]

    def predict(self, image: Tensor) -> Tensor:
        """Probabilities (B, K, *S) of (B, C, *S) images, one sigmoid per channel."""
        answers = [network(image).logits.sigmoid() for network in self.predictors()]
        return answers[0] if len(answers) == 1 else torch.stack(answers).mean(0)

    def predict_threshold(self, image: Tensor) -> ThresholdPrediction | None:
        """Probabilities and threshold of (B, C, *S) images; None without `has_threshold`.

        Each draw of the threshold gives another plausible mask.
        """
        return None

    def after_update(self, steps: int) -> None:
        """Called after optimizer step number `steps`, counted from 1. Teachers are updated here."""

    def networks(self) -> list[Network]:
        """All networks that run during training, teachers included."""
        return [module for module in self.modules() if isinstance(module, Network)]


class TrainingLoss(Recordable, nn.Module):
    """One of `LOSSES`. Each launches dozens of small kernels, so a GPU replays it as a graph."""

    def __init__(self, function: Loss) -> None:
        super().__init__()
        self.function = function

    def forward(self, logits: Tensor, target: Tensor, weight: Tensor) -> Tensor:
        (value,) = (self.calls or self.compute)(logits, target, weight)
        return value

    def compute(self, *inputs: Tensor) -> tuple[Tensor]:
        return (self.function(*inputs),)

    def recordable(self) -> nn.Module:
        return Function(self.compute)


METHODS = Registry[Method]("method", "segpl.methods", Method)  # type: ignore[type-abstract]  # only concrete subclasses are ever built


def forward_together(
    network: Network, labeled: Tensor, unlabeled: Tensor
) -> tuple[NetOutput, NetOutput]:
    """Outputs for labeled and unlabeled images (B, C, *S) from a single forward pass."""
    output: NetOutput = network(torch.cat([labeled, unlabeled]))
    sizes = [len(labeled), len(unlabeled)]
    # the gradient of `split` is one copy; gradients of slices would be zero-padded and added
    known = (output.logits, output.features, output.trunk, output.pooled)
    parts = [torch.split(part, sizes) for part in known if part is not None]
    on_labeled, on_unlabeled = (NetOutput(*one) for one in zip(*parts, strict=True))
    return on_labeled, on_unlabeled


@torch.no_grad()
def eval_logits(network: Network, image: Tensor) -> Tensor:
    """Logits (B, K, *S) in evaluation mode: no dropout, stored statistics, which do not change.

    Only the body switches modes, because a compiled network must stay in training mode.
    """
    network.body.eval()
    try:
        logits: Tensor = network(image).logits
    finally:
        network.body.train(network.training)
    return logits


def mask_padding(unlabeled: Unlabeled, weight: Tensor) -> Tensor:
    """`weight` (B, K, *S) with 0 where a crop extends beyond its scan."""
    return weight if unlabeled.inside is None else weight * unlabeled.inside.unsqueeze(1)


def labeled_foreground(label: Tensor) -> Tensor:
    """Fraction of labeled voxels that are foreground."""
    return (label > 0).sum() / (label != IGNORE).sum().clamp(min=1)


def foreground_monitors(label: Tensor, *pseudo: PseudoLabels) -> dict[str, Tensor]:
    """Foreground fractions of given labels and of pseudo-labels, averaged over networks.

    With several channels, also per class; the first channel is background.
    """
    parts = [(one.target, one.weight) for one in pseudo]
    outputs = parts[0][0].shape[1]
    found = {
        "labeled_foreground": labeled_foreground(label),
        "pseudo_foreground": torch.stack([foreground_fraction(*part) for part in parts]).mean(),
    }
    if outputs > 1:
        by_channel = torch.stack([class_fractions(*part) for part in parts]).mean(0)  # (K,)
        for number, share in enumerate(by_channel[1:].unbind(), start=1):
            found[f"pseudo_foreground_{number}"] = share
    return found
