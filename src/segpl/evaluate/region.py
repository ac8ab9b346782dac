"""Masks that limit where to score, for example to the field of view of a retinal image."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.layouts.base import bare_stem, image_files, subfolder
from segpl.data.readers import Grid, grid_difference, read_label, stem_of
from segpl.errors import InputError, MissingFileError

REGION_FOLDERS = ("fov",)  # names of folders next to the labels that contain regions


def find_regions(region: str | Path, labels: Mapping[str, Path]) -> dict[str, Path]:
    """The region mask of each case, in the folder `region` or in one of that name near its label.

    With two parts, `training/fov` and `test/fov`, the name `fov` finds both. Masks are named like
    the case or its label, with or without additions such as '_mask'.
    """
    found: dict[str, Path] = {}
    for case, label in labels.items():
        beside = subfolder(label.parent.parent, (str(region).lower(),))
        folder = Path(region) if Path(region).is_dir() else beside
        if folder is None:
            raise MissingFileError(
                f"{region} is not a folder, and there is no folder of that name next to "
                f"{label.parent}. Pass a folder with one mask per case."
            )
        files = image_files(folder)
        mask = _mask_named(files, (case, stem_of(label)))
        if mask is None:
            example = f", for example {files[0].name}" if files else ""
            raise MissingFileError(
                f"case {case} has no region: {folder} contains {len(files)} masks{example}, but "
                "none of this name. Add it, or evaluate without a region."
            )
        found[case] = mask
    return found


def regions_beside(labels: Iterable[Path]) -> str | None:
    """The name of a known region folder, if there is one next to every label."""
    folders = {label.parent for label in labels}
    for name in REGION_FOLDERS:
        if folders and all(subfolder(folder.parent, (name,)) for folder in folders):
            return name
    return None


def read_region(path: Path, grid: Grid, case: str) -> NDArray[np.bool_]:
    """True wherever the mask is not 0: only these voxels are scored."""
    region = read_label(path)
    if difference := grid_difference(region.grid, grid):
        raise InputError(
            f"case {case}: the region {path} is not on the grid of the label: {difference}. Draw "
            "it on the image that was labeled."
        )
    inside: NDArray[np.bool_] = region.array != 0
    if not inside.any():
        raise InputError(
            f"case {case}: the region {path} is empty, so there is nothing to score. Check that "
            "it marks the voxels to score."
        )
    return inside


def _mask_named(files: list[Path], names: tuple[str, ...]) -> Path | None:
    by_stem = {stem_of(path): path for path in files}
    for name in names:
        if name in by_stem:
            return by_stem[name]
    alike = [path for path in files if bare_stem(stem_of(path)) in map(bare_stem, names)]
    return alike[0] if len(alike) == 1 else None
