"""Runs on disturbed images: artifacts, attacks and other windows, by severity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.data.cache import Volume, load_volumes
from segpl.data.masks import largest_note
from segpl.data.plan import Plan
from segpl.display import bar, say
from segpl.engine.device import is_out_of_memory
from segpl.engine.folder import RunFolder
from segpl.errors import DivergedError, InputError, UserError, unknown
from segpl.evaluate.metrics import dice, iou
from segpl.evaluate.validation import masks_by_class
from segpl.experiments.attacked_loss import PredictionLoss
from segpl.experiments.stress_inputs import Subject, load_subjects, plan_with_patch
from segpl.files import read_json, write_atomically, write_json
from segpl.predict.window import predict_windows
from segpl.report.stress.figures import stress_figure
from segpl.report.stress.rows import CLEAN, PATCH, StressRow, read_stress, write_stress
from segpl.views.artifacts import ARTIFACTS, corrupt, require_severity
from segpl.views.attacks import fgsm, pgd

ATTACKS = ("fgsm", "pgd")
# the longest last: what was done before an interruption is kept
CORRUPTIONS = ("gamma", "fgsm", *(name for name in ARTIFACTS if name != "gamma"), "pgd")
TABLE, FACTS, FIGURE = "stress.csv", "stress.json", "stress"
# what the worst severity is, for the figure
WORST = {"blur": "3 voxels at 1", "low-resolution": "4 times at 1", "bias-field": "gain 3 at 1"}


@dataclass(frozen=True, slots=True)
class StressSettings:
    only: tuple[str, ...] = ()  # names of corruptions; none: all
    severities: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)
    patches: tuple[tuple[int, ...], ...] = ()  # other windows, one number or one for each axis
    epsilon: float = 0.25  # bound of an attack of severity 1, in deviations of the image
    steps: int = 5  # of PGD
    seed: int = 0  # of fields, noise and streaks
    overlap: float = 0.5  # of windows

    def __post_init__(self) -> None:
        for name in self.only:
            if name not in (*CORRUPTIONS, PATCH):
                raise unknown("corruption", name, (*CORRUPTIONS, PATCH))
        for severity in self.severities:
            require_severity(severity)
        if not any(self.severities):
            raise InputError("--severities needs a number above 0, such as 0.5; 0 is always there.")
        if PATCH in self.only and not self.patches:
            raise InputError(f"--only {PATCH} needs sizes of windows: give them with --patches.")
        sides = [max(sizes) for sizes in self.patches]
        if len(set(sides)) < len(sides):
            twice = max(sides, key=sides.count)
            raise InputError(
                f"--patches: two windows have the same longest side of {twice} voxels, by which "
                "they are told apart. Give them to two commands."
            )
        if not 0 < self.epsilon < math.inf:
            raise InputError(f"--epsilon {self.epsilon}: an attack needs a bound above 0.")
        if self.steps < 1:
            raise InputError(f"--pgd-steps {self.steps}: PGD needs one step at least.")

    @property
    def levels(self) -> tuple[float, ...]:
        """Severities above 0, each once; those of 0 are the clean images."""
        return tuple(sorted({severity for severity in self.severities if severity > 0}))

    @property
    def corruptions(self) -> tuple[str, ...]:
        """Those with severities; windows are extra."""
        return tuple(name for name in CORRUPTIONS if not self.only or name in self.only)

    def facts(self) -> dict[str, Any]:
        """What rows of one folder must share."""
        return {
            "severities": list(self.levels),
            "epsilon": self.epsilon,
            "pgd_steps": self.steps,
            "seed": self.seed,
            "overlap": self.overlap,
        }


@dataclass(frozen=True, slots=True)
class StressResult:
    rows: list[StressRow]  # all that the folder holds
    failures: dict[str, str] = field(default_factory=dict)  # run -> what went wrong


def stress(
    runs: Sequence[Path],
    out: Path,
    settings: StressSettings,
    *,
    data: Path | None = None,
    device: str = "auto",
    checkpoint: str = "last",
    quiet: bool = False,
) -> StressResult:
    """Score runs on disturbed images; rows that the folder `out` holds already are kept.

    Args:
        runs: folders of trained runs, all of one dataset.
        out: folder for `stress.csv`, `stress.png` and `stress.svg`.
        settings: which corruptions, how severe.
        data: a dataset to score on; none: the test cases of the runs.
        device: `auto`, `cpu`, `cuda`...
        checkpoint: `last` or `best`.
        quiet: no progress on the error stream.
    """
    subjects, failures = load_subjects(runs, data, device=device, checkpoint=checkpoint)
    plans = {s.name: [plan_with_patch(s, sides) for sides in settings.patches] for s in subjects}
    rows = opened(out, subjects, settings)
    sheets = []
    for subject in subjects:
        warn_of(subject, quiet=quiet)
        with guarded(failures, subject, len(subjects)):
            volumes = prepared(subject, quiet=quiet)
            kept = subject.run.largest
            sheets.append(Sheet(out / TABLE, rows, subject, settings, volumes, kept))
    with bar("predicting", sum(map(len, sheets)), quiet=quiet) as advance:
        for sheet in sheets:
            with guarded(failures, sheet.subject, len(subjects)):
                sheet.fill(plans[sheet.subject.name], advance)
    if rows:
        draw(out, rows, settings)
    return StressResult(rows, failures)


@contextmanager
def guarded(failures: dict[str, str], subject: Subject, subjects: int) -> Iterator[None]:
    """Note what went wrong with one run of several, so that it does not hide the others."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            device = subject.run.device
            failures[subject.name] = (
                f"the {device} is out of memory. Free it, or use --device cpu. Give the same "
                "command again: finished corruptions are kept."
            )
        elif isinstance(error, UserError) and subjects > 1:
            failures[subject.name] = str(error)
        else:
            raise


