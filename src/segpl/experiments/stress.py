"""Robustness of runs: scores on images with artifacts, under attack, and with other windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from segpl.data.cache import Volume, load_volumes
from segpl.data.masks import largest_note
from segpl.display import bar, say
from segpl.engine.device import is_out_of_memory
from segpl.engine.folder import RunFolder
from segpl.errors import InputError, UserError
from segpl.experiments.stress_inputs import StressedRun, load_runs, plan_with_patch
from segpl.experiments.stress_scores import StressScorer
from segpl.experiments.stress_settings import ATTACKS, StressSettings
from segpl.files import read_record, write_atomically, write_json
from segpl.report.stress.figures import stress_figure
from segpl.report.stress.rows import StressRow, read_stress, write_stress

TABLE, RECORD, FIGURE = "stress.csv", "stress.json", "stress"
# meaning of severity 1, for the figure
WORST = {"blur": "3 voxels at 1", "low-resolution": "4 times at 1", "bias-field": "gain 3 at 1"}


@dataclass(frozen=True, slots=True)
class StressResult:
    rows: list[StressRow]  # the whole table
    failures: dict[str, str] = field(default_factory=dict)  # run -> error


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
    quiet: bool = False,
) -> StressResult:
    """Score runs on corrupted images; rows that already exist in `out` are kept.

    Args:
        runs: folders of trained runs, all of one dataset.
        out: folder for `stress.csv`, `stress.png` and `stress.svg`.
        settings: which corruptions, how severe.
        data: dataset to score on; by default the test cases of the runs.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        checkpoint: `last` or `best`.
        quiet: show no progress.
    """
    tested, failures = load_runs(runs, data, device=device, checkpoint=checkpoint)
    plans = {
        one.name: [plan_with_patch(one, sides) for sides in settings.patches] for one in tested
    }
    rows = open_table(out, tested, settings)
    scorers = []
    for one in tested:
        if not quiet:
            print_notes(one)
        with collecting_failures(failures, one, len(tested)):
            volumes = prepare_volumes(one, quiet=quiet)
            largest = one.run.largest
            scorers.append(StressScorer(out / TABLE, rows, one, settings, volumes, largest))
    with bar("predicting", sum(map(len, scorers)), quiet=quiet) as advance:
        for scorer in scorers:
            with collecting_failures(failures, scorer.tested, len(tested)):
                scorer.measure(plans[scorer.tested.name], advance)
    if rows:
        draw_figure(out, rows, settings)
    return StressResult(rows, failures)


@contextmanager
def collecting_failures(
    failures: dict[str, str], tested: StressedRun, count: int
) -> Iterator[None]:
    """Record the error of one run of several, so that the others are still measured."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            failures[tested.name] = (
                f"out of memory on {tested.run.device}. Free some memory, or use --device cpu. "
                "Repeat the command: finished corruptions are kept."
            )
        elif isinstance(error, UserError) and count > 1:
            failures[tested.name] = str(error)
        else:
            raise


def prepare_volumes(tested: StressedRun, *, quiet: bool) -> list[Volume]:
    names = [case.name for case in tested.cases]
    with bar(f"preprocessing the cases of {tested.name}", len(names), quiet=quiet) as advance:
        return load_volumes(list(tested.cases), tested.run.plan, labeled=names, advance=advance)


def print_notes(tested: StressedRun) -> None:
    seen = set(tested.run.split.labeled) & {case.name for case in tested.cases}
    if seen:
        say(
            f"note: {len(seen)} of {len(tested.cases)} cases share their name with a labeled "
            f"training case of {tested.name}. Their scores do not measure performance on new "
            "scans.",
            style="yellow",
        )
    if tested.unlabeled:
        say(f"{tested.name}: {tested.unlabeled} test case(s) without a label are skipped.")


def open_table(
    out: Path, tested: Sequence[StressedRun], settings: StressSettings
) -> list[StressRow]:
    """Write the record of the folder; returns the rows to keep.

    A folder with other cases, classes or settings is an error. Rows of a run that was retrained
    are dropped.
    """
    if RunFolder(out).config.exists() or (out.exists() and not out.is_dir()):
        raise InputError(f"{out} is a run or a file. Choose another --out.")
    first = tested[0]
    record = StressRecord(
        classes=first.run.plan.classes,
        cases={case.name: str(case.images[0].resolve()) for case in first.cases},
        settings=settings.facts(),
        runs={one.name: one.run.identity + largest_note(one.run.largest) for one in tested},
    )
    rows: list[StressRow] = []
    if (out / RECORD).exists():
        known = read_record(out / RECORD, StressRecord)
        require_same_test(out, known, record)
        retrained = {n for n, one in record.runs.items() if known.runs.get(n, one) != one}
        record = replace(record, runs=known.runs | record.runs)
        if (out / TABLE).exists():
            rows = [row for row in read_stress(out / TABLE) if row.run not in retrained]
            write_stress(out / TABLE, rows)
    elif (out / TABLE).exists():
        raise InputError(f"{out} contains {TABLE} but no {RECORD}. Choose another --out.")
    write_json(out / RECORD, asdict(record))
    return rows


def require_same_test(out: Path, known: StressRecord, wanted: StressRecord) -> None:
    for key in ("classes", "cases", "settings"):
        before, now = getattr(known, key), getattr(wanted, key)
        if before != now:
            raise InputError(
                f"{out} contains a stress test with other {key}: {before} instead of {now}. Choose "
                "another --out."
            )
    for name, identity in wanted.runs.items():
        path = known.runs.get(name, identity).partition("#")[0]
        if path != identity.partition("#")[0]:
            raise InputError(
                f"{out} contains rows of another run named {name}, {path}. Choose another --out, "
                "or give both runs to one command."
            )


def draw_figure(out: Path, rows: Sequence[StressRow], settings: StressSettings) -> None:
    bound = f"$\\epsilon$ {settings.epsilon:g} at 1"
    figure = stress_figure(rows, notes=WORST | dict.fromkeys(ATTACKS, bound))
    for suffix in ("png", "svg"):
        path = out / f"{FIGURE}.{suffix}"
        write_atomically(path, lambda draft: figure.savefig(draft, dpi=150))
