"""What is put under stress: runs, the cases that they are scored on, and their windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from segpl.assembly import open_dataset
from segpl.data.case import Case
from segpl.data.layouts import LAYOUTS, read_dataset
from segpl.data.plan import Plan
from segpl.errors import InputError, UserError
from segpl.run import Run, load_run
from segpl.views.geometry import wide_axes

RUN_FILES = ("config.toml", "plan.json", "split.json", "log.csv", "checkpoints")


@dataclass(frozen=True, slots=True)
class Subject:
    """A run under its name in the table, and the labeled cases it is scored on."""

    name: str
    run: Run
    cases: tuple[Case, ...]
    unlabeled: int = 0  # test cases that cannot be scored


def runs_and_data(paths: Sequence[Path]) -> tuple[list[Path], Path | None]:
    """The last of several folders is a dataset if nothing in it is of a run."""
    *runs, last = paths
    is_run = not last.is_dir() or any((last / name).exists() for name in RUN_FILES)
    return (list(paths), None) if is_run or not runs else (runs, last)


def run_names(paths: Sequence[Path]) -> list[str]:
    """The names of the folders, with as many folders above as it takes to tell them apart."""
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        twice = next(path for path in paths if parts.count(path.resolve().parts) > 1)
        raise InputError(f"{twice} is given twice. Name each run once.")
    depth = 1
    while len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


def load_subjects(
    paths: Sequence[Path], data: Path | None, *, device: str, checkpoint: str
) -> tuple[list[Subject], dict[str, str]]:
    """The runs that can be used, and by name what is wrong with the others."""
    subjects: list[Subject] = []
    failures: dict[str, str] = {}
    for name, path in zip(run_names(paths), paths, strict=True):
        try:
            run = load_run(path, device=device, checkpoint=checkpoint, quiet=True)
            cases = given_cases(run, data) if data else test_cases(run)
        except UserError as error:
            if len(paths) == 1:
                raise
            failures[name] = str(error)
            continue
        known = tuple(case for case in cases if case.label is not None)
        subjects.append(Subject(name, run, known, len(cases) - len(known)))
    if not subjects:
        reasons = " ".join(f"{name}: {reason}" for name, reason in failures.items())
        raise InputError(f"none of the {len(paths)} runs can be used. {reasons}")
    refuse_mixture(subjects)
    return subjects, failures


def test_cases(run: Run) -> list[Case]:
    if not run.split.test:
        raise InputError(
            f"{run.path} has no test cases to score. Give a dataset with --data, or train with "
            "--test N to hold some out."
        )
    dataset = open_dataset(run.config)
    return with_labels([dataset.case(name) for name in run.split.test], run.config.data.path)


def given_cases(run: Run, data: Path) -> list[Case]:
    """The test cases of a dataset, or all of its cases where it sets none aside."""
    layout = run.config.data.layout
    is_alike = data.is_dir() and layout in LAYOUTS.names and LAYOUTS.get(layout)().matches(data)
    try:
        dataset = read_dataset(data, layout if is_alike else None)
    except UserError as error:
        raise InputError(f"{data} is neither a run nor a dataset: {error}") from error
    if dataset.classes is not None and dataset.classes != run.plan.classes:
        raise InputError(
            f"{data} has the classes {named(dataset.classes)}, and {run.path} was trained for "
            f"{named(run.plan.classes)}. Give a dataset with the same labels."
        )
    return with_labels(list(dataset.test or dataset.cases), str(data))


def with_labels(cases: list[Case], source: str) -> list[Case]:
    if not any(case.label for case in cases):
        raise InputError(
            f"no test case of {source} has a label, so nothing can be scored. Add the labels, or "
            "give another dataset with --data."
        )
    return cases


def refuse_mixture(subjects: Sequence[Subject]) -> None:
    """Curves on one plot are of the same classes of the same scans."""
    first = subjects[0]
    for other in subjects[1:]:
        one, two = first.run.plan.classes, other.run.plan.classes
        if one != two:
            raise InputError(
                f"{first.name} knows the classes {named(one)}, and {other.name} {named(two)}: "
                "their scores do not belong on one plot. Give them to two commands."
            )
        ours, theirs = ([c.images[0].resolve() for c in s.cases] for s in (first, other))
        if sorted(ours) != sorted(theirs):
            odd = sorted(set(ours) ^ set(theirs))[0]
            raise InputError(
                f"{first.name} and {other.name} have other test cases: {odd} is one of only one of "
                "them. Give runs of one dataset and one split, or the cases of all with --data."
            )


def named(classes: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in classes.items())


def parse_patch(text: str) -> tuple[int, ...]:
    """`32`, or `192x192x8`."""
    try:
        sides = tuple(int(part) for part in text.split("x"))
    except ValueError:
        sides = ()
    if not sides or min(sides) < 1:
        raise InputError(
            f"--patches {text}: give a number of voxels such as 32, or one for each axis such as "
            "192x192x8."
        )
    return sides


def plan_with_patch(subject: Subject, sides: tuple[int, ...]) -> Plan:
    """The plan with other windows; one number is for the wide axes, thin ones stay as they are.

    Refused where the network cannot take them.
    """
    plan, text = subject.run.plan, "x".join(map(str, sides))
    source = f"--patches {text} for {subject.name}"
    if len(sides) == 1:
        wide = wide_axes(plan.patch)
        sides = tuple(sides[0] if axis in wide else s for axis, s in enumerate(plan.patch))
    changed = replace(plan, patch=sides)
    changed.check(source)
    probe = torch.zeros((1, len(plan.channels), *sides), device=subject.run.device)
    try:
        with torch.no_grad():
            answer = subject.run.method.eval().predict(probe)
        fits = tuple(answer.shape[2:]) == sides
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, AssertionError):
        fits = False
    if not fits:
        raise InputError(
            f"{source}: the network {subject.run.config.network.name} takes no windows but those "
            f"of {'x'.join(map(str, plan.patch))} voxels. Leave --patches out."
        )
    return changed
