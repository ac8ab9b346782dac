"""The interface of every network: an image in, logits and features out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from segpl.errors import InputError, require_range
from segpl.networks.fused import predict_or_fall_back
from segpl.networks.graphs import Function, Recordable
from segpl.resize import POOLED_SIDE, average_pool
from segpl.types import NetOutput

MOST_CHANNELS = 4096  # of the first level


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    name: str = "unet"  # `unet`, or a segmentation network of MONAI such as `SegResNet`
    width: int = 0  # channels of the first level; 0: from the plan
    dropout: float = 0.0  # channel dropout at the deepest level and before the last layer
    residual: bool = True  # residual blocks in the encoder of `unet`
    options: dict[str, Any] = field(default_factory=dict)  # arguments of a MONAI network

    def __post_init__(self) -> None:
        require_range(self, 0, MOST_CHANNELS, "width", section="network")
        if not 0 <= self.dropout < 1:
            raise InputError(
                f"network.dropout is {self.dropout}: it must be at least 0 and below 1, for "
                "example 0.5."
            )


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """The properties of a network that the plan determines."""

    dims: int
    channels: int
    outputs: int
    width: int
    patch: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    kernels: tuple[tuple[int, ...], ...] = ()  # per level; empty: 3 voxels per axis


class NetworkShares(Protocol):
    """Splits the images of training calls over several processes."""

    def run(
        self, call: Callable[[Tensor], tuple[Tensor, ...]], image: Tensor
    ) -> tuple[Tensor, ...]: ...
    def average(self, tensors: Sequence[Tensor]) -> None: ...


class Network(Recordable, nn.Module):
    """Wraps a body that returns logits, the input of its last layer, and its trunk."""

    shares: NetworkShares | None = None  # if several processes train together

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
        self.kernel = kernel  # of the last block; empty if unknown
        self.pools = False  # whether training calls also return pooled features
        self.is_frozen = False
        self.is_in_training = True

    def pool_features(self) -> None:
        """Make training calls also return pooled features."""
        self.pools = True
        self.body.pools = True  # type: ignore[assignment]  # a flag of the U-Net

    def freeze(self) -> Network:
        """Turn it into a teacher: no gradients, and no batch statistics of its own."""
        self.is_frozen = True
        self.requires_grad_(False)
        return self.train(self.is_in_training)

    def train(self, mode: bool = True) -> Network:
        self.is_in_training = mode
        # a teacher's batch statistics would leak the student's batch into its target
        super().train(mode and not self.is_frozen)
        return self

    def recordable(self) -> nn.Module:
        return Function(self.run_body, self.body) if self.pools else self.body

    def forward(self, image: Tensor) -> NetOutput:
        if self.is_in_training:
            call = self.calls or self.run_body
            logits, *others = self.shares.run(call, image) if self.shares else call(image)
        else:  # not compiled: every new input shape would take minutes to compile
            logits, *others = predict_or_fall_back(self.body, image)
        return NetOutput(logits.float(), *others)

    def run_body(self, image: Tensor) -> tuple[Tensor, ...]:
        outputs: tuple[Tensor, ...] = self.body(image)
        if self.pools and len(outputs) == 3:
            return *outputs, average_pool(outputs[1], POOLED_SIDE)
        return outputs
