"""A U-Net for 2D and 3D images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from segpl.networks.fused import (
    ALIGNMENT,
    VARIANCE_EPSILON,
    align,
    convolve_and_normalize,
    is_in_precision,
    project,
    upsample_and_concatenate,
)
from segpl.resize import POOLED_SIDE

CONVOLUTIONS: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}
UPSAMPLERS: dict[int, type[nn.ConvTranspose2d] | type[nn.ConvTranspose3d]] = {
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}
POOLS: dict[int, type[nn.AvgPool2d] | type[nn.AvgPool3d]] = {2: nn.AvgPool2d, 3: nn.AvgPool3d}
CHANNEL_DROPOUTS: dict[int, type[nn.Module]] = {2: nn.Dropout2d, 3: nn.Dropout3d}
MAX_WIDTH = 320  # channels; no deeper level is wider
SLOPE = 0.01  # of the leaky ReLU


class InstanceNorm(nn.Module):
    r"""Normalize each channel of each image by its own mean and variance [Ulyanov2016].

    $$y = \gamma\, \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$$

    torch's kernel converts channels-last images to another layout and back, which took half of a
    training step on a GPU. Plain sums need no conversion, and the compiler fuses them.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, features: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return F.instance_norm(
                features, weight=self.weight, bias=self.bias, eps=VARIANCE_EPSILON
            )
        axes = list(range(2, features.dim()))
        exact = features.float()  # (B, F, *S)
        variance, mean = torch.var_mean(exact, axes, correction=0, keepdim=True)
        normed = (exact - mean) * torch.rsqrt(variance + VARIANCE_EPSILON)
        shape = (-1, *[1] * len(axes))
        return (normed * self.weight.view(shape) + self.bias.view(shape)).to(features.dtype)


