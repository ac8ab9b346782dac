"""Masks and ranking of the latest round, in the background and for the scan that is opened."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.cache import Volume
from segpl.data.case import Case
from segpl.data.geometry import reorient_axes, resize_label, undo_reorient
from segpl.data.masks import voxel_entropy
from segpl.data.readers import Image, read_image
from segpl.engine.folder import RunFolder
from segpl.errors import UserError
from segpl.files import write_atomically
from segpl.labeling.class_table import ClassTable, Indices
from segpl.labeling.label_files import DAMAGED, as_file_name, file_stamp, images_stamp
from segpl.labeling.measures import MeasureStore, ScanMeasures
from segpl.labeling.ranking import DEFAULT_RULE, rank_cases
from segpl.labeling.rounds import Rounds
from segpl.predict.inference import Inference, predict_image
from segpl.predict.options import PredictOptions
from segpl.records import read_record, write_json
from segpl.run import Run, load_run

MEASURES_VERSION = 1  # increment when the same weights and images give other measures
PredictedMask = tuple[Indices, Indices]  # (*S) classes, (*S) uncertainty from 0 to 255


class OutdatedError(Exception):
    """A new round of training has started, so the ranking of the previous one is stopped."""


class FairLock:
    """A lock that waiting threads acquire in turn."""

    def __init__(self) -> None:
        self.turn, self.lock = threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self.turn:
            self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


class Predictions:
    """Methods may be called from several threads."""

    def __init__(
        self,
        rounds: Rounds,
        folder: Path,
        classes: ClassTable,
        device: str,
        *,
        rule: str = DEFAULT_RULE,
    ) -> None:
        self.rounds, self.folder, self.classes, self.device = rounds, folder, classes, device
        self.rule = rule  # of the ranking
        self.suggestions: dict[str, tuple[int, str]] = {}  # case -> place, reason
        self.ranked: str | None = None  # weights that `suggestions` are from
        self.note = ""  # about the ranking: in progress, or why it failed
        self.starting = threading.Lock()
        self.worker: threading.Thread | None = None
        self.tried: set[tuple[str, str]] = set()  # cases and weights, in the background
        # an opened scan waits for one scan of the ranking, not for all of them
        self.network = FairLock()
        self.writing = threading.RLock()  # a preview must not replace a prediction
        self.latest: tuple[Run, Inference] | None = None  # round, and how it predicts
        self.loaded = ""  # stamp of its weights

    def file(self, name: str) -> Path:
        return self.folder / f"{as_file_name(name)}.npz"

    @property
    def weights(self) -> str:
        """Stamp of the latest trained round; empty without one."""
        trained = self.rounds.trained
        return file_stamp(trained[-1].last) if trained else ""

    def stored(self, name: str, shape: tuple[int, ...], weights: str = "") -> PredictedMask | None:
        """Mask and uncertainty, if they are stored and of these weights."""
        with suppress(*DAMAGED), self.file(name).open("rb") as file, np.load(file) as stored:
            is_same = not weights or str(stored["weights"]) == weights
            if is_same and stored["indices"].shape == shape:
                return stored["indices"], stored["uncertainty"]
        return None

    def predict(self, case: Case, image: Image) -> PredictedMask:
        """What `segpl predict` gives with the latest round, from a file if it is stored."""
        shape, weights = image.grid.shape, self.weights
        if (known := self.stored(case.name, shape, weights)) is not None:
            return known
        with self.network:
            _, infer = self.load()
            # another thread may have predicted it meanwhile
            if (known := self.stored(case.name, shape, self.loaded)) is not None:
                return known
            found = predict_image(infer, image, case.name)
            weights = self.loaded
        indices = self.classes.indices(found.labels, f"the prediction of {case.name}")
        entropy = voxel_entropy(found.probabilities).max(axis=0) / math.log(2)
        uncertainty: NDArray[np.uint8] = np.rint(255 * entropy.clip(0, 1)).astype(np.uint8)
        self.store(case.name, indices, uncertainty, weights)
        return indices, uncertainty

    def store(self, name: str, indices: Indices, uncertainty: Indices, weights: str) -> None:
        with self.writing:
            write_atomically(
                self.file(name),
                lambda path: np.savez_compressed(
                    path, indices=indices, uncertainty=uncertainty, weights=weights
                ),
            )

    def store_preview(self, name: str, labels: NDArray[Any]) -> None:
        """Store a mask of the ranking until the scan is opened; without weights, see `stored`."""
        indices = self.classes.indices(labels, f"the prediction of {name}")
        with self.writing:
            if self.stored(name, labels.shape, self.weights) is None:
                self.store(name, indices, np.zeros_like(indices), "")

    def load(self) -> tuple[Run, Inference]:
        """The latest trained round, and how it predicts; the caller holds `network`."""
        folder = self.rounds.trained[-1]
        weights = file_stamp(folder.last)
        if self.latest is None or self.loaded != weights:
            run = load_run(folder.path, device=self.device, quiet=True)
            prepared = run.prepare(PredictOptions(), ensemble=None, needs_maps=True)
            infer = replace(prepared.infer, judge=None)
            self.latest, self.loaded = (run, infer), weights
        return self.latest

    def start(self, ahead: Sequence[Case], dims: int) -> None:
        """In the background, rank the scans once per round, then predict those `ahead`."""
        with self.starting:
            weights = self.weights
            is_busy = self.worker is not None and self.worker.is_alive()
            if is_busy or self.rounds.is_training or not weights:
                return
            left = [case for case in ahead if (case.name, weights) not in self.tried]
            if weights != self.ranked:
                self.ranked, self.note = weights, "Ranking the scans."
                self.worker = threading.Thread(target=self.rank, args=(weights,), daemon=True)
            elif left:
                self.tried |= {(case.name, weights) for case in left}
                self.worker = threading.Thread(
                    target=self.predict_ahead, args=(left, dims), daemon=True
                )
            else:
                return
            self.worker.start()

    def rank(self, weights: str) -> None:
        try:
            with self.network:
                run, _ = self.load()
            if self.rounds.labels:  # the run may have been trained without them
                data = replace(run.config.data, labels=str(self.rounds.labels))
                run = replace(run, config=replace(run.config, data=data))
            store = MeasureFiles(run, self, weights)
            found = rank_cases(run, rule=self.rule, quiet=True, store=store)
            self.suggestions = {one.case: (place, one.reason) for place, one in enumerate(found)}
            self.note = ""
        except OutdatedError:
            self.ranked, self.note = None, ""
        except Exception as error:
            reason = str(error) if isinstance(error, UserError) else repr(error)
            self.note = f"The scans are in the order of the dataset: {reason}"
            if not isinstance(error, UserError):
                sys.stderr.write(f"ranking failed: {error!r}\n")

    def predict_ahead(self, cases: Sequence[Case], dims: int) -> None:
        for case in cases:
            with suppress(Exception):  # reported when the scan is opened
                self.predict(case, read_image(case.images, dims))


@dataclass(frozen=True, slots=True)
class StoredMeasures:
    weights: str
    images: str  # stamp
    measures: ScanMeasures


class MeasureFiles(MeasureStore):
    """The measures of each scan in a file, so that only new scans are measured after a restart.

    Masks, progress and the lock of the network are those of `predictions`.
    """

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
