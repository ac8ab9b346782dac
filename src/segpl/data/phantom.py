"""Generated chest scans with vessel trees, for a first try without data and for tests.

Brightness alone does not tell a vessel here: the chest wall, fissures and nodules are as bright,
thin vessels fade into a textured lung, and contrast, brightness, noise and blur change from case to
case. What tells a vessel is its shape: a long, round, branching tube that tapers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from segpl.errors import InputError
from segpl.files import write_atomically

Floats = NDArray[np.float32]
Range = tuple[float, float]  # a case draws one number from between the two

FULL = 0.058  # share of foreground at which no vessel grows any further
MOST_TREES = 12
WINDOW = (-1000.0, 300.0)  # HU shown as black and white in a picture


@dataclass(frozen=True, slots=True)
class PhantomSettings:
    """Lengths are in voxels, brightness in Hounsfield units."""

    shape: tuple[int, ...] = (64, 64, 64)  # two axes give a picture instead of a volume
    spacing: float = 0.7  # mm, as written to the files
    foreground: Range = (0.025, 0.045)  # trees are planted until this share is vessel
    root_radius: Range = (1.9, 3.2)
    thinnest: float = 0.8  # radius at which a branch ends
    sheets: tuple[int, int] = (2, 3)  # none in a picture, where a sheet would look like a vessel
    blobs: tuple[int, int] = (8, 16)
    wall: float = 0.7  # how many of the cases touch the chest wall
    lung: Range = (-880.0, -740.0)
    contrast: Range = (420.0, 880.0)  # vessel above lung
    texture: Range = (25.0, 80.0)  # standard deviation of the lung itself
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
    """One scan (*S) in Hounsfield units and its vessel mask (*S), the same for the same seed."""
    settings = settings or PhantomSettings()
    _check(settings)
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
    # reconstruction leaves neighboring voxels with some noise in common
    grain = _unit(ndimage.gaussian_filter(_white(rng, settings), 0.5))
    image += rng.uniform(*settings.noise) * grain
    return image.astype(np.float32), (vessels >= 0.5).astype(np.uint8)


def write_phantom_dataset(
    root: Path,
    *,
    labeled: int = 2,
    unlabeled: int = 16,
    test: int = 8,
    seed: int = 0,
    settings: PhantomSettings | None = None,
    advance: Callable[[], object] | None = None,  # called after each case
) -> None:
    """Write generated cases in the layout of the paper's authors: NIfTI, or PNG for two axes.

    A case depends on the seed, its group and its place there, not on how many cases there are.
    """
    settings = settings or PhantomSettings()
    groups = (("labeled", labeled), ("unlabeled", unlabeled), ("test", test))
    for number, (group, count) in enumerate(groups):
        for index in range(count):
            case_seed = int(np.random.SeedSequence([seed, number, index]).generate_state(1)[0])
            image, mask = vessel_phantom(case_seed, settings)
            name = f"{group}_{index:03d}"
            _write(root / group / "imgs", name, image, settings)
            if group != "unlabeled":
                _write(root / group / "lbls", name, mask, settings)
            if advance is not None:
                advance()


def _check(settings: PhantomSettings) -> None:
    if len(settings.shape) not in (2, 3) or min(settings.shape) < 16:
        raise InputError(
            f"a phantom of shape {settings.shape} cannot be drawn: it needs two or three axes of "
            "at least 16 voxels. Change PhantomSettings.shape."
        )


def _trees(
    rng: np.random.Generator, settings: PhantomSettings, inside: NDArray[np.bool_]
) -> Floats:
    """How much of each voxel is vessel, in [0, 1]; half or more is foreground."""
    occupancy = np.zeros(settings.shape, np.float32)
    wanted = rng.uniform(*settings.foreground)
    for _ in range(MOST_TREES):
        _grow(rng, settings, occupancy, inside)
        if _share(occupancy) >= wanted:
            break
    return occupancy


def _grow(
    rng: np.random.Generator,
    settings: PhantomSettings,
    occupancy: Floats,
    inside: NDArray[np.bool_],
) -> None:
    """Draw one tree that enters through a face of the volume, widest branches first.

    At a fork the radii keep Murray's law, $r^3 = r_1^3 + r_2^3$, and the thinner child turns more.
    """
    branches = deque([_root(rng, settings, inside)])
    while branches and _share(occupancy) < FULL:
        tip = _draw_branch(rng, occupancy, inside, branches.popleft())
        if tip is None:
            continue
        share = rng.uniform(0.2, 0.5)  # of the flow, which goes with the cube of the radius
        sideways = _across(rng, tip.direction)
        for part, side in ((1 - share, 1.0), (share, -1.0)):
            radius = tip.radius * part ** (1 / 3)
            if radius < settings.thinnest:
                continue
            angle = side * (0.25 + 0.9 * (1 - part)) * rng.uniform(0.7, 1.2)
            direction = np.cos(angle) * tip.direction + np.sin(angle) * sideways
            branches.append(_Branch(tip.start, direction, radius))


def _root(
    rng: np.random.Generator, settings: PhantomSettings, inside: NDArray[np.bool_]
) -> _Branch:
    size = np.array(settings.shape)
    radius = rng.uniform(*settings.root_radius) * min(1.0, float(size.min()) / 48)
    for _ in range(50):
        start = rng.uniform(0.15, 0.85, len(size)) * (size - 1)
        axis = rng.integers(len(size))
        start[axis] = rng.choice([0, size[axis] - 1])
        if inside[tuple(np.rint(start).astype(int))]:
            break
    target = rng.uniform(0.3, 0.7, len(size)) * (size - 1)
    return _Branch(start, _unit_vector(target - start), max(radius, settings.thinnest * 1.3))


def _draw_branch(
    rng: np.random.Generator, occupancy: Floats, inside: NDArray[np.bool_], branch: _Branch
) -> _Branch | None:
    """Draw a curved, slightly tapering tube; its tip, or None where it left the lung."""
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
    """Fill the round cone between two points, with voxels at its surface filled in part."""
    reach = first_radius + 1
    low = np.maximum(np.floor(np.minimum(start, end) - reach), 0).astype(int)
    high = np.minimum(np.ceil(np.maximum(start, end) + reach) + 1, occupancy.shape).astype(int)
    if (low >= high).any():
        return
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
    """Soft tissue beyond a gently curved surface near one corner or face."""
    normal = _unit_vector(rng.normal(size=len(settings.shape)))
    height = _height(settings, normal) + _waves(rng, settings, 0.04)
    depth = rng.uniform(0.04, 0.14)
    edge = float(np.quantile(height, 1 - depth))
    touches = np.float32(rng.uniform() < settings.wall)
    wall: Floats = touches * np.clip(height - edge + 0.5, 0, 1)
    return wall


def _sheets(rng: np.random.Generator, settings: PhantomSettings) -> Floats:
    """Curved surfaces about as thick as a small vessel, such as the fissures between lobes."""
    sheets = np.zeros(settings.shape, np.float32)
    if len(settings.shape) == 2:
        return sheets
    for _ in range(rng.integers(settings.sheets[0], settings.sheets[1] + 1)):
        normal = _unit_vector(rng.normal(size=len(settings.shape)))
        height = _height(settings, normal) + _waves(rng, settings, 0.08)
        level = np.quantile(height, rng.uniform(0.15, 0.85))
        thickness = rng.uniform(0.6, 1.2)
        filled = np.clip(thickness - np.abs(height - level) + 0.5, 0, 1)
        np.maximum(sheets, rng.uniform(0.75, 1.0) * filled, out=sheets)
    return sheets


def _blobs(rng: np.random.Generator, settings: PhantomSettings) -> Floats:
    """Nodules: filled ellipsoids as wide as vessels are."""
    blobs = np.zeros(settings.shape, np.float32)
    axes = np.ogrid[tuple(slice(0, length) for length in settings.shape)]
    for _ in range(rng.integers(settings.blobs[0], settings.blobs[1] + 1)):
        center = rng.uniform(0, 1, len(settings.shape)) * np.array(settings.shape)
        radii = rng.uniform(1.5, 4.0) * rng.uniform(0.8, 1.25, len(settings.shape))
        squares = [((a - c) / r) ** 2 for a, c, r in zip(axes, center, radii, strict=True)]
        inwards = (1 - np.sqrt(sum(squares))) * float(radii.mean())
        np.maximum(blobs, rng.uniform(0.8, 1.0) * np.clip(inwards + 0.5, 0, 1), out=blobs)
    return blobs


def _texture(rng: np.random.Generator, settings: PhantomSettings) -> Floats:
    """Density of the lung: patches, lobules and grain together, with the drawn deviation."""
    layers = [(1.0, min(settings.shape) / 8), (0.7, 3.0), (0.6, 1.2)]
    total = np.zeros(settings.shape, np.float32)
    for weight, scale in layers:
        total += weight * _unit(ndimage.gaussian_filter(_white(rng, settings), scale))
    return np.float32(rng.uniform(*settings.texture)) * _unit(total)


def _height(settings: PhantomSettings, normal: NDArray[np.float64]) -> Floats:
    axes = np.ogrid[tuple(slice(0, length) for length in settings.shape)]
    height = sum(axis * part for axis, part in zip(axes, normal, strict=True))
    return np.asarray(height, np.float32)


def _waves(rng: np.random.Generator, settings: PhantomSettings, share: float) -> Floats:
    """A smooth bending with a standard deviation of `share` of the volume's width."""
    width = min(settings.shape)
    smooth = ndimage.gaussian_filter(_white(rng, settings), width / 4, truncate=2.0)
    return np.float32(share * width) * _unit(smooth)