def prepared(subject: Subject, *, quiet: bool) -> list[Volume]:
    names = [case.name for case in subject.cases]
    with bar(f"preparing the cases of {subject.name}", len(names), quiet=quiet) as advance:
        return load_volumes(list(subject.cases), subject.run.plan, labeled=names, advance=advance)


def warn_of(subject: Subject, *, quiet: bool) -> None:
    seen = set(subject.run.split.labeled) & {case.name for case in subject.cases}
    if seen and not quiet:
        say(
            f"note: {len(seen)} of {len(subject.cases)} cases have the name of a case whose label "
            f"{subject.name} was trained on; scores of those say nothing about new scans.",
            style="yellow",
        )
    if subject.unlabeled and not quiet:
        say(f"{subject.name}: {subject.unlabeled} test case(s) without a label are left out.")


def opened(out: Path, subjects: Sequence[Subject], settings: StressSettings) -> list[StressRow]:
    """Rows that are kept; a folder of other cases, classes or settings is refused."""
    if RunFolder(out).config.exists() or (out.exists() and not out.is_dir()):
        raise InputError(
            f"{out} is no folder for a stress test: it is a file or a run. Choose another --out."
        )
    first = subjects[0]
    facts: dict[str, Any] = {
        "classes": first.run.plan.classes,
        "cases": {case.name: str(case.images[0].resolve()) for case in first.cases},
        "settings": settings.facts(),
        "runs": {one.name: one.run.identity + largest_note(one.run.largest) for one in subjects},
    }
    path, rows = out / FACTS, []
    if path.exists():
        known = read_json(path)
        for key in ("classes", "cases", "settings"):
            if known.get(key) != facts[key]:
                raise InputError(
                    f"{out} holds a stress test with other {key}: {known.get(key)}, and these are "
                    f"{facts[key]}. Choose another --out."
                )
        refuse_other_runs(out, known["runs"], facts["runs"])
        # the same folder with other weights was trained anew: its rows are measured again
        stale = {n for n, one in facts["runs"].items() if known["runs"].get(n, one) != one}
        facts["runs"] = {**known["runs"], **facts["runs"]}
        if (out / TABLE).exists():
            rows = [row for row in read_stress(out / TABLE) if row.run not in stale]
            write_stress(out / TABLE, rows)
    elif (out / TABLE).exists():
        raise InputError(f"{out} has a {TABLE} and no {FACTS} beside it. Choose another --out.")
    write_json(path, facts)
    return rows


def refuse_other_runs(out: Path, known: dict[str, str], wanted: dict[str, str]) -> None:
    for name, identity in wanted.items():
        before = known.get(name, identity).partition("#")[0]
        if before != identity.partition("#")[0]:
            raise InputError(
                f"{out} holds rows of another run named {name}, {before}. Choose another --out, or "
                "give both runs to one command."
            )


