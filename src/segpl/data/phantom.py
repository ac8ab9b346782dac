"""Generated chest CT scans with vessel trees, a stand-in for the paper's CARVE dataset.

Brightness alone does not identify a vessel: the chest wall, fissures and nodules are as bright,
thin vessels fade into a textured lung, and contrast, brightness, noise and blur vary from case to
case. A vessel is identified by its shape: a long, round, branching tube that tapers.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from segpl.data.masks import Mask

Floats = NDArray[np.float32]
Range = tuple[float, float]  # each case draws a number between the two

MAX_FOREGROUND = 0.058  # fraction of vessel voxels at which growth stops
MAX_TREES = 12
SPACING = 0.7  # of the voxels in the files, in mm


@dataclass(frozen=True, slots=True)
class PhantomSettings:
    """Lengths are in voxels, brightness in Hounsfield units."""

    shape: tuple[int, ...] = (64, 64, 64)  # two or three axes of at least 16
    foreground: Range = (0.025, 0.045)  # fraction of vessel voxels at which no tree is added
    root_radius: Range = (1.9, 3.2)
    min_radius: float = 0.8  # a branch ends at this radius
    sheets: tuple[int, int] = (2, 3)  # fissures; none in 2D, where they would look like vessels
    blobs: tuple[int, int] = (8, 16)  # nodules
    wall: float = 0.7  # probability of a chest wall
    lung: Range = (-880.0, -740.0)
    contrast: Range = (420.0, 880.0)  # vessel above lung
    texture: Range = (25.0, 80.0)  # standard deviation of the lung
    noise: Range = (20.0, 75.0)
    blur: Range = (0.45, 1.1)


@dataclass(slots=True)
class _Branch:
    start: NDArray[np.float64]  # (D,)
    direction: NDArray[np.float64]  # (D,) of length 1
    radius: float


def vessel_phantom(
    seed: int, settings: PhantomSettings | None = None
) -> tuple[Floats, NDArray[np.uint8]]:
    """A scan (*S) in Hounsfield units and its vessel mask (*S), determined by the seed."""
    settings = settings or PhantomSettings()
    rng = np.random.default_rng(seed)
    wall = _wall(rng, settings)
    vessels = _trees(rng, settings, inside=wall < 0.02)
    sheets = _sheets(rng, settings)
    blobs = _blobs(rng, settings)

    lung = rng.uniform(*settings.lung)
    contrast = rng.uniform(*settings.contrast)
    image = lung + _texture(rng, settings)
    bright = np.maximum.reduce([vessels, sheets, blobs, wall])
    image += bright * (lung + contrast - image)
    image = ndimage.gaussian_filter(image, rng.uniform(*settings.blur))
    # reconstruction correlates the noise of neighboring voxels
    grain = _standardize(ndimage.gaussian_filter(_white(rng, settings), 0.5))
    image += rng.uniform(*settings.noise) * grain
    return image.astype(np.float32), (vessels >= 0.5).astype(np.uint8)


def _trees(rng: np.random.Generator, settings: PhantomSettings, inside: Mask) -> Floats:
    """Vessel fraction of each voxel, in [0, 1]; one half or more is foreground."""
    occupancy = np.zeros(settings.shape, np.float32)
    target = rng.uniform(*settings.foreground)
    for _ in range(MAX_TREES):
        _grow(rng, settings, occupancy, inside)
        if _foreground(occupancy) >= target:
            break
    return occupancy


def _grow(
    rng: np.random.Generator, settings: PhantomSettings, occupancy: Floats, inside: Mask
) -> None:
    """Draw one tree that enters through a face of the volume, widest branches first.

    At a fork the radii follow Murray's law, $r^3 = r_1^3 + r_2^3$; the thinner child turns more.
    """
    branches = deque([_root(rng, settings, inside)])
    while branches and _foreground(occupancy) < MAX_FOREGROUND:
        tip = _draw_branch(rng, occupancy, inside, branches.popleft())
        if tip is None:
            continue
        share = rng.uniform(0.2, 0.5)  # of the flow, which is proportional to the radius cubed
        sideways = _across(rng, tip.direction)
        for part, side in ((1 - share, 1.0), (share, -1.0)):
            radius = tip.radius * part ** (1 / 3)
            if radius < settings.min_radius:
                continue
            angle = side * (0.25 + 0.9 * (1 - part)) * rng.uniform(0.7, 1.2)
            direction = np.cos(angle) * tip.direction + np.sin(angle) * sideways
            branches.append(_Branch(tip.start, direction, radius))


def _root(rng: np.random.Generator, settings: PhantomSettings, inside: Mask) -> _Branch:
    size = np.array(settings.shape)
    radius = rng.uniform(*settings.root_radius) * min(1.0, float(size.min()) / 48)
    for _ in range(50):
        start = rng.uniform(0.15, 0.85, len(size)) * (size - 1)
        axis = rng.integers(len(size))
        start[axis] = rng.choice([0, size[axis] - 1])
        if inside[tuple(np.rint(start).astype(int))]:
            break
    target = rng.uniform(0.3, 0.7, len(size)) * (size - 1)
    return _Branch(start, _unit_vector(target - start), max(radius, settings.min_radius * 1.3))


def _draw_branch(
    rng: np.random.Generator, occupancy: Floats, inside: Mask, branch: _Branch
) -> _Branch | None:
    """Draw a curved, slightly tapering tube; returns its tip, or None if it left the lung."""
    size = np.array(occupancy.shape)
    length = rng.uniform(6, 12) * branch.radius + rng.uniform(2, 6)
    steps = max(2, round(length / 2.5))
    bend = rng.normal(0, 0.1, len(size))
    start, direction, radius = branch.start, branch.direction, branch.radius
    for _ in range(steps):
        direction = _unit_vector(direction + bend + rng.normal(0, 0.07, len(size)))
        end = start + direction * (length / steps)
        thinner = radius * (1 - 0.08 / steps)
        _draw_segment(occupancy, start, end, radius, thinner)
        start, radius = end, thinner
        voxel = np.rint(start).astype(int)
        if (voxel < 0).any() or (voxel >= size).any() or not inside[tuple(voxel)]:
            return None
    return _Branch(start, direction, radius)


def _draw_segment(
    occupancy: Floats,
    start: NDArray[np.float64],
    end: NDArray[np.float64],
    first_radius: float,
    last_radius: float,
) -> None:
    """Fill the round cone between two points; voxels at its surface are filled partially."""
    reach = first_radius + 1
    low = np.maximum(np.floor(np.minimum(start, end) - reach), 0).astype(int)
    high = np.minimum(np.ceil(np.maximum(start, end) + reach) + 1, occupancy.shape).astype(int)
    box = tuple(slice(a, b) for a, b in zip(low, high, strict=True))
    axes = np.ogrid[box]
    along = end - start
    parts = [(axis - s) * a for axis, s, a in zip(axes, start, along, strict=True)]
    place = np.clip(sum(parts) / float(along @ along), 0, 1)  # 0 at the start, 1 at the end
    squares = [(axis - s - place * a) ** 2 for axis, s, a in zip(axes, start, along, strict=True)]
    radius = first_radius + (last_radius - first_radius) * place
    filled = np.clip(radius - np.sqrt(sum(squares)) + 0.5, 0, 1).astype(np.float32)
    np.maximum(occupancy[box], filled, out=occupancy[box])


def _wall(rng: np.random.Generator, settings: PhantomSettings) -> Floats:
    """Soft tissue beyond a slightly curved surface near one corner or face."""
    height = _height(rng, settings, 0.04)
    depth = rng.uniform(0.04, 0.14)
    edge = float(np.quantile(height, 1 - depth))
    has_wall = np.float32(rng.uniform() < settings.wall)
    wall: Floats = has_wall * np.clip(height - edge + 0.5, 0, 1)
    return wall


def _sheets(rng: np.random.Generator, settings: PhantomSettings) -> Floats:
    """Fissures between lobes: curved surfaces about as thick as a small vessel."""
    sheets = np.zeros(settings.shape, np.float32)
    if len(settings.shape) == 2:
        return sheets
    for _ in range(rng.integers(settings.sheets[0], settings.sheets[1] + 1)):
        height = _height(rng, settings, 0.08)
        level = np.quantile(height, rng.uniform(0.15, 0.85))
        thickness = rng.uniform(0.6, 1.2)
        filled = np.clip(thickness - np.abs(height - level) + 0.5, 0, 1)
        np.maximum(sheets, rng.uniform(0.75, 1.0) * filled, out=sheets)
    return sheets


def _blobs(rng: np.random.Generator, settings: PhantomSettings) -> Floats:
    """Nodules: filled ellipsoids as wide as vessels."""
    blobs = np.zeros(settings.shape, np.float32)
    axes = np.ogrid[tuple(slice(0, length) for length in settings.shape)]
    for _ in range(rng.integers(settings.blobs[0], settings.blobs[1] + 1)):
        center = rng.uniform(0, 1, len(settings.shape)) * np.array(settings.shape)
        radii = rng.uniform(1.5, 4.0) * rng.uniform(0.8, 1.25, len(settings.shape))
        squares = [((a - c) / r) ** 2 for a, c, r in zip(axes, center, radii, strict=True)]
        depth = (1 - np.sqrt(sum(squares))) * float(radii.mean())
        np.maximum(blobs, rng.uniform(0.8, 1.0) * np.clip(depth + 0.5, 0, 1), out=blobs)
    return blobs


def _texture(rng: np.random.Generator, settings: PhantomSettings) -> Floats:
    """Lung density: patches, lobules and grain."""
    layers = [(1.0, min(settings.shape) / 8), (0.7, 3.0), (0.6, 1.2)]
    total = np.zeros(settings.shape, np.float32)
    for weight, scale in layers:
        total += weight * _standardize(ndimage.gaussian_filter(_white(rng, settings), scale))
    return np.float32(rng.uniform(*settings.texture)) * _standardize(total)


def _height(rng: np.random.Generator, settings: PhantomSettings, waves: float) -> Floats:
    """Height above a random plane with waves, whose deviation is relative to the width."""
    normal = _unit_vector(rng.normal(size=len(settings.shape)))
    axes = np.ogrid[tuple(slice(0, length) for length in settings.shape)]
    height = sum(axis * part for axis, part in zip(axes, normal, strict=True))
    width = min(settings.shape)
    smooth = ndimage.gaussian_filter(_white(rng, settings), width / 4, truncate=2.0)
    return np.asarray(height, np.float32) + np.float32(waves * width) * _standardize(smooth)


def _white(rng: np.random.Generator, settings: PhantomSettings) -> Floats:
    return rng.standard_normal(settings.shape, dtype=np.float32)


def _standardize(field: Floats) -> Floats:
    """The field with mean 0 and standard deviation 1."""
    centered: Floats = field - field.mean()
    centered /= field.std()
    return centered


def _unit_vector(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / np.linalg.norm(vector)


def _across(rng: np.random.Generator, direction: NDArray[np.float64]) -> NDArray[np.float64]:
    """A random direction perpendicular to the given one."""
    other = rng.normal(size=len(direction))
    return _unit_vector(other - (other @ direction) * direction)


def _foreground(occupancy: Floats) -> float:
    return float((occupancy >= 0.5).mean())
