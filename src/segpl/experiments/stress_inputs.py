"""Settings and inputs of a stress test: degradations, runs, the cases to score, window sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from segpl.data.case import Case
from segpl.data.layouts import read_like
from segpl.data.plan import Plan
from segpl.errors import InputError, unknown
from segpl.predict.sampling_choice import require_same_task
from segpl.report.collection import short_paths
from segpl.report.stress_rows import PATCH_SIZE
from segpl.run import Run, load_run
from segpl.views.artifacts import ARTIFACTS, require_severity
from segpl.views.geometry import wide_axes

ATTACKS = ("fgsm", "pgd")
# the slowest last, because finished degradations survive an interruption
DEGRADATIONS = ("gamma", "fgsm", *(name for name in ARTIFACTS if name != "gamma"), "pgd")


@dataclass(frozen=True, slots=True)
class StressSettings:
    only: tuple[str, ...] = ()  # names of degradations; none: all
    severities: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    patches: tuple[tuple[int, ...], ...] = ()  # other window sizes, one number or one per axis
    epsilon: float = 0.25  # bound of an attack of severity 1, in standard deviations of the image
    steps: int = 5  # PGD steps
    seed: int = 0  # of random artifacts

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in (*DEGRADATIONS, PATCH_SIZE):
                raise unknown("degradation", name, (*DEGRADATIONS, PATCH_SIZE))
        for severity in self.severities:
            require_severity(severity)
        if not any(self.severities):
            raise InputError("--severities needs a value above 0; 0 is always included. Try 0.5.")
        if PATCH_SIZE in self.only and not self.patches:
            raise InputError(f"--only {PATCH_SIZE} needs window sizes. Add --patches.")
        sides = [max(sizes) for sizes in self.patches]
        if len(set(sides)) < len(sides):
            twice = max(sides, key=sides.count)
            raise InputError(
                f"--patches: two windows have the same longest side of {twice}, which is "
                "how the table identifies them. Measure them with two commands."
            )
        if not 0 < self.epsilon < math.inf:
            raise InputError(f"--epsilon is {self.epsilon}, but must be above 0. Try 0.25.")
        if self.steps < 1:
            raise InputError(f"--pgd-steps is {self.steps}, but must be at least 1. Try 5.")

    @property
    def levels(self) -> tuple[float, ...]:
        """Severities above 0, sorted; severity 0 is the clean image."""
        return tuple(sorted({severity for severity in self.severities if severity > 0}))

    @property
    def degradations(self) -> tuple[str, ...]:
        """The degradations to measure, without window sizes."""
        return tuple(name for name in DEGRADATIONS if not self.only or name in self.only)

    def facts(self) -> dict[str, Any]:
        """Settings that all rows of one table must share."""
        return {
            "severities": list(self.levels),
            "epsilon": self.epsilon,
            "pgd_steps": self.steps,
            "seed": self.seed,
        }


@dataclass(frozen=True, slots=True)
class StressedRun:
    """A run, its name in the table, and the labeled cases to score."""

    name: str
    run: Run
    cases: tuple[Case, ...]


def load_runs(
    paths: Sequence[Path], data: Path | None, *, device: str, checkpoint: str
) -> list[StressedRun]:
    """All runs, which must have the same classes and test cases: they share one figure."""
    places = [str(path.resolve()) for path in paths]
    names = short_paths(places)
    runs = [load_run(path, device=device, checkpoint=checkpoint, quiet=True) for path in paths]
    require_same_task([run.plan for run in runs], places)
    tested = [
        StressedRun(names[place], run, labeled_cases(run, data))
        for place, run in zip(places, runs, strict=True)
    ]
    first = tested[0]
    for other in tested[1:]:
        ours, theirs = ({c.images[0].resolve() for c in s.cases} for s in (first, other))
        if odd := sorted(ours ^ theirs):
            raise InputError(
                f"{first.name} and {other.name} have different test cases: only one of them has "
                f"{odd[0]}. Give runs of one dataset and one split, or the cases with --data."
            )
    return tested


def labeled_cases(run: Run, data: Path | None) -> tuple[Case, ...]:
    """The labeled test cases of the run, or those of `data` (all cases if it has no test cases)."""
    if data:
        dataset = read_like(data, run.config.data.layout)
        if dataset.classes is not None and dataset.classes != run.plan.classes:
            raise InputError(
                f"{data} has the classes {dataset.classes}, but {run.path} was trained for "
                f"{run.plan.classes}. Give a dataset with the same labels."
            )
        cases = list(dataset.test or dataset.cases)
    else:
        dataset = run.open_dataset()
        cases = [dataset.case(name) for name in run.split.test]
    labeled = tuple(case for case in cases if case.label)
    if not labeled:
        raise InputError(
            f"{data or run.path} has no labeled test cases to score. Give a dataset with --data, "
            "or train with --test N to hold some out."
        )
    return labeled


def parse_patch(text: str) -> tuple[int, ...]:
    """Parse `32` or `192x192x8`."""
    sides = text.split("x")
    if not all(side.isdecimal() and int(side) for side in sides):
        raise InputError(
            f"--patches {text} is not a window size. Give a number (32), or one per axis "
            "(192x192x8)."
        )
    return tuple(map(int, sides))


def plan_with_patch(tested: StressedRun, sides: tuple[int, ...]) -> Plan:
    """The plan with another window; a single number sets the wide axes and keeps thin ones.

    A window that the network cannot process is an error.
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
            run.method.eval().predict(probe)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, AssertionError) as error:
        raise InputError(
            f"{source}: the network {run.config.network.name} only takes windows of "
            f"{'x'.join(map(str, plan.patch))}. Leave out --patches."
        ) from error
    return changed
