"""One face for every network: an image in, logits and features out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from segpl.errors import InputError
from segpl.types import NetOutput


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    name: str = "unet"  # `unet`, or the name of a class in monai.networks.nets
    width: int = 0  # channels of the first encoder; 0: as planned
    max_width: int = 320  # no layer is wider
    norm: str = "instance"  # `instance` or `batch`
    dropout: float = 0.0  # of whole channels, at the deepest block and before the last layer
    residual: bool = True  # each block of the encoder of the U-Net adds its input
    options: dict[str, Any] = field(default_factory=dict)  # arguments of a MONAI network

    def __post_init__(self) -> None:
        if self.width < 0 or self.max_width < 1:
            raise InputError(
                f"network.width is {self.width} and network.max_width {self.max_width}: a network "
                "needs channels. Use 0 for the planned width, such as 8, and 320 for the most."
            )
        if not 0 <= self.dropout < 1:
            raise InputError(
                f"network.dropout is {self.dropout}: a chance lies from 0 to below 1, such as 0.5."
            )


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """What the plan fixes about a network."""

    dims: int
    channels: int
    outputs: int
    width: int
    patch: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    kernels: tuple[tuple[int, ...], ...] = ()  # of each level; none: 3 voxels along each axis


class Network(nn.Module):
    """A body that returns logits, the features before its last layer, and its trunk."""

    def __init__(
        self,
        body: nn.Module,
        *,
        dims: int,
        outputs: int,
        features: int,
        trunk: int,
        kernel: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        self.body = body
        self.dims = dims
        self.outputs = outputs
        self.features = features
        self.trunk = trunk
        self.kernel = kernel  # of the last block, where it is known
        self.is_frozen = False
        self.is_in_training = True

    def freeze(self) -> Network:
        """Make a teacher of it: no gradient moves it, and it never trains its own statistics."""
        self.is_frozen = True
        self.requires_grad_(False)
        return self.train(self.is_in_training)

    def train(self, mode: bool = True) -> Network:
        self.is_in_training = mode
        # batch statistics of a teacher would leak the student's batch into its target
        super().train(mode and not self.is_frozen)
        return self

    def forward(self, image: Tensor) -> NetOutput:
        # a compiled body is for training: every other shape would be compiled anew, for minutes
        body = self.body if self.is_in_training else self.body.forward
        logits, features, trunk = body(image)
        return NetOutput(logits.float(), features, trunk)
