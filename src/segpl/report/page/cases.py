"""Files of single cases: images, labels and predictions, read when a section needs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from segpl.data.case import Case
from segpl.data.layouts.base import image_files
from segpl.data.plan import Plan
from segpl.data.prepare import class_indices
from segpl.data.readers import (
    Grid,
    Label,
    grid_difference,
    read_case_label,
    read_image,
    read_label,
    stem_of,
    with_axes_of,
)
from segpl.data.summary import CaseSummary, review_order
from segpl.errors import InputError, MissingFileError
from segpl.evaluate.calibration import require_channels
from segpl.report.collection import RunCollection, cases_by_score, typical_cases
from segpl.report.page.gallery import READ_ERRORS, CaseRequest, MaskRequest
from segpl.report.page.slices import AnyArray, CaseArrays, MaskArrays
from segpl.report.run_record import RunRecord
from segpl.report.run_scores import MASK_FOLDERS
from segpl.report.sections.calibration import CaseCalibration, calibration_of
from segpl.report.tables import number
from segpl.types import IGNORE

MAX_ENTROPY = float(np.log(2))  # of one yes-or-no question, in nats
MAX_UNSCORED = 24  # predictions without scores that are shown
FEATURED = 4  # of them


class RunCases:
    """The predictions of a run, and the images and labels that belong to them."""

    def __init__(self, run: RunRecord) -> None:
        self.run = run
        self.files: dict[str, dict[str, Path]] = {}  # folder -> stem -> path

    @cached_property
    def names(self) -> list[str]:
        """Scored cases."""
        return sorted({score.case for score in self.run.scores})

    @cached_property
    def unscored(self) -> dict[str, CaseSummary]:
        """Predicted cases that were not labeled in training, in the order of review."""
        return {one.case: one.summary for one in review_order(self.run.summaries) if one.summary}

    @cached_property
    def has_masks(self) -> bool:
        return self.run.plan is not None and any(
            image_files(self.run.path / folder) for folder in MASK_FOLDERS
        )

    @cached_property
    def cases(self) -> dict[str, Case]:
        dataset = self.run.open_dataset()
        dataset.require_numbers(self.plan.classes, self.run.path / "plan.json")
        return {case.name: case for case in dataset.cases}

    @property
    def plan(self) -> Plan:
        if self.run.plan is None:
            raise InputError(f"{self.run.name} has no readable plan.json.")
        return self.run.plan

    def find(self, *folders: str, name: str) -> Path | None:
        """The first file of this name in folders of the run, in any format."""
        for folder in folders:
            if folder not in self.files:  # a folder may have thousands of files
                listed = reversed(image_files(self.run.path / folder))
                self.files[folder] = {stem_of(path): path for path in listed}
            if path := self.files[folder].get(name):
                return path
        return None

    def images(self, name: str) -> Sequence[Path]:
        """Files of the dataset, or those that the prediction was made from."""
        case = None
        with suppress(*READ_ERRORS):
            case = self.cases.get(name)
        if case is not None:
            return case.images
        if name in self.run.predicted:
            return [Path(path) for path in self.run.predicted[name].images]
        raise MissingFileError(f"case {name} is no longer in {self.run.dataset}.")

    def truth(self, name: str, grid: Grid) -> tuple[AnyArray, Grid]:
        """Class indices, or IGNORE, with the axes of `grid`."""
        case = self.cases.get(name)
        if case is None or case.label is None:
            raise MissingFileError(f"case {name} has no label in {self.run.dataset}.")
        label = with_axes_of(read_case_label(case, self.plan.dims), grid)
        return self.indices(label, case.label), label.grid

    def indices(self, found: Label, path: Path) -> AnyArray:
        """The numbers in a file as indices of the plan's classes."""
        return class_indices(found.array, self.plan.classes, self.plan.ignore, str(path))

    def case_arrays(self, name: str) -> CaseArrays:
        """The image and, of a scored case, the label if the dataset has it."""
        image = read_image(self.images(name), self.plan.dims)
        if name not in self.names:
            return CaseArrays(image.array[0], image.grid)
        try:
            truth, grid = self.truth(name, image.grid)
        except READ_ERRORS:
            if self.run.split and name in self.run.split.test:
                raise
            return CaseArrays(image.array[0], image.grid)  # scored with labels from elsewhere
        require_grid(name, "image", image.grid, grid)
        return CaseArrays(image.array[0], grid, np.where(truth == IGNORE, 0, truth))

    def mask_arrays(self, name: str, grid: Grid) -> MaskArrays:
        path = self.find(*MASK_FOLDERS, name=name)
        if path is None:
            raise MissingFileError(f"{self.run.name} has no prediction of case {name}.")
        label = read_label(path, self.plan.dims)
        require_grid(name, "prediction", label.grid, grid)
        found = self.indices(label, path)
        return MaskArrays(np.where(found == IGNORE, 0, found), self.uncertainty(name, grid.shape))

    def uncertainty(self, name: str, shape: tuple[int, ...]) -> AnyArray | None:
        """Entropy relative to its maximum, for the most uncertain class; None without a file."""
        folders = ("samples/uncertainty", "predictions/uncertainty")
        path = self.find(*folders, name=f"{name}_entropy")
        if path is None:
            return None
        entropy = read_image([path], self.plan.dims).array.max(0)
        return entropy / MAX_ENTROPY if entropy.shape == shape else None

    def calibration(self) -> dict[str, CaseCalibration]:
        """Calibration of every case that has a probability file."""
        found = {}
        for name in self.names:
            path = self.find("predictions/probabilities", name=name)
            if path is None:
                continue
            image = read_image([path], self.plan.dims)
            truth, grid = self.truth(name, image.grid)
            require_grid(name, "probabilities", image.grid, grid)
            require_channels(image.array, self.plan.classes, case=name)
            found[name] = calibration_of(image.array, truth)
        return found


