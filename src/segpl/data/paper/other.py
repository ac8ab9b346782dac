"""Any other dataset in place of the paper's, for the same experiment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from segpl.data.case import Case, Dataset
from segpl.data.inspect import Inspection, inspect
from segpl.data.layouts import read_dataset
from segpl.data.paper.brats import write_slices
from segpl.data.paper.carve import IGNORED, write_slabs
from segpl.data.paper.prepared import (
    KEEP,
    CaseRole,
    PaperData,
    Sample,
    SampleWriter,
    normalize_case,
    paper_plan,
    require_cases,
    write_datasets,
)
from segpl.data.plan import Plan
from segpl.data.prepare import class_indices
from segpl.data.readers import read_image, read_label_on
from segpl.data.split import outside_subjects, shuffled_by_subject, take_subjects
from segpl.errors import InputError, count_noun
from segpl.types import IGNORE

VolumeCut = Literal["slabs", "slices", "whole"]  # how an experiment divides a volume into samples
SIDE_UNIT = 16  # sides of a patch that four downsamplings can halve
SEED_TRIALS = 100_000
REASONS = {
    "patch": "as in the paper, or the median image where it is smaller",
    "normalization": "each case was normalized before",
}


@dataclass(frozen=True, slots=True)
class OtherData:
    """How another dataset replaces the paper's."""

    name: str
    budgets: tuple[str, ...]  # datasets of the experiment with enough labels
    split: tuple[str, ...]  # settings of the runs that hold out the validation case


def prepare_other(
    source: Path, root: Path, data: PaperData, cut: VolumeCut
) -> tuple[Plan, OtherData]:
    """Write a dataset for each number of labels that `source` has enough cases for.

    N labels are N samples from as few cases as possible. Test cases are those of the dataset, if
    it has any. Each case is normalized, and neither resampled nor cropped. Classes are kept.
    """
    dataset = read_dataset(source)
    roles = draw_other_roles(dataset, data)
    needed = {name: sum(counts) for name, counts in data.labeled.items()}
    inspection = inspect_labeled(dataset, roles["labeled"][: max(needed.values())])
    if inspection.dims == 2 and cut == "whole":
        raise InputError(f"the experiment needs volumes, but {source} has 2D images.")
    plan = other_plan(inspection, data)
    samples: list[Sample] = []
    found: list[int] = []  # samples of each labeled case
    for role, cases in roles.items():
        for case in cases:
            if role == "labeled" and sum(found) >= max(needed.values()):
                break
            writer = SampleWriter(root / "samples", role, case.name)
            made = write_case(writer, case, plan, inspection.dims, data.patch, cut)
            samples += made
            found += [len(made)] if role == "labeled" else []
    budgets = {
        name: counts for name, count in needed.items() if (counts := fill_budget(found, count))
    }
    if not budgets:
        raise InputError(
            f"{source} has {count_noun(sum(found), 'sample')} to label, but the experiment needs "
            f"{min(needed.values())}. Use fewer other cases with --set paper.data.unlabeled=N."
        )
    classes = {name: index for index, name in enumerate(plan.classes)}
    written = classes | ({} if plan.ignore is None else {"ignore": IGNORED})
    own = replace(data, labeled=budgets)
    write_datasets(root, samples, own, channels=plan.channels, classes=written)
    prepared = replace(plan, classes=classes, ignore=written.get("ignore"))
    name = source.resolve().name
    return prepared, OtherData(name, tuple(budgets), hold_out_validation(root, tuple(budgets)))


def draw_other_roles(dataset: Dataset, data: PaperData) -> dict[CaseRole, list[Case]]:
    """Cases by role. All that remain after the other roles may be labeled; no subject has two."""
    own = [case for case in dataset.test if case.label]
    held_out = 0 if own else data.test
    found = len(dataset.labeled) + len(dataset.unlabeled)
    require_cases(len(dataset.labeled), held_out + data.validation + 1)
    require_cases(found, held_out + data.validation + data.unlabeled + 1)
    pool = outside_subjects(shuffled_by_subject(dataset.labeled, data.seed), own)
    drawn, pool = take_subjects(pool, held_out)
    test = [*own, *drawn]
    validation, pool = take_subjects(pool, data.validation)
    rest = [*outside_subjects(dataset.unlabeled, [*test, *validation]), *pool]
    unlabeled, rest = take_subjects(rest, min(data.unlabeled, len(rest)))
    labeled = [case for case in rest if case.label]
    if not labeled:  # few subjects with many cases
        raise InputError(
            f"all labeled cases of {dataset.root} are held out or unlabeled in this experiment. "
            "Use fewer with --set paper.data.unlabeled=N or paper.data.test=N."
        )
    return {
        "labeled": labeled,
        "unlabeled": [case.without_label() for case in unlabeled],
        "validation": validation,
        "test": test,
    }


