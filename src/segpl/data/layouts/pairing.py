"""Find the patterns that pair every label with its images, judged by file names.

The files of a case share a key: the beginning or end of their names, and folders such as
`patient01`. What remains is the same for all cases: `_T1`, `_seg`, `labels/`. Files are opened only
if names do not say which ones are labels.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from segpl.data.fingerprint import count_numbers
from segpl.data.layouts.base import (
    PARTS,
    has_label_word,
    part_of,
    reject_orphans,
    same_name_error,
)
from segpl.data.layouts.content import FoundFile, list_content
from segpl.data.layouts.patterns import MOST_FIELDS, SEPARATOR, FilePattern, Patterns
from segpl.data.problems import are_classes
from segpl.data.readers import read_grid, read_label
from segpl.errors import UserError

MODALITY = re.compile(r"[_\-. ]?(?:T1|T2|PD|FLAIR|ADC|DWI|SWI|CT|MR|PET)[a-z]*", re.IGNORECASE)
SUBJECT = re.compile(r"(?:sub|patient|participant|case)\w*[-_ ]?\w*|[ps]?\d+", re.IGNORECASE)
START = re.compile(r"(?<=[_\-. ])|(?<=[A-Za-z])(?=\d)")  # of an ending, as in img0001
DIGITS = re.compile(r"\d+")
NOT_IN_PATTERNS = re.compile(r"[{}]| -> | \+ ")
PART, FOLDER = "{part}", "{}"  # placeholders; the second is named later
MOST_LABELS = 0.9  # fraction of the labels that a pattern must fit
MOST_KINDS = 20  # kinds of names of which files are opened

CaseKey = tuple[tuple[str, ...], str]  # folders that differ between cases, part of the file name
Place = tuple[tuple[str, ...], str]  # kind of folder, rest of the file name
Cut = Callable[[str], list[tuple[str, str]]]


def looks_like_label(path: Path) -> bool:
    """Whether a file contains whole numbers that can be classes."""
    try:
        return are_classes(count_numbers(read_label(path).array))
    except UserError:
        return False


def find_patterns(root: Path) -> list[Patterns]:
    """The patterns that fit all labels below a folder; several if it is unclear which."""
    files = [f for f in list_content(root).files if not NOT_IN_PATTERNS.search(f.path)]
    if len({file.folders[:1] for file in files}) == 1 and files[0].folders:
        return []  # the dataset is a folder below
    for is_label in _label_tests(root, files):
        labels = [file for file in files if is_label(file)]
        images = [file for file in files if not is_label(file)]
        found = _fits(root, labels, images) if labels and images else []
        if found and all(len({*one.labels[0].fields}) <= MOST_FIELDS for one in found):
            found = _with_optional_folder(root, found, len(labels))
            return [_without_series(root, found[0])] if len(found) == 1 else found
    return []


def _with_optional_folder(root: Path, found: list[Patterns], labels: int) -> list[Patterns]:
    """One pattern for all labels if a folder is missing in some cases, as sessions in BIDS."""
    is_bids = any("anat/" in patterns.text for patterns in found)
    if len(found) == 1 and not is_bids:
        return found
    if len({patterns.images for patterns in found}) == 1 < len(found):
        return found  # the file names of labels differ, and reading takes long for many masks
    try:
        known = max(len(patterns.read(root).cases) for patterns in found)
    except UserError:
        return found  # reading the proposed layout will say why
    for patterns in found:
        for wider in patterns.with_optional_folders():
            with suppress(UserError):
                cases = wider.read(root).cases
                if len(cases) > known and sum(case.label is not None for case in cases) == labels:
                    return [wider]
    return found


def _without_series(root: Path, patterns: Patterns) -> Patterns:
    """Patterns that leave out only time series, such as p1_4d, if there are any."""
    with suppress(UserError):
        cases = patterns.read(root).cases
        labeled = [case.images[0] for case in cases if case.label]
        kinds = {DIGITS.sub("0", case.name): case.images[0] for case in cases if not case.label}
        _, channels = read_grid(labeled[0])
        series = {kind for kind, path in kinds.items() if read_grid(path)[1] > channels == 1}
        if series and (narrowed := patterns.narrowed(labeled)):
            kept = {case.images for case in narrowed.read(root).cases}
            left_out = {DIGITS.sub("0", case.name) for case in cases if case.images not in kept}
            if left_out == series:
                return narrowed
    return patterns


def _label_tests(root: Path, files: Sequence[FoundFile]) -> Iterator[Callable[[FoundFile], bool]]:
    """Ways to tell labels from images: words in names, in folders, or the values in a few files."""

    def in_folders(file: FoundFile) -> bool:
        return any(map(has_label_word, file.folders))

    yield lambda file: in_folders(file) or has_label_word(file.stem)
    yield in_folders
    kinds: dict[str, list[Path]] = defaultdict(list)
    for file in files:
        kinds[DIGITS.sub("0", file.path)].append(root / file.path)
    if 1 < len(kinds) <= MOST_KINDS:
        of_labels = {
            kind
            for kind, paths in kinds.items()
            if all(map(looks_like_label, {paths[0], paths[-1]}))
        }
        yield lambda file: DIGITS.sub("0", file.path) in of_labels


def _fits(root: Path, labels: list[FoundFile], images: list[FoundFile]) -> list[Patterns]:
    if any("anat" in image.folders for image in images):  # BIDS: without func, dwi, ...
        images = [image for image in images if "anat" in image.folders]
    folders = _placeholders(labels, images)
    groups: dict[tuple[str, ...], list[FoundFile]] = defaultdict(list)
    for label in labels:
        groups[_kind(label.folders, folders)].append(label)
    found: list[Patterns] = []
    for kind, group in groups.items():
        beside = [image for image in images if _kind(image.folders, folders) == kind]
        searches = (
            _Search(root, group, beside or images, folders, cut) for cut in (_starts, _ends)
        )
        results = [search.result() for search in searches]
        # keys that are too short belong to few labels and many images
        _, _, best = max(results, key=lambda result: result[:2])
        found += best
    return found


def _placeholders(labels: Sequence[FoundFile], images: Sequence[FoundFile]) -> dict[str, str]:
    """The placeholders of folders that differ between cases, such as train and patient01."""
    found: dict[str, str] = {}
    for depth in {len(image.folders) for image in images}:
        alike = [image.folders for image in images if len(image.folders) == depth]
        for level in range(depth):
            names = {folders[level] for folders in alike if folders[level].lower() not in PARTS}
            # T1/ and T2/ beside labels/ are channels, not cases
            is_role = any(
                len(label.folders) == depth and has_label_word(label.folders[level])
                for label in labels
            )
            # Train_Set and Test_Set, but not Training_001 and Training_002
            is_part = all(part_of(name) and not name[-1].isdigit() for name in names)
            if len(names) > 1 and not is_role:
                found |= dict.fromkeys(names, PART if is_part else FOLDER)
    folders = {name for file in (*labels, *images) for name in file.folders}
    return found | {name: PART for name in folders if name.lower() in PARTS}


def _kind(folders: Sequence[str], placeholders: Mapping[str, str]) -> tuple[str, ...]:
    """The folders, with placeholders for those that differ between cases."""
    kind = [placeholders.get(name, name) for name in folders]
    first = kind.index(PART) if PART in kind else 0
    return (
        *kind[: first + 1],
        *(FOLDER if place == PART else place for place in kind[first + 1 :]),
    )


def _starts(stem: str) -> list[tuple[str, str]]:
    """The beginnings of a name, longest first, each with the rest of the name."""
    ends = [len(stem), *sorted((match.start() for match in SEPARATOR.finditer(stem)), reverse=True)]
    return [(stem[:end], stem[end:]) for end in dict.fromkeys((*ends, 0))]


def _ends(stem: str) -> list[tuple[str, str]]:
    """The endings of a name, longest first, each with the rest of the name."""
    starts = [0, *(match.start() for match in START.finditer(stem)), len(stem)]
    return [(stem[start:], stem[:start]) for start in dict.fromkeys(starts)]


@dataclass(frozen=True)
class _Search:
    """Labels in one kind of folder, the images that may belong to them, and how to cut names."""

    root: Path
    labels: Sequence[FoundFile]
    images: Sequence[FoundFile]
    placeholders: Mapping[str, str]
    cut: Cut

    def result(self) -> tuple[int, int, list[Patterns]]:
        """The number of labeled cases, minus that of the channels, and the patterns found."""
        groups = self.label_groups()
        cases = {key for group in groups.values() for key in group}
        largest = max(map(len, groups.values()), default=0)
        found = [
            patterns
            for rest, group in groups.items()
            # a label or two may be misnamed
            if len(group) == largest >= MOST_LABELS * len(cases)
            for patterns in self.patterns(rest, group)
        ]
        channels = max((len(patterns.images) for patterns in found), default=0)
        return (len(cases) if found else 0), -channels, found

    def own_folders(self, file: FoundFile) -> tuple[str, ...]:
        return tuple(name for name in file.folders if name in self.placeholders)

    def case_folders(self, folders: Sequence[str]) -> list[str]:
        kind = _kind(folders, self.placeholders)
        return [name for name, place in zip(folders, kind, strict=True) if place == FOLDER]

    def cuts(self, file: FoundFile) -> list[tuple[str, str]]:
        """Beginnings or endings of a name, and the rest: {case}_seg if the folder is the case."""
        folder = next(reversed(self.case_folders(file.folders)), None)
        return [
            (key, rest if key or not folder else rest.replace(folder, "{case}"))
            for key, rest in self.cut(file.stem)
        ]

    def label_groups(self) -> dict[str, dict[CaseKey, FoundFile]]:
        """Rest of the name -> key -> label. The key is the longest one that an image has too."""
        keys = {(self.own_folders(i), key) for i in self.images for key, _ in self.cuts(i)}
        groups: dict[str, dict[CaseKey, FoundFile]] = defaultdict(dict)
        orphans: list[FoundFile] = []
        for label in self.labels:
            own = self.own_folders(label)
            has_folder = bool(self.case_folders(own))
            for key, rest in self.cuts(label):
                if (key or has_folder) and (own, key) in keys:
                    if twin := groups[rest].get((own, key)):
                        raise same_name_error(self.root / twin.path, self.root / label.path)
                    groups[rest][own, key] = label
                    break
            else:
                orphans.append(label)
        usual = max(groups, key=lambda rest: len(groups[rest]), default="")
        orphans += [
            label
            for rest, group in groups.items()
            for case, label in group.items()
            # a name like the others, but without an image of its own
            if rest != usual
            and case not in groups[usual]
            and usual in [end for _, end in self.cuts(label)]
        ]
        if len(orphans) < len(groups.get(usual, ())):
            reject_orphans(
                [self.root / label.path for label in orphans],
                [self.root / image.path for image in self.images],
            )
        return {} if orphans else groups

    def patterns(self, rest: str, group: dict[CaseKey, FoundFile]) -> list[Patterns]:
        """The pattern of these labels with those of their images."""
        rest, keys = self.without_modality(rest, group)
        channels = self.channels(keys)
        kind = _kind(next(iter(group.values())).folders, self.placeholders)
        label = self.pattern(kind, rest, {file.suffix for file in group.values()}, keys)
        rivals = [
            pattern
            for pattern, example in channels.items()
            if len(channels) > 1 and looks_like_label(self.root / example.path)
        ]
        images = tuple(pattern for pattern in channels if pattern not in rivals)
        return [Patterns(images, (one,)) for one in (label, *rivals)] if images else []

    def without_modality(
        self, rest: str, keys: Collection[CaseKey]
    ) -> tuple[str, frozenset[CaseKey]]:
        """Keys without an ending such as _T1w that all of them share, if there is one."""
        shorter, tails = set[CaseKey](), set[str]()
        for folders, key in keys:
            base, tail = next(iter(_starts(key)[1:]), ("", ""))
            shorter.add((folders, base))
            tails.add(tail)
        (tail, *others) = tails
        if self.cut is not _starts or others or not MODALITY.fullmatch(tail):
            return rest, frozenset(keys)
        return tail + rest, frozenset(shorter)

    def channels(self, keys: frozenset[CaseKey]) -> dict[FilePattern, FoundFile]:
        """Patterns of images that exist for every key, each with one of its files."""
        found: dict[Place, dict[CaseKey, list[FoundFile]]] = {}
        for image in self.images:
            own, kind = self.own_folders(image), _kind(image.folders, self.placeholders)
            for key, rest in self.cuts(image):
                if (own, key) in keys:
                    found.setdefault((kind, rest), defaultdict(list))[own, key].append(image)
                    break
        channels: dict[FilePattern, FoundFile] = {}
        for (kind, rest), by_key in self.common(found, len(keys)).items():
            suffixes = {file.suffix for files in by_key.values() for file in files}
            is_single = all(len(files) == 1 for files in by_key.values())
            for choice in [suffixes] if is_single else [{suffix} for suffix in sorted(suffixes)]:
                chosen = [[f for f in files if f.suffix in choice] for files in by_key.values()]
                if all(chosen):
                    channels[self.pattern(kind, rest, choice, keys)] = chosen[0][0]
        return channels

    def common(
        self, found: dict[Place, dict[CaseKey, list[FoundFile]]], keys: int
    ) -> dict[Place, dict[CaseKey, list[FoundFile]]]:
        """Kinds of images that exist for every key and, unlike a stray c1_old, for many cases."""
        complete = {place: files for place, files in sorted(found.items()) if len(files) == keys}
        counts: Counter[Place] = Counter()
        for image in self.images:
            kind = _kind(image.folders, self.placeholders)
            places = ((kind, rest) for _, rest in reversed(self.cuts(image)))
            counts[next((place for place in places if place in complete), (kind, ""))] += 1
        most = max((counts[place] for place in complete), default=0)
        return {place: files for place, files in complete.items() if 2 * counts[place] >= most}

    def pattern(
        self, kind: Sequence[str], rest: str, suffixes: Collection[str], keys: Collection[CaseKey]
    ) -> FilePattern:
        folders = [self.case_folders(own) for own, _ in keys]
        # {case}/{case}_T1 and {case}/T1 instead of {folder}/{case}
        is_folder = all(key in ("", *own[-1:]) for own, (_, key) in zip(folders, keys, strict=True))
        has_key = any(key for _, key in keys)
        is_subject = all(own and SUBJECT.fullmatch(own[0]) for own in folders)
        names = iter(
            "{case}"
            if is_folder and level == len(folders[0]) - 1
            else "{subject}"
            if is_subject and level == 0
            else f"{{folder{level - is_subject or ''}}}"
            for level in range(len(folders[0]))
        )
        places = [next(names) if name == FOLDER else name for name in kind]
        parts = ["{case}" if has_key else "", rest]
        stem = "".join(parts if self.cut is _starts else reversed(parts))
        suffix = next(iter(suffixes)) if len(suffixes) == 1 else ""
        return FilePattern("/".join((*places, stem + suffix)))
