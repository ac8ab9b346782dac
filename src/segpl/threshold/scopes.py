"""Over what a threshold is shared: the shape of its distribution's tensors."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor
from torch.nn import functional as F

# scope -> whether images and whether classes have thresholds of their own
SCOPES: dict[str, tuple[bool, bool]] = {
    "batch": (False, False),
    "image": (True, False),
    "class": (False, True),
    "image-class": (True, True),
    "voxel": (True, False),
}
SUMMARIES = {
    "batch": "one threshold for all images of a batch, as in the paper",
    "image": "one for each image",
    "class": "one for each channel",
    "image-class": "one for each channel of each image",
    "voxel": "one for each voxel, from a coarse map",
}
MODES = {2: "bilinear", 3: "trilinear"}


def channels_of(scope: str, outputs: int) -> int:
    """Thresholds that a head has to describe at every place."""
    return outputs if SCOPES[scope][1] else 1


def shared(numbers: Tensor, scope: str, sides: Sequence[int]) -> Tensor:
    """Numbers (n, B, k, *coarse) of a head, as a threshold's distribution takes them.

    They come back as (n, b, k, 1...), b being B or 1. With the scope `voxel` they are (n, B, 1,
    *sides): the coarse places are joined by straight lines, so that neighbouring voxels have nearly
    the same threshold, and those a place apart are as independent as the head makes them.
    """
    own_image, _ = SCOPES[scope]
    if scope == "voxel":
        count, images = numbers.shape[:2]
        flat = F.interpolate(numbers.flatten(0, 1), tuple(sides), mode=MODES[len(sides)])
        return flat.unflatten(0, (count, images))  # type: ignore[no-untyped-call, no-any-return]  # torch gives it no types
    places = tuple(range(3, numbers.dim()))
    return numbers.mean(places if own_image else (1, *places), keepdim=True)
