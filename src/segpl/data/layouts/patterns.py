"""Layouts given as patterns of file names: `{case}_T1.nii.gz -> {case}_seg.nii.gz`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from unicodedata import normalize

from segpl.data.case import Case, Dataset
from segpl.data.layouts.base import (
    TEST_FOLDERS,
    UNLABELED_FOLDERS,
    merge_parts,
    part_of,
    reject_orphans,
)
from segpl.data.layouts.content import list_content
from segpl.data.readers import stem_of, suffix_of
from segpl.errors import InputError, MissingFileError

ARROW, AND = " -> ", " + "
MOST_FIELDS = 4
# {name}, or {name?}/ for a folder that some cases do not have
FIELD = re.compile(r"\{([a-z][a-z0-9_]*)(?:\}|(\?\}/))")
IMAGE_WORD = re.compile(r"(?:im(?:a)?ge?s?|scans?|volumes?|frames?|data|raw|\d+)", re.IGNORECASE)
SEPARATOR = re.compile(r"[_\-. ]")
Values = tuple[tuple[str, str], ...]  # of the placeholders


@dataclass(frozen=True, slots=True)
class FilePattern:
    """The path of a file below the dataset; without a suffix it fits every format."""

    text: str

    @property
    def fields(self) -> list[str]:
        """Names of the placeholders, in order; some may occur twice."""
        return [name for name, _ in FIELD.findall(self.text)]

    @property
    def literal(self) -> str:
        """The text without placeholders."""
        return FIELD.sub("", self.text)

    def compile(self) -> re.Pattern[str]:
        first, *rest = FIELD.split(self.text)
        expression, seen = re.escape(first), set[str]()
        for name, optional, fixed in zip(rest[::3], rest[1::3], rest[2::3], strict=True):
            value = f"(?P={name})" if name in seen else f"(?P<{name}>[^/]+)"
            seen.add(name)
            expression += (f"(?:{value}/)?" if optional else value) + re.escape(fixed)
        return re.compile(expression)

    def with_optional(self, field: str) -> FilePattern:
        """The pattern in which the folder `field` may be missing."""
        return FilePattern(self.text.replace(f"{{{field}}}/", f"{{{field}?}}/"))


@dataclass(frozen=True, slots=True)
class Patterns:
    images: tuple[FilePattern, ...]  # one per channel
    label: FilePattern

    def read(self, root: Path) -> Dataset:
        images: dict[Values, dict[FilePattern, Path]] = {}
        labels: dict[Values, Path] = {}
        for path, pattern, key in self._matches(root):
            group = images.setdefault(key, {})
            known = labels.get(key) if pattern == self.label else group.get(pattern)
            if known is not None:
                raise InputError(
                    f"{known} and {path} both fit '{pattern.text}'. Add the suffix to the pattern, "
                    "or remove one of them."
                )
            if pattern == self.label:
                labels[key] = path
            else:
                group[pattern] = path
        orphans = [path for key, path in labels.items() if not images[key]]
        reject_orphans(orphans, [path for group in images.values() for path in group.values()])
        is_longer = all(len(self.label.literal) > len(one.literal) for one in self.images)
        stems = {path.parent / stem_of(path) for path in labels.values() if is_longer}
        parts: dict[str, list[Case]] = {}
        for key, group in images.items():
            values = dict(key)
            if missing := [pattern for pattern in self.images if pattern not in group]:
                if key in labels:
                    raise MissingFileError(
                        f"case {_case_name(values)} has a label, but no image named "
                        f"'{missing[0].text}'. Add it, or remove the case."
                    )
                continue  # not a complete case; `check` lists its files as unused
            files = [(path.parent, stem_of(path)) for path in group.values()]
            starts = {
                p / stem[: end.start()] for p, stem in files for end in SEPARATOR.finditer(stem)
            }
            if key not in labels and starts & stems:
                continue  # a second label, such as a_mask_1 next to a_mask
            part, folders = values.get("part", ""), [v for name, v in key if name != "case"]
            is_unlabeled = any(part_of(folder) in UNLABELED_FOLDERS for folder in folders)
            case = Case(
                _case_name(values),
                tuple(group[pattern] for pattern in self.images),
                None if is_unlabeled else labels.get(key),
                part_of(part) in TEST_FOLDERS,
                values.get("subject", ""),
            )
            parts.setdefault(part.lower(), []).append(case)
        return Dataset(root, self.text, merge_parts(list(parts.items())), self._channels())

    @property
    def text(self) -> str:
        return AND.join(pattern.text for pattern in self.images) + ARROW + self.label.text

    def with_optional_folders(self) -> Iterator[Patterns]:
        """The patterns in which one folder, the innermost first, may be missing."""
        for field in reversed(self.images[0].fields):
            if all(one.text.count(f"{{{field}}}") == 1 for one in (*self.images, self.label)):
                yield Patterns(
                    tuple(pattern.with_optional(field) for pattern in self.images),
                    self.label.with_optional(field),
                )

    def narrowed(self, images: Sequence[Path]) -> Patterns | None:
        """The patterns with the text that all images, named `{case}`, have before a number."""
        folder, _, name = self.images[0].text.rpartition("/")
        if len(self.images) > 1 or name.removesuffix(suffix_of(name)) != "{case}":
            return None
        stems = [stem_of(path) for path in images]
        parents = [path.parent.name for path in images]
        start = folder.rpartition("/")[2]  # {subject} in {subject}/{subject}_frame{case}
        if FIELD.fullmatch(start) and all(map(str.startswith, stems, parents)):
            stems = list(map(str.removeprefix, stems, parents))
        else:
            start = ""
        same = takewhile(lambda letters: len({*letters}) == 1, zip(*stems, strict=False))
        text = start + "".join(letters[0] for letters in same).rstrip("0123456789") + "{case}"
        image, label = (
            FilePattern(one.text.replace("{case}", text)) for one in (*self.images, self.label)
        )
        return Patterns((image,), label)

    def without_folders(self) -> Patterns:
        """The same file names, directly in one folder."""
        return Patterns(
            tuple(FilePattern(pattern.text.rpartition("/")[2]) for pattern in self.images),
            FilePattern(self.label.text.rpartition("/")[2]),
        )

    def _matches(self, root: Path) -> list[tuple[Path, FilePattern, Values]]:
        # the most specific pattern first: {case}_seg before {case}
        patterns = sorted((*self.images, self.label), key=lambda one: -len(one.literal))
        compiled = [(one, one.compile(), suffix_of(one.text) != "") for one in patterns]
        fields = dict.fromkeys(name for one in (*self.images, self.label) for name in one.fields)
        # without {case} in a pattern, the folder is the case: T1.nii.gz in the folder p1
        default = {**dict.fromkeys(fields, ""), "case": Path(os.path.abspath(root)).name}
        found = []
        for file in list_content(root).files:
            bare = "/".join((*file.folders, file.stem))
            for pattern, expression, has_suffix in compiled:
                if match := expression.fullmatch(bare + file.suffix if has_suffix else bare):
                    values = tuple((default | match.groupdict("")).items())
                    found.append((root / file.path, pattern, values))
                    break
        return found

    def _channels(self) -> tuple[str, ...]:
        """Channel names, such as T1 in `{case}_T1.nii.gz` or `T1/{case}.nii.gz`."""
        names = []
        for pattern in self.images:
            *folders, file = pattern.literal.split("/")
            words = [word.strip("_-. ") for word in (*folders, stem_of(file))]
            names.append(next(filter(None, reversed(words)), ""))
        is_named = all(names) and len(set(names)) == len(names)
        return () if not is_named or any(map(IMAGE_WORD.fullmatch, names)) else tuple(names)


def parse_patterns(layout: str) -> Patterns:
    before, arrow, after = normalize("NFC", layout).partition(ARROW)
    images = tuple(FilePattern(text.strip()) for text in before.split(AND))
    label = FilePattern(after.strip())
    if not arrow or any("case" not in one.fields for one in (*images, label)):
        raise InputError(
            f"the layout '{layout}' is not complete. Write it as "
            "'images/{case}_T1.nii.gz + images/{case}_T2.nii.gz -> labels/{case}.nii.gz'."
        )
    names = set(label.fields)
    is_repeated = any(
        optional and one.fields.count(name) > 1
        for one in (*images, label)
        for name, optional in FIELD.findall(one.text)
    )
    if any(set(one.fields) != names for one in images) or len(names) > MOST_FIELDS or is_repeated:
        raise InputError(
            f"the layout '{layout}' cannot pair files. Use the same placeholders in every pattern, "
            f"at most {MOST_FIELDS}, and optional ones, such as {{folder?}}, once in a pattern."
        )
    return Patterns(images, label)


def _case_name(values: Mapping[str, str]) -> str:
    """The value of {case} after those of other placeholders that it does not contain."""
    case = values["case"]
    others = [v for name, v in values.items() if name not in ("case", "part") and v not in case]
    return "_".join((*others, case))
