"""CCT: auxiliary decoders on perturbed features agree with the main decoder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from segpl.errors import InputError, unknown
from segpl.losses import squared_error
from segpl.methods.base import Method, forward_together, mask_padding
from segpl.methods.settings import SigmoidRampSettings
from segpl.networks.heads import Branch
from segpl.networks.network import Network
from segpl.types import Batch, LabelSets, PseudoLabels, StepOutput
from segpl.views.features import PERTURBATIONS


def decoder_kinds(decoders: str) -> list[str]:
    return [kind.strip() for kind in decoders.split(",") if kind.strip()]


class CCT(Method):
    r"""Cross-consistency training [Ouali2020].

    A main decoder $g$ and auxiliary decoders $g_1, \dots, g_D$ share the trunk $z = h(x)$. Each
    auxiliary decoder has its own perturbation $\pi_d$:

    $$\text{E: } y_u = g(z_u) \qquad
      \text{M: } L(g(z_l), y_l) + \alpha\,
      \frac{1}{D} \sum_{d=1}^{D} \lVert g_d(\pi_d(z_u, y_u)) - y_u \rVert^2$$

    $\lVert\cdot\rVert^2$ is the mean over channels and over the voxels inside the scans. The main
    decoder learns only from given labels, and it alone predicts. The perturbations are
    in `views/features.py`; $\alpha$ rises along the sigmoid ramp of [LaineAila2017]. The authors'
    weight of 30 multiplies a mean over the 21 classes of PASCAL VOC. Where two decoders differ by
    $\delta$ in two of them, their loss is $30 \cdot 2 \delta^2 / 21 = 2.9\, \delta^2$. One sigmoid
    gives $\alpha\, \delta^2$, so the default is 3.

    Differs from the source: auxiliary decoders share all but the last block, as in [Xu2024]; the
    source perturbs the output of the encoder. There are five auxiliary decoders instead of 30, and
    none is virtual adversarial. Each channel has a sigmoid, instead of a softmax over classes.
    """

    name: ClassVar[str] = "cct"
    summary: ClassVar[str] = "auxiliary decoders on perturbed features agree with the main decoder"
    use: ClassVar[str] = "as a baseline from the paper"
    reads: ClassVar[tuple[str, ...]] = ("logits", "trunk")

    @dataclass(frozen=True)
    class Settings(SigmoidRampSettings):
        # perturbation of each auxiliary decoder, separated by commas; repetitions are allowed
        decoders: str = "noise,dropout,objects,contexts,cutouts"
        alpha: float = 3.0  # weight of the unlabeled images; corresponds to the authors' 30
        ramp_end: float = 0.1  # progress at which alpha reaches its full value, as in the source

        def __post_init__(self) -> None:
            super().__post_init__()
            kinds = decoder_kinds(self.decoders)
            if not kinds:
                raise InputError(
                    "method.decoders names no auxiliary decoder, but the method needs at least "
                    f"one. Known: {', '.join(sorted(PERTURBATIONS))}. "
                    "To train without any, use method 'supervised'."
                )
            for kind in kinds:
                if kind not in PERTURBATIONS:
                    raise unknown("kind of decoder in method.decoders", kind, PERTURBATIONS)

    settings: Settings

    def __init__(self, build: Callable[[], Network], settings: Settings) -> None:
        super().__init__(build, settings)
        self.perturbations = [PERTURBATIONS[kind] for kind in decoder_kinds(settings.decoders)]
        self.branches = nn.ModuleList(Branch(self.network) for _ in self.perturbations)

    def label(self, batch: Batch, progress: float) -> LabelSets:
        """E-step: the labels are the probabilities of the main decoder."""
        unlabeled = self.unlabeled(batch)
        outputs = forward_together(self.network, batch.labeled.image, unlabeled.image)
        target = outputs[1].logits.detach().sigmoid()
        weight = mask_padding(unlabeled, torch.ones_like(target))
        return (PseudoLabels(target, weight, outputs=outputs),)

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        """M-step: the main decoder learns given labels, the auxiliary ones learn to agree."""
        (labels,) = pseudo
        on_labeled, on_unlabeled = labels.outputs
        loss = self.disagreement(on_unlabeled.trunk, labels, batch.generator)
        return self.semi_supervised(batch, on_labeled, labels, loss, progress)

    def disagreement(
        self, trunk: Tensor, pseudo: PseudoLabels, generator: torch.Generator
    ) -> Tensor:
        """Mean squared error of the auxiliary decoders, each on its own perturbed trunk."""
        visible = pseudo.target * pseudo.weight  # padding contains no object
        errors = []
        for branch, perturb in zip(self.branches, self.perturbations, strict=True):
            logits = branch(perturb(trunk, visible, generator), pseudo.target.shape[2:])
            errors.append(squared_error(logits, pseudo.target, pseudo.weight))
        return torch.stack(errors).mean()
