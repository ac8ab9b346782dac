"""What a report shows of single cases: their files, read when a section needs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.assembly import open_dataset
from segpl.data.case import Case
from segpl.data.layouts.base import image_files
from segpl.data.plan import Plan
from segpl.data.readers import Grid, grid_difference, read_image, read_label, stem_of
from segpl.engine.folder import RunFolder
from segpl.errors import InputError, MissingFileError, UserError
from segpl.evaluate.calibration import class_indices
from segpl.evaluate.metrics import volume
from segpl.evaluate.statistics import BySeed
from segpl.report.gathered import FoundRun, Gathered, spread_cases
from segpl.report.page.slices import CaseArrays, Wanted
from segpl.report.sections.calibration import CaseCalibration, calibration_of
from segpl.settings import read_config, resolve
from segpl.types import IGNORE

Array = NDArray[Any]


class RunCases:
    """The cases that a run was scored on, and what it predicted for them."""

    def __init__(self, run: FoundRun) -> None:
        self.run = run

    @cached_property
    def cases(self) -> dict[str, Case]:
        config = resolve(read_config(RunFolder(self.run.path).config))
        wanted = {score.case for score in self.run.scores}
        return {case.name: case for case in open_dataset(config).cases if case.name in wanted}

    @property
    def plan(self) -> Plan:
        if self.run.plan is None:
            raise InputError(f"{self.run.name} has no plan that can be read.")
        return self.run.plan

    def file(self, *places: str, name: str) -> Path | None:
        """The first file of this name in folders of the run, whatever its format."""
        for place in places:
            folder = self.run.path / place
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

    def truth(self, name: str) -> tuple[Array, Grid]:
        """Indices of classes, or IGNORE."""
        case = self.case(name)
        if case.label is None:
            raise MissingFileError(f"case {name} has no label.")
        return self.indices(case.label)

    def prediction(self, name: str) -> tuple[Array, Grid]:
        path = self.file("predictions", name=name)
        if path is None:
            raise MissingFileError(f"{self.run.name} has no prediction of case {name}.")
        return self.indices(path)

    def indices(self, path: Path) -> tuple[Array, Grid]:
        """Numbers of a file as indices of the plan's classes; one that is no class is refused."""
        found = read_label(path, self.plan.dims)
        return class_indices(found.array, self.plan.classes, self.plan.ignore, path), found.grid

    def arrays(self, name: str) -> CaseArrays:
        truth, grid = self.truth(name)
        prediction, other = self.prediction(name)
        image = read_image(self.case(name).images, self.plan.dims)
        for what, found in (("prediction", other), ("image", image.grid)):
            if difference := grid_difference(grid, found):
                raise InputError(f"case {name}: label and {what} differ in {difference}.")
        path = self.file("samples/uncertainty", "predictions/uncertainty", name=f"{name}_entropy")
        unsure = None
        if path is not None:
            # of several questions, the one that is least sure
            unsure = read_image([path], self.plan.dims).array.max(0)
            unsure = unsure if unsure.shape == truth.shape else None
        return CaseArrays(
            name,
            image.array[0],
            np.where(truth == IGNORE, 0, truth),
            np.where(prediction == IGNORE, 0, prediction),
            grid,
            unsure,
            float(np.log(2)),
        )

    def calibration(self) -> list[CaseCalibration]:
        """Of every case with probabilities; none where there are no such files."""
        found = []
        for name in sorted({score.case for score in self.run.scores}):
            path = self.file("predictions/probabilities", name=name)
            if path is not None:
                image = read_image([path], self.plan.dims)
                truth, grid = self.truth(name)
                if difference := grid_difference(grid, image.grid):
                    raise InputError(
                        f"case {name}: label and probabilities differ in {difference}."
                    )
                if len(image.array) != self.plan.outputs:
                    raise InputError(
                        f"case {name}: there are {len(image.array)} channels of probabilities, and "
                        f"the plan has {self.plan.outputs}."
                    )
                found.append(calibration_of(image.array, truth))
        return found

    def volumes(self) -> dict[str, float]:
        """All foreground of each prediction: from the scores, else from the files."""
        known = [score for score in self.run.scores if score.metric == "volume"]
        if known:
            totals: dict[str, float] = {}
            for score in known:
                totals[score.case] = totals.get(score.case, 0.0) + score.value
            return totals
        found = {}
        for name in sorted({score.case for score in self.run.scores}):
            mask, grid = self.prediction(name)
            found[name] = volume(mask != 0, spacing_of(grid))
        return found

    def unit(self) -> str:
        units = {score.unit for score in self.run.scores if score.metric == "volume"}
        if units:
            return units.pop()
        name = next(iter(sorted({score.case for score in self.run.scores})))
        grid = self.prediction(name)[1]
        has_size = spacing_of(grid) is not None
        if len(grid.shape) == 3:
            return "ml" if has_size else "voxel"
        return "mm²" if has_size else "px"


def spacing_of(grid: Grid) -> tuple[float, ...] | None:
    """In mm, or None for pictures and arrays, whose voxels are of no known size."""
    is_stored = grid.affine is not None or any(size != 1 for size in grid.spacing)
    return grid.spacing if is_stored else None


def channel_note(found: Gathered) -> str:
    """That one channel is shown, where images have several."""
    several = dict.fromkeys(
        plan.channels for run in found.runs if (plan := run.plan) and len(plan.channels) > 1
    )
    return " ".join(
        f"Of the {len(channels)} channels {', '.join(channels)} the first is shown."
        for channels in several
    )


def wanted_pictures(found: Gathered) -> list[Wanted]:
    """Worst, median and best case of each run."""
    wanted = []
    for run in found.runs:
        cases = RunCases(run)
        values = run.by_case("dice")
        for word, name in spread_cases(run).items():
            wanted.append(
                Wanted(
                    run.name,
                    run.label,
                    run.seed,
                    word,
                    values[name],
                    f"{run.dataset}/{name}",
                    lambda cases=cases, name=name: cases.arrays(name),  # type: ignore[misc]
                )
            )
    return wanted


def calibrations(
    found: Gathered, *, advance: Callable[[], object] = lambda: None
) -> tuple[dict[str, list[list[CaseCalibration]]], list[str]]:
    """By method and seed; and why a run has none."""
    known: dict[str, list[list[CaseCalibration]]] = {label: [] for label in found.labels}
    missing = []
    for run in found.runs:
        try:
            cases = RunCases(run).calibration()
        except (UserError, OSError, ValueError) as error:
            missing.append(f"{run.name}: {error}")
            continue
        finally:
            advance()
        known[run.label].append(cases)
        if not cases:
            missing.append(f"{run.name} has no probabilities of its test cases.")
    return known, missing


def volumes(found: Gathered, labels: Sequence[str]) -> tuple[dict[str, BySeed], str, list[str]]:
    """Of these methods, by seed and case; their unit; and what could not be read."""
    known: dict[str, BySeed] = {}
    missing: list[str] = []
    unit = ""
    several = len(found.datasets) > 1
    for label in labels:
        by_seed = {}
        for run in found.of(label):
            if not run.scores:
                continue
            cases = RunCases(run)
            try:
                by_seed[run.seed] = {
                    (run.dataset, case) if several else case: value
                    for case, value in cases.volumes().items()
                }
                unit = cases.unit()
            except (UserError, OSError, ValueError) as error:
                missing.append(f"{run.name}: {error}")
        if by_seed:
            known[label] = by_seed
    return known, unit, missing
