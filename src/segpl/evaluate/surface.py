r"""How far the surfaces of two masks lie apart, in the unit of the voxel spacing.

The surface $\partial A$ of a mask is the set of its voxels that share a face with a voxel outside
of the mask or with the border of the image; a distance is measured between centers of voxels:

$$d(a, \partial B) = \min_{b \in \partial B} \lVert a - b \rVert$$

An axis along which the image is one voxel long is no direction: a picture that is stored as a
volume of one slice has an outline, not a surface. Voxels that are left out (ignored, or outside of
a region) belong to neither mask, so that both end where they begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

Mask = NDArray[np.bool_]

SLACK = 1e-6  # of rounding: three voxels of 0.1 mm are 0.30000000000000004 mm, and within 0.3 mm


@dataclass(frozen=True, slots=True, eq=False)
class SurfaceDistances:
    """From each surface voxel of a mask to the surface of the other one.

    A mask without a voxel has no distances, and to it every distance is the diagonal of the image.
    """

    to_truth: NDArray[np.float64]  # one for each surface voxel of the prediction
    to_prediction: NDArray[np.float64]  # one for each surface voxel of the truth


def surface_distances(prediction: Mask, truth: Mask, spacing: Sequence[float]) -> SurfaceDistances:
    """Both ways, exact. Work and memory grow with the surfaces, not with the image."""
    farthest = diagonal(truth.shape, spacing)
    flat = tuple(axis for axis, size in enumerate(truth.shape) if size == 1)
    sizes = np.delete(np.asarray(spacing, float), flat)
    box = _box(np.squeeze(prediction | truth, flat))
    found = [surface(np.squeeze(mask, flat)[box]) for mask in (prediction, truth)]
    ours, theirs = found
    return SurfaceDistances(
        to_truth=_distances(ours, theirs, sizes, farthest),
        to_prediction=_distances(theirs, ours, sizes, farthest),
    )


def surface(mask: Mask) -> Mask:
    """Voxels of a mask with a face that is not shared with another one of its voxels."""
    padded = np.pad(mask, 1)
    inside = mask.copy()
    whole = (slice(1, -1),) * mask.ndim
    for axis in range(mask.ndim):
        for side in (slice(None, -2), slice(2, None)):
            inside &= padded[(*whole[:axis], side, *whole[axis + 1 :])]
    return mask & ~inside


def diagonal(shape: Sequence[int], spacing: Sequence[float]) -> float:
    """From one corner of the image to the opposite one: no two of its voxels are farther apart."""
    return float(np.linalg.norm(np.multiply(shape, spacing)))


def hd95(distances: SurfaceDistances) -> float:
    r"""The larger of the 95th percentiles of the distances each way, interpolated linearly.

    $$\max\{P_{95}\, d(a, \partial T)_{a \in \partial P},\;
    P_{95}\, d(b, \partial P)_{b \in \partial T}\}$$

    One percentile of both lists together, as some programs take, hides the errors of the smaller
    surface and gives other numbers. Two empty masks give 0.
    """
    ways = (distances.to_truth, distances.to_prediction)
    return max((float(np.percentile(way, 95)) for way in ways if way.size), default=0.0)


def assd(distances: SurfaceDistances) -> float:
    r"""Average symmetric surface distance: the mean over the voxels of both surfaces together.

    $$\frac{\sum_{a \in \partial P} d(a, \partial T) + \sum_{b \in \partial T} d(b, \partial P)}
    {|\partial P| + |\partial T|}$$

    Two empty masks give 0.
    """
    both = np.concatenate((distances.to_truth, distances.to_prediction))
    return float(both.mean()) if both.size else 0.0


def surface_dice(distances: SurfaceDistances, tolerance: float) -> float:
    r"""Share of both surfaces that lies within `tolerance` of the other one, counted in voxels.

    $$\frac{|\{a \in \partial P: d(a, \partial T) \le \tau\}|
    + |\{b \in \partial T: d(b, \partial P) \le \tau\}|}{|\partial P| + |\partial T|}$$

    Two empty masks give 1, a single one 0, however large the tolerance.
    """
    ways = (distances.to_truth, distances.to_prediction)
    if not all(way.size for way in ways):
        return float(not any(way.size for way in ways))
    near = sum(int(np.count_nonzero(way <= tolerance + SLACK)) for way in ways)
    return near / sum(way.size for way in ways)


def _distances(
    start: Mask, end: Mask, sizes: NDArray[np.float64], farthest: float
) -> NDArray[np.float64]:
    """From each voxel of `start` to the nearest one of `end`, in the order of the array."""
    if not end.any():
        return np.full(np.count_nonzero(start), farthest)
    distances = np.zeros(np.count_nonzero(start))
    apart = ~end[start]  # a voxel of both surfaces needs no search, and most are where masks agree
    if apart.any():
        # a distance transform visits every voxel of the box: slower, unless surfaces fill it
        tree = KDTree(np.argwhere(end) * sizes)
        distances[apart], _ = tree.query(np.argwhere(start)[apart] * sizes)
    return distances


def _box(mask: Mask) -> tuple[slice, ...]:
    """The smallest box around a mask; an empty one if there is nothing in it."""
    box: list[slice] = []
    for axis in range(mask.ndim):
        others = tuple(other for other in range(mask.ndim) if other != axis)
        used = np.flatnonzero(mask.any(axis=others))
        box.append(slice(used[0], used[-1] + 1) if used.size else slice(0))
    return tuple(box)
