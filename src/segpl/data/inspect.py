"""Read every case of a dataset and list what is wrong with it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from segpl.data.case import Case, Dataset, is_patterns
from segpl.data.fingerprint import Fingerprint, count_numbers, fingerprint
from segpl.data.formats import NIFTI, lacks_spacing, length_unit, nifti_header
from segpl.data.image_problems import constant_problems, image_problems
from segpl.data.known_cases import KnownCases, source_digest
from segpl.data.manifest import MANIFEST, mask_digest, read_manifest
from segpl.data.pool import CasePool
from segpl.data.problems import (
    Problem,
    Voxels,
    are_classes,
    foreground_numbers,
    label_problems,
    warning,
)
from segpl.data.readers import (
    Grid,
    Image,
    Label,
    grid_difference,
    read_case_label,
    read_grid,
    read_image,
    suffix_of,
    with_axes_of,
)
from segpl.errors import UnusableFileError, UserError

PREDICTED = "the label is a mask that segpl predicted"
EXTENTS = (0.1, 1e4)  # mm; the longest side of a scan is between them


@dataclass(frozen=True, slots=True)
class Inspection:
    dataset: Dataset
    dims: int
    classes: dict[str, int]  # name -> number in the label files, background first
    fingerprints: dict[str, Fingerprint]  # by case, if its image is readable
    problems: tuple[Problem, ...]


def inspect(
    dataset: Dataset,
    *,
    cases: Sequence[Case] | None = None,
    read_labels_of: Collection[str],
    advance: Callable[[], None] = lambda: None,
    known: KnownCases | None = None,
) -> Inspection:
    """Read every case once, or those in `cases`, and collect all problems.

    Only the labels of `read_labels_of` are opened, so that labels of unlabeled, validation and test
    cases cannot influence training. Files that are unchanged since they became `known` are not read
    again.
    """
    cases = dataset.cases if cases is None else cases
    visible = frozenset(read_labels_of)
    cases = [case if case.name in visible else case.without_label() for case in cases]
    digests = {case.name: source_digest(case, dataset.ignore) for case in cases}
    stored = [known.get(case, digests[case.name]) if known else None for case in cases]
    # headers are read only if fingerprints are missing or differ
    known_dims = {len(found.shape) if found else 0 for found in stored}
    dims = (known_dims.pop() if len(known_dims) == 1 else 0) or detect_dims(cases)

    by_case: dict[str, _CaseReport] = {}
    for case, found in zip(cases, stored, strict=True):
        if found and len(found.shape) == dims:
            by_case[case.name] = _CaseReport(found, found.voxels, [])
            advance()
    pool = CasePool([case for case in cases if case.name not in by_case])

    def read(case: Case) -> None:
        with pool.budget.reserve(_reading_memory(case)):
            report: _CaseReport = pool.call(_read_case, case, dims, dataset.ignore)
        by_case[case.name] = report
        if known and report.fingerprint and not report.problems:
            known.add(case, digests[case.name], report.fingerprint)
        advance()

    pool.run(read)
    if known:
        known.save()
    reports = {case.name: by_case[case.name] for case in cases}
    fingerprints = {name: r.fingerprint for name, r in reports.items() if r.fingerprint is not None}
    voxels = {name: r.voxels for name, r in reports.items() if r.voxels is not None}
    is_color = all(len(item.channels) > 1 for item in fingerprints.values())
    if is_color and len(dataset.channels) == 1 and is_patterns(dataset.layout):
        dataset = replace(dataset, channels=())  # the name of a file does not name its channels
    classes = _classes(dataset, voxels)
    problems = [problem for report in reports.values() for problem in report.problems]
    marked = {problem.case for problem in problems if problem.what == PREDICTED}
    problems += _predicted_labels([case for case in cases if case.name not in marked])
    problems += label_problems(dataset, classes, cases, voxels, fingerprints)
    problems += image_problems(dataset, list(fingerprints.values()))
    order = {case.name: place for place, case in enumerate(cases)}
    problems.sort(key=lambda problem: order.get(problem.case, -1))
    return Inspection(dataset, dims, classes, fingerprints, tuple(problems))


class _CaseReport(NamedTuple):
    fingerprint: Fingerprint | None
    voxels: dict[int, int] | None  # also if the image is unreadable
    problems: list[Problem]


def detect_dims(cases: Sequence[Case]) -> int:
    """Spatial axes of most of a few headers; labels first, since they have no channels."""
    labels = [case.label for case in cases if case.label]
    for files in (labels, [case.images[0] for case in cases]):
        votes: Counter[int] = Counter()
        for path in files[:: max(1, len(files) // 5)]:
            try:
                votes[len(read_grid(path)[0].shape)] += 1
            except UserError:
                continue  # reported when the case is read
        if votes:
            return votes.most_common(1)[0][0]
    return 3


def _reading_memory(case: Case) -> int:
    """Estimated memory for reading a case, in bytes; 0 if its header is unreadable."""
    try:
        grid, channels = read_grid(case.images[0])
    except UserError:
        return 0  # reported when the case is read
    return 16 * math.prod(grid.shape) * channels * len(case.images)


def _read_case(case: Case, dims: int, ignore: int | None) -> _CaseReport:
    problems: list[Problem] = []
    image: Image | None = None
    label: Label | None = None
    try:
        image = read_image(case.images, dims)
    except UserError as error:
        problems.append(_unreadable(case, error))
    try:
        label = read_case_label(case, dims) if case.label else None
    except UserError as error:
        problems.append(_unreadable(case, error))
    if label and label.is_prediction:
        remedy = "Correct it, or review it in `segpl label` and save it there."
        problems.append(Problem(case.name, PREDICTED, remedy))
    if image is None:
        voxels = count_numbers(label.array) if label else None
        return _CaseReport(None, voxels, problems)
    label = with_axes_of(label, image.grid) if label else None
    found = fingerprint(case.name, image, label, ignore)
    problems += constant_problems(case, found.channels)
    if any(suffix_of(path) in NIFTI and lacks_spacing(path) for path in case.images):
        what = "the header stores no voxel size (pixdim is 0), so the voxels count as 1 mm"
        problems.append(warning(case.name, what, "Store the size in the header."))
    problems += _extent_problems(case, image.grid)
    if label and (difference := grid_difference(image.grid, label.grid)):
        remedy = "Resample the label to the image with nearest-neighbor interpolation"
        if image.grid.shape == label.grid.shape:
            remedy += " or, if only the headers differ, copy the image's header into the label"
        what = f"image and label have different grids: {difference}"
        problems.append(Problem(case.name, what, f"{remedy}."))
    return _CaseReport(found, found.voxels, problems)


def _extent_problems(case: Case, grid: Grid) -> Iterator[Problem]:
    """A scan as wide as a building, or thinner than a hair, has the wrong unit."""
    extent = max(size * side for size, side in zip(grid.spacing, grid.shape, strict=True))
    if grid.stored_spacing is not None and not EXTENTS[0] <= extent <= EXTENTS[1]:
        unit, path = "mm", case.images[0]
        if suffix_of(path) in NIFTI:
            unit, _ = length_unit(nifti_header(path)[1])
        what = f"the image is {extent:.6g} mm wide; the unit in its header is {unit}"
        remedy = "Correct the unit or the voxel size in the header."
        yield Problem(case.name, what, remedy, fatal=extent > EXTENTS[1])


def _predicted_labels(cases: Sequence[Case]) -> Iterator[Problem]:
    """Labels that `segpl predict` wrote and nobody has changed since."""
    digests: dict[Path, str] = {}
    for folder in {path.parent for case in cases for path in case.label_files}:
        with suppress(UserError):  # the file is from another program
            manifest = read_manifest(folder)
            entries = manifest.files.values() if manifest else []
            digests |= {folder / entry.labels: entry.digest for entry in entries}
    for case in cases:
        for path in case.label_files:
            if path in digests and digests[path] in ("", mask_digest(path)):
                what = f"{PREDICTED}, according to "
                remedy = "Move the predicted masks to another folder. If you have reviewed all of "
                remedy += f"them to use them as labels, remove {MANIFEST}."
                yield Problem(case.name, f"{what}{path.with_name(MANIFEST)}", remedy)


def _unreadable(case: Case, error: UserError) -> Problem:
    if isinstance(error, UnusableFileError):
        return Problem(case.name, error.what, error.remedy)
    return Problem(case.name, str(error).rstrip("."), "Restore the file.")


def _classes(dataset: Dataset, voxels: Voxels) -> dict[str, int]:
    """The classes that the dataset names, otherwise the numbers in its labels."""
    if dataset.classes is not None:
        return dataset.classes
    found = [foreground_numbers(dataset, counts) for counts in voxels.values()]
    numbers = set[int]().union(*(one for one in found if are_classes(one)))
    if len(numbers) <= 1:
        return {"background": 0, "foreground": next(iter(numbers), 1)}
    return {"background": 0} | {f"class-{number}": number for number in sorted(numbers)}
