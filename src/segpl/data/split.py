"""Who is trained on, with or without a label, and who is held out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from segpl.data.case import Case, Dataset
from segpl.errors import InputError
from segpl.files import read_json, write_json

BENCHMARK_CASES = 10  # a dataset with this many cases, all labeled, is taken for a benchmark
HELD_OUT = 0.2  # of a benchmark, for the test
KEPT = 0.2  # of a benchmark's labels, for a method that needs unlabeled cases


@dataclass(frozen=True, slots=True)
class SplitSettings:
    labeled: int = 0  # cases that keep their label; 0: all that have one
    unlabeled: int = 0  # unlabeled cases to train on, hidden labels included; 0: all
    validation: int = 0  # labeled cases held out to watch the training
    test: int = -1  # labeled cases held out to the end; -1: the dataset's own, or a fifth
    seed: int = 0  # draws the held-out and the labeled cases
    draw: int = 0  # another draw of the labeled cases, with the same ones held out
    folds: int = 0  # parts of the labeled cases, of which one is for validation; 0: none
    fold: int = 0  # which of these parts, counted from 0


@dataclass(frozen=True, slots=True)
class Split:
    """Case names.

    A hidden label belongs to an unlabeled case, and is opened by `train.watch_hidden` alone.
    """

    labeled: tuple[str, ...]
    unlabeled: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    hidden: tuple[str, ...]  # those of `unlabeled` whose label exists and was hidden
    notes: tuple[str, ...] = ()  # what was decided without being asked, for the user to read

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Split:
        content: dict[str, Any] = read_json(path)
        missing = set(cls.__dataclass_fields__) - set(content)
        if missing:
            raise InputError(f"{path} lacks {sorted(missing)}: it is no split of segpl.")
        return cls(**{name: tuple(content[name]) for name in cls.__dataclass_fields__})


def make_split(dataset: Dataset, settings: SplitSettings, *, needs_unlabeled: bool) -> Split:
    """Draw a split by subject.

    The order of subjects depends on the seed and the draw alone, so a budget of 4 labels is part of
    a budget of 8, and all methods see the same cases.
    """
    for name, count, lowest in (
        ("validation", settings.validation, 0),
        ("test", settings.test, -1),
    ):
        if count < lowest:
            raise InputError(f"--{name} {count} is no number of cases; 0 holds none out.")
    if not dataset.labeled:
        raise InputError(
            f"{dataset.root} has no labeled case to train on ({len(dataset.unlabeled)} images "
            "without a label). At least one label is needed: put it where the layout "
            f"'{dataset.layout}' expects it; `segpl check` shows what was found."
        )
    notes: list[str] = []
    own_test = [case.name for case in dataset.test]
    is_benchmark = not dataset.unlabeled and len(dataset.labeled) >= BENCHMARK_CASES
    pool = shuffled_by_subject(dataset.labeled, settings.seed)
    has_to_hold_out = is_benchmark and not own_test
    test, pool = take_subjects(pool, held_for_test(dataset, settings, has_to_hold_out, notes))
    validation, pool = take_subjects(pool, settings.validation)
    if settings.draw:
        pool = shuffled_by_subject(pool, f"{settings.seed}/{settings.draw}")
    training = {case.subject for case in (*pool, *dataset.unlabeled)}
    shared = {case.subject for case in dataset.test} & training
    if shared:
        notes.append(
            f"{len(shared)} subjects are in the dataset's own test cases and in the training too, "
            f"such as '{min(shared)}': scores on them say little about new patients."
        )
    held_out = {case.subject for case in (*test, *validation)}
    unlabeled = [case for case in dataset.unlabeled if case.subject not in held_out]
    if left_out := len(dataset.unlabeled) - len(unlabeled):
        notes.append(
            f"{left_out} unlabeled cases are of subjects that are held out, and are left out of "
            "the training."
        )
    count = labeled_count(
        dataset,
        settings,
        len(pool),
        has_unlabeled=bool(unlabeled),
        needs_unlabeled=needs_unlabeled,
        is_benchmark=is_benchmark,
        notes=notes,
    )
    labeled, hidden = pool[:count], pool[count:]
    unlabeled += hidden
    kept = names(few_of(unlabeled, settings))
    if left_out := len(unlabeled) - len(kept):
        notes.append(f"{left_out} unlabeled cases are left out, as split.unlabeled asks.")
    split = Split(
        labeled=names(labeled),
        unlabeled=kept,
        validation=names(validation),
        test=tuple(sorted([*own_test, *names(test)])),
        hidden=tuple(sorted(set(names(hidden)) & set(kept))),
        notes=tuple(notes),
    )
    if settings.folds or settings.fold:
        return one_fold(split, labeled, dataset, settings, needs_unlabeled=needs_unlabeled)
    return split


def held_for_test(
    dataset: Dataset, settings: SplitSettings, has_to_hold_out: bool, notes: list[str]
) -> int:
    """Labeled cases that are held out to the end, besides the dataset's own test cases."""
    if settings.test >= 0 or not has_to_hold_out:
        return max(settings.test, 0)
    count = round(HELD_OUT * len(dataset.labeled))
    notes.append(
        f"All {len(dataset.labeled)} cases are labeled: {count} are held out for the test. Use "
        "--test 0 to train on all of them."
    )
    return count