@dataclass(frozen=True, slots=True)
class Sheet:
    """The rows of one run, filled in corruption by corruption, each on the disk when it is done."""

    path: Path
    rows: list[StressRow]  # of all runs; it grows
    subject: Subject
    settings: StressSettings
    volumes: list[Volume]
    largest: tuple[str, ...]  # classes of which the largest component alone counts

    def __len__(self) -> int:
        """Predictions to make."""
        levels = len(self.settings.corruptions) * len(self.settings.levels)
        return len(self.volumes) * (1 + levels + len(self.settings.patches))

    def fill(self, plans: Sequence[Plan], advance: Callable[[], None]) -> None:
        """Measure what is missing; `plans` have the other windows."""
        self.subject.run.method.eval()
        self._measure(CLEAN, {0.0: self.subject.run.plan}, advance)
        same = dict.fromkeys(self.settings.levels, self.subject.run.plan)
        for corruption in self.settings.corruptions:
            self._measure(corruption, same, advance)
        self._measure(PATCH, {float(max(plan.patch)): plan for plan in plans}, advance)

    def _measure(
        self, corruption: str, plans: dict[float, Plan], advance: Callable[[], None]
    ) -> None:
        """Rows of one corruption, at each severity of `plans`, which says by which windows."""
        done = {
            (row.severity, row.case)
            for row in self.rows
            if row.run == self.subject.name and row.corruption == corruption
        }
        found: list[StressRow] = []
        for volume in self.volumes:
            missing = [level for level in plans if (level, volume.name) not in done]
            for _ in range(len(plans) - len(missing)):
                advance()
            if not missing:
                continue
            image = torch.from_numpy(np.array(volume.image)).to(self.subject.run.device)
            answers = self._answers(corruption, image, volume)
            for level in missing:
                answer = answers(level, plans[level])
                found += self._score(answer, volume, plans[level], corruption, level)
                advance()
        if found:
            self.rows.extend(found)
            write_stress(self.path, self.rows)

    def _answers(
        self, corruption: str, image: Tensor, volume: Volume
    ) -> Callable[[float, Plan], Tensor]:
        """Severity and windows -> prediction (K, *S) of the disturbed image.

        What is drawn, or the gradient that an attack begins with, is the same for all severities.
        """
        predict, overlap = self.subject.run.method.predict, self.settings.overlap
        if corruption in ATTACKS:
            return self._attack(corruption, image, volume)
        if corruption not in ARTIFACTS:
            return lambda level, plan: predict_windows(image, predict, plan, overlap=overlap)
        # of the case and not of the run: all runs see the same disturbed image
        seed = crc32(f"{self.settings.seed}/{corruption}/{volume.name}".encode())

        def disturbed(level: float) -> Tensor:
            return corrupt(image, corruption, level, torch.Generator().manual_seed(seed))

        return lambda level, plan: predict_windows(disturbed(level), predict, plan, overlap=overlap)

    def _attack(
        self, attack: str, image: Tensor, volume: Volume
    ) -> Callable[[float, Plan], Tensor]:
        run, bound, steps = self.subject.run, self.settings.epsilon, self.settings.steps
        assert volume.label is not None
        label = torch.from_numpy(np.array(volume.label)).long().to(run.device)
        goal = PredictionLoss(run.method.predict, label, run.plan, self.settings.overlap)
        start = goal.loss_and_gradient(image)
        if attack == "fgsm":
            return lambda level, _: goal.answer(fgsm(image, start[1], bound * level))
        return lambda level, _: goal.answer(
            pgd(image, goal, bound * level, steps=steps, start=start)
        )

    def _score(
        self, answer: Tensor, volume: Volume, plan: Plan, corruption: str, level: float
    ) -> list[StressRow]:
        run = self.subject.run
        if not bool(answer.isfinite().all()):
            raise DivergedError(
                f"{run.path} predicts numbers that are not finite for case {volume.name} "
                f"({corruption}, severity {level:g}). Use another checkpoint, or train again."
            )
        assert volume.label is not None
        found = scores_by_class(answer.cpu().numpy(), volume.label, plan, self.largest)
        return [
            StressRow(self.subject.name, corruption, level, volume.name, name, *scores)
            for name, scores in found.items()
        ]


def scores_by_class(
    answer: NDArray[np.float32], label: NDArray[Any], plan: Plan, largest: Sequence[str] = ()
) -> dict[str, tuple[float, float]]:
    """Dice and IoU of each class but the background."""
    masks = masks_by_class(answer, label, plan, largest)
    return {name: (dice(*pair), iou(*pair)) for name, pair in masks.items()}


def draw(out: Path, rows: Sequence[StressRow], settings: StressSettings) -> None:
    bound = f"$\\epsilon$ {settings.epsilon:g} at 1"
    figure = stress_figure(rows, notes=WORST | dict.fromkeys(ATTACKS, bound))
    for suffix in ("png", "svg"):
        path = out / f"{FIGURE}.{suffix}"
        write_atomically(path, lambda draft: figure.savefig(draft, dpi=150))
