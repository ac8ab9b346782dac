"""Curves over training, and what training cost."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from segpl.report.collection import RunCollection
from segpl.report.curves import Log, column_title, curve_figure, has_column, thin_out
from segpl.report.run_record import RunRecord
from segpl.report.sections.section import NamedFigure, NamedTable, Section
from segpl.report.tables import Table, mean_and_std, mean_of, number

VALIDATION_DICE = "validation Dice"
PSEUDO_LABELS = (
    *("labeled_foreground", "pseudo_foreground", "predicted_foreground"),
    *("hidden_dice", "hidden_kept", "kept", "agreement"),
)
CLASS_PREFIX = "pseudo_foreground_"  # followed by the index of a class
THRESHOLD = ("threshold", "threshold_std", "threshold_drawn")
GIB = 2**30


def curve_sections(found: RunCollection) -> list[Section]:
    logs = {label: [thin_out(log_of(run)) for run in found.of(label)] for label in found.labels}
    terms = list(dict.fromkeys(term for run in found.runs for term in run.loss_terms))
    columns = {column for run in found.runs for column in run.log}
    classes = sorted((c for c in columns if c.startswith(CLASS_PREFIX)), key=lambda c: (len(c), c))
    losses = Section(
        "curves",
        "Training",
        text=(
            "Mean over seeds, with a band of one standard deviation. Loss terms are unweighted.",
        ),
        figures=figures(logs, [VALIDATION_DICE, *terms]),
        missing=found.problems("no log", "no validation")
        or (() if columns else ("No run has a log.",)),
    )
    threshold = Section(
        "threshold",
        "Threshold",
        text=("The probability above which unlabeled images are pseudo-labeled as foreground.",),
        figures=figures(logs, THRESHOLD),
    )
    pseudo_labels = Section(
        "pseudo-labels",
        "Pseudo-labels",
        text=(
            "The fraction of the image that pseudo-labels mark as foreground, next to that in the "
            "labels. With train.watch_hidden, also their agreement with hidden labels.",
        ),
        figures=figures(logs, [*PSEUDO_LABELS, *classes], class_titles(found)),
    )
    return [losses, *(section for section in (threshold, pseudo_labels) if section.figures)]


def class_titles(found: RunCollection) -> dict[str, str]:
    """Axis labels of per-class columns; datasets may have different classes."""
    names: dict[str, dict[str, None]] = {}
    for run in found.runs:
        for index, name in enumerate(run.plan.classes if run.plan else ()):
            if (column := f"{CLASS_PREFIX}{index}") in run.log:
                names.setdefault(column, {})[name] = None
    return {column: f"pseudo-labeled {' or '.join(known)}" for column, known in names.items()}


def log_of(run: RunRecord) -> Log:
    """The log with the validation Dice as another column."""
    log = {column: list(values) for column, values in run.log.items()} or {"step": []}
    curve = run.validation_curve()
    if not curve:
        return log
    extra = [step for step in curve if step not in log["step"]]
    for column in log:
        log[column] += [float(step) if column == "step" else math.nan for step in extra]
    log[VALIDATION_DICE] = [curve.get(int(step), math.nan) for step in log["step"]]
    return log


def figures(
    logs: Mapping[str, Sequence[Log]],
    columns: Sequence[str],
    titles: Mapping[str, str] | None = None,
) -> tuple[NamedFigure, ...]:
    """A figure for each column that some log has."""
    named = {column: (titles or {}).get(column, column_title(column)) for column in columns}
    return tuple(
        NamedFigure(
            f"curve-{column.replace(' ', '-')}",
            curve_figure(logs, column, named[column]),
            f"{named[column]} over training steps",
        )
        for column in columns
        if any(has_column(each, column) for each in logs.values())
    )


def cost_section(found: RunCollection) -> Section:
    rows = []
    for label in found.labels:
        runs = found.of(label)
        per_step = [
            1000 * run.seconds / steps for run in runs if (steps := run.settings["train.steps"])
        ]
        peaks = [run.peak_bytes / GIB for run in runs if run.peak_bytes > 0]
        weights = max(run.summary.parameters for run in runs)
        rows.append(
            [
                label,
                mean_and_std([run.seconds for run in runs]),
                number(mean_of(per_step)),
                f"{weights:,}" if weights else "-",
                number(max(peaks)) if peaks else "-",
            ]
        )
    machines = sorted({str(run.environment.get("device", "unknown")) for run in found.runs})
    table = Table(
        columns=["method", "training (s)", "step (ms)", "weights", "peak memory (GiB)"],
        rows=rows,
        note=f"Mean and standard deviation over seeds, on {', '.join(machines)}. Runs that shared "
        "a machine slowed each other down; `segpl bench` measures methods in turn. Peak memory "
        "of the GPU, or of the process on a CPU.",
    )
    return Section(
        "cost",
        "Training cost",
        tables=(NamedTable("cost", table),),
        missing=found.problems("no training times", "no summary"),
    )
