"""A network that fills in an image: a layer of its own on the features before the last layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from segpl.networks.branch import MODES
from segpl.networks.network import Network
from segpl.networks.unet import CONVOLUTIONS


class Restorer(nn.Module):
    """`network` up to the features before its last layer, and a 1x1(x1) layer that shows them.

    Features of some networks are coarser than the image: what is read off them is interpolated.
    """

    def __init__(self, network: Network, channels: int) -> None:
        super().__init__()
        self.network = network
        self.show = CONVOLUTIONS[network.dims](network.features, channels, 1)

    def forward(self, image: Tensor) -> Tensor:
        """An image (B, C, *S) for the one given, in float32."""
        shown: Tensor = self.show(self.network(image).features).float()
        if shown.shape[2:] == image.shape[2:]:
            return shown
        return F.interpolate(shown, tuple(image.shape[2:]), mode=MODES[self.network.dims])

    def reached(self, image: Tensor) -> list[str]:
        """Names of the network's weights that an answer to `image` depends on.

        Neither the last layer nor those of coarser levels are among them. Asked of the graph and
        not of gradients in training: a compiled network gives zeros where there is none.
        """
        self.network.eval()
        features = self.network(image).features
        weights = dict(self.network.named_parameters())
        slopes = torch.autograd.grad(features.sum(), list(weights.values()), allow_unused=True)
        self.network.train()
        return [name for name, slope in zip(weights, slopes, strict=True) if slope is not None]