def inspect_labeled(dataset: Dataset, cases: Sequence[Case]) -> Inspection:
    """Read the labeled cases only: no other label influences the plan."""
    inspection = inspect(dataset, cases=cases, read_labels_of=[case.name for case in cases])
    for problem in inspection.problems:
        if problem.fatal:
            raise InputError(f"{problem.case}: {problem.what}. {problem.remedy}")
    return inspection


def other_plan(inspection: Inspection, data: PaperData) -> Plan:
    """The paper's patch, or the size of the median image where that is smaller."""
    shapes = [item.shape for item in inspection.fingerprints.values()]
    usual = [
        math.ceil(median(sides) / SIDE_UNIT) * SIDE_UNIT for sides in zip(*shapes, strict=True)
    ]
    patch = [min(side, own) for side, own in zip(data.patch, usual, strict=False)]
    dataset = inspection.dataset
    count = len(next(iter(inspection.fingerprints.values())).channels)
    channels = dataset.channels or [f"channel-{index}" for index in range(count)]
    classes = inspection.classes
    if dataset.ignore is not None:
        classes = classes | {"ignore": dataset.ignore}
    plan = paper_plan(patch, channels, classes, [KEEP] * count)
    return replace(plan, reasons=plan.reasons | REASONS)


def write_case(
    writer: SampleWriter, case: Case, plan: Plan, dims: int, patch: Sequence[int], cut: VolumeCut
) -> list[Sample]:
    """The samples of one case. The label of an unlabeled case is not read."""
    image = read_image(case.images, dims)
    array = normalize_case(image.array)  # (C, *S)
    label = np.zeros(image.grid.shape, np.uint8)
    if case.label:
        truth = read_label_on(image.grid, case)
        indices = class_indices(truth.array, plan.classes, plan.ignore)
        label = np.where(indices == IGNORE, np.uint8(IGNORED), indices.astype(np.uint8))
    if dims == 2 or cut == "whole":
        suffix, stored = (".npy", array) if dims == 2 else (".nii.gz", as_stored(array))
        return [writer.write(suffix, stored, label)]
    # nothing is cropped, because no single crop size suits every dataset
    uncropped = (*image.grid.shape[:2], *patch[2:])
    if cut == "slices":
        return write_slices(writer, array, label, uncropped)
    return write_slabs(writer, as_stored(array), label, uncropped)


def as_stored(image: NDArray[Any]) -> NDArray[Any]:
    """(C, *S) as in a NIfTI file: the channels last, if there are several."""
    return image[0] if len(image) == 1 else np.moveaxis(image, 0, -1)


def fill_budget(found: Sequence[int], count: int) -> tuple[int, ...]:
    """Samples of each labeled case that add up to `count`; none if there are too few."""
    if sum(found) < count:
        return ()
    before = [0, *accumulate(found)]
    taken = [min(own, count - first) for own, first in zip(found, before, strict=False)]
    return tuple(number for number in taken if number > 0)


def hold_out_validation(root: Path, budgets: Sequence[str]) -> tuple[str, ...]:
    """Settings of a split that holds out the prepared validation cases on every dataset."""
    pools = [read_dataset(root / name).labeled for name in budgets]
    wanted = {case.name for case in pools[0] if case.name.startswith("validation-")}
    if not wanted:
        return ("split.validation=0",)
    # one case per subject is enough to know the order
    firsts = [list({case.subject: case for case in pool}.values()) for pool in pools]
    count = sum(case.name in wanted for case in firsts[0])
    for seed in range(SEED_TRIALS):
        if all(
            case.name in wanted
            for cases in firsts
            for case in shuffled_by_subject(cases, seed)[:count]
        ):
            return (f"split.validation={len(wanted)}", f"split.seed={seed}")
    raise InputError(f"paper.data.validation is {count}. Use 1.")
