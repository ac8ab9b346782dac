"""Inputs of a stress test: runs, the cases to score, and window sizes."""

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
class StressedRun:
    """A run, its name in the table, and the labeled cases to score."""

    name: str
    run: Run
    cases: tuple[Case, ...]
    unlabeled: int = 0  # test cases that cannot be scored


def runs_and_data(paths: Sequence[Path]) -> tuple[list[Path], Path | None]:
    """Split paths into runs and a dataset: the last of several may be a dataset."""
    *runs, last = paths
    is_run = not last.is_dir() or any((last / name).exists() for name in RUN_FILES)
    return (list(paths), None) if is_run or not runs else (runs, last)


def run_names(paths: Sequence[Path]) -> list[str]:
    """Folder names, with as many parent folders as needed to make them unique."""
    parts = [path.resolve().parts for path in paths]
    if len(set(parts)) < len(parts):
        twice = next(path for path in paths if parts.count(path.resolve().parts) > 1)
        raise InputError(f"{twice} is given twice. Give each run once.")
    depth = 1
    while len({part[-depth:] for part in parts}) < len(parts):
        depth += 1
    return ["/".join(part[-depth:]) for part in parts]


def load_runs(
    paths: Sequence[Path], data: Path | None, *, device: str, checkpoint: str
) -> tuple[list[StressedRun], dict[str, str]]:
    """The runs that can be tested, and the errors of the others by name."""
    tested: list[StressedRun] = []
    failures: dict[str, str] = {}
    for name, path in zip(run_names(paths), paths, strict=True):
        try:
            run = load_run(path, device=device, checkpoint=checkpoint, quiet=True)
            cases = dataset_cases(run, data) if data else test_cases(run)
        except UserError as error:
            if len(paths) == 1:
                raise
            failures[name] = str(error)
            continue
        known = tuple(case for case in cases if case.label is not None)
        tested.append(StressedRun(name, run, known, len(cases) - len(known)))
    if not tested:
        reasons = " ".join(f"{name}: {reason}" for name, reason in failures.items())
        raise InputError(f"none of the {len(paths)} runs can be used. {reasons}")
    require_comparable(tested)
    return tested, failures


def test_cases(run: Run) -> list[Case]:
    if not run.split.test:
        raise InputError(
            f"{run.path} has no test cases to score. Give a dataset with --data, or train with "
            "--test N to hold some out."
        )
    dataset = open_dataset(run.config)
    return require_labels([dataset.case(name) for name in run.split.test], run.config.data.path)


def dataset_cases(run: Run, data: Path) -> list[Case]:
    """The test cases of a dataset, or all of its cases if it has none."""
    layout = run.config.data.layout
    is_alike = data.is_dir() and layout in LAYOUTS.names and LAYOUTS.get(layout)().matches(data)
    try:
        dataset = read_dataset(data, layout if is_alike else None)
    except UserError as error:
        raise InputError(f"{data} is neither a run nor a dataset: {error}") from error
    if dataset.classes is not None and dataset.classes != run.plan.classes:
        raise InputError(
            f"{data} has the classes {class_list(dataset.classes)}, but {run.path} was trained for "
            f"{class_list(run.plan.classes)}. Give a dataset with the same labels."
        )
    return require_labels(list(dataset.test or dataset.cases), str(data))


def require_labels(cases: list[Case], source: str) -> list[Case]:
    if not any(case.label for case in cases):
        raise InputError(
            f"no test case of {source} has a label to score against. Add the labels, or give "
            "another dataset with --data."
        )
    return cases


def require_comparable(tested: Sequence[StressedRun]) -> None:
    """Check that all runs have the same classes and test cases: they share one figure."""
    first = tested[0]
    for other in tested[1:]:
        one, two = first.run.plan.classes, other.run.plan.classes
        if one != two:
            raise InputError(
                f"{first.name} has the classes {class_list(one)}, but {other.name} has "
                f"{class_list(two)}. Test them with two commands."
            )
        ours, theirs = ([c.images[0].resolve() for c in s.cases] for s in (first, other))
        if sorted(ours) != sorted(theirs):
            odd = sorted(set(ours) ^ set(theirs))[0]
            raise InputError(
                f"{first.name} and {other.name} have different test cases: only one of them has "
                f"{odd}. Give runs of one dataset and one split, or the cases with --data."
            )


def class_list(classes: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in classes.items())


def parse_patch(text: str) -> tuple[int, ...]:
    """Parse `32` or `192x192x8`."""
    try:
        sides = tuple(int(part) for part in text.split("x"))
    except ValueError:
        sides = ()
    if not sides or min(sides) < 1:
        raise InputError(
            f"--patches {text} is not a window size. Give a number of voxels (32), or one per axis "
            "(192x192x8)."
        )
    return sides


def plan_with_patch(tested: StressedRun, sides: tuple[int, ...]) -> Plan:
    """The plan with another window; a single number sets the wide axes and keeps thin ones.

    A window that the network cannot take is an error.
    """
    run, source = tested.run, f"--patches {'x'.join(map(str, sides))} for {tested.name}"
    plan = run.plan
    if len(sides) == 1:
        wide = wide_axes(plan.patch)
        sides = tuple(sides[0] if axis in wide else s for axis, s in enumerate(plan.patch))
    changed = replace(plan, patch=sides)
    changed.check(source)
    probe = torch.zeros((1, len(plan.channels), *sides), device=run.device)
    try:
        with torch.no_grad():
            answer = run.method.eval().predict(probe)
        fits = tuple(answer.shape[2:]) == sides
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, AssertionError):
        fits = False
    if not fits:
        raise InputError(
            f"{source}: the network {run.config.network.name} only takes windows of "
            f"{'x'.join(map(str, plan.patch))} voxels. Leave out --patches."
        )
    return changed
