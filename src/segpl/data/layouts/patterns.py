"""Layouts given as patterns of file names: `{case}_T1.nii.gz -> {case}_seg.nii.gz`."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from unicodedata import normalize

from segpl.data.case import AND, ARROW, Case, Dataset
from segpl.data.layouts.base import (
    TEST_FOLDERS,
    UNLABELED_FOLDERS,
    bare_stem,
    class_numbers,
    has_label_word,
    merge_parts,
    part_of,
    reject_orphans,
)
from segpl.data.layouts.content import list_content
from segpl.data.readers import stem_of, suffix_of
from segpl.errors import InputError, MissingFileError, count_noun

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
    is_optional: bool = False  # whether the mask of an absent structure may be missing

    @property
    def fields(self) -> list[str]:
        """Names of the placeholders, in order; some may occur twice."""
        return [name for name, _ in FIELD.findall(self.text)]

    @property
    def literal(self) -> str:
        """The text without placeholders."""
        return FIELD.sub("", self.text)

    @property
    def words(self) -> list[str]:
        """The parts of the path without placeholders: [T1] in T1/{case} and {case}_T1."""
        *folders, file = self.literal.split("/")
        return [word for part in (*folders, stem_of(file)) if (word := part.strip("_-. "))]

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
        return replace(self, text=self.text.replace(f"{{{field}}}/", f"{{{field}?}}/"))


@dataclass(frozen=True, slots=True)
class Patterns:
    images: tuple[FilePattern, ...]  # one per channel
    labels: tuple[FilePattern, ...]  # one, or one mask per class

    def read(self, root: Path) -> Dataset:
        images: dict[Values, dict[FilePattern, Path]] = {}
        labels: dict[Values, dict[FilePattern, Path]] = {}
        matches = self._matches(root)
        for one in (*self.images, *self.labels):
            if "*" in one.text and all(pattern != one for _, pattern, _ in matches):
                raise InputError(
                    f"no file matches '{one.text}': patterns have no wildcards, so '*' stands for "
                    "itself. Rename the files, or describe them with placeholders only."
                )
        for path, pattern, key in matches:
            group = images.setdefault(key, {})
            if pattern in self.labels:
                group = labels.setdefault(key, {})
            if known := group.get(pattern):
                raise InputError(
                    f"{known} and {path} both match '{pattern.text}'. Add the suffix to the "
                    "pattern, or remove one of them."
                )
            group[pattern] = path
        orphans = [path for key in labels if not images[key] for path in labels[key].values()]
        reject_orphans(orphans, [path for group in images.values() for path in group.values()])
        shortest = min(len(one.literal) for one in self.labels)
        is_longer = all(shortest > len(one.literal) for one in self.images)
        label_files = [path for group in labels.values() for path in group.values()]
        stems = {path.parent / stem_of(path) for path in label_files if is_longer}
        labeled = {p.parent / stem_of(p) for key in labels for p in images[key].values()}
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
                p / stem[: end.start()]: stem[end.end() :]
                for p, stem in files
                for end in SEPARATOR.finditer(stem)
            }
            if key not in labels and (
                starts.keys() & stems
                or any(has_label_word(starts[image]) for image in starts.keys() & labeled)
            ):
                continue  # another label, such as a_mask_1 next to a_mask, or a_mask_liver
            part, folders = values.get("part", ""), [v for name, v in key if name != "case"]
            is_unlabeled = any(part_of(folder) in UNLABELED_FOLDERS for folder in folders)
            found = {} if is_unlabeled else labels.get(key, {})
            absent = [one for one in self.labels if one not in found and not one.is_optional]
            if found and absent:
                raise MissingFileError(
                    f"case {_case_name(values)} has {count_noun(len(found), 'mask')}, but none "
                    f"named '{absent[0].text}'. Add it. If absent structures have no mask, write "
                    f"'{absent[0].text}?' in the layout."
                )
            images_of_case = tuple(group[pattern] for pattern in self.images)
            masks = tuple(map(found.get, self.labels))
            label, is_test = next(filter(None, masks), None), part_of(part) in TEST_FOLDERS
            case = Case(
                _case_name(values), images_of_case, label, is_test, values.get("subject", "")
            )
            if found and len(masks) > 1:
                case = replace(case, masks=masks)
            parts.setdefault(part.lower(), []).append(case)
        classes, ignore = self._classes(root)
        cases = merge_parts(list(parts.items()))
        return Dataset(root, self.text, cases, self._channels(), classes, ignore)

    @property
    def text(self) -> str:
        sides = (self.images, self.labels)
        return ARROW.join(
            AND.join(f"{p.text}{'?' * p.is_optional}" for p in side) for side in sides
        )

    def with_optional_folders(self) -> Iterator[Patterns]:
        """The patterns in which one folder, the innermost first, may be missing."""
        for field in reversed(self.images[0].fields):
            if all(one.text.count(f"{{{field}}}") == 1 for one in (*self.images, *self.labels)):
                yield Patterns(
                    tuple(pattern.with_optional(field) for pattern in self.images),
                    tuple(pattern.with_optional(field) for pattern in self.labels),
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
            FilePattern(one.text.replace("{case}", text)) for one in (*self.images, *self.labels)
        )
        return Patterns((image,), (label,))

    def without_folders(self) -> Patterns:
        """The same file names, directly in one folder."""
        images, labels = (
            tuple(replace(one, text=one.text.rpartition("/")[2]) for one in side)
            for side in (self.images, self.labels)
        )
        # only the folders may distinguish masks
        return Patterns(images, tuple(dict.fromkeys(labels)))

    def _matches(self, root: Path) -> list[tuple[Path, FilePattern, Values]]:
        # the most specific pattern first: {case}_seg before {case}
        patterns = sorted((*self.images, *self.labels), key=lambda one: -len(one.literal))
        compiled = [(one, one.compile(), suffix_of(one.text) != "") for one in patterns]
        fields = dict.fromkeys(name for one in (*self.images, *self.labels) for name in one.fields)
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
        names = [(pattern.words or [""])[-1] for pattern in self.images]
        is_named = all(names) and len(set(names)) == len(names)
        return () if not is_named or any(map(IMAGE_WORD.fullmatch, names)) else tuple(names)

    def _classes(self, root: Path) -> tuple[dict[str, int] | None, int | None]:
        """Class numbers of several masks, such as liver in `{case}/liver.nii.gz`, and `ignore`."""
        if len(self.labels) == 1:
            return None, None
        words = [pattern.words for pattern in self.labels]
        shared = set(words[0]).intersection(*words[1:])
        names = [next((w for w in reversed(own) if w not in shared), "") for own in words]
        if not all(names) or len(set(names)) < len(names):
            raise InputError(
                f"the label patterns in '{self.text}' do not name the classes. Use one pattern "
                "per structure, as in '{case}/liver.nii.gz + {case}/spleen.nii.gz'."
            )
        bare = [bare_stem(name) for name in names]  # Liver in Segmentation-Liver-label
        is_distinct = len({"background", "ignore", *bare}) == len(bare) + 2
        if is_distinct and not any(map(str.isdigit, bare)):
            names = bare
        named = (f"class-{name}" if name.isdigit() else name for name in names)
        numbers = {name: number for number, name in enumerate(named, start=1)}
        return class_numbers({"background": 0, **numbers}, root)


def parse_patterns(layout: str) -> Patterns:
    before, arrow, after = normalize("NFC", layout).partition(ARROW)
    images = tuple(FilePattern(text.strip()) for text in before.split(AND))
    texts = [text.strip() for text in after.split(AND)]
    labels = tuple(FilePattern(text.rstrip("? "), text.endswith("?")) for text in texts)
    if not arrow or any("case" not in one.fields for one in (*images, *labels)):
        raise InputError(
            f"the layout '{layout}' is not complete. Write it as "
            "'images/{case}_T1.nii.gz + images/{case}_T2.nii.gz -> labels/{case}.nii.gz'."
        )
    if any(one.text.endswith("?") for one in images):
        raise InputError(
            f"the layout '{layout}' marks an image as optional, but only masks may be missing. "
            "Remove the question mark."
        )
    counts = Counter(one.text for one in (*images, *labels))
    if repeated := next((text for text, count in counts.items() if count > 1), ""):
        raise InputError(f"the layout '{layout}' contains '{repeated}' twice. Remove one.")
    if len(labels) == 1 and labels[0].is_optional:
        raise InputError(
            f"the layout '{layout}' marks its only label as optional. Remove the question mark: an "
            "image without a label is unlabeled."
        )
    names = set(labels[0].fields)
    is_repeated = any(
        optional and one.fields.count(name) > 1
        for one in (*images, *labels)
        for name, optional in FIELD.findall(one.text)
    )
    if (
        any(set(one.fields) != names for one in (*images, *labels))
        or len(names) > MOST_FIELDS
        or is_repeated
    ):
        raise InputError(
            f"the layout '{layout}' cannot pair files. Use the same placeholders in every pattern, "
            f"at most {MOST_FIELDS}, and optional ones, such as {{folder?}}, once in a pattern."
        )
    return Patterns(images, labels)


def _case_name(values: Mapping[str, str]) -> str:
    """The value of {case} after those of other placeholders that it does not contain."""
    case = values["case"]
    others = [v for name, v in values.items() if name not in ("case", "part") and v not in case]
    return "_".join((*others, case))
