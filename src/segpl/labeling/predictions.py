"""Masks and ranking of the latest round, in the background and for the scan that is opened."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.case import Case
from segpl.data.masks import voxel_entropy
from segpl.data.readers import Image, read_image
from segpl.errors import UserError
from segpl.files import write_atomically
from segpl.labeling.class_table import ClassTable, Indices
from segpl.labeling.label_files import DAMAGED, as_file_name, file_stamp
from segpl.labeling.rounds import Rounds

if TYPE_CHECKING:
    from segpl.predict.inference import Inference
    from segpl.run import Run

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
        rule: str | None = None,
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
        from segpl.predict.inference import predict_image

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
        from segpl.predict.options import PredictOptions
        from segpl.run import load_run

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
        from segpl.labeling.measure_files import MeasureFiles
        from segpl.labeling.ranking import rank_cases

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
