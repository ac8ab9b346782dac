"""Label files of a labeling session: where they belong, earlier versions, and drafts.

LABELS/CASE.nii.gz, or where the layout of the dataset expects labels
.segpl/versions/CASE/TIME.nii.gz   labels that were replaced, strokes of a second window
.segpl/drafts/CASE.npz             strokes that are not saved yet
.segpl/labels.json                 how each label was made
"""

from __future__ import annotations

import shutil
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote
from zipfile import BadZipFile

import numpy as np

from segpl.data.case import Case, Dataset
from segpl.data.formats import NIFTI
from segpl.data.layouts.base import UNLABELED_FOLDERS, read_description, subfolder
from segpl.data.layouts.folders import IMAGE_FOLDERS, LABEL_FOLDERS
from segpl.data.readers import (
    Grid,
    axis_turns,
    grid_difference,
    is_series,
    read_grid,
    read_label_on,
    stem_of,
    suffix_of,
)
from segpl.errors import InputError, UserError, count_noun
from segpl.files import may_create_in, one_process, require_below, write_atomically
from segpl.labeling.class_table import ClassTable, Indices
from segpl.predict.writers import output_name, write_labels
from segpl.records import read_record, write_json

WORK = ".segpl"
LONGEST_FILE_NAME = 150  # characters; file systems allow 255 bytes, with a suffix
DAMAGED = (OSError, ValueError, KeyError, EOFError, BadZipFile, zlib.error)  # of `np.load`
LABELED, CORRECTED, SKIPPED = "labeled", "corrected", "skipped"  # states of scans
PREDICTED, UNLABELED_STATE = "predicted", "unlabeled"


