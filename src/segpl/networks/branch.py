"""A second decoder that shares a network up to its last block."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from segpl.networks.network import Network
from segpl.networks.unet import CONVOLUTIONS, Block

MODES = {2: "bilinear", 3: "trilinear"}


class Branch(nn.Module):
    """A last block and an output layer of its own on the trunk of `network`.

    On the U-Net it mirrors what it stands beside. Blocks of other networks are not known: there it
    reads the features before the last layer, and is a block more than that layer. It normalizes
    each image alone, so that a perturbed image never reaches the statistics of another.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        dims, width = network.dims, network.features
        self.block = Block(dims, network.trunk, width, norm="instance", kernel=network.kernel)
        self.last = CONVOLUTIONS[dims](width, network.outputs, 1)

    def forward(self, trunk: Tensor, sides: Sequence[int]) -> Tensor:
        """Logits (B, K, *sides) of a trunk (B, G, *S) that may be coarser."""
        logits: Tensor = self.last(self.block(trunk)).float()
        if logits.shape[2:] == tuple(sides):
            return logits
        return F.interpolate(logits, tuple(sides), mode=MODES[len(sides)])