def one_fold(
    split: Split,
    labeled: Sequence[Case],
    dataset: Dataset,
    settings: SplitSettings,
    *,
    needs_unlabeled: bool,
) -> Split:
    """`split` with one part of its labeled cases for validation, in the place of its own ones.

    Subjects are dealt out in the order in which the budget took them. Nothing of the subjects in
    the part is trained on, without a label neither.
    """
    subjects = list(dict.fromkeys(case.subject for case in labeled))
    check_folds(settings, len(labeled), len(subjects))
    held = set(subjects[settings.fold :: settings.folds])
    owner = {case.name: case.subject for case in dataset.cases}

    def beyond(part: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in part if owner[name] not in held)

    unlabeled = beyond(split.unlabeled)
    left_out = len(split.unlabeled) - len(unlabeled)
    if needs_unlabeled and not unlabeled:
        raise InputError(
            f"--folds {settings.folds}: all {left_out} unlabeled cases of {dataset.root} are of "
            f"the subjects that fold {settings.fold} holds out, and this method needs some. Use "
            "--method supervised, or other --folds."
        )
    note = f"{left_out} unlabeled cases are of subjects that this fold holds out, and left out."
    return replace(
        split,
        labeled=beyond(split.labeled),
        unlabeled=unlabeled,
        validation=names([case for case in labeled if case.subject in held]),
        hidden=beyond(split.hidden),
        notes=(note,) if left_out else (),
    )


def check_folds(settings: SplitSettings, cases: int, subjects: int) -> None:
    if settings.folds < 2:
        raise InputError(
            f"--folds {settings.folds} leaves nothing to train on or holds nothing out. Ask for 2 "
            "or more."
        )
    if settings.folds > subjects:
        of_cases = "" if cases == subjects else f" with {cases} cases"
        raise InputError(
            f"--folds {settings.folds} needs as many labeled subjects, and there are "
            f"{subjects}{of_cases}. "
            + (f"Ask for {subjects} at most." if subjects > 1 else "Label more, or leave it out.")
        )
    if not 0 <= settings.fold < settings.folds:
        raise InputError(
            f"split.fold is {settings.fold}: {settings.folds} folds are counted from 0 to "
            f"{settings.folds - 1}."
        )


def labeled_count(
    dataset: Dataset,
    settings: SplitSettings,
    available: int,
    *,
    has_unlabeled: bool,
    needs_unlabeled: bool,
    is_benchmark: bool,
    notes: list[str],
) -> int:
    if settings.labeled > available:
        raise InputError(
            f"--labeled {settings.labeled} asks for more labels than there are: "
            f"{len(dataset.labeled)} labeled cases in {dataset.root}, of which "
            f"{len(dataset.labeled) - available} are held out. Ask for {available} at most."
        )
    if settings.labeled < 0:
        raise InputError(f"--labeled {settings.labeled} is no number of cases; 0 means all.")
    if available == 0:
        raise InputError(
            f"validation and test take all {len(dataset.labeled)} labeled cases of "
            f"{dataset.root}: none is left to train on. Lower --validation or --test."
        )
    count = settings.labeled or available
    if needs_unlabeled and not has_unlabeled and count == available:
        if settings.labeled or not is_benchmark:
            raise InputError(
                f"all {count} training cases of {dataset.root} keep their label, and this method "
                "needs unlabeled ones. Add images without a label, hide some labels with "
                "--labeled N, or train with --method supervised."
            )
        count = max(1, round(KEPT * available))
        notes.append(
            f"Nothing is unlabeled, and this method needs it: {count} of {available} training "
            f"cases keep their label, the other {available - count} labels are hidden. "
            "Choose with --labeled N, or use all labels with --method supervised."
        )
    return count


def few_of(unlabeled: Sequence[Case], settings: SplitSettings) -> Sequence[Case]:
    """The unlabeled cases that are asked for; fewer are part of more."""
    if not 0 <= settings.unlabeled <= len(unlabeled):
        raise InputError(
            f"split.unlabeled is {settings.unlabeled}, and there are {len(unlabeled)} unlabeled "
            "cases to train on. Ask for as many at most; 0 means all."
        )
    if not settings.unlabeled:
        return unlabeled
    order = shuffled_by_subject(unlabeled, f"{settings.seed}/{settings.draw}/unlabeled")
    return order[: settings.unlabeled]


def names(cases: Sequence[Case]) -> tuple[str, ...]:
    return tuple(sorted(case.name for case in cases))


def shuffled_by_subject(cases: Sequence[Case], seed: int | str) -> list[Case]:
    subjects: dict[str, list[Case]] = {}
    for case in sorted(cases, key=lambda case: case.name):
        subjects.setdefault(case.subject, []).append(case)
    order = sorted(subjects)
    random.Random(seed).shuffle(order)
    return [case for subject in order for case in subjects[subject]]


def take_subjects(pool: list[Case], count: int) -> tuple[list[Case], list[Case]]:
    """The first `count` cases of `pool`, and whoever shares a subject with them; then the rest."""
    if count > len(pool):
        raise InputError(
            f"{count} cases were to be held out, and only {len(pool)} labeled ones are left. "
            "Lower --validation or --test."
        )
    subjects = {case.subject for case in pool[:count]}
    taken = [case for case in pool if case.subject in subjects]
    return taken, [case for case in pool if case.subject not in subjects]
