"""Measures of the ranking on disk, so that only new scans are measured after a restart."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.cache import Volume
from segpl.data.case import Case
from segpl.data.geometry import reorient_axes, resize_label, undo_reorient
from segpl.engine.folder import RunFolder
from segpl.errors import UserError
from segpl.labeling.label_files import as_file_name, images_stamp
from segpl.labeling.measures import MeasureStore, ScanMeasures
from segpl.records import read_record, write_json
from segpl.run import Run

MEASURES_VERSION = 1  # increment when the same weights and images give other measures


@dataclass(frozen=True, slots=True)
class StoredMeasures:
    weights: str
    images: str  # stamp
    measures: ScanMeasures


class MeasureFiles(MeasureStore):
    """One file per scan; `keep_mask` receives its class numbers (*S) on the grid of its image."""

    def __init__(
        self,
        folder: Path,
        run: Run,
        keep_mask: Callable[[str, NDArray[Any]], object],
        on_scan: Callable[[int, int], object],
        check: Callable[[], None],
    ) -> None:
        self.folder, self.plan, self.keep_mask = folder, run.plan, keep_mask
        self.on_scan, self.on_check = on_scan, check
        networks = [RunFolder(path).weights_hash(run.checkpoint) for path in (run.path, *run.folds)]
        self.weights = "-".join([str(MEASURES_VERSION), *networks])

    def path(self, case: Case) -> Path:
        return self.folder / f"{as_file_name(case.name)}.json"

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
        self.on_scan(done, total)

    def check(self) -> None:
        self.on_check()

    def add_mask(self, volume: Volume, index: NDArray[np.intp]) -> None:
        grid, orientation = volume.grid, self.plan.orientation
        assert grid is not None, "it was read from a file"
        shape = reorient_axes(grid.shape, grid.affine, orientation)
        resized = resize_label(index.astype(np.int16), shape)
        mask = undo_reorient(resized[None], grid.affine, orientation)[0]
        self.keep_mask(volume.name, np.array(list(self.plan.classes.values()))[mask])
