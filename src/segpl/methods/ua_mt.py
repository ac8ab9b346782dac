"""UA-MT: a mean teacher that labels only the voxels of which it is certain."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from segpl.errors import require_range
from segpl.losses import voxelwise_entropy
from segpl.methods.mean_teacher import MeanTeacher
from segpl.methods.teacher import with_dropout
from segpl.schedules import sigmoid_ramp
from segpl.types import Batch, LabelSets
from segpl.views.intensity import add_clipped_noise

DRAWS_PER_PASS = 2  # as in the authors' code; more would need more memory


class UncertaintyAwareMeanTeacher(MeanTeacher):
    r"""A mean teacher whose uncertain voxels are excluded [Yu2019].

    $$\bar p = \frac{1}{T} \sum_{t=1}^{T} p(x_u + \xi_t;\, \theta'_t), \quad
      u = -\bar p \ln \bar p - (1 - \bar p) \ln (1 - \bar p)$$
    $$\text{E: } y_u = p(x_u + \xi';\, \theta'), \quad
      m = \mathbb{1}\left[u < \left(h + (1 - h)\, w(t)\right) \ln 2\right]$$
    $$\text{M: } L_L(p_l, y_l) + \alpha\, w(t)\,
      \frac{\sum m\, (p(x_u + \xi;\, \theta) - y_u)^2}{\sum m}$$

    $\theta'_t$ is the teacher with a new draw of dropout, which follows the deepest block and the
    last one, as in the source. As in the authors' code, the $T$ draws only decide which voxels
    count. The target comes from a separate pass on another noisy view.

    Differs from the source: each sigmoid channel has its own mask $m$. The teacher uses dropout
    only in these draws, and never batch statistics. The student's view is noisy, too.
    """

    name: ClassVar[str] = "ua-mt"
    summary: ClassVar[str] = "mean teacher that excludes voxels with uncertain labels"
    use: ClassVar[str] = "as a baseline from the literature"
    network_defaults: ClassVar[Mapping[str, Any]] = {"dropout": 0.5}

    @dataclass(frozen=True)
    class Settings(MeanTeacher.Settings):
        draws: int = 8  # T, draws of noise and dropout per image
        # h; entropy limit at the start, as a fraction of the maximum; rises to 1 with alpha
        entropy_share: float = 0.75
        predict_by: str = "student"  # `student`, as in the authors' code, or `teacher`

        def __post_init__(self) -> None:
            super().__post_init__()
            require_range(self, 1, math.inf, "draws")
            require_range(self, 0, 1, "entropy_share")

    settings: Settings

    @torch.no_grad()
    def label(self, batch: Batch, progress: float) -> LabelSets:
        """E-step: the teacher's probabilities, where its draws leave little uncertainty."""
        (labels,) = super().label(batch, progress)
        start = self.settings.entropy_share
        limit = start + (1 - start) * sigmoid_ramp(progress, end=self.settings.ramp_end)
        uncertainty = self.uncertainty(self.unlabeled(batch).image, batch.generator)
        weight = labels.weight * (uncertainty < limit * math.log(2))  # (B, K, *S)
        kept = weight.sum() / labels.weight.sum().clamp(min=1)
        return (replace(labels, weight=weight, monitors={"kept": kept}),)

    def uncertainty(self, image: Tensor, generator: torch.Generator) -> Tensor:
        """Entropy (B, K, *S) of the mean over several draws of noise and dropout."""
        draws = self.settings.draws
        total = torch.zeros((), device=image.device)
        with with_dropout(self.teacher):
            for first in range(0, draws, DRAWS_PER_PASS):
                count = min(DRAWS_PER_PASS, draws - first)
                copies = torch.cat([image] * count)
                views = add_clipped_noise(copies, self.settings.noise, generator)
                answers = self.teacher(views).logits.sigmoid()  # (count * B, K, *S)
                total = total + answers.unflatten(0, (count, -1)).sum(0)
        return voxelwise_entropy(total / draws)
