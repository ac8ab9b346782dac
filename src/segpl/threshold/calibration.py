"""Temperature scaling, and the calibration error it reduces."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from segpl.losses import cross_entropy, supervised_loss
from segpl.threshold.histogram import UNIT, bin_sums

MAX_LOG_TEMPERATURE = math.log(50)


class Temperature(nn.Module):
    r"""Divides logits by one learned temperature, or by one per class.

    $$z \mapsto z / \tau, \quad \tau = \exp(\ell \tanh(t / \ell))$$

    $t$ is learned and starts at 0, where $\tau = 1$. The bound $\ell = \log 50$ keeps $\tau$ in
    [1/50, 50]: a network that makes no mistake on its labeled crops has no finite optimum.
    """

    def __init__(self, classes: int = 1) -> None:
        super().__init__()
        self.log_temperature = nn.Parameter(torch.zeros(classes))

    @property
    def value(self) -> Tensor:
        """The temperature (1,) or temperatures (K,)."""
        return (MAX_LOG_TEMPERATURE * (self.log_temperature / MAX_LOG_TEMPERATURE).tanh()).exp()

    def forward(self, logits: Tensor) -> Tensor:
        """Divide logits (B, K, *S); half precision becomes float32."""
        return logits / self.value.view(1, -1, *[1] * (logits.dim() - 2))

    def loss(self, logits: Tensor, label: Tensor) -> Tensor:
        """Binary cross-entropy of the divided logits against labels (B, *S), without IGNORE voxels.

        The gradient reaches only the temperature, not the logits.
        """
        return supervised_loss(self(logits.detach()), label, cross_entropy)


@torch.no_grad()
def batch_calibration_error(
    probability: Tensor, target: Tensor, weight: Tensor, *, bins: int = 15
) -> Tensor:
    r"""Expected calibration error of a batch, on its device.

    $$\sum_b \frac{W_b}{W} \left| \bar y_b - \bar p_b \right|
      = \frac{1}{W} \sum_b \Bigl| \sum_{v \in b} w_v (p_v - y_v) \Bigr|$$

    All tensors are (B, K, *S), each channel a binary problem. The result is 0 if all weights are 0.
    Bins are over the probability of foreground, not over the confidence: otherwise underconfident
    background would cancel overconfident foreground. `evaluate.uncertainty` computes the same
    measure for whole volumes, in float64.
    """
    probability = probability.float()
    weight = weight.float().expand_as(probability)  # (B, K, *S)
    index = (probability * bins).long().clamp_(0, bins - 1)
    excess = bin_sums(weight * (probability - target), index, bins)  # (bins,)
    total = weight.sum().clamp(min=torch.finfo(torch.float32).tiny)
    return excess.abs().sum().to(torch.float32) * UNIT / total
