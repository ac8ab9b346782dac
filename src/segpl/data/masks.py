"""From probabilities to masks: classes, entropy, and the largest connected component."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.errors import InputError, unknown

ALL, NONE = "all", "none"
COARSE_AXIS = 2.0  # an axis is coarse if its spacing exceeds this many times the finest one
AREAS = ("px", "mm²")  # units of 2D masks
Mask = NDArray[np.bool_]


def class_index(probabilities: NDArray[np.floating[Any]]) -> NDArray[np.intp]:
    """Index (*S) of the most likely class, from probabilities (K, *S).

    A single channel is the probability of class 1.
    """
    if len(probabilities) == 1:
        index: NDArray[np.intp] = (probabilities[0] > 0.5).astype(np.intp)
    else:
        index = probabilities.argmax(axis=0)
    return index


def voxel_entropy(probabilities: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    r"""Binary entropy of every voxel and channel in nats, from 0 to $\log 2$.

    $$H(p) = -p \log p - (1 - p) \log(1 - p)$$
    """
    from scipy.special import entr

    p = probabilities.clip(0, 1)
    entropy: NDArray[np.floating[Any]] = entr(p) + entr(1 - p)
    return entropy


def volume(mask: Mask, spacing: Sequence[float] | None) -> float:
    """Milliliters in 3D, square millimeters in 2D; voxels without a spacing."""
    voxels = int(np.count_nonzero(mask))
    if spacing is None:
        return float(voxels)
    return voxels * float(np.prod(spacing)) / (1000 if mask.ndim == 3 else 1)


def volume_unit(dims: int, spacing: Sequence[float] | None) -> str:
    """The unit of `volume`."""
    if spacing is None:
        return "voxel" if dims == 3 else AREAS[0]
    return "ml" if dims == 3 else AREAS[1]


def in_areas(text: str, units: Iterable[str]) -> str:
    """The text with areas instead of volumes if the units ('px', 'at 2 px') are those of 2D."""
    if not any(unit.endswith(AREAS) for unit in units):
        return text
    return text.replace("volume", "area").replace("Volume", "Area")


def bounding_box(mask: NDArray[Any]) -> tuple[slice, ...]:
    """Bounding box of the nonzero voxels of a mask; empty if there are none."""
    box: list[slice] = []
    for axis in range(mask.ndim):
        others = tuple(other for other in range(mask.ndim) if other != axis)
        used = np.flatnonzero(mask.any(axis=others))
        box.append(slice(used[0], used[-1] + 1) if used.size else slice(0))
    return tuple(box)


def largest_component(mask: Mask) -> Mask:
    """The largest connected component of a mask (*S); ties go to the first one.

    Voxels that touch at a corner are connected, so thin structures stay whole.
    """
    from scipy import ndimage  # training starts faster without it

    box, kept = bounding_box(mask), np.zeros_like(mask)
    pieces, count = ndimage.label(
        mask[box], ndimage.generate_binary_structure(mask.ndim, mask.ndim)
    )
    # slice by slice, because numpy converts its input to 64-bit integers
    sizes = np.zeros(count + 1, np.intp)
    for part in pieces:
        sizes += np.bincount(part.reshape(-1), minlength=count + 1)
    sizes[0] = 0
    np.equal(pieces, sizes.argmax(), out=kept[box])
    return kept


def outside_fractions(mask: Mask, axes: Sequence[int]) -> tuple[float, float]:
    """Fractions of a mask (*S) outside its largest component: with and without its surface.

    Surface voxels have a neighbor outside the mask along one of the `axes`. Without them, thin
    structures fall apart, or vanish (fraction 1.0).
    """
    from scipy import ndimage

    def outside(part: Mask) -> float:
        total = int(np.count_nonzero(part))
        return 1 - int(np.count_nonzero(largest_component(part))) / total if total else 1.0

    cross = np.zeros((3,) * mask.ndim, bool)
    for axis in axes:
        cross[tuple(slice(None) if other == axis else 1 for other in range(mask.ndim))] = True
    interior = ndimage.binary_erosion(mask, cross, border_value=1)
    return outside(mask), outside(interior)


def outside_by_class(
    label: NDArray[Any], numbers: Sequence[int], spacing: Sequence[float]
) -> tuple[tuple[float, float], ...]:
    """The `outside_fractions` of each number in `label` (*S); zeros if it is absent.

    Coarse axes do not count for the surface: an object of a few slices would be all surface.
    """
    from scipy import ndimage

    axes = [axis for axis, size in enumerate(spacing) if size <= COARSE_AXIS * min(spacing)]
    boxes = ndimage.find_objects(label, max(numbers))
    found = []
    for number in numbers:
        box = boxes[number - 1] if number > 0 else None
        if box is None:
            found.append((0.0, 0.0))
            continue
        # one more voxel on each side, to find the surface
        wider = tuple(slice(max(side.start - 1, 0), side.stop + 1) for side in box)
        found.append(outside_fractions(label[wider] == number, axes))
    return tuple(found)


def keep_largest(
    labels: NDArray[Any], classes: Mapping[str, int], names: Sequence[str]
) -> NDArray[Any]:
    """Reduce each named class in `labels` (*S) to its largest component.

    The other components become background, which is the first of `classes` (name -> number).
    """
    background = next(iter(classes.values()))
    result = labels
    for name in names:
        mask = labels == classes[name]
        np.greater(mask, largest_component(mask), out=mask)  # the other components
        result = labels.copy() if result is labels else result
        np.copyto(result, background, where=mask)
    return result


def select_classes(selection: str | Sequence[str], classes: Sequence[str]) -> tuple[str, ...]:
    """Resolve 'all', 'none' or class names; the first of `classes` is the background."""
    names = [selection] if isinstance(selection, str) else list(selection)
    known = classes[1:]
    if names == [ALL]:
        return tuple(known)
    if names == [NONE]:
        return ()
    if ALL in names or NONE in names:
        raise InputError(f"--largest {ALL} and --largest {NONE} take no other classes.")
    for name in names:
        if name not in known:
            raise unknown("foreground class", name, [*known, ALL, NONE])
    return tuple(name for name in known if name in names)


LARGEST_NOTE = " (largest component of "


def largest_note(names: Sequence[str]) -> str:
    """Suffix for the identity of a run: its masks differ from those with all components."""
    return f"{LARGEST_NOTE}{', '.join(names)})" if names else ""