def two_convolutions(
    dims: int, channels: int, width: int, *, stride: Sequence[int] = (), kernel: Sequence[int] = ()
) -> list[nn.Module]:
    """Two normalized convolutions with a leaky ReLU between them.

    The first one applies the `stride`, by default 1. The `kernel` has 3 voxels per axis by default.
    """
    convolution = CONVOLUTIONS[dims]
    steps, sides = tuple(stride) or (1,) * dims, tuple(kernel) or (3,) * dims
    margin = tuple(side // 2 for side in sides)
    return [
        convolution(channels, width, sides, stride=steps, padding=margin, bias=False),  # type: ignore[arg-type]  # same call in 2D and 3D
        InstanceNorm(width),
        nn.LeakyReLU(SLOPE, inplace=True),
        convolution(width, width, sides, padding=margin, bias=False),  # type: ignore[arg-type]  # same call in 2D and 3D
        InstanceNorm(width),
    ]


class Block(nn.Sequential):
    """Two convolutions, each followed by normalization and leaky ReLU; the first may stride."""

    def __init__(self, dims: int, channels: int, width: int, **options: Any) -> None:
        layers = two_convolutions(dims, channels, width, **options)
        super().__init__(*layers, nn.LeakyReLU(SLOPE, inplace=True))


class ResidualBlock(nn.Module):
    r"""A block that adds its input before the last leaky ReLU [He2016].

    $$y = \phi(N(W_2\, \phi(N(W_1 x))) + s(x))$$

    with $\phi$ the leaky ReLU and $N$ a normalization. The shortcut $s$ is the identity. If the
    block strides, $s$ average-pools [He2019]; if the width changes, it adds a normalized 1x1(x1)
    convolution, as in the code of [Isensee2024].
    """

    def __init__(
        self, dims: int, channels: int, width: int, *, stride: Sequence[int] = (), **options: Any
    ) -> None:
        super().__init__()
        layers = two_convolutions(dims, channels, width, stride=stride, **options)
        self.block = nn.Sequential(*layers)
        self.shortcut = nn.Sequential()
        if any(step > 1 for step in stride):
            self.shortcut.append(POOLS[dims](tuple(stride)))  # type: ignore[arg-type]  # same call in 2D and 3D
        if channels != width:
            self.shortcut.append(CONVOLUTIONS[dims](channels, width, 1, bias=False))
            self.shortcut.append(InstanceNorm(width))
        self.activation = nn.LeakyReLU(SLOPE, inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        output: Tensor = self.activation(self.block(features) + self.shortcut(features))
        return output

    def fused_shortcut(self, features: Tensor) -> Tensor:
        layers: list[Any] = list(self.shortcut)
        stride = (1,) * (features.dim() - 2)
        if layers and isinstance(layers[0], tuple(POOLS.values())):
            stride = layers.pop(0).kernel_size
            if not layers:
                return pool_channels_last(features, stride)
        if not layers:
            return features
        convolution, norm = layers
        # pooling and a 1x1(x1) convolution are one convolution with sides equal to its stride
        weight = (convolution.weight / math.prod(stride)).expand(-1, -1, *stride)
        return convolve_and_normalize(
            features, weight, norm, stride=stride, padding=(0,) * len(stride), slope=1.0
        )


def fused_convolutions(
    layers: nn.Sequential, features: Tensor, residual: Tensor | None = None
) -> Tensor:
    """`two_convolutions`, the residual and a leaky ReLU with Triton kernels."""
    parts: list[Any] = list(layers)
    first, norm, _, second, last_norm = parts[:5]
    steps, margin = first.stride, first.padding
    hidden = convolve_and_normalize(
        features, first.weight, norm, stride=steps, padding=margin, slope=SLOPE
    )
    return convolve_and_normalize(
        hidden,
        second.weight,
        last_norm,
        stride=second.stride,
        padding=second.padding,
        slope=SLOPE,
        residual=residual,
    )


class UNet(nn.Module):
    """Encoder and decoder with skip connections [Ronneberger2015].

    Each level doubles the channels, from `width` up to MAX_WIDTH. `strides` have one row per
    downsampling, and 1 keeps a thin axis. `kernels` have one row per level, finest first; empty
    means 3 voxels per axis. A `dropout` above 0 drops channels after the deepest block and before
    the last layer, as in the V-Net of [Yu2019]. With `residual`, the encoder has residual blocks.
    """

    def __init__(
        self,
        *,
        dims: int,
        channels: int,
        outputs: int,
        width: int,
        strides: Sequence[Sequence[int]],
        dropout: float = 0.0,
        kernels: Sequence[Sequence[int]] = (),
        residual: bool = False,
    ) -> None:
        super().__init__()
        widths = [min(width * 2**level, max(MAX_WIDTH, width)) for level in range(len(strides) + 1)]
        kernels = kernels or [()] * len(widths)
        encoder = ResidualBlock if residual else Block
        self.stem = encoder(dims, channels, width, kernel=kernels[0])
        self.down = nn.ModuleList(
            encoder(
                dims,
                widths[level],
                widths[level + 1],
                stride=stride,
                kernel=kernels[level + 1],
            )
            for level, stride in enumerate(strides)
        )
        self.up = nn.ModuleList()
        self.merge = nn.ModuleList()
        for level in reversed(range(len(strides))):
            stride = tuple(strides[level])
            self.up.append(
                UPSAMPLERS[dims](widths[level + 1], widths[level], stride, stride=stride)  # type: ignore[arg-type]  # same call in 2D and 3D
            )
            self.merge.append(Block(dims, 2 * widths[level], widths[level], kernel=kernels[level]))
        self.last = CONVOLUTIONS[dims](width, outputs, 1)
        self.trunk = 2 * width if strides else width
        # without downsampling, the last block is also the deepest: drop only once
        self.drop_deepest = CHANNEL_DROPOUTS[dims](dropout) if dropout and strides else None
        self.drop_last = CHANNEL_DROPOUTS[dims](dropout) if dropout else None
        self.can_fuse = width % ALIGNMENT == 0
        self.is_fused = False  # whether to use the Triton kernels under bfloat16 autocast
        self.pools = False  # whether these kernels also pool the features, where they can

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return the logits, the input of the last layer, and the input of the last block.

        With `pools`, the Triton kernels may also return pooled features.
        """
        is_fused = self.is_fused and is_in_precision(image)
        run = run_fused if is_fused else run_plain
        skips = [run(self.stem, align(image) if is_fused else image)]
        for block in self.down:
            skips.append(run(block, skips[-1]))
        features = trunk = skips.pop()
        if self.drop_deepest is not None:
            features = self.drop_deepest(features)
        for up, merge in zip(self.up, self.merge, strict=True):
            if is_fused:
                trunk = upsample_and_concatenate(features, up, skips.pop())
            else:
                trunk = torch.cat([up(features), skips.pop()], 1)
            features = run(merge, trunk)
        if self.drop_last is not None:
            features = self.drop_last(features)
        if not is_fused:
            return self.last(features), features, trunk
        can_pool = self.pools and not any(size % POOLED_SIDE for size in features.shape[2:])
        logits, pooled = project(features, self.last, POOLED_SIDE if can_pool else 1)
        return (logits, features, trunk, *([] if pooled is None else [pooled]))


def run_plain(block: nn.Module, features: Tensor) -> Tensor:
    output: Tensor = block(features)
    return output


def run_fused(block: nn.Module, features: Tensor) -> Tensor:
    if isinstance(block, ResidualBlock):
        return fused_convolutions(block.block, features, block.fused_shortcut(features))
    assert isinstance(block, Block)
    return fused_convolutions(block, features)


def pool_channels_last(features: Tensor, stride: Sequence[int]) -> Tensor:
    """Average pooling of (B, C, *S) without overlap, keeping the memory layout."""
    groups = [(size // step, step) for size, step in zip(features.shape[2:], stride, strict=True)]
    blocks = features.movedim(1, -1).reshape(features.shape[0], *sum(groups, ()), -1)
    return blocks.mean(tuple(range(2, 2 * len(groups) + 1, 2))).movedim(-1, 1)
