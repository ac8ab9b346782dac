"""What the datasets of the paper share: roles of cases, samples, links between datasets, plans."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from segpl.data.plan import Normalization, Plan
from segpl.data.planner import PAPER_WIDTH, choose_kernels, choose_strides
from segpl.data.stored import write_npy
from segpl.errors import InputError, MissingFileError, count_noun, name_some
from segpl.files import write_atomically
from segpl.records import write_json

Item = TypeVar("Item")
CaseRole = Literal["labeled", "unlabeled", "validation", "test"]
SHOWN_MISSING = 5  # missing files that a message names
# intensities that were normalized before: nothing is clipped, shifted or scaled
KEEP = Normalization("ct", low=-1e6, high=1e6)


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperData:
    """How a dataset is prepared: table `[paper.data]` of an experiment."""

    patch: tuple[int, ...]  # crop size in voxels
    labeled: dict[str, tuple[int, ...]]  # dataset -> most samples of each labeled case
    unlabeled: int  # cases
    test: int  # cases
    cases: int = 0  # annotated cases of the complete dataset; 0: unknown
    validation: int = 0  # cases
    test_samples: int = 0  # at most; 0: all
    seed: int = 0  # of the choice of cases

    def __post_init__(self) -> None:
        if not self.labeled or any(not own or min(own) < 1 for own in self.labeled.values()):
            raise InputError("labeled needs at least one dataset, with at least 1 sample per case")
        if self.test < 1 or min(self.unlabeled, self.validation, self.test_samples, self.cases) < 0:
            raise InputError("test must be at least 1, and other numbers at least 0")

    @property
    def labeled_cases(self) -> int:
        return max(map(len, self.labeled.values()))


@dataclass(frozen=True, slots=True)
class Sample:
    """One file to train or test on: a whole case, a slab or a slice."""

    role: CaseRole
    case: str
    image: Path
    label: Path | None = None


def draw_roles(cases: Sequence[str], data: PaperData) -> dict[str, CaseRole]:
    """Case -> role, drawn at random; cases that the paper does not use have none."""
    order = sorted(cases)
    random.Random(data.seed).shuffle(order)
    counts: dict[CaseRole, int] = {
        "labeled": data.labeled_cases,
        "unlabeled": data.unlabeled,
        "validation": data.validation,
        "test": data.test,
    }
    require_all_cases(len(cases), data)
    require_cases(len(cases), sum(counts.values()))
    roles = [role for role, count in counts.items() for _ in range(count)]
    return dict(zip(order, roles, strict=False))


def require_all_cases(found: int, data: PaperData) -> None:
    """Raise if the dataset is incomplete, since its cases would get other roles."""
    if data.cases and found != data.cases:
        remedy = "Unpack the others" if found < data.cases else "Remove copies"
        raise InputError(
            f"the folder has {count_noun(found, 'annotated case')}, but the complete dataset has "
            f"{data.cases}. {remedy}. To use these cases anyway, with other roles than in the "
            f"complete dataset, pass --set paper.data.cases={found}."
        )


def require_cases(found: int, needed: int) -> None:
    if found < needed:
        raise InputError(
            f"the folder has {count_noun(found, 'case')}, but the experiment needs {needed}. "
            "Unpack all of them, or use fewer with --set paper.data.test=N or "
            "paper.data.unlabeled=N."
        )


def require_complete(root: Path, missing: Sequence[Path], remedy: str) -> None:
    """Raise if files of an unpacked dataset are missing."""
    if missing:
        names = [str(path.relative_to(root)) for path in missing]
        raise MissingFileError(
            f"{root} is incomplete. Missing files: {len(missing)} "
            f"({name_some(names, SHOWN_MISSING)}). {remedy}"
        )


def choose_evenly(items: Sequence[Item], count: int) -> list[Item]:
    """`count` of the items, evenly spaced; all of them if there are fewer."""
    count = min(count, len(items))
    return [items[(2 * index + 1) * len(items) // (2 * count)] for index in range(count)]


def center_crop(array: NDArray[Any], sides: Sequence[int], axes: Sequence[int]) -> NDArray[Any]:
    for axis, side in zip(axes, sides, strict=True):
        first = (array.shape[axis] - side) // 2
        if first < 0:
            raise InputError(
                f"a slice has {array.shape[axis]} voxels, fewer than the {side} of "
                "paper.data.patch. Use a smaller patch."
            )
        array = array.take(range(first, first + side), axis)
    return array


def normalize_case(image: NDArray[np.float32]) -> NDArray[np.float32]:
    """Mean 0 and standard deviation 1 of each channel (C, *S) of a case."""
    axes = tuple(range(1, image.ndim))
    mean = image.mean(axes, keepdims=True, dtype=np.float64)
    std = image.std(axes, keepdims=True, dtype=np.float64)
    normalized: NDArray[np.float32] = ((image - mean) / np.maximum(std, 1e-8)).astype(np.float32)
    return normalized


def write_nifti(path: Path, array: NDArray[Any], affine: NDArray[np.float64] | None = None) -> None:
    """Write a volume; without `affine`, with a voxel spacing of 1, so that nothing is resampled."""
    import nibabel

    image = nibabel.Nifti1Image(array, np.eye(4) if affine is None else affine)
    write_atomically(path, lambda draft: nibabel.save(image, draft))


@dataclass(frozen=True, slots=True)
class SampleWriter:
    """Writes the samples of a case."""

    folder: Path
    role: CaseRole
    case: str

    def write(self, ending: str, image: NDArray[Any], label: NDArray[Any]) -> Sample:
        """The `ending` of the name sets the format. An unlabeled sample has no label."""
        name = f"{self.role}-{self.case}{ending}"
        write = write_npy if ending.endswith(".npy") else write_nifti
        source, target = self.folder / "images" / name, self.folder / "labels" / name
        write(source, image)
        if self.role == "unlabeled":
            return Sample(self.role, self.case, source)
        write(target, label)
        return Sample(self.role, self.case, source, target)


def write_datasets(
    root: Path,
    samples: Sequence[Sample],
    data: PaperData,
    *,
    channels: Sequence[str],
    classes: dict[str, int],
) -> None:
    """One Decathlon dataset per number of labeled samples; all of them link to the same files."""
    by_role: dict[CaseRole, list[Sample]] = {}
    for sample in samples:
        by_role.setdefault(sample.role, []).append(sample)
    labeled: dict[str, list[Sample]] = {}
    for sample in by_role["labeled"]:
        labeled.setdefault(sample.case, []).append(sample)
    test = choose_evenly(by_role["test"], data.test_samples or len(by_role["test"]))
    for name, counts in data.labeled.items():
        chosen = [
            sample
            for own, count in zip(labeled.values(), counts, strict=False)
            for sample in choose_evenly(own, count)
        ]
        folder = root / name
        shutil.rmtree(folder, ignore_errors=True)  # of an interrupted preparation
        for sample in by_role.get("unlabeled", []):
            link(sample.image, folder / "imagesTr")
        training = [*chosen, *by_role.get("validation", [])]
        description = {
            "modality": {str(index): channel for index, channel in enumerate(channels)},
            "labels": {str(number): name for name, number in classes.items()},
            "training": [link_pair(sample, folder, "Tr") for sample in training],
            "test": [link_pair(sample, folder, "Ts") for sample in test],
        }
        write_json(folder / "dataset.json", description)


def link_pair(sample: Sample, folder: Path, part: str) -> dict[str, str]:
    """An entry of dataset.json."""
    assert sample.label is not None, f"{sample.image} has no label"
    image = link(sample.image, folder / f"images{part}")
    label = link(sample.label, folder / f"labels{part}")
    return {"image": str(image.relative_to(folder)), "label": str(label.relative_to(folder))}


def link(path: Path, folder: Path) -> Path:
    """A symbolic link to `path` in `folder`; relative, so that both can be moved together."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / path.name
    target.symlink_to(os.path.relpath(path.resolve(), folder.resolve()))
    return target


def paper_plan(
    patch: Sequence[int],
    channels: Sequence[str],
    classes: dict[str, int],
    normalization: Sequence[Normalization],
) -> Plan:
    """The paper's network on crops of this size. Nothing is resampled or reoriented."""
    sides, spacing = tuple(patch), (1.0,) * len(patch)
    strides = choose_strides(sides, spacing)
    named = {name: number for name, number in classes.items() if name != "ignore"}
    plan = Plan(
        dims=len(sides),
        channels=tuple(channels),
        classes=named,
        ignore=classes.get("ignore"),
        orientation=None,
        spacing=spacing,
        normalization=tuple(normalization),
        patch=sides,
        strides=strides,
        kernels=choose_kernels(strides, spacing, sides),
        width=PAPER_WIDTH[len(sides)],
        batch=1,
        reasons=dict.fromkeys(("spacing", "patch", "normalization", "width"), "as in the paper"),
    )
    plan.check("paper.data.patch")
    return plan
