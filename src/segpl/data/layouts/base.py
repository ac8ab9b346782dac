"""The interface of a layout, and what layouts share: finding, pairing and naming files."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from segpl.data.case import LARGEST_CLASS, Case, Dataset
from segpl.data.layouts.content import list_content
from segpl.data.readers import stem_of, suffix_of
from segpl.errors import InputError, count_noun
from segpl.records import convert_record, read_record

UNLABELED_FOLDERS = ("unlabelled", "unlabeled")
TEST_FOLDERS = ("test", "testing")
# validation cases are ordinary labeled cases; the split chooses its own
TRAINING_FOLDERS = (
    *("train", "training", "labeled", "labelled"),
    *("val", "valid", "validate", "validation"),
)
PARTS = (*TRAINING_FOLDERS, *TEST_FOLDERS, *UNLABELED_FOLDERS)
LETTERS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")  # Training and Set in TrainingSet
LABEL_WORD = re.compile(
    r"labels?|lbls?|masks?|d?segs?|segm|segmentations?|manual|gts?|(?:ground)?truth|annotations?"
    r"|contours?|rois?",
    re.IGNORECASE,
)
WORD = r"(?:images?|imgs?|volumes?|labels?|lbls?|masks?|seg(?:mentation)?s?|manual|gt)"
# "001_seg", "mask-001", "21_manual1", and "img0001" at the start
ROLE = re.compile(rf"(?:^|[_\-. ]){WORD}\d?(?=$|[_\-. ])|^{WORD}(?=\d)", re.IGNORECASE)
# "21_training" and "test01"; the number of scan1 is not that of its mask1
PART = rf"(?:{'|'.join(PARTS)}|scans?)"
PART_ROLE = re.compile(rf"(?:^|[_\-. ]){PART}(?=$|[_\-. ])|^{PART}(?=\d)", re.IGNORECASE)
REPEAT = re.compile(
    r"[_\-](?:(?:frame|slice|time|phase|view|visit|session|ses|scan|run|tp|t|z)[_\-]?\d+"
    r"|left|right|l|r|ed|es)$",
    re.IGNORECASE,
)


Channels = dict[int, str] | list[str] | str | None
DESCRIPTION_REMEDY = (
    'Write, for example, {"labels": {"background": 0, "tumor": 1}, "channel_names": {"0": "CT"}}.'
)


@dataclass(frozen=True, slots=True)
class ListedCase:
    """An entry of 'training' or 'test'; paths are relative to the dataset."""

    image: str
    label: str | None = None


@dataclass(frozen=True, slots=True)
class Description:
    """What is read from `dataset.json` or `labels.json`."""

    labels: dict[str, int | float | str | list[int]] | None = None
    channel_names: Channels = None
    modality: Channels = None
    training: list[ListedCase | str] | None = None
    test: list[ListedCase | str] | None = None
    file_ending: str = ""


class Layout(ABC):
    """A way to arrange a dataset in a folder: where the files are and what labels mean."""

    name: ClassVar[str]
    needs: ClassVar[str]  # what the folder must contain, for messages
    order: ClassVar[int] = 50  # if several layouts match, the lowest number wins
    is_general: ClassVar[bool] = False  # other pairings of files are tried if this one fails

    @abstractmethod
    def matches(self, root: Path) -> bool:
        """Whether a folder has this layout, judged by file names only."""

    @abstractmethod
    def read(self, root: Path) -> Dataset: ...


def image_files(folder: Path) -> list[Path]:
    """Files of a known format, sorted; none if the folder does not exist."""
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        # macOS leaves hidden files such as "._case.nii.gz" on external disks
        named = [e for e in entries if suffix_of(Path(e.name)) and not e.name.startswith(".")]
    # no stat call for each, except for links: some lead nowhere, or to themselves
    files = [e for e in named if e.is_file(follow_symlinks=False) or Path(e.path).is_file()]
    return sorted(Path(e.path) for e in files)


def subfolder(root: Path, names: Sequence[str]) -> Path | None:
    """The first of these subfolders that exists, in upper or lower case."""
    with os.scandir(root) as entries:  # recognizes folders without a stat call for each
        named = [entry for entry in entries if entry.name.lower() in names]
        folders = sorted(entry.name for entry in named if entry.is_dir())
    found = {name.lower(): root / name for name in folders}
    return next((found[name] for name in names if name in found), None)


def part_of(folder: str) -> str:
    """The word that says what the cases in a folder are for, as 'test' in Test_Data; or ''."""
    words = [word.lower() for word in LETTERS.findall(folder)]
    return next((word for word in words if word in PARTS), "")


def has_label_word(name: str) -> bool:
    return any(LABEL_WORD.fullmatch(word) for word in LETTERS.findall(name))


def bare_stem(stem: str) -> str:
    """A file's stem without words for image or label."""
    return ROLE.sub("", stem).strip("_-. ") or stem


