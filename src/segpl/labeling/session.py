"""A labeling session: the queue of scans, the scan in each window, and training."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from segpl.data.case import Case
from segpl.data.inspect import detect_dims
from segpl.data.layouts import read_dataset
from segpl.data.readers import Grid, Image, read_image
from segpl.display import class_color
from segpl.errors import InputError, MissingFileError, UserError
from segpl.labeling.browser_arrays import mask_from, view_shape, view_spacing
from segpl.labeling.class_table import Indices, find_classes
from segpl.labeling.label_files import (
    CORRECTED,
    LABELED,
    PREDICTED,
    SKIPPED,
    UNLABELED_STATE,
    WORK,
    Draft,
    LabelFiles,
    file_stamp,
    images_stamp,
    label_stamp,
)
from segpl.labeling.predictions import Predictions
from segpl.labeling.ranking import DEFAULT_RULE
from segpl.labeling.rounds import MOST_FOLDS, Rounds, gain_advice
from segpl.labeling.thumbnails import Thumbnails
from segpl.labeling.windows import Windows
from segpl.report.page.slices import gray_window

RESCAN_SECONDS = 2.0  # between checks for changed files in the dataset
OPEN_CASES = 2  # scans in memory
PREDICT_AHEAD = 2  # scans to predict before they are opened
ORDER = {PREDICTED: 0, UNLABELED_STATE: 0, SKIPPED: 1, CORRECTED: 2, LABELED: 2}


class StaleLabelError(InputError):
    """The label or the draft of a scan has changed since the page read it."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenScan:
    """A scan with the mask to start from, both on the grid of the file."""

    case: Case
    image: Image
    indices: Indices  # (*S)
    uncertainty: Indices | None  # (*S) from 0 to 255
    start: str  # where the mask is from: a state
    stamp: str  # of the label file
    draft: str  # stamp of the stored strokes; empty without any

    @property
    def grid(self) -> Grid:
        return self.image.grid


