"""Which cases are used for training, with or without their label, and which are held out."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from segpl.data.case import Case, Dataset
from segpl.errors import InputError, count_noun
from segpl.records import read_record, write_json

SUGGESTED_FOLDS = 5
TEST_IMAGES = "imagesTs"  # test images of the Decathlon and of nnU-Net
NUMBERED = r"(.*[0-9])[^0-9]+[0-9]+$"  # 'p01' in 'p01_003', which may be one of its images


@dataclass(frozen=True, slots=True)
class SplitSettings:
    labeled: int = 0  # cases that keep their label; 0: all
    unlabeled: int = 0  # unlabeled cases to train on, including those with hidden labels; 0: all
    validation: int = 0  # labeled cases held out for validation
    test: int = 0  # labeled cases held out for testing, besides the dataset's own test cases
    seed: int = 0  # seed of the held-out and labeled cases
    draw: int = 0  # index of the draw of labeled cases; the held-out cases stay the same
    folds: int = 0  # cross-validation folds of the labeled cases; 0: none
    fold: int = 0  # fold to validate on, counted from 0


@dataclass(frozen=True, slots=True)
class Split:
    """Names of cases.

    Hidden labels belong to unlabeled cases. Only `train.watch_hidden` opens them.
    """

    labeled: tuple[str, ...]
    unlabeled: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    hidden: tuple[str, ...]  # the part of `unlabeled` that has a label
    notes: tuple[str, ...] = ()  # choices made for the user

    def has_same_cases(self, other: Split) -> bool:
        parts = ("labeled", "unlabeled", "validation", "test")
        return all(getattr(self, part) == getattr(other, part) for part in parts)

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Split:
        split = read_record(path, cls)
        split.check(path)
        return split

    def check(self, path: Path) -> None:
        """Reject a file in which a case has two roles: its scores would be too good."""
        cases = (*self.labeled, *self.unlabeled, *self.validation, *self.test)
        name, count = Counter(cases).most_common(1)[0] if cases else ("", 0)
        if count > 1 or not set(self.hidden) <= set(self.unlabeled) or not self.labeled:
            found = f"case '{name}' appears {count} times" if count > 1 else "its lists conflict"
            raise InputError(
                f"{path} cannot be used: {found}. A case is either labeled, unlabeled, a "
                "validation case or a test case. Restore the file, or train again."
            )


def make_split(dataset: Dataset, settings: SplitSettings) -> Split:
    """Draw a split by subject.

    The order of the subjects depends on the seed and the draw only. A budget of 4 labels is
    therefore a subset of a budget of 8, and all methods see the same cases.
    """
    check_counts(dataset, settings)
    notes: list[str] = []
    pool = shuffled_by_subject(dataset.labeled, settings.seed)
    test, pool = take_subjects(pool, settings.test)
    validation, pool = take_subjects(pool, settings.validation)
    if settings.draw:
        pool = shuffled_by_subject(pool, f"{settings.seed}/{settings.draw}")
    unlabeled = outside_subjects(dataset.unlabeled, [*test, *validation])
    if left_out := len(dataset.unlabeled) - len(unlabeled):
        notes.append(f"Not used: {count_noun(left_out, 'unlabeled case')} of held-out subjects.")
    count = labeled_count(dataset, settings, len(pool))
    labeled, hidden = pool[:count], pool[count:]
    unlabeled += hidden
    kept = limit_unlabeled(unlabeled, settings)
    if left_out := len(unlabeled) - len(kept):
        notes.append(f"split.unlabeled leaves out {count_noun(left_out, 'unlabeled case')}.")
    if own := sum(case.images[0].parent.name == TEST_IMAGES for case in kept):
        notes.append(
            f"Unlabeled cases from {TEST_IMAGES}: {own}. If these scans must stay unseen, "
            "move them out of the dataset."
        )
    split = Split(
        labeled=names(labeled),
        unlabeled=names(kept),
        validation=names(validation),
        test=names([*dataset.test, *test]),
        hidden=tuple(sorted(set(names(hidden)) & set(names(kept)))),
        notes=tuple(notes),
    )
    if settings.folds or settings.fold:
        split = split_fold(split, labeled, dataset, settings)
    return replace(split, notes=(*split.notes, *subject_notes(split, dataset)))


def subject_notes(split: Split, dataset: Dataset) -> Iterator[str]:
    """Notes if held-out and training cases are images of one subject, or seem to be."""
    subject_of = {case.name: case.subject for case in dataset.cases}
    training = {subject_of[name] for name in (*split.labeled, *split.unlabeled)}
    if same := {case.subject for case in dataset.test} & training:
        yield (
            "The dataset's own test cases and the training cases share "
            f"{count_noun(len(same), 'subject')}, for example '{min(same)}'. Scores on them "
            "say little about new patients."
        )
    unknown = {case.name for case in dataset.cases if case.subject == case.name}

    def numbered(names: Sequence[str]) -> list[tuple[str, str]]:
        matches = (re.match(NUMBERED, name) for name in names if name in unknown)
        return [(match[1], match[0]) for match in matches if match]

    held_out = numbered([*split.validation, *split.test])
    trained = numbered([*split.labeled, *split.unlabeled])
    sizes = Counter(subject for subject, _ in (*held_out, *trained))
    shared = sorted(dict(held_out).keys() & dict(trained).keys())
    if shared and max(sizes.values()) <= sizes.total() / 3:  # otherwise, datasets or sites
        first = shared[0]
        yield (
            f"'{dict(held_out)[first]}' is held out, but '{dict(trained)[first]}' is not. If such "
            f"cases are of one subject, keep them together: --set data.subject='{NUMBERED}'"
        )


def check_counts(dataset: Dataset, settings: SplitSettings) -> None:
    for name in ("labeled", "validation", "test"):
        if getattr(settings, name) < 0:
            raise InputError(f"--{name} {getattr(settings, name)}: it must be 0 or more.")
    if not dataset.labeled:
        raise InputError(
            f"{dataset.root} has no labeled training case ("
            f"{count_noun(len(dataset.unlabeled), 'image')} without a label). Add at least one "
            f"label where the layout '{dataset.layout}' expects it; `segpl check` shows what was "
            "found."
        )


def labeled_count(dataset: Dataset, settings: SplitSettings, available: int) -> int:
    """Training cases that keep their label."""
    if available == 0:
        raise InputError(
            f"--validation and --test hold out every labeled case of {dataset.root} "
            f"({len(dataset.labeled)}): none is left to train on. Lower --validation or --test."
        )
    if settings.labeled > available:
        raise InputError(
            f"--labeled {settings.labeled} exceeds the number of labeled training cases in "
            f"{dataset.root}: {available} ({len(dataset.labeled)} labeled, "
            f"{len(dataset.labeled) - available} of them held out). Use {available} or fewer."
        )
    return settings.labeled or available


def limit_unlabeled(unlabeled: Sequence[Case], settings: SplitSettings) -> Sequence[Case]:
    """The first `settings.unlabeled` cases in random order; smaller sets are nested in larger."""
    if not 0 <= settings.unlabeled <= len(unlabeled):
        raise InputError(
            f"split.unlabeled is {settings.unlabeled}, but the number of unlabeled training cases "
            f"is {len(unlabeled)}. Use that number or fewer; 0 means all."
        )
    if not settings.unlabeled:
        return unlabeled
    order = shuffled_by_subject(unlabeled, f"{settings.seed}/{settings.draw}/unlabeled")
    return order[: settings.unlabeled]


def split_fold(
    split: Split, labeled: Sequence[Case], dataset: Dataset, settings: SplitSettings
) -> Split:
    """`split` with one fold of its labeled cases for validation, replacing its validation cases.

    Subjects are assigned to folds in the order of the draw. No case of the fold's subjects is
    trained on, not even without its label.
    """
    subjects = list(dict.fromkeys(case.subject for case in labeled))
    check_folds(settings, len(labeled), len(subjects))
    held_out = set(subjects[settings.fold :: settings.folds])
    subject_of = {case.name: case.subject for case in dataset.cases}

    def training(part: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in part if subject_of[name] not in held_out)

    unlabeled = training(split.unlabeled)
    left_out = len(split.unlabeled) - len(unlabeled)
    note = f"Not used: {count_noun(left_out, 'unlabeled case')} of subjects in this fold."
    return replace(
        split,
        labeled=training(split.labeled),
        unlabeled=unlabeled,
        validation=names([case for case in labeled if case.subject in held_out]),
        hidden=training(split.hidden),
        notes=(note,) if left_out else (),
    )


def check_folds(settings: SplitSettings, cases: int, subjects: int) -> None:
    if settings.folds < 2:
        raise InputError(f"--folds {settings.folds}: cross-validation needs 2 folds or more.")
    if settings.folds > subjects:
        of_cases = "" if cases == subjects else f" with {count_noun(cases, 'case')}"
        remedy = f"Use {subjects} or fewer." if subjects > 1 else "Label more, or omit --folds."
        raise InputError(
            f"--folds {settings.folds} exceeds the number of labeled subjects, "
            f"{subjects}{of_cases}. {remedy}"
        )
    if not 0 <= settings.fold < settings.folds:
        raise InputError(
            f"split.fold is {settings.fold}: it must be between 0 and {settings.folds - 1}."
        )


def names(cases: Sequence[Case]) -> tuple[str, ...]:
    return tuple(sorted(case.name for case in cases))


def outside_subjects(cases: Sequence[Case], held_out: Sequence[Case]) -> list[Case]:
    subjects = {case.subject for case in held_out}
    return [case for case in cases if case.subject not in subjects]


def shuffled_by_subject(cases: Sequence[Case], seed: int | str) -> list[Case]:
    subjects: dict[str, list[Case]] = {}
    for case in sorted(cases, key=lambda case: case.name):
        subjects.setdefault(case.subject, []).append(case)
    order = sorted(subjects)
    random.Random(seed).shuffle(order)
    return [case for subject in order for case in subjects[subject]]


def take_subjects(pool: list[Case], count: int) -> tuple[list[Case], list[Case]]:
    """The subjects of the first `count` cases, with all their cases, and the rest."""
    if count > len(pool):
        raise InputError(
            f"cannot hold out {count_noun(count, 'case')} with only "
            f"{count_noun(len(pool), 'labeled case')} left. Lower --validation or --test."
        )
    subjects = {case.subject for case in pool[:count]}
    taken = [case for case in pool if case.subject in subjects]
    return taken, outside_subjects(pool, taken)