@dataclass(frozen=True, slots=True)
class SavedLabel:
    """How a label was made, or that its scan was skipped; an entry of `labels.json`."""

    state: str
    stamp: str = ""  # of the file as it was saved


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Strokes that are not saved as a label yet."""

    indices: Indices  # (*S)
    start: str  # state of the mask that the strokes changed
    stamp: str  # of the label file when the case was opened


def file_stamp(path: Path | None) -> str:
    """Changes whenever a program writes the file; empty without a file."""
    with suppress(FileNotFoundError):
        if path is not None:
            found = path.stat()
            return f"{found.st_mtime_ns:x}-{found.st_size:x}-{found.st_ino:x}"
    return ""


def label_stamp(case: Case) -> str:
    """Changes whenever a program writes a file of the label of a case."""
    return "".join(map(file_stamp, case.label_files))


def images_stamp(case: Case) -> str:
    """Changes whenever a program writes one of the images of a case."""
    return sha256("".join(map(file_stamp, case.images)).encode()).hexdigest()[:16]


def label_target(dataset: Dataset, case: Case, folder: Path | None) -> Path | None:
    """Where the label of a case belongs: in `folder`, or where its layout finds it.

    None if the layout has no place for it.
    """
    image = case.images[0]
    name = output_name(case.name, image)
    suffix = suffix_of(name)
    if folder is not None and (case.label is None or case.label.parent != folder):
        return folder / name
    if case.label is not None:
        if not case.has_plain_label:
            return None
        both = {suffix, suffix_of(case.label)}
        keeps_name = len(both) == 1 or both == set(NIFTI)
        return case.label if keeps_name else case.label.with_name(stem_of(case.label) + suffix)
    parent = image.parent
    if dataset.layout == "folders" and parent.name.lower() in IMAGE_FOLDERS:
        if parent.parent.name.lower() in UNLABELED_FOLDERS and parent.parent != dataset.root:
            return None  # the layout reads no labels there
        labels = subfolder(parent.parent, LABEL_FOLDERS) or parent.parent / "labels"
        return labels / f"{stem_of(image)}{suffix}"
    root = dataset.root
    is_listed = read_description(root / "dataset.json").training is not None
    if parent == root / "imagesTr" and (dataset.layout == "nnunet" or not is_listed):
        return root / "labelsTr" / name
    return None


def label_targets(dataset: Dataset, folder: Path | None) -> dict[str, Path | None]:
    """The `label_target` of each case that can be labeled."""
    cases = [case for case in dataset.cases if not case.is_test]
    return {case.name: label_target(dataset, case, folder) for case in cases}


class LabelFiles:
    """The label files of one dataset; every change is atomic and keeps what it replaces."""

    def __init__(self, dataset: Dataset, folder: Path | None, classes: ClassTable) -> None:
        self.folder = folder
        self.classes = classes
        self.work = (folder or dataset.root) / WORK
        # case and stamps of its label and its image -> whether the label is misplaced
        self.misplaced: dict[tuple[str, str, str], bool] = {}
        self.require_places(dataset)

    def require_places(self, dataset: Dataset) -> None:
        """Raise if some label could not be written."""
        places = label_targets(dataset, self.folder)
        if unplaced := [name for name, place in places.items() if place is None]:
            raise InputError(
                f"the layout '{dataset.layout}' of {dataset.root} has no place for a label of "
                f"{count_noun(len(unplaced), 'scan')}, such as '{unplaced[0]}'. Name a folder for "
                "the labels: --labels FOLDER. The dataset stays unchanged, and training reads both."
            )
        parts = ("versions", "drafts", "predictions", "measures", "thumbnails")
        require_below(self.work.parent, [self.work / part / "file" for part in parts])
        if self.folder is not None:  # names of DICOM cases come from the files
            require_below(self.folder, [place for place in places.values() if place])
        for place in {place.parent for place in places.values() if place} | {self.work}:
            if not may_create_in(place):
                raise InputError(
                    f"no permission to write labels to {place}. Name another folder for them: "
                    "--labels FOLDER. The dataset stays unchanged, and training reads both."
                )

    def read(self, case: Case, grid: Grid) -> Indices:
        """The label of a case on the grid of its image."""
        return self.classes.indices(read_label_on(grid, case).array, case.label)

    def is_misplaced(self, case: Case, dims: int) -> bool:
        """Whether a label is on another grid than its image, according to their headers."""
        if case.label is None or case.segments is not None or is_series(case.images):
            return False
        key = case.name, label_stamp(case), file_stamp(case.images[0])
        if key not in self.misplaced:
            found = False
            with suppress(UserError):  # reported when the scan is opened
                label, image = (read_grid(one, dims)[0] for one in (case.label, case.images[0]))
                found = bool(grid_difference(label, image)) and axis_turns(label, image) is None
            self.misplaced[key] = found
        return self.misplaced[key]

    def save(
        self, dataset: Dataset, case: Case, indices: Indices, grid: Grid, *, state: str
    ) -> Path:
        """Write the label of a case on the grid of its image; returns its file."""
        path = label_target(dataset, case, self.folder)
        assert path is not None, "require_places has rejected such a dataset"
        with one_process(self.work):
            for earlier in {path, *(case.label_files if case.has_plain_label else ())}:
                if earlier.is_file():
                    copy = partial(shutil.copyfile, earlier)
                    write_atomically(self._version(case, suffix_of(earlier)), copy)
            write_labels(path, self.classes.labels(indices), case.images[0], grid)
            if case.label is not None and case.label != path and case.label.parent == path.parent:
                case.label.unlink(missing_ok=True)  # one label per scan, whatever its format
            self._record(case.name, SavedLabel(state, file_stamp(path)))
            self.discard_draft(case.name)
        return path

    def _version(self, case: Case, suffix: str) -> Path:
        when = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
        return self.work / "versions" / as_file_name(case.name) / f"{when}{suffix}"

    def keep_strokes(self, case: Case, indices: Indices, grid: Grid) -> Path:
        """Write a mask that is not the label of a case among its earlier versions."""
        path = self._version(case, suffix_of(output_name(case.name, case.images[0])))
        write_labels(path, self.classes.labels(indices), case.images[0], grid)
        return path

    def versions(self, name: str) -> list[Path]:
        """Earlier labels of a case, oldest first."""
        folder = self.work / "versions" / as_file_name(name)
        return sorted(path for path in folder.glob("*") if not path.name.startswith("."))

    def skip(self, name: str) -> None:
        with one_process(self.work):
            self._record(name, SavedLabel(SKIPPED))

    def _record(self, name: str, entry: SavedLabel) -> None:
        entries = {**self.entries(), name: entry}
        write_json(self.record, {key: asdict(value) for key, value in entries.items()})

    @property
    def record(self) -> Path:
        return self.work / "labels.json"

    def entries(self) -> dict[str, SavedLabel]:
        return read_record(self.record, dict[str, SavedLabel]) if self.record.exists() else {}

    def state(self, case: Case, entries: Mapping[str, SavedLabel], *, is_predicted: bool) -> str:
        """A label that another program has written since it was saved counts as labeled."""
        entry = entries.get(case.name)
        if case.label is not None:
            is_ours = entry is not None and entry.stamp == file_stamp(case.label)
            return entry.state if entry and is_ours else LABELED
        if entry is not None and entry.state == SKIPPED:
            return SKIPPED
        return PREDICTED if is_predicted else UNLABELED_STATE

    def draft_file(self, name: str) -> Path:
        return self.work / "drafts" / f"{as_file_name(name)}.npz"

    def save_draft(self, name: str, draft: Draft) -> None:
        write_atomically(
            self.draft_file(name),
            lambda path: np.savez_compressed(
                path, indices=draft.indices, start=draft.start, stamp=draft.stamp
            ),
        )

    def draft(self, name: str, shape: tuple[int, ...]) -> Draft | None:
        """The strokes of a case that were not saved; None without any."""
        path = self.draft_file(name)
        if not path.exists():
            return None
        try:
            with path.open("rb") as file, np.load(file) as stored:
                found = Draft(stored["indices"], str(stored["start"]), str(stored["stamp"]))
        except DAMAGED as error:
            raise damaged_draft(path) from error
        is_usable = found.indices.dtype == np.uint8 and found.indices.shape == shape
        if not is_usable or int(found.indices.max(initial=0)) >= len(self.classes.names):
            raise damaged_draft(path)
        return found

    def discard_draft(self, name: str) -> None:
        self.draft_file(name).unlink(missing_ok=True)


def damaged_draft(path: Path) -> UserError:
    return InputError(
        f"{path} does not fit the scan: the scan or the classes have changed, or the file is "
        "damaged. Move it elsewhere to start from the label or the prediction."
    )


def as_file_name(name: str) -> str:
    """A case name as the name of one file, whatever it contains."""
    quoted = quote(name, safe=" ()+,=@").replace(".", "%2E", 1 if name.startswith(".") else 0)
    if len(quoted) <= LONGEST_FILE_NAME:
        return quoted
    return f"{quoted[:LONGEST_FILE_NAME]}-{sha256(name.encode()).hexdigest()[:16]}"