def without_part(stem: str) -> str:
    """A file's bare stem without words for its part of the dataset."""
    stem = bare_stem(stem)
    return PART_ROLE.sub("", stem).strip("_-. ") or stem


def pair_files(images: Sequence[Path], labels: Sequence[Path], *, is_test: bool) -> list[Case]:
    """Pair images and labels with equal stems, ignoring words such as '_mask' if necessary."""
    remaining = labels_by_stem(labels)
    matches = {path: remaining.pop(stem_of(path)) for path in images if stem_of(path) in remaining}
    by_bare_stem: dict[str, list[Path]] = {}
    by_rest: dict[str, list[Path]] = {}
    for path in images:
        by_bare_stem.setdefault(bare_stem(stem_of(path)), []).append(path)
        if path not in matches:
            by_rest.setdefault(without_part(stem_of(path)), []).append(path)
    orphans: list[Path] = []
    for stem, label in remaining.items():
        bare, rest = bare_stem(stem), without_part(stem)
        candidates = by_rest.get(rest, [])
        if bare != rest:  # test_1_mask may be the label of test_1 or of 1, but not of train_1
            candidates = by_bare_stem.get(bare) or by_bare_stem.get(rest, [])
        if len(candidates) > 1 or (candidates and candidates[0] in matches):
            rivals = [*candidates, *(matches[path] for path in candidates if path in matches)]
            raise InputError(
                f"cannot tell which image {label} belongs to: its name also matches "
                f"{' and '.join(path.name for path in rivals)}. Give each label exactly the name "
                "of its image."
            )
        if candidates:
            matches[candidates[0]] = label
        else:
            orphans.append(label)
    reject_orphans(orphans, images)
    return [Case(stem_of(path), (path,), matches.get(path), is_test) for path in images]


def labels_by_stem(labels: Sequence[Path]) -> dict[str, Path]:
    found = {stem_of(path): path for path in labels}
    for path in labels:
        if found[stem_of(path)] != path:
            raise same_name_error(path, found[stem_of(path)])
    return found


def same_name_error(first: Path, second: Path) -> InputError:
    return InputError(f"two labels have the same name: {first} and {second}. Remove one.")


def reject_orphans(orphans: Sequence[Path], images: Sequence[Path]) -> None:
    if not orphans:
        return
    others = len(orphans) - 1
    more = f" (the same applies to {count_noun(others, 'more label')})" if others else ""
    example = f", for example {images[0].name}" if images else ""
    raise InputError(
        f"label {orphans[0]} has no image of the same name{more}. Found "
        f"{count_noun(len(images), 'image')}{example}. Add the image, remove the label, or "
        "describe the names with --layout."
    )


