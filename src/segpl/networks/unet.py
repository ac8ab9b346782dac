"""One U-Net for two and three dimensions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

CONVOLUTIONS: dict[int, type[nn.Conv2d] | type[nn.Conv3d]] = {2: nn.Conv2d, 3: nn.Conv3d}
UPSAMPLERS: dict[int, type[nn.ConvTranspose2d] | type[nn.ConvTranspose3d]] = {
    2: nn.ConvTranspose2d,
    3: nn.ConvTranspose3d,
}
DROPOUTS: dict[int, type[nn.Module]] = {2: nn.Dropout2d, 3: nn.Dropout3d}
NORMS: dict[str, dict[int, type[nn.Module]]] = {
    "instance": {2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d},
    "batch": {2: nn.BatchNorm2d, 3: nn.BatchNorm3d},
}


class Block(nn.Sequential):
    """Two convolutions, each normalised and rectified; the first may stride."""

    def __init__(
        self, dims: int, channels: int, width: int, *, norm: str, stride: Sequence[int] = (1,)
    ) -> None:
        convolution, normalization = CONVOLUTIONS[dims], NORMS[norm][dims]
        steps = tuple(stride) if len(stride) == dims else (1,) * dims
        super().__init__(
            convolution(channels, width, 3, stride=steps, padding=1, bias=False),  # type: ignore[arg-type]  # one call for both dimensions
            normalization(width, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
            convolution(width, width, 3, padding=1, bias=False),
            normalization(width, affine=True),
            nn.LeakyReLU(0.01, inplace=True),
        )


class UNet(nn.Module):
    """Encoder and decoder with skip connections [Ronneberger2015].

    `strides` has one row for each halving and one number for each axis, so that an axis too thin to
    be halved keeps its size. Widths double from `width` up to `max_width`. `dropout` is the chance
    of a channel to be left out after the deepest block and before the last layer, as in the V-Net
    of [Yu2019]; at 0 there is no such layer.
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
    ) -> None:
        super().__init__()
        widths = [min(width * 2**level, max_width) for level in range(len(strides) + 1)]
        self.stem = Block(dims, channels, width, norm=norm)
        self.down = nn.ModuleList(
            Block(dims, widths[level], widths[level + 1], norm=norm, stride=stride)
            for level, stride in enumerate(strides)
        )
        self.up = nn.ModuleList()
        self.merge = nn.ModuleList()
        for level in reversed(range(len(strides))):
            stride = tuple(strides[level])
            self.up.append(
                UPSAMPLERS[dims](widths[level + 1], widths[level], stride, stride=stride)  # type: ignore[arg-type]  # one call for both dimensions
            )
            self.merge.append(Block(dims, 2 * widths[level], widths[level], norm=norm))
        self.last = CONVOLUTIONS[dims](width, outputs, 1)
        self.trunk = 2 * width if strides else width
        # the last block is the deepest where nothing is halved, and drops once
        self.drop_deepest = DROPOUTS[dims](dropout) if dropout and strides else None
        self.drop_last = DROPOUTS[dims](dropout) if dropout else None

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, the features before the last layer, and what the last block reads."""
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
