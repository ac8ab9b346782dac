"""Average pooling to a fixed number of voxels along each axis."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def average_pool(features: Tensor, side: int) -> Tensor:
    """Features (B, F, *S) as means of equal parts, (B, F, *side).

    torch's own adaptive pooling gives every mean to one thread of a GPU, which takes longer than
    the rest of a small head; where the parts are equal, a plain mean does the same.
    """
    dims = features.dim() - 2
    if any(length % side for length in features.shape[2:]):
        return (
            F.adaptive_avg_pool2d(features, side)
            if dims == 2
            else F.adaptive_avg_pool3d(features, side)
        )
    for axis in range(dims):
        features = features.unflatten(2 + 2 * axis, (side, -1))  # type: ignore[no-untyped-call]  # torch gives it no types
    return features.mean(tuple(range(3, 3 + 2 * dims, 2)))
