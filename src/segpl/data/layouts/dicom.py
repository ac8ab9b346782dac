"""A folder of DICOM series, with DICOM-SEG or RTSTRUCT files as labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from segpl.data.cache import short_hash
from segpl.data.case import Case, Dataset
from segpl.data.dicom.header import files_below, is_dicom
from segpl.data.dicom.index import Index, LabelFile, SeriesFiles, index_folder, match_labels
from segpl.data.dicom.label import SegmentNumbers
from segpl.data.formats import OPENERS
from segpl.data.layouts.base import Layout, class_numbers, read_description
from segpl.data.layouts.content import list_content
from segpl.data.pictures import open_picture
from segpl.errors import InputError

OPENED_BY_PILLOW = tuple(suffix for suffix, opener in OPENERS.items() if opener is open_picture)
LONGEST_NAME = 80  # characters
SHORT_UID = 6  # hexadecimal digits


class Dicom(Layout):
    """DICOM files in any folders, with any names: each series is a case.

    Its label is the DICOM-SEG or RTSTRUCT file that refers to it. A series without one is
    unlabeled.
    """

    name: ClassVar[str] = "dicom"
    needs: ClassVar[str] = "DICOM series in any folders, and no volumes of other formats"
    order: ClassVar[int] = 110

    def matches(self, root: Path) -> bool:
        # a dataset of other volumes may keep the original DICOM files beside them
        others = {file.suffix.lower() for file in list_content(root).files}
        return others <= set(OPENED_BY_PILLOW) and any(map(is_dicom, files_below(root)))

    def read(self, root: Path) -> Dataset:
        index = index_folder(root)
        _require_one_modality(root, index)
        labels = match_labels(index)
        source = root / "labels.json"
        classes, ignore = class_numbers(read_description(source).labels, source)
        segments = SegmentNumbers(
            tuple((classes or _numbered(list(labels.values()))).items()), is_chosen=bool(classes)
        )
        names = _case_names(root, index.series)
        subjects = _subjects(index.series)
        cases = []
        for one in index.series:
            path = labels[one.uid].path if one.uid in labels else None
            subject = subjects[one.uid]
            case = Case(names[one.uid], one.files, path, subject=subject, segments=segments)
            cases.append(case)
        cases.sort(key=lambda case: case.name)
        modality = index.series[0].modality
        channels = (modality,) if modality else ()
        named = dict(segments.numbers) if labels else None
        unused = tuple(
            f"{files[0].relative_to(root).as_posix()} ({kind}: {len(files)})"
            for kind, files in index.skipped.items()
        )
        return Dataset(root, self.name, tuple(cases), channels, named, ignore, unused)


def _require_one_modality(root: Path, index: Index) -> None:
    if not index.series:
        found = ", ".join(f"{kind} ({len(files)})" for kind, files in index.skipped.items())
        raise InputError(
            f"{root} contains DICOM files, but no series of slices. It contains {found}."
        )
    examples = {one.modality: one.files[0] for one in index.series}
    if len(examples) > 1:
        found = ", ".join(f"{kind} ({path})" for kind, path in sorted(examples.items()))
        raise InputError(
            f"{root} contains series of several modalities: {found}. Every series is a case, so "
            "keep only those of the modality to segment."
        )


def _numbered(labels: Sequence[LabelFile]) -> dict[str, int]:
    """Class numbers from 1 in the order of the segment names, which is the same in every case."""
    spellings: dict[str, str] = {}
    for name in sorted(name for label in labels for name in label.segments):
        spellings.setdefault(name.casefold(), name)
    spellings.pop("background", None)
    numbers = {spellings[key]: number for number, key in enumerate(sorted(spellings), 1)}
    return {"background": 0, **numbers}


def _case_names(root: Path, series: Sequence[SeriesFiles]) -> dict[str, str]:
    """Names by UID, made of the folders, since headers may contain names of patients.

    A folder with several series adds their numbers, and a part of a hash if these are not unique.
    """
    folders = {}
    for one in series:
        parts = one.files[0].parent.relative_to(root).parts
        folders[one.uid] = "-".join(parts) or root.resolve().name or "series"
    sharing = Counter(folders.values())
    numbered = {
        one.uid: folders[one.uid]
        + (f"-{one.number}" if sharing[folders[one.uid]] > 1 and one.number else "")
        for one in series
    }
    repeated = Counter(numbered.values())
    return {
        uid: name
        if repeated[name] == 1 and len(name) <= LONGEST_NAME
        else f"{name[:LONGEST_NAME]}-{short_hash(uid)[:SHORT_UID]}"
        for uid, name in numbered.items()
    }


def _subjects(series: Sequence[SeriesFiles]) -> dict[str, str]:
    """Hashes that are equal for scans of one person.

    Some anonymized datasets have one patient ID for everybody; then a study counts as a person.
    """
    has_patients = len({one.patient for one in series}) > 1
    people = {one.uid: (one.patient if has_patients else "") or one.study for one in series}
    return {uid: short_hash(person or uid)[:SHORT_UID] for uid, person in people.items()}
