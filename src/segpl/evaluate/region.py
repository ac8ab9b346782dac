"""Masks of where to score, such as the field of view of a photograph."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.layouts.base import bare_stem, image_files, subfolder
from segpl.data.readers import Grid, grid_difference, read_label, stem_of
from segpl.errors import InputError, MissingFileError

KNOWN = ("fov",)  # folders beside those of labels that are known to hold regions


def find_regions(region: str | Path, labels: Mapping[str, Path]) -> dict[str, Path]:
    """The mask of each case: in the folder `region`, or in one of that name beside its label's.

    A dataset of two parts has two such folders, `training/fov` and `test/fov`, and one name finds
    both. Names are those of cases or of label files, or the same but for words such as '_mask'.
    """
    found: dict[str, Path] = {}
    for case, label in labels.items():
        folder = Path(region) if Path(region).is_dir() else _beside(label, str(region))
        if folder is None:
            raise MissingFileError(
                f"{region} is not a folder, nor is there one of that name beside "
                f"{label.parent}. Give a folder of masks, one for each case."
            )
        files = image_files(folder)
        mask = _named(files, (case, stem_of(label)))
        if mask is None:
            example = f", such as {files[0].name}" if files else ""
            raise MissingFileError(
                f"case {case} has no region: {folder} holds {len(files)} masks{example}, none by "
                "its name. Add it, or evaluate without a region."
            )
        found[case] = mask
    return found


def regions_beside(labels: Iterable[Path]) -> str | None:
    """The name of a folder of regions that lies beside every label's, if there is one."""
    folders = {label.parent for label in labels}
    for name in KNOWN:
        if folders and all(subfolder(folder.parent, (name,)) for folder in folders):
            return name
    return None


def read_region(path: Path, grid: Grid, case: str) -> NDArray[np.bool_]:
    """True where voxels count: wherever the mask is not 0."""
    region = read_label(path)
    difference = grid_difference(region.grid, grid)
    if difference:
        raise InputError(
            f"case {case}: the region {path} does not lie on the grid of the label: {difference}. "
            "Draw it on the image that the label was drawn on."
        )
    inside: NDArray[np.bool_] = region.array != 0
    if not inside.any():
        raise InputError(
            f"case {case}: the region {path} is empty, so there is nothing to score. "
            "Check that it is a mask of where to score."
        )
    return inside


def _beside(label: Path, name: str) -> Path | None:
    return subfolder(label.parent.parent, (name.lower(),))


def _named(files: list[Path], names: tuple[str, ...]) -> Path | None:
    by_stem = {stem_of(path): path for path in files}
    for name in names:
        if name in by_stem:
            return by_stem[name]
    alike = [path for path in files if bare_stem(stem_of(path)) in map(bare_stem, names)]
    return alike[0] if len(alike) == 1 else None
