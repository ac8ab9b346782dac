"""A labeling session: the queue of scans, the scan in each window, predictions and training."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.case import Case
from segpl.data.geometry import reorient, reorient_axes, undo_reorient
from segpl.data.inspect import are_classes, detect_dims
from segpl.data.layouts import read_dataset
from segpl.data.masks import voxel_entropy
from segpl.data.plan import Plan
from segpl.data.readers import Grid, Image, read_case_label, read_image
from segpl.display import CLASS_COLORS
from segpl.errors import InputError, MissingFileError, UserError
from segpl.files import write_atomically
from segpl.labeling.label_files import (
    CORRECTED,
    DAMAGED,
    LABELED,
    PREDICTED,
    SKIPPED,
    UNLABELED_STATE,
    ClassTable,
    Draft,
    Indices,
    LabelFiles,
    as_file_name,
    file_stamp,
)
from segpl.labeling.rounds import MOST_FOLDS, Rounds
from segpl.report.page.slices import CaseArrays, MaskArrays
from segpl.report.page.tiles import tile_url
from segpl.report.pictures import gray_window

if TYPE_CHECKING:
    from segpl.run import Run

VIEW = "RAS"  # axes in the browser
RESCAN_SECONDS = 2.0  # between checks for changed files in the dataset
WINDOW_SECONDS = 12.0  # after which a silent browser window counts as closed
OPEN_CASES = 2  # scans in memory
ORDER = {PREDICTED: 0, UNLABELED_STATE: 0, SKIPPED: 1, CORRECTED: 2, LABELED: 2}


class StaleLabelError(InputError):
    """The label file has changed since the page read it."""


@dataclass(frozen=True, slots=True, eq=False)
class OpenScan:
    """A scan with the mask to start from, both on the grid of the file."""

    case: Case
    image: Image
    indices: Indices  # (*S)
    uncertainty: Indices | None  # (*S) from 0 to 255
    start: str  # where the mask is from: a state
    is_draft: bool
    stamp: str  # of the label file

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
    ) -> None:
        self.data, self.labels, self.device = data, labels, device
        if labels is not None:
            labels.mkdir(parents=True, exist_ok=True)
        self.dataset = read_dataset(data, accept=True, labels=labels)
        self.dims = detect_dims(self.dataset.cases)
        self.rounds = Rounds(run, data, labels, Path(), options)
        self.files = LabelFiles(self.dataset, labels, self.find_classes())
        self.rounds.output = self.files.work / "training.txt"
        self.lock = threading.RLock()  # of the fields below
        self.scanned = time.monotonic()
        self.problem = ""  # of the dataset, since it was read last
        self.scans: OrderedDict[str, OpenScan] = OrderedDict()
        self.shown: dict[str, tuple[Grid, str]] = {}  # case -> grid and origin of its mask
        self.windows: dict[tuple[str, str], float] = {}  # case, window -> time
        self.thumbnails: dict[tuple[str, str, str], str] = {}
        self.suggestions: dict[str, tuple[int, str]] = {}  # case -> place, reason
        self.network = threading.Lock()  # one prediction at a time
        self.model: Run | None = None
        self.loaded = ""  # stamp of its weights
        self.ranking = ""  # what the background thread does, or why it failed
        self.ranked: str | None = None  # weights that `suggestions` are from

    def find_classes(self) -> ClassTable:
        """Classes of the latest run, otherwise of the dataset, otherwise those in its labels."""
        plan = next((folder.plan for folder in reversed(self.rounds.started)), None)
        classes = Plan.read(plan).classes if plan and plan.exists() else self.dataset.classes
        ignore = self.dataset.ignore
        if classes is None:
            found: set[int] = set()
            for case in self.dataset.labeled:
                numbers = set(np.unique(read_case_label(case, self.dims).array).tolist())
                numbers -= {0, ignore}
                found |= numbers if are_classes(numbers) else set()
            names = ["foreground"] if len(found) < 2 else [f"class-{one}" for one in sorted(found)]
            classes = {"background": 0, **dict(zip(names, sorted(found) or [1], strict=True))}
        else:
            self.dataset.require_numbers(classes, self.data)
        pairs = [*classes.items(), *([("ignore", ignore)] if ignore is not None else [])]
        return ClassTable(tuple(name for name, _ in pairs), tuple(number for _, number in pairs))

    # the queue

    def refresh(self) -> None:
        """Find labels that other programs have saved into the dataset."""
        with self.lock:
            if time.monotonic() - self.scanned < RESCAN_SECONDS:
                return
            self.read_again()

    def read_again(self) -> None:
        with self.lock:
            self.scanned = time.monotonic()
            try:
                self.dataset = read_dataset(self.data, accept=True, labels=self.labels)
                self.problem = ""
            except UserError as error:  # for example a mask that is still being written
                self.problem = str(error)

    def cases(self) -> dict[str, Case]:
        return {case.name: case for case in self.dataset.cases if not case.is_test}

    def case(self, name: str) -> Case:
        found = self.cases().get(name)
        if found is None:
            raise MissingFileError("no such case. Reload the page.")
        return found

    def queue(self, window: str = "", name: str = "") -> dict[str, Any]:
        """The scans in the order to label them, and all that changes while the page is open."""
        self.refresh()
        self.start_ranking()
        with self.lock:
            entries, cases = self.files.entries(), self.cases()
            rows = []
            for place, case in enumerate(cases.values()):
                is_predicted = self.prediction_file(case.name).exists()
                state = self.files.state(case, entries, is_predicted=is_predicted)
                rank, reason = self.suggestions.get(case.name, (len(cases) + place, ""))
                is_open = ORDER[state] == 0
                rows.append((ORDER[state], rank, place, case, state, reason if is_open else ""))
            is_elsewhere = self.touch(window, name)
            scans = [
                {
                    "name": case.name,
                    "state": state,
                    "reason": reason,
                    "stamp": file_stamp(case.label),
                    "has_draft": self.files.draft_file(case.name).exists(),
                }
                for _, _, _, case, state, reason in sorted(rows, key=lambda row: row[:3])
            ]
        return {
            "scans": scans,
            "labels": sum(ORDER[str(scan["state"])] == 2 for scan in scans),
            "opened_elsewhere": is_elsewhere,
            "problem": self.problem,
            "ranking": self.ranking,
            "training": self.training(),
        }

    def touch(self, window: str, name: str) -> bool:
        """Record that a window shows a case; returns whether another one shows it, too."""
        now = time.monotonic()
        with self.lock:
            self.windows = {
                key: seen
                for key, seen in self.windows.items()
                if now - seen < WINDOW_SECONDS and (key[1] != window or key[0] == name)
            }
            if window and name:
                self.windows[name, window] = now
            return any(case == name and other != window for case, other in self.windows)

    # one scan

    def open(self, name: str, *, again: bool = False) -> OpenScan:
        """The scan with its draft, label or prediction, or an empty mask."""
        case = self.case(name)
        with self.lock:
            known = None if again else self.scans.get(name)
            if known is not None and known.stamp == file_stamp(case.label):
                self.scans.move_to_end(name)
                return known
        image = read_image(case.images, self.dims)
        shape, stamp = image.grid.shape, file_stamp(case.label)
        uncertainty: Indices | None = None
        start, indices = UNLABELED_STATE, np.zeros(shape, np.uint8)
        if case.label is not None:
            start, indices = LABELED, self.files.read(case, self.dims)
            if indices.shape != shape:
                raise InputError(
                    f"{case.label} has the shape {indices.shape}, but the image of {name} has "
                    f"{shape}. Re-export the label on the grid of the image."
                )
        elif self.rounds.trained:
            indices, uncertainty = self.predict(case, image)
            start = PREDICTED
        draft = self.files.draft(name, shape)
        if draft is not None and np.array_equal(draft.indices, indices):
            self.files.discard_draft(name)  # the server was killed after it had saved the label
            draft = None
        if draft is not None:
            start, indices, stamp = draft.start, draft.indices, draft.stamp
        opened = OpenScan(case, image, indices, uncertainty, start, draft is not None, stamp)
        with self.lock:
            self.scans[name] = opened
            self.shown[name] = image.grid, start
            while len(self.scans) > OPEN_CASES:
                self.scans.popitem(last=False)
        return opened

    def describe(self, scan: OpenScan, window: str) -> dict[str, Any]:
        """What the page needs to show a scan."""
        low, high = gray_window(scan.image.array[0])
        classes = self.files.classes
        return {
            "name": scan.case.name,
            "dims": self.dims,
            "shape": view_shape(scan.grid),
            "spacing": reorient_axes(scan.grid.spacing, scan.grid.affine, VIEW),
            "channels": self.channel_names(scan),
            "window": [low, max(high, low + 1e-6)],
            "is_ct": bool(scan.image.array.min() <= -500),  # Hounsfield units of air
            "start": scan.start,
            "is_draft": scan.is_draft,
            "stamp": scan.stamp,
            "has_uncertainty": scan.uncertainty is not None,
            "versions": len(self.files.versions(scan.case.name)),
            "opened_elsewhere": self.touch(window, scan.case.name),
            "classes": [
                {"name": name, "color": CLASS_COLORS[(index - 1) % len(CLASS_COLORS)]}
                for index, name in enumerate(classes.names)
            ],
        }

    def channel_names(self, scan: OpenScan) -> list[str]:
        names, count = self.dataset.channels, len(scan.image.array)
        return list(names) if len(names) == count else [f"channel {n + 1}" for n in range(count)]

    def image_bytes(self, scan: OpenScan, channel: int) -> bytes:
        """One channel of a volume as NIfTI; all channels of a picture as float32 rows."""
        array = scan.image.array
        if self.dims == 2:
            return array.astype("<f4").tobytes()
        values = array[channel % len(array)]
        low, high = float(values.min()), float(values.max())
        is_short = low >= -32768 and high <= 32767 and bool((values == np.rint(values)).all())
        return self.volume_bytes(scan, values.astype(np.int16) if is_short else values)

    def uncertainty_bytes(self, scan: OpenScan) -> bytes:
        if scan.uncertainty is None:
            raise MissingFileError("this scan has no uncertainty: its mask is not a prediction.")
        if self.dims == 2:
            return self.mask_bytes(scan, scan.uncertainty)
        return self.volume_bytes(scan, scan.uncertainty)

    def volume_bytes(self, scan: OpenScan, values: NDArray[Any]) -> bytes:
        """A volume (*S) as NIfTI with RAS axes and without rotation."""
        from nibabel import Nifti1Image

        turned = reorient(values[None], scan.grid.affine, VIEW)[0]
        spacing = reorient_axes(scan.grid.spacing, scan.grid.affine, VIEW)
        content: bytes = Nifti1Image(turned, np.diag([*spacing, 1])).to_bytes()
        return content

    def mask_bytes(self, scan: OpenScan, values: Indices) -> bytes:
        """One byte per voxel on the axes of the browser; the first axis is the fastest in 3D."""
        turned = reorient(values[None], scan.grid.affine, VIEW)[0]
        content: bytes = turned.tobytes(order="F" if self.dims == 3 else "C")
        return content

    def drawn_on(self, name: str) -> tuple[Grid, str]:
        """Grid and origin of the mask in the browser; storing strokes waits for no prediction."""
        self.case(name)
        if name not in self.shown:
            self.open(name)
        return self.shown[name]

    def mask_from(self, grid: Grid, content: bytes) -> Indices:
        """The inverse of `mask_bytes`."""
        shape = view_shape(grid)
        if len(content) != math.prod(shape):
            raise InputError(
                f"the mask has {len(content)} voxels, but the scan has {math.prod(shape)}. Reload "
                "the page."
            )
        values = np.frombuffer(content, np.uint8)
        if int(values.max(initial=0)) >= len(self.files.classes.names):
            raise InputError("the mask contains a number without a class. Reload the page.")
        turned = values.reshape(shape, order="F" if self.dims == 3 else "C")
        return np.ascontiguousarray(undo_reorient(turned[None], grid.affine, VIEW)[0])

    def save_draft(self, name: str, content: bytes, stamp: str) -> None:
        grid, start = self.drawn_on(name)
        self.files.save_draft(name, Draft(self.mask_from(grid, content), start, stamp))

    def save(self, name: str, content: bytes, stamp: str, *, force: bool = False) -> None:
        """Write the label of a scan; raises if its file has changed since it was opened."""
        with self.lock:
            self.read_again()
            case = self.case(name)
            if stamp != file_stamp(case.label) and not force:
                raise StaleLabelError(
                    "another window or program has saved a label of this scan since you opened it. "
                    "Save again to replace it; it stays among the earlier versions."
                )
            grid, start = self.drawn_on(name)
            indices = self.mask_from(grid, content)
            state = LABELED if start == UNLABELED_STATE else CORRECTED
            self.files.save(self.dataset, case, indices, grid, state=state)
            self.scans.pop(name, None)
            self.read_again()

    def skip(self, name: str) -> None:
        self.files.skip(self.case(name).name)

    def discard(self, name: str) -> None:
        """Drop the strokes that were not saved."""
        self.files.discard_draft(self.case(name).name)
        with self.lock:
            self.scans.pop(name, None)

    def thumbnail(self, name: str) -> str:
        """A data URL of a slice with the label or the prediction."""
        case = self.case(name)
        prediction = self.prediction_file(name)
        key = name, file_stamp(case.label), file_stamp(prediction)
        if key not in self.thumbnails:
            image = read_image(case.images, self.dims)
            mask = np.zeros(image.grid.shape, np.uint8)
            with suppress(UserError):  # a damaged label is reported when the scan is opened
                if case.label is not None:
                    mask = self.files.read(case, self.dims)
                elif (found := self.stored_prediction(name, image.grid.shape)) is not None:
                    mask = found[0]
            shown = MaskArrays(mask)
            self.thumbnails[key] = tile_url(
                CaseArrays(image.array.mean(axis=0), image.grid), shown, shown
            )
        return self.thumbnails[key]

    # predictions

    def prediction_file(self, name: str) -> Path:
        return self.files.work / "predictions" / f"{as_file_name(name)}.npz"

    def stored_prediction(
        self, name: str, shape: tuple[int, ...], weights: str = ""
    ) -> tuple[Indices, Indices] | None:
        """Mask and uncertainty, if they are stored and of these weights."""
        path = self.prediction_file(name)
        with suppress(*DAMAGED), path.open("rb") as file, np.load(file) as stored:
            is_same = not weights or str(stored["weights"]) == weights
            if is_same and stored["indices"].shape == shape:
                return stored["indices"], stored["uncertainty"]
        return None

    def load_model(self) -> tuple[Run, str]:
        """The latest trained round and the stamp of its weights."""
        from segpl.run import load_run

        folder = self.rounds.trained[-1]
        weights = file_stamp(folder.last)
        with self.network:
            if self.model is None or self.loaded != weights:
                self.model = load_run(folder.path, device=self.device, quiet=True)
                self.loaded = weights
            return self.model, weights

    def predict(self, case: Case, image: Image) -> tuple[Indices, Indices]:
        """Mask and uncertainty of the latest round, from a file if it has predicted the scan."""
        from segpl.predict.inference import predict_image

        run, weights = self.load_model()
        stored = self.stored_prediction(case.name, image.grid.shape, weights)
        if stored is not None:
            return stored
        with self.network:
            found = predict_image(
                image,
                run.method.predict,
                run.plan,
                device=run.device,
                name=case.name,
                largest=run.largest,
            )
        indices = self.files.classes.indices(found.labels, f"the prediction of {case.name}")
        entropy = voxel_entropy(found.probabilities).max(axis=0) / math.log(2)
        uncertainty: NDArray[np.uint8] = np.rint(255 * entropy.clip(0, 1)).astype(np.uint8)
        write_atomically(
            self.prediction_file(case.name),
            lambda path: np.savez_compressed(
                path, indices=indices, uncertainty=uncertainty, weights=weights
            ),
        )
        return indices, uncertainty

    # training

    def training(self) -> dict[str, Any]:
        """The state of training, for the page."""
        return {
            "is_running": self.rounds.is_training,
            "curve": self.rounds.curve(),
            "steps": self.rounds.steps,
            "rounds": [asdict(one) for one in self.rounds.summary()],
            "next": self.rounds.folder(len(self.rounds.started) + 1).path.name,
            "failure": self.rounds.failure,
            "advice": self.rounds.advice(),
        }

    def train(self, *, steps: int | None, folds: bool) -> None:
        self.read_again()
        subjects = len({case.subject for case in self.dataset.labeled})
        if not subjects:
            raise InputError("no scan has a label yet. Label one first.")
        if folds and subjects < 2:
            raise InputError("cross-validation needs labels of two subjects. Label another scan.")
        self.rounds.start(steps=steps, folds=min(MOST_FOLDS, subjects) if folds else None)

    def start_ranking(self) -> None:
        """Rank the unlabeled scans in the background, once for each trained round."""
        with self.lock:
            if self.rounds.is_training or not self.rounds.trained:
                return
            weights = file_stamp(self.rounds.trained[-1].last)
            if weights == self.ranked:
                return
            self.ranked, self.ranking = weights, "ranking the scans"
            self.scans.clear()  # their masks are predictions of the last round
        threading.Thread(target=self.rank, daemon=True).start()

    def rank(self) -> None:
        from segpl.labeling.ranking import rank_cases

        try:
            run, _ = self.load_model()
            with self.network:
                found = rank_cases(run, quiet=True)
            with self.lock:
                self.suggestions = {
                    one.case: (place, one.reason) for place, one in enumerate(found)
                }
                self.ranking = ""
        except UserError as error:
            self.ranking = f"The scans are in the order of the dataset: {error}"
        except Exception as error:
            self.ranking = f"The scans are in the order of the dataset: {error!r}"
            sys.stderr.write(f"ranking failed: {error!r}\n")

    def close(self) -> None:
        self.rounds.stop()


def view_shape(grid: Grid) -> tuple[int, ...]:
    """The shape of a scan on the axes of the browser."""
    return reorient_axes(grid.shape, grid.affine, VIEW)
