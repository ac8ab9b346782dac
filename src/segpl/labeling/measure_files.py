"""Measures of the ranking on disk, so that only new scans are measured after a restart."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from segpl.data.cache import Volume
from segpl.data.case import Case
from segpl.data.geometry import reorient_axes, resize_label, undo_reorient
from segpl.engine.folder import RunFolder
from segpl.errors import UserError
from segpl.labeling.label_files import as_file_name, images_stamp
from segpl.labeling.measures import MeasureStore, ScanMeasures
from segpl.labeling.predictions import OutdatedError, Predictions
from segpl.records import read_record, write_json
from segpl.run import Run

MEASURES_VERSION = 1  # increment when the same weights and images give other measures


@dataclass(frozen=True, slots=True)
class StoredMeasures:
    weights: str
    images: str  # stamp
    measures: ScanMeasures


class MeasureFiles(MeasureStore):
    """One file per scan. Masks, progress and the lock of the network are those of `predictions`."""

    def __init__(self, run: Run, predictions: Predictions, stamp: str) -> None:
        self.plan, self.predictions, self.network = run.plan, predictions, predictions.network
        self.stamp = stamp  # of the weights of `run`, while they are the latest
        networks = [RunFolder(path).weights_hash(run.checkpoint) for path in (run.path, *run.folds)]
        self.weights = "-".join([str(MEASURES_VERSION), *networks])

    def path(self, case: Case) -> Path:
        return self.predictions.folder.with_name("measures") / f"{as_file_name(case.name)}.json"

    def find(self, case: Case) -> ScanMeasures | None:
        with suppress(UserError):  # missing or damaged
            found = read_record(self.path(case), StoredMeasures)
            if (found.weights, found.images) == (self.weights, images_stamp(case)):
                return found.measures
        return None

    def add(self, case: Case, found: ScanMeasures) -> None:
        stored = StoredMeasures(self.weights, images_stamp(case), found)
        write_json(self.path(case), asdict(stored))

    def tell(self, done: int, total: int) -> None:
        self.predictions.note = f"Ranking the scans: {done} of {total}."

    def check(self) -> None:
        if self.predictions.rounds.is_training or self.predictions.weights != self.stamp:
            raise OutdatedError

    def add_mask(self, volume: Volume, index: NDArray[np.intp]) -> None:
        grid, orientation = volume.grid, self.plan.orientation
        assert grid is not None, "it was read from a file"
        shape = reorient_axes(grid.shape, grid.affine, orientation)
        resized = resize_label(index.astype(np.int16), shape)
        mask = undo_reorient(resized[None], grid.affine, orientation)[0]
        labels = np.array(list(self.plan.classes.values()))[mask]
        self.predictions.store_preview(volume.name, labels)