def require_grid(name: str, what: str, grid: Grid, other: Grid) -> None:
    if difference := grid_difference(other, grid):
        raise InputError(f"case {name}: the label and the {what} differ in {difference}.")


def channel_note(found: RunCollection) -> str:
    """A note that only the first of several channels is shown."""
    several = dict.fromkeys(
        plan.channels for run in found.runs if (plan := run.plan) and len(plan.channels) > 1
    )
    return " ".join(
        f"The first of the {len(channels)} channels {', '.join(channels)} is shown."
        for channels in several
    )


def case_requests(found: RunCollection) -> tuple[list[CaseRequest], str]:
    """Scored cases from worst to best, or else predictions without scores; and a note.

    Each method is shown by its first run on the dataset.
    """
    requests: list[CaseRequest] = []
    notes = []
    has_scores = any(run.scores for run in found.runs)
    for dataset in found.datasets:
        runs: dict[str, RunCases] = {}
        for cases in map(RunCases, found.on(dataset).runs):
            label = cases.run.label
            if (cases.names if has_scores else cases.unscored) and (
                label not in runs or (cases.has_masks and not runs[label].has_masks)
            ):
                runs[label] = cases
        make = scored_requests if has_scores else unscored_requests
        requests += make(dataset, list(runs.values()))
        seeds = {cases.run.seed for cases in runs.values()}
        if len(found.on(dataset).runs) > len(runs) > 0 and not found.has_data_by_seed:
            which = f"seed {seeds.pop()}" if len(seeds) == 1 else "its first seed"
            notes.append(f"Each method is shown with {which}.")
        count = max((len(cases.unscored) for cases in runs.values()), default=0)
        if not has_scores and count > MAX_UNSCORED:
            notes.append(f"{MAX_UNSCORED} of {count} predicted scans are shown.")
    return requests, " ".join(dict.fromkeys(notes))


def scored_requests(dataset: str, runs: Sequence[RunCases]) -> list[CaseRequest]:
    order = cases_by_score([cases.run for cases in runs])
    captions = {
        (cases, name): f"Dice {value:.3f}"
        for cases in runs
        for name, value in cases.run.by_case("dice").items()
        if math.isfinite(value)
    }
    scored = {name for _, name in captions}
    ranks = typical_cases([name for name in order if name in scored])
    requests = []
    for name in order:
        title = f"{ranks[name]}: {name}" if name in ranks else name
        masks = [(one, captions.get((one, name), "")) for one in runs if name in one.names]
        requests.append(case_request(dataset, name, title, masks, is_featured=name in ranks))
    return requests


def unscored_requests(dataset: str, runs: Sequence[RunCases]) -> list[CaseRequest]:
    names = list(dict.fromkeys(name for cases in runs for name in cases.unscored))[:MAX_UNSCORED]
    return [
        case_request(
            dataset,
            name,
            name,
            [(c, summary_caption(c.unscored[name])) for c in runs if name in c.unscored],
            is_featured=place < FEATURED,
        )
        for place, name in enumerate(names)
    ]


def case_request(
    dataset: str, name: str, title: str, masks: Sequence[tuple[RunCases, str]], *, is_featured: bool
) -> CaseRequest:
    first, _ = masks[0]
    return CaseRequest(
        f"{dataset}/{name}",
        title,
        partial(first.case_arrays, name),
        tuple(
            MaskRequest(cases.run.label, caption, partial(cases.mask_arrays, name))
            for cases, caption in masks
        ),
        is_featured,
    )


def summary_caption(summary: CaseSummary) -> str:
    volume = sum(one.volume for one in summary.classes.values())
    size = f"{number(volume)} {summary.unit}"
    return size if summary.confidence is None else f"confidence {summary.confidence:.2f}, {size}"


def calibrations(
    found: RunCollection, *, advance: Callable[[], object] = lambda: None
) -> tuple[dict[str, dict[int, dict[Any, CaseCalibration]]], list[str]]:
    """Calibration by method and seed, and why runs have none."""
    known: dict[str, dict[int, dict[Any, CaseCalibration]]] = {label: {} for label in found.labels}
    missing = []
    for run in found.runs:
        try:
            cases = RunCases(run).calibration()
        except READ_ERRORS as error:
            missing.append(f"{run.name}: {error}")
            continue
        finally:
            advance()
        several = len(found.datasets) > 1  # keep cases of the same name apart
        known[run.label][run.seed] = {
            (run.dataset, name) if several else name: one for name, one in cases.items()
        }
        if not cases:
            missing.append(f"{run.name} has no probabilities of its test cases.")
    return known, missing
