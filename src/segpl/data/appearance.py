"""What an image looks like, in a few numbers: voxel size, field of view and intensities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segpl.data.geometry import reorient_axes
from segpl.data.plan import Plan
from segpl.data.readers import Grid

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
MOST_VOXELS = 200_000  # per channel, for the quantiles


@dataclass(frozen=True, slots=True)
class Appearance:
    spacing: tuple[float, ...] | None  # mm, along the axes of the plan; None if not stored
    extent: tuple[float, ...]  # field of view in mm; in pixels if no spacing is stored
    intensities: tuple[float, ...]  # quantiles of each channel after normalization
    features: tuple[float, ...] = ()  # of the network; empty if not measured


def appearance_of(
    prepared: NDArray[np.float32], grid: Grid, plan: Plan, features: tuple[float, ...] = ()
) -> Appearance:
    """The appearance of an image (C, *S) prepared for the plan, whose file has this grid."""
    spacing = reorient_axes(grid.spacing, grid.affine, plan.orientation)
    shape = reorient_axes(grid.shape, grid.affine, plan.orientation)
    quantiles = [
        np.quantile(channel.reshape(-1)[:: max(1, channel.size // MOST_VOXELS)], QUANTILES)
        for channel in prepared
    ]
    return Appearance(
        None if grid.stored_spacing is None else tuple(map(float, spacing)),
        tuple(float(n * side) for n, side in zip(shape, spacing, strict=True)),
        tuple(np.concatenate(quantiles).tolist()),
        features,
    )
