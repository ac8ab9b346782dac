"""One U-Net for two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

CONVOLUTIONS: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}
UPSAMPLERS: dict[int, type[nn.ConvTranspose2d] | type[nn.ConvTranspose3d]] = {
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}
POOLS: dict[int, type[nn.AvgPool2d] | type[nn.AvgPool3d]] = {2: nn.AvgPool2d, 3: nn.AvgPool3d}
DROPOUTS: dict[int, type[nn.Module]] = {2: nn.Dropout2d, 3: nn.Dropout3d}
EPSILON = 1e-5  # of variances, as in torch


class InstanceNorm(nn.Module):
    r"""Every channel of every image by its own mean and variance [Ulyanov2016].

    $$y = \gamma\, \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$$

    torch's own copies images to another layout before and back after it, which took half of a step
    on a GPU. Plain sums need neither copy, and a compiler joins them with their neighbors.
    """

    def __init__(self, width: int, *, affine: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width)) if affine else None
        self.bias = nn.Parameter(torch.zeros(width)) if affine else None

    def forward(self, features: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return F.instance_norm(features, weight=self.weight, bias=self.bias, eps=EPSILON)
        axes = list(range(2, features.dim()))
        exact = features.float()  # (B, F, *S)
        variance, mean = torch.var_mean(exact, axes, correction=0, keepdim=True)
        normed = (exact - mean) * torch.rsqrt(variance + EPSILON)
        if self.weight is not None and self.bias is not None:
            shape = (-1, *[1] * len(axes))
            normed = normed * self.weight.view(shape) + self.bias.view(shape)
        return normed.to(features.dtype)


NORMS: dict[str, dict[int, type[nn.Module]]] = {
    "instance": {2: InstanceNorm, 3: InstanceNorm},
    "batch": {2: nn.BatchNorm2d, 3: nn.BatchNorm3d},
}


def two_convolutions(
    dims: int,
    channels: int,
    width: int,
    *,
    norm: str,
    stride: Sequence[int] = (),
    kernel: Sequence[int] = (),
) -> list[nn.Module]:
    """Two convolutions, each normalized, with a rectifier between them; the first may stride.

    Without a `stride` none does; without a `kernel` it has 3 voxels along each axis.
    """
    convolution, normalization = CONVOLUTIONS[dims], NORMS[norm][dims]
    steps, sides = tuple(stride) or (1,) * dims, tuple(kernel) or (3,) * dims
    margin = tuple(side // 2 for side in sides)
    return [
        convolution(channels, width, sides, stride=steps, padding=margin, bias=False),  # type: ignore[arg-type]  # one call for both dimensions
        normalization(width, affine=True),
        nn.LeakyReLU(0.01, inplace=True),
        convolution(width, width, sides, padding=margin, bias=False),  # type: ignore[arg-type]  # one call for both dimensions
        normalization(width, affine=True),
    ]


class Block(nn.Sequential):
    """Two convolutions, each normalized and rectified; the first may stride."""

    def __init__(
        self,
        dims: int,
        channels: int,
        width: int,
        *,
        norm: str,
        stride: Sequence[int] = (),
        kernel: Sequence[int] = (),
    ) -> None:
        super().__init__(
            *two_convolutions(dims, channels, width, norm=norm, stride=stride, kernel=kernel),
            nn.LeakyReLU(0.01, inplace=True),
        )


class ResidualBlock(nn.Module):
    r"""A block that adds its input before it is rectified for the last time [He2016].

    $$y = \phi(N(W_2\, \phi(N(W_1 x))) + s(x))$$

    with $\phi$ the rectifier and $N$ a normalization. The shortcut $s$ is $x$ itself; where the
    block strides, means of its voxels [He2019], and where the width changes, a 1x1(x1) convolution
    with a normalization of its own, as in the code of [Isensee2024].
    """

    def __init__(
        self,
        dims: int,
        channels: int,
        width: int,
        *,
        norm: str,
        stride: Sequence[int] = (),
        kernel: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *two_convolutions(dims, channels, width, norm=norm, stride=stride, kernel=kernel)
        )
        self.shortcut = nn.Sequential()
        if any(step > 1 for step in stride):
            self.shortcut.append(POOLS[dims](tuple(stride)))  # type: ignore[arg-type]  # one call for both dimensions
        if channels != width:
            self.shortcut.append(CONVOLUTIONS[dims](channels, width, 1, bias=False))
            self.shortcut.append(NORMS[norm][dims](width, affine=True))
        self.rectify = nn.LeakyReLU(0.01, inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        rectified: Tensor = self.rectify(self.block(features) + self.shortcut(features))
        return rectified


class UNet(nn.Module):
    """Encoder and decoder with skip connections [Ronneberger2015].

    `strides` has one row for each halving and one number for each axis, so that an axis too thin to
    be halved keeps its size. `kernels` has one row for each level, that of the image first; without
    it all have 3 voxels along each axis. Widths double from `width` up to `max_width`. `dropout` is
    the chance of a channel to be left out after the deepest block and before the last layer, as in
    the V-Net of [Yu2019]; at 0 there is no such layer.

    With `residual` the blocks of the encoder add their input.
    """

    def __init__(
        self,
        *,
        dims: int,
        channels: int,
        outputs: int,
        width: int,
        strides: Sequence[Sequence[int]],
        max_width: int = 320,
        norm: str = "instance",
        dropout: float = 0.0,
        kernels: Sequence[Sequence[int]] = (),
        residual: bool = False,
    ) -> None:
        super().__init__()
        widths = [min(width * 2**level, max_width) for level in range(len(strides) + 1)]
        kernels = kernels or [()] * len(widths)
        encoder = ResidualBlock if residual else Block
        self.stem = encoder(dims, channels, width, norm=norm, kernel=kernels[0])
        self.down = nn.ModuleList(
            encoder(
                dims,
                widths[level],
                widths[level + 1],
                norm=norm,
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
                UPSAMPLERS[dims](widths[level + 1], widths[level], stride, stride=stride)  # type: ignore[arg-type]  # one call for both dimensions
            )
            self.merge.append(
                Block(dims, 2 * widths[level], widths[level], norm=norm, kernel=kernels[level])
            )
        self.last = CONVOLUTIONS[dims](width, outputs, 1)
        self.trunk = 2 * width if strides else width
        # the last block is the deepest where nothing is halved, and drops once
        self.drop_deepest = DROPOUTS[dims](dropout) if dropout and strides else None
        self.drop_last = DROPOUTS[dims](dropout) if dropout else None

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits, the input of the last layer, and the input of the last block."""
        skips = [self.stem(image)]
        for block in self.down:
            skips.append(block(skips[-1]))
        features = trunk = skips.pop()
        if self.drop_deepest is not None:
            features = self.drop_deepest(features)
        for up, merge in zip(self.up, self.merge, strict=True):
            trunk = torch.cat([up(features), skips.pop()], 1)
            features = merge(trunk)
        if self.drop_last is not None:
            features = self.drop_last(features)
        return self.last(features), features, trunk
