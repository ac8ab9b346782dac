"""Whether a probability of 0.8 is right in 8 of 10 voxels, and a temperature that makes it so."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from segpl.errors import InputError
from segpl.losses import cross_entropy, supervised_loss
from segpl.threshold.histogram import UNIT, bin_sums

LIMIT = math.log(50)  # temperatures from 1/50 to 50


class Temperature(nn.Module):
    r"""Divides logits by one learned number, or by one for each class.

    $$z \mapsto z / \tau, \quad \tau = \exp(\ell \tanh(t / \ell))$$

    $t$ is learned and starts at 0, where $\tau = 1$; near it $\tau = e^t$. The bound $\ell$ keeps
    $\tau$ above 0 where a network makes no mistake on its labeled crops, and no finite
    temperature is the best one.
    """

    def __init__(self, classes: int = 1) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(classes))

    @property
    def value(self) -> Tensor:
        """The temperature (1,), or the temperatures (K,)."""
        return (LIMIT * (self.log_temperature / LIMIT).tanh()).exp()

    def forward(self, logits: Tensor) -> Tensor:
        """Logits (B, K, *S), divided; half precision becomes single."""
        temperatures = len(self.log_temperature)
        if temperatures not in (1, logits.shape[1]):
            raise InputError(
                f"{temperatures} temperatures do not fit logits {tuple(logits.shape)}: "
                f"use one for all, or one for each of the {logits.shape[1]} channels."
            )
        return logits / self.value.view(1, -1, *[1] * (logits.dim() - 2))

    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        """Binary cross-entropy of divided logits against labels (B, *S), ignored voxels left out.

        Its gradient reaches the temperature alone: what was measured does not move to please the
        measure.
        """
        return supervised_loss(self(logits.detach()), label, cross_entropy)


@torch.no_grad()
def batch_calibration_error(
    probability: Tensor, target: Tensor, weight: Tensor, *, bins: int = 15
) -> Tensor:
    r"""Mean distance between probabilities and frequencies, over equal bins of probability.

    $$\sum_b \frac{W_b}{W} \left| \bar y_b - \bar p_b \right|
      = \frac{1}{W} \sum_b \Bigl| \sum_{v \in b} w_v (p_v - y_v) \Bigr|$$

    All are (B, K, *S), every channel a question of yes or no; the answer is one number, 0 where
    nothing counts. Bins are of the probability of yes, not of the larger of yes and no: background
    that is called too timidly would hide foreground that is called too boldly.
    """
    probability = probability.float()
    weight = weight.float().expand_as(probability)  # (B, K, *S)
    index = (probability * bins).long().clamp_(0, bins - 1)
    excess = bin_sums(weight * (probability - target), index, bins)  # (bins,)
    total = weight.sum().clamp(min=torch.finfo(torch.float32).tiny)
    return excess.abs().sum().to(torch.float32) * UNIT / total
