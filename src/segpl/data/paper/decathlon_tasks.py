"""Task01 (brain tumor) and Task05 (prostate) of the Medical Segmentation Decathlon."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.case import Dataset
from segpl.data.layouts.base import read_description
from segpl.data.layouts.decathlon import Decathlon
from segpl.data.paper.prepared import (
    KEEP,
    CaseRole,
    PaperData,
    Sample,
    draw_roles,
    paper_plan,
    require_all_cases,
    require_cases,
    write_datasets,
    write_nifti,
)
from segpl.data.plan import Normalization, Plan
from segpl.data.readers import read_grid, read_image, read_label_on, stem_of
from segpl.errors import MissingFileError

TASK01, TASK05 = "Task01_BrainTumour", "Task05_Prostate"  # folders in the archives


def is_task(folder: str, prefix: str, source: Path) -> bool:
    """Whether a folder is this task, judged by its name or the listed training cases."""
    root = task_folder(source, folder)
    entries = read_description(root / "dataset.json").training or []
    listed = [entry if isinstance(entry, str) else entry.image for entry in entries]
    return root.resolve().name == folder or any(
        Path(name).name.startswith(prefix) for name in listed
    )


is_task01, is_task05 = partial(is_task, TASK01, "BRATS_"), partial(is_task, TASK05, "prostate_")


def task_folder(source: Path, folder: str) -> Path:
    return source / folder if (source / folder).is_dir() else source


def find_decathlon(source: Path, folder: str, command: str) -> Dataset:
    """The cases of a task. Raises if files are missing."""
    root = task_folder(source, folder)
    if not (root / "dataset.json").is_file():
        archive = source / f"{folder}.tar"
        unpack = f"Unpack {archive}, or download" if archive.is_file() else "Download"
        raise MissingFileError(
            f"{source} contains neither dataset.json nor {folder}/dataset.json. {unpack} the "
            f"dataset with `{command}`."
        )
    try:
        return Decathlon().read(root)
    except MissingFileError as error:
        remedy = f"Unpack the archive again, or use `{command}`."
        raise MissingFileError(f"{root} is incomplete: {error} {remedy}") from error


def prepare_task01(source: Path, root: Path, data: PaperData, advance: Callable[[], None]) -> Plan:
    """The first cases are labeled, the other training cases are for testing.

    The original test images are unlabeled. All images are normalized by one mean and standard
    deviation of each channel, over the training images of the experiment.
    """
    found = find_decathlon(source, TASK01, "segpl data get task01 --out DIR")
    names, others = (sorted(case.name for case in p) for p in (found.labeled, found.unlabeled))
    require_all_cases(len(names), data)
    require_cases(len(names), data.labeled_cases + data.test)
    require_cases(len(others), data.unlabeled)
    roles: dict[str, CaseRole] = dict.fromkeys(names[: data.labeled_cases], "labeled")
    roles |= dict.fromkeys(names[data.labeled_cases :][: data.test], "test")
    roles |= dict.fromkeys(others[: data.unlabeled], "unlabeled")
    samples = merge_cases(found, roles, root, advance)
    classes = {"background": 0, "tumor": 1}
    write_datasets(root, samples, data, channels=found.channels, classes=classes)
    training = [sample.image for sample in samples if sample.role != "test"]
    return paper_plan(data.patch, found.channels, classes, dataset_normalization(training))


def prepare_task05(source: Path, root: Path, data: PaperData, advance: Callable[[], None]) -> Plan:
    """All roles are drawn from the original training cases; each case is normalized."""
    found = find_decathlon(source, TASK05, "segpl data get task05 --out DIR")
    roles = draw_roles([case.name for case in found.labeled], data)
    samples = merge_cases(found, roles, root, advance)
    classes = {"background": 0, "prostate": 1}
    write_datasets(root, samples, data, channels=found.channels, classes=classes)
    rules = [Normalization("zscore")] * len(found.channels)
    return paper_plan(data.patch, found.channels, classes, rules)


def merge_cases(
    found: Dataset, roles: dict[str, CaseRole], root: Path, advance: Callable[[], None]
) -> list[Sample]:
    """Samples with all foreground classes merged. Unlabeled ones have no label at all."""
    samples = []
    for name, role in roles.items():
        case = found.case(name)
        image, affine = unit_image(case.images[0], root / "samples" / "images")
        target = None
        if role != "unlabeled":
            grid, _ = read_grid(case.images[0], 3)
            label = read_label_on(grid, case).array
            target = root / "samples" / "labels" / f"{name}.nii.gz"
            write_nifti(target, (label > 0).astype(np.uint8), affine)
        samples.append(Sample(role, name, image, target))
        advance()
    return samples


def unit_image(source: Path, folder: Path) -> tuple[Path, NDArray[np.float64] | None]:
    """The image if its voxel spacing is 1 mm, otherwise a copy that says so.

    The paper mentions no resampling, and images with one spacing are not resampled.
    """
    grid, _ = read_grid(source, 3)
    if all(math.isclose(step, 1, rel_tol=1e-3) for step in grid.spacing):
        return source, grid.affine
    target = folder / f"{stem_of(source)}.nii.gz"
    write_nifti(target, np.moveaxis(read_image([source], 3).array, 0, -1))
    return target, None


def dataset_normalization(images: Sequence[Path]) -> list[Normalization]:
    """Mean and standard deviation of each channel over all voxels of all images."""
    count, total, squares = 0, np.zeros(()), np.zeros(())
    for path in images:
        values = read_image([path], 3).array
        values = values.reshape(len(values), -1)  # (C, voxels)
        count += values.shape[1]
        total = total + values.sum(1, dtype=np.float64)
        squares = squares + np.square(values, dtype=np.float64).sum(1)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 0))
    return [
        replace(KEEP, mean=center, std=width)
        for center, width in zip(mean.tolist(), np.maximum(std, 1e-8).tolist(), strict=True)
    ]
