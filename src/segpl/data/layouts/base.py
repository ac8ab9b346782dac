"""What every layout does, and what they share: listing, pairing and naming files."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from segpl.data.case import Case, Dataset
from segpl.data.readers import stem_of, suffix_of
from segpl.errors import InputError
from segpl.files import read_json


class Layout(ABC):
    """A way of arranging a dataset in a folder: where the files are and what labels mean."""

    name: ClassVar[str]
    needs: ClassVar[str]  # what a folder must hold to follow it, for messages
    order: ClassVar[int] = 50  # of two layouts that find the same folder, the lower number reads it

    @abstractmethod
    def finds(self, root: Path) -> bool:
        """Whether the folder is arranged this way, by a glance at names alone."""

    @abstractmethod
    def read(self, root: Path) -> Dataset: ...


def image_files(folder: Path) -> list[Path]:
    """Files of a known format, sorted; none if the folder is absent."""
    if not folder.is_dir():
        return []
    # hidden files: "._case.nii.gz" is what macOS leaves on foreign disks
    return sorted(
        path
        for path in folder.iterdir()
        if suffix_of(path) and not path.name.startswith(".") and path.is_file()
    )


def subfolder(root: Path, names: Sequence[str]) -> Path | None:
    """The first subfolder called one of `names`, in upper or lower case."""
    if not root.is_dir():
        return None
    found = {path.name.lower(): path for path in sorted(root.iterdir()) if path.is_dir()}
    return next((found[name] for name in names if name in found), None)


_WORD = (
    r"(?:images?|imgs?|volumes?|labels?|lbls?|masks?|seg(?:mentation)?s?|manual|gt|training|test)"
)
# "001_seg", "mask-001", "21_manual1", and "img0001" at the start
_ROLE = re.compile(rf"(?:^|[_\-. ]){_WORD}\d?(?=$|[_\-. ])|^{_WORD}(?=\d)", re.IGNORECASE)


def bare_stem(stem: str) -> str:
    """A file's stem without the words that say image or label."""
    return _ROLE.sub("", stem).strip("_-. ") or stem


def paired_cases(images: Sequence[Path], labels: Sequence[Path], *, is_test: bool) -> list[Case]:
    """Cases from two lists of files: equal stems, otherwise equal but for words such as '_mask'."""
    left = {stem_of(path): path for path in labels}
    if len(left) < len(labels):
        twice = next(path for path in labels if left[stem_of(path)] != path)
        raise InputError(
            f"two labels have one name: {twice} and {left[stem_of(twice)]}. Remove one of them."
        )
    matches = {path: left.pop(stem_of(path)) for path in images if stem_of(path) in left}
    bare: dict[str, list[Path]] = {}
    for path in images:
        if path not in matches:
            bare.setdefault(bare_stem(stem_of(path)), []).append(path)
    orphans: list[Path] = []
    for stem, label in left.items():
        candidates = bare.get(bare_stem(stem), [])
        if len(candidates) > 1 or (candidates and candidates[0] in matches):
            fits = [*candidates, *(matches[path] for path in candidates if path in matches)]
            raise InputError(
                f"it is not clear what {label} belongs to: its name also fits "
                f"{' and '.join(path.name for path in fits)}. "
                "Give each label exactly the name of its image."
            )
        if candidates:
            matches[candidates[0]] = label
        else:
            orphans.append(label)
    refuse_orphans(orphans, images)
    return [Case(stem_of(path), (path,), matches.get(path), is_test) for path in images]


def refuse_orphans(orphans: Sequence[Path], images: Sequence[Path]) -> None:
    if not orphans:
        return
    more = f" (nor have {len(orphans) - 1} others)" if len(orphans) > 1 else ""
    example = f" such as {images[0].name}" if images else ""
    raise InputError(
        f"label {orphans[0]} has no image{more}. An image of the same name is needed; there are "
        f"{len(images)} images{example}. Add the image, or remove the label."
    )


def joined(parts: Sequence[tuple[str, Sequence[Case]]]) -> tuple[Case, ...]:
    """Cases of several parts; one whose names are taken already puts its own name before them."""
    together: list[Case] = []
    for part, cases in parts:
        taken = {case.name for case in together}
        if any(case.name in taken for case in cases):
            together += [_renamed(case, f"{part}-{case.name}") for case in cases]
        else:
            together += cases
    return tuple(together)


def _renamed(case: Case, name: str) -> Case:
    return replace(case, name=name, subject=name if case.subject == case.name else case.subject)


_REPEAT = re.compile(
    r"[_\-](?:(?:frame|slice|time|phase|view|visit|session|ses|scan|run|tp|t|z)[_\-]?\d+"
    r"|left|right|l|r|ed|es)$",
    re.IGNORECASE,
)


def default_subject(name: str) -> str:
    """The subject that a case name speaks of: 'patient001_frame01' is of 'patient001'.

    What remains must hold a digit, or 'heart_scan_1' and 'heart_scan_2' would be one person.
    """
    while (match := _REPEAT.search(name)) and any(sign.isdigit() for sign in name[: match.start()]):
        name = name[: match.start()]
    return name


def read_description(path: Path) -> dict[str, Any]:
    """A JSON file that describes a dataset; {} where there is none."""
    if not path.is_file():
        return {}
    description = read_json(path)
    if not isinstance(description, dict):
        raise InputError(
            f"{path} holds a {type(description).__name__}, and an object such as "
            '{"labels": {"background": 0, "tumor": 1}} is needed.'
        )
    return description


def class_numbers(labels: Any, source: Path) -> tuple[dict[str, int] | None, int | None]:
    """Classes by name with the background first, and the number that means 'ignore'.

    Both spellings are understood: {"0": "background"} and {"background": 0}.
    """
    if not labels:
        return None, None
    if not isinstance(labels, dict):
        raise _bad_labels(source, f"'labels' is {labels!r}")
    numbers: dict[str, int] = {}
    for key, value in labels.items():
        if isinstance(value, list):
            raise InputError(
                f"class '{key}' in {source} is the list {value}, a region made of several labels "
                "as nnU-Net allows, and each class needs one number. "
                f'Name the numbers themselves, such as "{key}": {value[0] if value else 1}.'
            )
        name, number = (str(value), key) if _is_number(key) else (str(key), value)
        if not _is_number(number) or name in numbers:
            raise _bad_labels(source, f"'{key}' is {value!r}")
        numbers[name] = int(number)
    if len(set(numbers.values())) < len(numbers):
        raise _bad_labels(source, f"two classes of {numbers} share a number")
    ignore = numbers.pop("ignore", None)
    if 0 not in numbers.values():
        numbers["background"] = 0
    return dict(sorted(numbers.items(), key=lambda item: (item[1] != 0, item[1]))), ignore


def _is_number(value: Any) -> bool:
    return isinstance(value, int | str) and re.fullmatch(r"-?\d+", str(value)) is not None


def _bad_labels(source: Path, found: str) -> InputError:
    return InputError(
        f"{found} in {source}, and each class needs a name and a whole number of its own, as in "
        '{"labels": {"background": 0, "tumor": 1}}. Correct the file.'
    )


def channel_names(channels: Any) -> tuple[str, ...]:
    """Names in the order of their numbers, from {"0": "T1", "1": "T2"} or ["T1", "T2"]."""
    if isinstance(channels, Mapping):
        return tuple(str(channels[key]) for key in sorted(channels, key=lambda key: int(key)))
    return tuple(str(name) for name in channels or ())
