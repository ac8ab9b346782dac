"""Perturbed views of an image's features [Ouali2020].

Each takes a trunk (B, G, *S) with the probabilities (B, K, *S) that were read off it, perhaps on a
finer grid, and gives the trunk perturbed. The numbers are those of the code that the authors
released.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Perturbation = Callable[[Tensor, Tensor, torch.Generator], Tensor]

NOISE = 0.3  # largest share by which a feature is changed
KEPT = (0.6, 0.9)  # share of the strongest activation from which on features are dropped
RATE = 0.5  # probability with which a channel is dropped
ERASED = 0.4  # side of a cut-out, as a share of the objects' bounding box


def objects_in(probability: Tensor, trunk: Tensor) -> Tensor:
    """Where the prediction sees any foreground, (B, 1, *S) bool on the grid of the trunk."""
    foreground = probability if probability.shape[1] == 1 else probability[:, 1:]
    strongest = foreground.amax(1, keepdim=True)  # (B, 1, *S)
    if strongest.shape[2:] != trunk.shape[2:]:
        strongest = F.interpolate(strongest, trunk.shape[2:], mode="nearest-exact")
    return strongest > 0.5


def noise(trunk: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
    """Every feature changed by a share of itself; all images of a batch by the same shares."""
    share = torch.empty_like(trunk[:1]).uniform_(-NOISE, NOISE, generator=generator)
    return trunk + trunk * share


def dropout(trunk: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
    """Without the voxels whose mean activation is near the strongest of their image.

    Differs from the source: the activation is the mean of absolute values, because a trunk need not
    be rectified. Of rectified features the two are the same.
    """
    strength = trunk.detach().abs().mean(1, keepdim=True, dtype=torch.float32)  # (B, 1, *S)
    strongest = strength.amax(tuple(range(1, trunk.dim())), keepdim=True)  # (B, 1, *1)
    share = torch.empty_like(strongest[:1]).uniform_(*KEPT, generator=generator)
    return trunk.masked_fill(strength >= share * strongest, 0)


def channels(trunk: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
    """Whole channels dropped, the others scaled up to keep the mean."""
    single = (*trunk.shape[:2], *[1] * (trunk.dim() - 2))
    drawn = torch.rand(single, generator=generator, device=trunk.device)
    return trunk * ((drawn >= RATE).to(trunk.dtype) / (1 - RATE))


def objects(trunk: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
    """Without the objects that were predicted: only their context is left."""
    return trunk.masked_fill(objects_in(probability, trunk), 0)


def contexts(trunk: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
    """Without the context of the objects that were predicted: only they are left."""
    return trunk.masked_fill(~objects_in(probability, trunk), 0)


def cutouts(trunk: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
    """Without a random box inside the bounding box of each image's objects.

    Differs from the source: one box for all objects of an image, not one for each large object,
    and its sides are rounded up, so that thin objects are cut as well.
    """
    found = objects_in(probability, trunk)  # (B, 1, *S)
    box = torch.ones_like(found)
    for axis in range(2, trunk.dim()):
        others = tuple(a for a in range(1, trunk.dim()) if a != axis)
        hit = found.any(others, keepdim=True)  # (B, 1, .., side, ..)
        place = torch.arange(trunk.shape[axis], device=trunk.device)
        place = place.view(*[-1 if a == axis else 1 for a in range(trunk.dim())])
        first = place.where(hit, trunk.shape[axis]).amin(axis, keepdim=True)
        length = ((place + 1).where(hit, 0).amax(axis, keepdim=True) - first).clamp(min=0)
        side = (ERASED * length).ceil()  # (B, 1, *1)
        drawn = torch.rand(side.shape, generator=generator, device=trunk.device)
        # rounding could lift the draw to the first place that is too far
        start = first + (drawn * (length - side + 1)).floor().minimum(length - side)
        box = box & (place >= start) & (place < start + side)
    return trunk.masked_fill(box, 0)


PERTURBATIONS: dict[str, Perturbation] = {
    "noise": noise,
    "dropout": dropout,
    "channels": channels,
    "objects": objects,
    "contexts": contexts,
    "cutouts": cutouts,
}
