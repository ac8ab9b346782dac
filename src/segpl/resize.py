"""Linear interpolation of images and volumes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

MODES = {2: "bilinear", 3: "trilinear"}


def resize_linear(values: Tensor, sides: Sequence[int]) -> Tensor:
    """Interpolate values (B, C, *S) to a grid of `sides`."""
    return F.interpolate(values, tuple(sides), mode=MODES[len(sides)], align_corners=False)
