"""An auxiliary decoder that shares a network up to its last block."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from segpl.networks.convolution import CONVOLUTIONS
from segpl.networks.network import Network
from segpl.networks.unet import Block
from segpl.resize import resize_linear


class Branch(nn.Module):
    """A second last block and output layer on the trunk of `network`.

    For our U-Net, the branch mirrors the last block and output layer. The blocks of MONAI networks
    are unknown, so there the branch reads the input of the output layer and adds one block.
    Instance normalization keeps a perturbed image out of the statistics of the others.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        dims, width = network.dims, network.features
        self.block = Block(dims, network.trunk, width, norm="instance", kernel=network.kernel)
        self.last = CONVOLUTIONS[dims](width, network.outputs, 1)

    def forward(self, trunk: Tensor, sides: Sequence[int]) -> Tensor:
        """Return logits (B, K, *sides) for a trunk (B, G, *S), which may be coarser."""
        logits: Tensor = self.last(self.block(trunk)).float()
        return logits if logits.shape[2:] == tuple(sides) else resize_linear(logits, sides)