def reject_nested_labels(folder: Path, cases: Sequence[Case]) -> None:
    """Refuse a file in a subfolder of the label folder that is named after one of these cases."""
    with os.scandir(folder) as entries:  # listing everything below takes longer
        if not any(entry.is_dir() and not entry.name.startswith(".") for entry in entries):
            return
    # 1_mask is named after train_1, but test_1_mask is not
    by_stem = {strip(case.name): case for strip in (without_part, bare_stem) for case in cases}
    for file in list_content(folder).files:
        case, path = by_stem.get(bare_stem(file.stem)), folder / file.path
        if file.folders and case and not any(path.samefile(image) for image in case.images):
            raise InputError(
                f"case '{case.name}' has no label in {folder}, but {path} is named after it. "
                f"Labels in subfolders are not read. Move it to {folder}, or elsewhere."
            )


def merge_parts(parts: Sequence[tuple[str, Sequence[Case]]]) -> tuple[Case, ...]:
    """Cases of several folders. Duplicate names get the folder's name as a prefix."""
    merged: list[Case] = []
    for part, cases in parts:
        taken = {case.name for case in merged}
        if any(case.name in taken for case in cases):
            for case in cases:
                name = f"{part}-{case.name}"
                subject = name if case.subject == case.name else case.subject
                merged.append(replace(case, name=name, subject=subject))
        else:
            merged += cases
    return tuple(merged)


def default_subject(name: str) -> str:
    """The subject in a case name: 'patient001' for 'patient001_frame01'.

    The subject must contain a digit, so that 'heart_scan_1' and 'heart_scan_2' stay different.
    """
    while (match := REPEAT.search(name)) and any(sign.isdigit() for sign in name[: match.start()]):
        name = name[: match.start()]
    return name


def read_description(path: Path) -> Description:
    """`dataset.json` or `labels.json`; empty if there is none."""
    if not path.is_file():
        return Description()
    content = read_record(path, dict[str, Any], DESCRIPTION_REMEDY)
    if path.name == "labels.json" and "labels" not in content:
        content = {"labels": content}
    return convert_record(content, Description, path, DESCRIPTION_REMEDY)


def class_numbers(
    labels: Mapping[str, Any] | None, source: Path
) -> tuple[dict[str, int] | None, int | None]:
    """Classes by name, background first, and the number of the class 'ignore'.

    Both {"0": "background"} and {"background": 0} are accepted.
    """
    if not labels:
        return None, None
    numbers: dict[str, int] = {}
    for key, value in labels.items():
        if isinstance(value, list):
            raise InputError(
                f"class '{key}' in {source} is the list {value}. Regions made of several labels, "
                f'as in nnU-Net, are not supported. Give one number, for example "{key}": '
                f"{value[0] if value else 1}."
            )
        name, number = (str(value), key) if _is_number(key) else (str(key), value)
        if not _is_number(number) or name in numbers or not name.strip():
            raise _bad_labels(source, f"'{key}' is {value!r}")
        numbers[name] = int(number)
        if numbers[name] > LARGEST_CLASS:
            raise _bad_labels(source, f"class '{name}' has a number above {LARGEST_CLASS}")
    if len(set(numbers.values())) < len(numbers):
        raise _bad_labels(source, f"two classes of {numbers} have the same number")
    ignore = numbers.pop("ignore", None)
    if number := next((numbers[name] for name in numbers if name.lower() == "background"), 0):
        raise InputError(
            f"{source}: 'background' is {number}, but 0 is the background. Renumber the labels."
        )
    if 0 not in numbers.values():
        numbers["background"] = 0
    return dict(sorted(numbers.items(), key=lambda item: (item[1] != 0, item[1]))), ignore


def _is_number(value: int | str) -> bool:
    return re.fullmatch(r"-?\d{1,18}", str(value)) is not None


def _bad_labels(source: Path, found: str) -> InputError:
    return InputError(
        f"{source}: {found}. Give each class a name and its own integer, for example "
        '{"labels": {"background": 0, "tumor": 1}}.'
    )


def channel_names(channels: Channels) -> tuple[str, ...]:
    """Names in the order of their numbers, from {"0": "T1", "1": "T2"}, ["T1", "T2"] or "T1"."""
    if isinstance(channels, str):
        return (channels,)
    if isinstance(channels, Mapping):
        return tuple(channels[number] for number in sorted(channels))
    return tuple(channels or ())
