"""Linear interpolation and average pooling of images and volumes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

POOLED_SIDE = 4  # voxels per axis that threshold heads pool to
MODES = {2: "bilinear", 3: "trilinear"}


def resize_linear(values: Tensor, sides: Sequence[int]) -> Tensor:
    """Interpolate values (B, C, *S) to a grid of `sides`."""
    return F.interpolate(values, tuple(sides), mode=MODES[len(sides)], align_corners=False)


def average_pool(features: Tensor, side: int) -> Tensor:
    """Average features (B, F, *S) over cells of a regular grid, (B, F, *side).

    torch's adaptive pooling computes each output in a single GPU thread, which takes longer than
    the rest of a small head. Where `side` divides the shape, a plain mean gives the same result.
    """
    dims = features.dim() - 2
    if any(length % side for length in features.shape[2:]):
        return (
            F.adaptive_avg_pool2d(features, side)
            if dims == 2
            else F.adaptive_avg_pool3d(features, side)
        )
    is_channels_last = features.stride(1) == 1
    if is_channels_last:  # the gradient gets the same layout
        features = features.movedim(1, -1)
    for axis in range(dims):
        at = 2 + 2 * axis - is_channels_last
        features = features.unflatten(at, (side, -1))  # type: ignore[no-untyped-call]  # torch lacks the annotation
    first = 3 - is_channels_last
    pooled = features.mean(tuple(range(first, first + 2 * dims, 2)))
    return pooled.movedim(-1, 1) if is_channels_last else pooled
