"""Sort the DICOM files of a folder into series, their labels, and files of other kinds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from segpl.data.dicom.header import files_below, is_dicom, read_header
from segpl.errors import InputError, UnusableFileError, errors_naming

SEGMENTATIONS = ("1.2.840.10008.5.1.4.1.1.66.4", "1.2.840.10008.5.1.4.1.1.66.7")
CONTOURS = "1.2.840.10008.5.1.4.1.1.481.3"
DIRECTORY = "1.2.840.10008.1.3.10"
DOSE = "1.2.840.10008.5.1.4.1.1.481.2"
WRITTEN_BY = "segpl"  # ManufacturerModelName of our own segmentations


@dataclass(frozen=True, slots=True)
class SeriesFiles:
    uid: str
    files: tuple[Path, ...]
    number: str  # as the scanner counts; '' if it does not
    modality: str
    patient: str
    study: str
    frame_of_reference: str


@dataclass(frozen=True, slots=True)
class LabelFile:
    """A DICOM-SEG or RTSTRUCT file."""

    path: Path
    segments: tuple[str, ...]  # names
    series: frozenset[str]  # UIDs of the series that it was drawn on
    frame_of_reference: frozenset[str]


@dataclass(frozen=True, slots=True)
class Index:
    series: tuple[SeriesFiles, ...]
    labels: tuple[LabelFile, ...]
    skipped: dict[str, list[Path]]  # kind -> files


def index_folder(root: Path) -> Index:
    """Read the header of every DICOM file below `root`."""
    groups: dict[str, dict[str, SeriesFiles]] = defaultdict(dict)
    labels: list[LabelFile] = []
    skipped: dict[str, list[Path]] = defaultdict(list)
    for path in files_below(root):
        if not is_dicom(path):
            if path.suffix.lower() == ".dcm":
                raise UnusableFileError(
                    f"{path} is not a DICOM file, although its name ends in .dcm",
                    "Copy it again, or remove it.",
                )
            continue
        status = path.stat()
        found = _read_file(path, status.st_size, status.st_mtime_ns)
        if isinstance(found, tuple):
            uid, part = found
            groups[part.uid].setdefault(uid, part)  # a second copy of a file adds nothing
        elif isinstance(found, LabelFile):
            labels.append(found)
        else:
            skipped[found].append(path)
    series = []
    for parts in groups.values():
        first, *_ = parts.values()
        files = tuple(file for part in parts.values() for file in part.files)
        series.append(replace(first, files=files))
    return Index(tuple(series), tuple(labels), dict(skipped))


@lru_cache(maxsize=200_000)  # a command reads its dataset several times
def _read_file(path: Path, size: int, modified: int) -> tuple[str, SeriesFiles] | LabelFile | str:
    """What a file contributes; a description of its kind if it is neither image nor label.

    Of an image, this is its UID, and its series as if it had no other file.
    """
    header = read_header(path)

    def text(tag: str) -> str:
        value = header.get(tag)
        return "" if value is None else str(value)

    with errors_naming(path):
        if header.file_meta.get("MediaStorageSOPClassUID") == DIRECTORY:
            return "lists of files"
        if "Image Storage" in header.SOPClassUID.name and "Rows" not in header:
            raise ValueError("it has no image")
        if kind := _other_kind(header):
            return kind
        if header.SOPClassUID in (*SEGMENTATIONS, CONTOURS):
            return _label_file(path, header)
        tags = ("SeriesNumber", "Modality", "PatientID", "StudyInstanceUID", "FrameOfReferenceUID")
        series = SeriesFiles(str(header.SeriesInstanceUID), (path,), *map(text, tags))
        return text("SOPInstanceUID") or str(path), series


def match_labels(index: Index) -> dict[str, LabelFile]:
    """The label of each series, by the series that it names, or else by the frame of reference."""
    found: dict[str, LabelFile] = {}
    for label in index.labels:
        matches = [one for one in index.series if one.uid in label.series]
        if not matches and not label.series:
            matches = [
                one for one in index.series if one.frame_of_reference in label.frame_of_reference
            ]
        if len(matches) != 1:
            found_in = " and ".join(f"the series of {one.files[0]}" for one in matches)
            raise InputError(
                f"{label.path} is a label of {found_in or 'a series that is missing'}. "
                "A label needs exactly one series in the folder. Add its series, or remove the "
                "label."
            )
        uid = matches[0].uid
        if uid in found:
            raise InputError(
                f"the DICOM series of {matches[0].files[0]} has two labels: {found[uid].path} and "
                f"{label.path}. Keep one of them."
            )
        found[uid] = label
    return found


def _other_kind(header: Any) -> str:
    """What a file is, if it is neither a slice of a volume nor a label."""
    if header.SOPClassUID in SEGMENTATIONS:
        is_ours = header.get("ManufacturerModelName") == WRITTEN_BY
        return "predictions of segpl" if is_ours else ""
    if header.SOPClassUID == CONTOURS:
        return ""
    if "LOCALIZER" in (header.get("ImageType") or ()):
        return "localizers"
    if header.SOPClassUID == DOSE:
        return "dose maps"
    if "Rows" not in header:
        return "files without an image"
    if "ImageOrientationPatient" in header or "PerFrameFunctionalGroupsSequence" in header:
        return ""
    return "images without a position, such as radiographs and screenshots"


def _label_file(path: Path, header: Any) -> LabelFile:
    if header.SOPClassUID == CONTOURS:
        names = [item.ROIName for item in header.get("StructureSetROISequence") or ()]
        frames = list(header.get("ReferencedFrameOfReferenceSequence") or ())
        series = [
            one.SeriesInstanceUID
            for frame in frames
            for study in frame.get("RTReferencedStudySequence") or ()
            for one in study.get("RTReferencedSeriesSequence") or ()
        ]
        references = [frame.FrameOfReferenceUID for frame in frames]
    else:
        names = [item.SegmentLabel for item in header.get("SegmentSequence") or ()]
        series = [one.SeriesInstanceUID for one in header.get("ReferencedSeriesSequence") or ()]
        references = [header.get("FrameOfReferenceUID")]
    return LabelFile(
        path,
        tuple(str(name).strip() for name in names),
        frozenset(map(str, series)),
        frozenset(map(str, references)),
    )