class Session:
    """What the server needs. Methods may be called from several threads."""

    def __init__(
        self,
        data: Path,
        *,
        run: Path,
        labels: Path | None = None,
        options: Sequence[str] = (),
        device: str = "auto",
        rule: str = DEFAULT_RULE,
    ) -> None:
        self.data, self.labels = data, labels
        if labels is not None:
            try:
                labels.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise InputError(
                    f"cannot create the folder {labels}: {error.strerror}. Name another one: "
                    "--labels FOLDER."
                ) from error
        self.dataset = read_dataset(data, accept=True, labels=labels)
        self.dims = detect_dims(self.dataset.cases)
        work = (labels or self.dataset.root) / WORK
        self.rounds = Rounds(run, data, labels, work / "training.txt", options)
        self.classes = find_classes(self.dataset, self.rounds, self.dims)
        self.files = LabelFiles(self.dataset, labels, self.classes)
        self.predictions = Predictions(
            self.rounds, work / "predictions", self.classes, device, rule=rule
        )
        self.thumbnails = Thumbnails(work / "thumbnails", self.files, self.predictions, self.dims)
        self.reading = threading.Lock()  # of the dataset and its problem
        self.scanned = time.monotonic()
        self.problem = ""  # of the dataset, since it was read last
        self.lock = threading.RLock()  # of drafts, labels and the fields below
        self.windows = Windows()
        self.scans: OrderedDict[str, OpenScan] = OrderedDict()
        # case -> grid and origin of its mask, stamp of its images
        self.shown: dict[str, tuple[Grid, str, str]] = {}

    def refresh(self) -> None:
        """Find labels that other programs have saved into the dataset."""
        is_due = time.monotonic() - self.scanned >= RESCAN_SECONDS
        if is_due and not self.reading.locked():
            self.read_again()

    def read_again(self) -> None:
        with self.reading:
            try:
                self.dataset = read_dataset(self.data, accept=True, labels=self.labels)
                self.problem = ""
            except UserError as error:  # for example a mask that is still being written
                self.problem = str(error)
            self.scanned = time.monotonic()

    def cases(self) -> dict[str, Case]:
        return {case.name: case for case in self.dataset.cases if not case.is_test}

    def case(self, name: str) -> Case:
        found = self.cases().get(name)
        if found is None:
            raise MissingFileError(
                "the dataset has no such scan. If its image was removed, restore it. Then reload "
                "the page."
            )
        return found

    def queue(self, window: str = "", name: str = "", draft: str = "") -> dict[str, Any]:
        """The scans in the order to label them, and all that changes while the page is open."""
        self.refresh()
        with self.lock:
            is_elsewhere = self.windows.touch(window, name)
            is_overtaken = bool(name) and self.is_overtaken(name, window, draft)
        # without the lock, which storing strokes needs: this looks at many files
        entries, cases = self.files.entries(), self.cases()
        suggestions, rows, closed = self.predictions.suggestions, [], {name}
        for place, case in enumerate(cases.values()):
            is_predicted = self.predictions.file(case.name).exists()
            rank, reason = suggestions.get(case.name, (len(cases) + place, ""))
            usable = case
            if self.files.is_misplaced(case, self.dims):
                usable, reason = replace(case, label=None), "its label is on another grid"
                closed.add(case.name)  # it cannot be opened
            state = self.files.state(usable, entries, is_predicted=is_predicted)
            is_open = ORDER[state] == 0
            rows.append((ORDER[state], rank, place, case, state, reason if is_open else ""))
        rows.sort(key=lambda row: row[:3])
        scans = [
            {
                "name": case.name,
                "state": state,
                "reason": reason,
                "stamp": label_stamp(case),
                "picture": self.thumbnails.key(case),
                "has_draft": self.files.draft_file(case.name).exists(),
            }
            for _, _, _, case, state, reason in rows
        ]
        ahead = [case for order, _, _, case, _, _ in rows if order == 0 and case.name not in closed]
        self.predictions.start(ahead[:PREDICT_AHEAD], self.dims)
        return {
            "scans": scans,
            "folder": str(self.files.work.resolve()),
            "weights": self.predictions.weights,
            "labels": sum(ORDER[str(scan["state"])] == 2 for scan in scans),
            "opened_elsewhere": is_elsewhere,
            "is_overtaken": is_overtaken,
            "problem": self.problem,
            "ranking": self.predictions.note,
            "training": self.training(),
        }

    def open(self, name: str, *, again: bool = False) -> OpenScan:
        """The scan with its draft, label or prediction, or an empty mask."""
        case = self.case(name)
        with self.lock:
            known = None if again else self.scans.get(name)
            if known is not None and known.stamp == label_stamp(case):
                self.scans.move_to_end(name)
                return known
        images = images_stamp(case)
        image = read_image(case.images, self.dims)
        shape, stamp = image.grid.shape, label_stamp(case)
        uncertainty: Indices | None = None
        start, indices = UNLABELED_STATE, np.zeros(shape, np.uint8)
        if case.label is not None:
            start, indices = LABELED, self.files.read(case, image.grid)
        elif self.rounds.trained:
            indices, uncertainty = self.predictions.predict(case, image)
            start = PREDICTED
        with self.lock:
            draft, version = self.files.draft(name, shape), self.draft_stamp(name)
            if draft is not None and np.array_equal(draft.indices, indices):
                self.files.discard_draft(name)  # the server was killed after it had saved the label
                draft, version = None, ""
            if draft is not None:
                start, indices, stamp = draft.start, draft.indices, draft.stamp
            opened = OpenScan(case, image, indices, uncertainty, start, stamp, version)
            self.scans[name] = opened
            self.shown[name] = image.grid, start, images
            while len(self.scans) > OPEN_CASES:
                self.scans.popitem(last=False)
        return opened

    def describe(self, scan: OpenScan, window: str) -> dict[str, Any]:
        """What the page needs to show a scan."""
        array = scan.image.array
        windows = [gray_window(values) for values in array]
        if self.dims == 2 and len(array) == 3:  # colors
            windows = [(min(low for low, _ in windows), max(high for _, high in windows))] * 3
        names, numbered = self.dataset.channels, [f"channel {n + 1}" for n in range(len(array))]
        with self.lock:
            is_elsewhere = self.windows.touch(window, scan.case.name)
        return {
            "name": scan.case.name,
            "dims": self.dims,
            "shape": view_shape(scan.grid),
            "spacing": view_spacing(scan.grid),
            "channels": list(names) if len(names) == len(array) else numbered,
            "windows": [[low, max(high, low + 1e-6)] for low, high in windows],
            "is_ct": [bool(values.min() <= -500) for values in array],  # Hounsfield units of air
            "start": scan.start,
            "stamp": scan.stamp,
            "draft": scan.draft,
            "weights": self.predictions.weights,
            "has_uncertainty": scan.uncertainty is not None,
            "versions": len(self.files.versions(scan.case.name)),
            "opened_elsewhere": is_elsewhere,
            "classes": [  # of the foreground
                {"name": name, "color": class_color(index)}
                for index, name in enumerate(self.classes.names[1:])
            ],
        }

    def drawn_on(self, name: str) -> tuple[Grid, str, str]:
        """Grid and origin of the mask in the browser, and the stamp of the images it is drawn on.

        Storing strokes waits for no prediction.
        """
        self.case(name)
        if name not in self.shown:
            self.open(name)
        return self.shown[name]

    def mask(self, grid: Grid, content: bytes) -> Indices:
        return mask_from(grid, content, classes=len(self.classes.names))

    def draft_stamp(self, name: str) -> str:
        return file_stamp(self.files.draft_file(name))

    def is_overtaken(self, name: str, window: str, draft: str) -> bool:
        """Whether another window has stored strokes that this one, which read `draft`, lacks."""
        stored = self.draft_stamp(name)
        return stored not in ("", draft) and self.windows.drawn.get(name) != window

    def save_draft(
        self, name: str, content: bytes, stamp: str, *, window: str = "", draft: str = ""
    ) -> str:
        """Store strokes and return the stamp of the draft; `draft` is the last one of the window.

        Strokes that would replace those of another window are kept as an earlier version instead.
        """
        grid, start, _ = self.drawn_on(name)
        indices = self.mask(grid, content)
        with self.lock:
            if self.is_overtaken(name, window, draft):
                kept = self.files.keep_strokes(self.case(name), indices, grid)
                raise StaleLabelError(
                    "Another window has drawn on this scan since you opened it. Your mask is "
                    f"stored as {kept}."
                )
            self.files.save_draft(name, Draft(indices, start, stamp))
            self.windows.drawn[name] = window
            return self.draft_stamp(name)

    def save(
        self,
        name: str,
        content: bytes,
        stamp: str,
        *,
        window: str = "",
        draft: str = "",
        force: bool = False,
    ) -> None:
        """Write the label of a scan; raises if another window or program has changed it."""
        self.read_again()
        with self.lock:
            case = self.case(name)
            is_overtaken = self.is_overtaken(name, window, draft)
            if (is_overtaken or stamp != label_stamp(case)) and not force:
                deed = "drawn on" if is_overtaken else "saved a label of"
                raise StaleLabelError(
                    f"Another window or program has {deed} this scan since you opened it. Save "
                    "again to replace its mask, which is kept as an earlier version."
                )
            grid, start, images = self.drawn_on(name)
            if images != images_stamp(case):
                raise InputError(
                    f"the image of {name} has changed or is missing since you opened it. Your "
                    "strokes are kept as a draft. Restore the image, or open the scan again."
                )
            indices = self.mask(grid, content)
            if is_overtaken and (other := self.files.draft(name, grid.shape)) is not None:
                self.files.keep_strokes(case, other.indices, grid)
            state = LABELED if start == UNLABELED_STATE else CORRECTED
            self.files.save(self.dataset, case, indices, grid, state=state)
            self.read_again()  # before another window may save: it must know this label

    def skip(self, name: str) -> None:
        self.files.skip(self.case(name).name)

    def discard(self, name: str, *, window: str = "", draft: str = "") -> None:
        """Drop the strokes of a window that were not saved."""
        with self.lock:
            if not self.is_overtaken(self.case(name).name, window, draft):
                self.files.discard_draft(name)

    def close(self, window: str) -> None:
        """A browser window was closed."""
        with self.lock:
            self.windows.close(window)

    def thumbnail(self, name: str) -> bytes | None:
        return self.thumbnails.read(self.case(name))

    def training(self) -> dict[str, Any]:
        """The state of training, for the page."""
        rounds = self.rounds.summary()
        shown = ("folder", "labels", "dice", "error")
        return {
            "is_running": self.rounds.is_training,
            "fold": self.rounds.fold,
            "curve": self.rounds.curve(),
            "steps": self.rounds.steps,
            "stopped": self.rounds.stopped,
            "rounds": [{key: getattr(one, key) for key in shown} for one in rounds],
            "failure": self.rounds.failure,
            "advice": gain_advice(rounds),
        }

    def train(self, *, steps: int | None, folds: bool) -> None:
        self.read_again()
        subjects = len({case.subject for case in self.dataset.labeled})
        if not subjects:
            raise InputError("no scan has a label yet. Label one first.")
        if folds and subjects < 2:
            raise InputError("cross-validation needs labels of two subjects. Label another scan.")
        labeled = [case.name for case in self.dataset.labeled]
        self.rounds.start(labeled, steps=steps, folds=min(MOST_FOLDS, subjects) if folds else None)
