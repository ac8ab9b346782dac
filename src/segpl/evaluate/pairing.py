"""Match predictions with labels, and with masks that limit where to score, by case name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.case import Case, Dataset
from segpl.data.layouts import read_dataset, read_label_folder, stated_layout
from segpl.data.layouts.base import (
    bare_stem,
    image_files,
    labels_by_stem,
    subfolder,
    without_part,
)
from segpl.data.layouts.pairing import find_patterns
from segpl.data.manifest import MANIFEST, Manifest, read_manifest
from segpl.data.readers import (
    Grid,
    Label,
    grid_difference,
    read_case_label,
    read_label,
    stem_of,
    with_axes_of,
)
from segpl.errors import InputError, MissingFileError, count_noun, name_some


@dataclass(frozen=True, slots=True)
class Pairing:
    """Predictions with their labels, and what the numbers in them mean."""

    pairs: dict[str, tuple[Path, Path]]  # case -> prediction, label
    cases: dict[str, Case]  # those with a label
    without_label: list[str]  # predicted cases
    without_prediction: list[str]  # labeled cases
    classes: dict[str, int] | None  # name -> number; None: take the numbers in the labels
    ignore: int | None  # number of unknown voxels
    regions: dict[str, Path] = field(default_factory=dict)  # case -> mask to score inside of
    seen: dict[str, list[str]] = field(default_factory=dict)  # 'training', ... -> cases
    has_manifest: bool = False  # which says what the numbers in the predictions mean

    def truth(self, case: str) -> Label:
        return read_case_label(self.cases[case])

    def truth_on(self, grid: Grid, case: str, label: Label | None = None) -> Label:
        """The truth with the axes of its prediction's grid; `label` if it is already read."""
        label = label or self.truth(case)
        path, found = self.pairs[case]
        turned = with_axes_of(label, grid)
        if difference := grid_difference(grid, turned.grid):
            raise InputError(
                f"case {case}: {path} and {found} are on different grids: {difference}. Predict "
                "again from the image that was labeled."
            )
        return turned


def pair_cases(
    predictions: Path, labels: Path | Dataset, *, region: str | Path | None = None
) -> Pairing:
    """Match predictions and labels by case name; their formats may differ."""
    folder = labels.root if isinstance(labels, Dataset) else labels
    for path in (predictions, folder):
        if not path.is_dir():
            raise MissingFileError(
                f"{path} is not a folder. Evaluation needs a folder of predictions, and a folder "
                "of labels or a dataset."
            )
    manifest = read_class_numbers(predictions)
    outdated = {n for n, e in manifest.files.items() if e.outdated} if manifest else set()
    files = labels_by_stem(image_files(predictions))
    predicted = {case: path for case, path in files.items() if case not in outdated}
    if not predicted:
        is_run = (predictions / "config.toml").exists()
        raise InputError(
            f"{predictions} contains no masks{': it is a run' if is_run else ''}. Evaluate the "
            "folder that `segpl predict` wrote with --out."
        )
    if isinstance(labels, Dataset):
        dataset = labels
    elif not image_files(folder) or stated_layout(folder) or find_patterns(folder):
        dataset = read_dataset(folder, accept=True)
    else:
        dataset = read_label_folder(folder)
    known = {case.name: case.label for case in dataset.cases if case.label}
    shared = sorted(predicted.keys() & known.keys())
    if not shared:
        raise InputError(
            f"no prediction has a label: {predictions} contains {name_some(sorted(predicted), 3)}, "
            f"and {folder} contains {name_some(sorted(known), 3)}. Files are matched by case name: "
            "rename them, or give the labels of these cases."
        )
    for case in shared:
        if predicted[case].resolve() == known[case].resolve():
            raise InputError(
                f"{predictions} contains the label of {case}, not a prediction. Name the folder of "
                "predictions first, then the labels."
            )
    seen: dict[str, list[str]] = {}
    classes, ignore = dataset.classes, dataset.ignore
    if manifest:
        dataset.require_numbers(manifest.classes, predictions / MANIFEST)
        classes, ignore = manifest.classes, manifest.ignore
        for case in shared:
            if (entry := manifest.files.get(case)) and entry.seen:
                seen.setdefault(entry.seen, []).append(case)
    return Pairing(
        pairs={case: (predicted[case], known[case]) for case in shared},
        cases={case.name: case for case in dataset.cases if case.label},
        without_label=sorted(predicted.keys() - known.keys()),
        without_prediction=sorted(known.keys() - predicted.keys()),
        classes=classes,
        ignore=ignore,
        regions=find_regions(region, {case: known[case] for case in shared}) if region else {},
        seen=seen,
        has_manifest=manifest is not None,
    )


def unknown_number(where: str, number: int, classes: Mapping[str, int]) -> InputError:
    # classes without a name are called after their number
    named = (str(n) if name == str(n) else f"{name} = {n}" for name, n in classes.items())
    return InputError(
        f"{where} contains the number {number}, which is not a class. Known: {', '.join(named)}. "
        "Predictions and labels must use the same numbers, those of "
        f"{MANIFEST} next to the predictions."
    )


def read_class_numbers(folder: Path) -> Manifest | None:
    """The manifest of a folder of predictions; None without one."""
    return read_manifest(
        folder,
        'It needs {"classes": {name: number}, "ignore": number or null}. Correct it, or remove it '
        "to score every number in the labels as a class.",
    )


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
                f"case {case} has no region: {folder} contains "
                f"{count_noun(len(files), 'mask')}{example}, but "
                "none of this name. Add it, or evaluate without a region."
            )
        found[case] = mask
    return found


def read_region(path: Path, grid: Grid, case: str) -> NDArray[np.bool_]:
    """True wherever the mask is not 0: only these voxels are scored."""
    region = with_axes_of(read_label(path), grid)
    if difference := grid_difference(region.grid, grid):
        raise InputError(
            f"case {case}: the region {path} is not on the grid of the label: {difference}. Draw "
            "it on the image that was labeled."
        )
    inside: NDArray[np.bool_] = region.array != 0
    if not inside.any():
        raise InputError(
            f"case {case}: the region {path} is empty, so there is nothing to score. Check that "
            "it marks the region to score."
        )
    return inside


def _mask_named(files: list[Path], names: tuple[str, ...]) -> Path | None:
    by_stem = {stem_of(path): path for path in files}
    for name in names:
        if name in by_stem:
            return by_stem[name]
    strips = (bare_stem, bare_stem), (bare_stem, without_part), (without_part, bare_stem)
    for of_file, of_case in strips:  # the mask of test_1 is not that of train_1
        alike = [path for path in files if of_file(stem_of(path)) in map(of_case, names)]
        if alike:
            return alike[0] if len(alike) == 1 else None
    return None
