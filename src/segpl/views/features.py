"""Perturbations of features for cross-consistency training [Ouali2020].

Each takes a trunk (B, G, *S) and the probabilities (B, K, *S) predicted from it, which may lie on a
finer grid, and returns the perturbed trunk. The constants are those of the authors' code.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Perturbation = Callable[[Tensor, Tensor, torch.Generator], Tensor]

MAX_FEATURE_NOISE = 0.3  # largest relative change of a feature
# drop voxels above this fraction of the strongest activation; one version of the authors' code uses
# (0.6, 0.9)
DROP_ABOVE = (0.7, 0.9)
CHANNEL_DROP_RATE = 0.5
CUTOUT_SIDE = 0.4  # as a fraction of the objects' bounding box


def objects_in(probability: Tensor, trunk: Tensor) -> Tensor:
    """Return a bool mask (B, 1, *S) of predicted foreground on the grid of the trunk."""
    foreground = probability if probability.shape[1] == 1 else probability[:, 1:]
    strongest = foreground.amax(1, keepdim=True)  # (B, 1, *S)
    if strongest.shape[2:] != trunk.shape[2:]:
        strongest = F.interpolate(strongest, trunk.shape[2:], mode="nearest-exact")
    return strongest > 0.5


def feature_noise(trunk: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
    """Scale every feature by a random factor, the same for all images of a batch."""
    change = torch.empty_like(trunk[:1]).uniform_(
        -MAX_FEATURE_NOISE, MAX_FEATURE_NOISE, generator=generator
    )
    return trunk + trunk * change


def drop_strongest(trunk: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
    """Drop the voxels whose mean activation is close to the strongest of their image.

    Differs from the source: the activation is the mean of absolute values, because a trunk may have
    negative features. For ReLU features both are the same.
    """
    strength = trunk.detach().abs().mean(1, keepdim=True, dtype=torch.float32)  # (B, 1, *S)
    strongest = strength.amax(tuple(range(1, trunk.dim())), keepdim=True)  # (B, 1, *1)
    fraction = torch.empty_like(strongest[:1]).uniform_(*DROP_ABOVE, generator=generator)
    return trunk.masked_fill(strength >= fraction * strongest, 0)


def drop_channels(trunk: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
    """Drop whole channels and scale up the others to keep the mean."""
    single = (*trunk.shape[:2], *[1] * (trunk.dim() - 2))
    drawn = torch.rand(single, generator=generator, device=trunk.device)
    return trunk * ((drawn >= CHANNEL_DROP_RATE).to(trunk.dtype) / (1 - CHANNEL_DROP_RATE))


def drop_objects(trunk: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
    """Drop the predicted objects and keep their context."""
    return trunk.masked_fill(objects_in(probability, trunk), 0)


def drop_context(trunk: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
    """Drop the context and keep the predicted objects."""
    return trunk.masked_fill(~objects_in(probability, trunk), 0)


def cut_out_boxes(trunk: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
    """Drop a random box inside the bounding box of each image's objects.

    Differs from the source: one box for all objects of an image instead of one per large object,
    with sides rounded up, so that thin objects are cut too.
    """
    found = objects_in(probability, trunk)  # (B, 1, *S)
    box = torch.ones_like(found)
    for axis in range(2, trunk.dim()):
        others = tuple(a for a in range(1, trunk.dim()) if a != axis)
        hit = found.any(others, keepdim=True)  # (B, 1, .., side, ..)
        index = torch.arange(trunk.shape[axis], device=trunk.device)
        index = index.view(*[-1 if a == axis else 1 for a in range(trunk.dim())])
        first = index.where(hit, trunk.shape[axis]).amin(axis, keepdim=True)
        length = ((index + 1).where(hit, 0).amax(axis, keepdim=True) - first).clamp(min=0)
        side = (CUTOUT_SIDE * length).ceil()  # (B, 1, *1)
        drawn = torch.rand(side.shape, generator=generator, device=trunk.device)
        # rounding could push the start one voxel too far
        start = first + (drawn * (length - side + 1)).floor().minimum(length - side)
        box = box & (index >= start) & (index < start + side)
    return trunk.masked_fill(box, 0)


PERTURBATIONS: dict[str, Perturbation] = {
    "noise": feature_noise,
    "dropout": drop_strongest,
    "channels": drop_channels,
    "objects": drop_objects,
    "contexts": drop_context,
    "cutouts": cut_out_boxes,
}
