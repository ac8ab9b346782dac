"""Masks in one piece: of a class, the largest connected component and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from segpl.errors import unknown

ALL, NONE = "all", "none"
Mask = NDArray[np.bool_]


def largest_component(mask: Mask) -> Mask:
    """The largest piece of a mask (*S), the first of equal ones.

    Voxels that touch at a corner are of one piece, so that thin structures are not cut.
    """
    (box,) = ndimage.find_objects(mask.view(np.int8)) or (None,)
    kept = np.zeros_like(mask)
    if box is None:
        return kept
    pieces, _ = ndimage.label(mask[box], ndimage.generate_binary_structure(mask.ndim, mask.ndim))
    sizes = np.bincount(pieces.reshape(-1))
    sizes[0] = 0
    kept[box] = pieces == sizes.argmax()
    return kept


def kept_largest(
    labels: NDArray[Any], classes: Mapping[str, int], largest: Sequence[str]
) -> NDArray[Any]:
    """Labels (*S) in which some classes keep their largest component; the rest is background.

    `classes` are the numbers in `labels` by name, background first.
    """
    background = next(iter(classes.values()))
    result = labels.copy() if largest else labels
    for name in largest:
        mask = labels == classes[name]
        result[mask & ~largest_component(mask)] = background
    return result


def classes_asked_for(asked: str | Sequence[str], classes: Sequence[str]) -> tuple[str, ...]:
    """The classes that `all`, `none` or names mean; `classes` begin with the background."""
    names = [asked] if isinstance(asked, str) else list(asked)
    known = classes[1:]
    if names == [ALL]:
        return tuple(known)
    if names == [NONE]:
        return ()
    for name in names:
        if name not in known:
            raise unknown("foreground class", name, [*known, ALL, NONE])
    return tuple(name for name in known if name in names)


def note_of_largest(largest: Sequence[str]) -> str:
    """What sets these masks apart from those of the same run that keep every component."""
    return f" (largest component of {', '.join(largest)})" if largest else ""
