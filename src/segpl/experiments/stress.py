"""Robustness of runs: scores on images with artifacts, under attack, and with other windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from segpl.data.cache import load_volumes
from segpl.data.masks import largest_note
from segpl.display import bar, say
from segpl.engine.folder import RunFolder
from segpl.errors import InputError, count_noun
from segpl.experiments.stress_inputs import (
    ATTACKS,
    StressedRun,
    StressSettings,
    load_runs,
    plan_with_patch,
)
from segpl.experiments.stress_scores import StressScorer
from segpl.records import read_record, write_json
from segpl.report.figures import finish_layout, save_figure
from segpl.report.sections.stress import stress_figure
from segpl.report.stress_rows import StressRow, read_stress

TABLE, RECORD, FIGURE = "stress.csv", "stress.json", "stress"
# meaning of severity 1, for the figure
WORST = {"blur": "3 voxels at 1", "low-resolution": "4 times at 1", "bias-field": "gain 3 at 1"}


@dataclass(frozen=True, slots=True)
class StressRecord:
    """What the rows of one folder share (`stress.json`)."""

    classes: dict[str, int]
    cases: dict[str, str]  # name -> path of the image
    settings: dict[str, Any]
    runs: dict[str, str]  # name -> identity of the run


def stress(
    runs: Sequence[Path],
    out: Path,
    settings: StressSettings,
    *,
    data: Path | None = None,
    device: str = "auto",
    checkpoint: str = "last",
) -> list[StressRow]:
    """Score runs of one dataset on degraded images of `data`, by default their test cases.

    Writes `stress.csv` to `out`; rows that already exist are kept.
    """
    tested = load_runs(runs, data, device=device, checkpoint=checkpoint)
    plans = [[plan_with_patch(one, sides) for sides in settings.patches] for one in tested]
    rows = open_table(out, tested, settings)
    for one in tested:
        warn_of_training_cases(one)
    with bar("preprocessing cases", sum(len(one.cases) for one in tested)) as advance:
        scorers = []
        for one in tested:
            cases, names = list(one.cases), [case.name for case in one.cases]
            volumes = load_volumes(cases, one.run.plan, labeled=names, advance=advance)
            scorers.append(StressScorer(out / TABLE, rows, one, settings, volumes))
    with bar("predicting", sum(map(len, scorers))) as advance:
        for scorer, window_plans in zip(scorers, plans, strict=True):
            scorer.measure(window_plans, advance)
    return rows


def draw_stress(
    rows: Sequence[StressRow], path: Path, settings: StressSettings, *, over: str = "cases"
) -> None:
    """Write the curves as `path` with the suffixes .png and .svg; see `stress_figure`."""
    bound = f"$\\epsilon$ {settings.epsilon:g} at 1"
    figure = stress_figure(rows, notes=WORST | dict.fromkeys(ATTACKS, bound), over=over)
    finish_layout(figure)
    for suffix in (".png", ".svg"):
        save_figure(figure, path.with_suffix(suffix))


def warn_of_training_cases(tested: StressedRun) -> None:
    if seen := set(tested.run.split.labeled) & {case.name for case in tested.cases}:
        say(
            f"note: {len(seen)} of {count_noun(len(tested.cases), 'case')} may be labeled training "
            f"cases of {tested.name} (same names). Their scores do not measure performance on new "
            "scans.",
            style="yellow",
        )


def open_table(
    out: Path, tested: Sequence[StressedRun], settings: StressSettings
) -> list[StressRow]:
    """The rows that `out` already has; an error if they belong to another test or other weights."""
    if RunFolder(out).config.exists():
        raise InputError(f"{out} is the folder of a run. Choose another --out.")
    first = tested[0]
    record = StressRecord(
        classes=first.run.plan.classes,
        cases={case.name: str(case.images[0].resolve()) for case in first.cases},
        settings=settings.facts(),
        runs={one.name: one.run.identity + largest_note(one.run.largest) for one in tested},
    )
    if (out / RECORD).exists():
        known = read_record(out / RECORD, StressRecord)
        record = replace(record, runs=known.runs | record.runs)
        shared = replace(known, runs=record.runs)
        other = {name for name, run in known.runs.items() if record.runs[name] != run}
        if other or shared != record:
            what = (
                f"with other weights or masks of {other.pop()}"
                if other
                else "with other cases or settings"
            )
            raise InputError(f"{out} contains a stress test {what}. Choose another --out.")
    elif (out / TABLE).exists():
        raise InputError(f"{out} contains {TABLE} but no {RECORD}. Choose another --out.")
    write_json(out / RECORD, asdict(record))
    return read_stress(out / TABLE) if (out / TABLE).exists() else []