def _white(rng: np.random.Generator, settings: PhantomSettings) -> Floats:
    return rng.standard_normal(settings.shape, dtype=np.float32)


def _unit(field: Floats) -> Floats:
    """The field with mean 0 and deviation 1."""
    centered: Floats = field - field.mean()
    centered /= field.std()
    return centered


def _unit_vector(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / np.linalg.norm(vector)


def _across(rng: np.random.Generator, direction: NDArray[np.float64]) -> NDArray[np.float64]:
    """A random direction at a right angle to the given one."""
    other = rng.normal(size=len(direction))
    return _unit_vector(other - (other @ direction) * direction)


def _share(occupancy: Floats) -> float:
    return float((occupancy >= 0.5).mean())


def _write(
    folder: Path, name: str, array: Floats | NDArray[np.uint8], settings: PhantomSettings
) -> None:
    is_mask = array.dtype == np.uint8
    if array.ndim == 2:
        from PIL import Image

        low, high = WINDOW
        shown = array * 255 if is_mask else np.clip((array - low) / (high - low), 0, 1) * 255
        picture = Image.fromarray(np.rint(shown).astype(np.uint8))
        write_atomically(folder / f"{name}.png", picture.save)
        return

    import nibabel as nib

    affine = np.diag([settings.spacing, settings.spacing, settings.spacing, 1.0])
    stored = array if is_mask else np.rint(array).astype(np.int16)  # as scanners store it
    volume = nib.Nifti1Image(stored, affine)
    volume.header.set_xyzt_units("mm")
    write_atomically(folder / f"{name}.nii.gz", lambda draft: nib.save(volume, draft))
