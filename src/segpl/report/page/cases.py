"""Files of single cases: images, labels and predictions, read when a section needs them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from segpl.data.case import Case
from segpl.data.layouts import read_dataset
from segpl.data.layouts.base import image_files
from segpl.data.plan import Plan
from segpl.data.readers import Grid, grid_difference, read_image, read_label, stem_of
from segpl.errors import InputError, MissingFileError, UserError
from segpl.evaluate.calibration import class_indices
from segpl.report.collection import RunCollection, typical_cases
from segpl.report.page.slices import AnyArray, CaseArrays, CaseRequest
from segpl.report.run_record import RunRecord
from segpl.report.sections.calibration import CaseCalibration, calibration_of
from segpl.types import IGNORE

MAX_ENTROPY = float(np.log(2))  # of one yes-or-no question, in nats
READ_ERRORS = (UserError, OSError, ValueError)


class RunCases:
    """The test cases of a run and its predictions for them."""

    def __init__(self, run: RunRecord) -> None:
        self.run = run

    @cached_property
    def names(self) -> list[str]:
        return sorted({score.case for score in self.run.scores})

    @cached_property
    def cases(self) -> dict[str, Case]:
        settings = self.run.settings
        dataset = read_dataset(
            Path(self.run.dataset),
            settings.get("data.layout") or None,
            subject=settings.get("data.subject") or None,
        )
        return {case.name: case for case in dataset.cases if case.name in self.names}

    @property
    def plan(self) -> Plan:
        if self.run.plan is None:
            raise InputError(f"{self.run.name} has no readable plan.json.")
        return self.run.plan

    def find(self, *folders: str, name: str) -> Path | None:
        """The first file of this name in folders of the run, in any format."""
        for folder in (self.run.path / each for each in folders):
            if folder.is_dir():
                for path in image_files(folder):
                    if stem_of(path) == name:
                        return path
        return None

    def case(self, name: str) -> Case:
        case = self.cases.get(name)
        if case is None:
            raise MissingFileError(f"case {name} is no longer in {self.run.dataset}.")
        return case

    def truth(self, name: str) -> tuple[AnyArray, Grid]:
        """Class indices, or IGNORE."""
        case = self.case(name)
        if case.label is None:
            raise MissingFileError(f"case {name} has no label.")
        return self.indices(case.label)

    def prediction(self, name: str) -> tuple[AnyArray, Grid]:
        path = self.find("predictions", name=name)
        if path is None:
            raise MissingFileError(f"{self.run.name} has no prediction of case {name}.")
        return self.indices(path)

    def indices(self, path: Path) -> tuple[AnyArray, Grid]:
        """The numbers in a file as indices of the plan's classes."""
        found = read_label(path, self.plan.dims)
        return class_indices(found.array, self.plan.classes, self.plan.ignore, path), found.grid

    def arrays(self, name: str) -> CaseArrays:
        truth, grid = self.truth(name)
        prediction, other = self.prediction(name)
        image = read_image(self.case(name).images, self.plan.dims)
        for what, found in (("prediction", other), ("image", image.grid)):
            if difference := grid_difference(grid, found):
                raise InputError(f"case {name}: the label and the {what} differ in {difference}.")
        return CaseArrays(
            name,
            image.array[0],
            np.where(truth == IGNORE, 0, truth),
            np.where(prediction == IGNORE, 0, prediction),
            grid,
            self.uncertainty(name, truth.shape),
        )

    def uncertainty(self, name: str, shape: tuple[int, ...]) -> AnyArray | None:
        """Entropy relative to its maximum, for the most uncertain class; None without a file."""
        folders = ("samples/uncertainty", "predictions/uncertainty")
        path = self.find(*folders, name=f"{name}_entropy")
        if path is None:
            return None
        entropy = read_image([path], self.plan.dims).array.max(0)
        return entropy / MAX_ENTROPY if entropy.shape == shape else None

    def calibration(self) -> list[CaseCalibration]:
        """Calibration of every case that has a probability file."""
        found = []
        for name in self.names:
            path = self.find("predictions/probabilities", name=name)
            if path is None:
                continue
            image = read_image([path], self.plan.dims)
            truth, grid = self.truth(name)
            if difference := grid_difference(grid, image.grid):
                raise InputError(
                    f"case {name}: the label and the probabilities differ in {difference}."
                )
            if len(image.array) != self.plan.outputs:
                raise InputError(
                    f"case {name}: the probabilities have {len(image.array)} channels, but the "
                    f"plan has {self.plan.outputs}."
                )
            found.append(calibration_of(image.array, truth))
        return found


def channel_note(found: RunCollection) -> str:
    """A note that only the first of several channels is shown."""
    several = dict.fromkeys(
        plan.channels for run in found.runs if (plan := run.plan) and len(plan.channels) > 1
    )
    return " ".join(
        f"The first of the {len(channels)} channels {', '.join(channels)} is shown."
        for channels in several
    )


def case_requests(found: RunCollection) -> list[CaseRequest]:
    """The worst, median and best case of each run."""
    requests = []
    for run in found.runs:
        cases, scores = RunCases(run), run.by_case("dice")
        for rank, name in typical_cases(run, found).items():
            key = f"{run.dataset}/{name}"
            read = partial(cases.arrays, name)
            requests.append(
                CaseRequest(run.name, run.label, run.seed, rank, scores[name], key, read)
            )
    return requests


def calibrations(
    found: RunCollection, *, advance: Callable[[], object] = lambda: None
) -> tuple[dict[str, list[list[CaseCalibration]]], list[str]]:
    """Calibration by method and seed, and why runs have none."""
    known: dict[str, list[list[CaseCalibration]]] = {label: [] for label in found.labels}
    missing = []
    for run in found.runs:
        try:
            cases = RunCases(run).calibration()
        except READ_ERRORS as error:
            missing.append(f"{run.name}: {error}")
            continue
        finally:
            advance()
        known[run.label].append(cases)
        if not cases:
            missing.append(f"{run.name} has no probabilities of its test cases.")
    return known, missing
