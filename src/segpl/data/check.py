"""An inspection as a page for the terminal, ending with what to do next."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from segpl.data.case import Case
from segpl.data.inspect import ChannelStatistics, Fingerprint, Inspection, Problem

CASES = 20  # of those with problems, as many are shown in full


def has_fatal(inspection: Inspection) -> bool:
    """Whether training on this dataset would fail."""
    return any(problem.fatal for problem in _problems(inspection))


def report(inspection: Inspection) -> RenderableType:
    """Everything that was found, everything that is wrong, and the next command."""
    parts: list[RenderableType] = [Rule(Text(inspection.dataset.root.resolve().name), align="left")]
    parts.append(Padding(_overview(inspection), (0, 0, 1, 0)))
    fingerprints = list(inspection.fingerprints.values())
    if fingerprints:
        parts.append(Padding(_geometry(fingerprints), (0, 0, 1, 0)))
        parts.append(Padding(_intensities(inspection), (0, 0, 1, 0)))
    if any(item.voxels for item in fingerprints):
        parts.append(Padding(_volumes(inspection), (0, 0, 1, 0)))
    parts += _complaints(inspection)
    parts += _next(inspection)
    return Group(*parts)


def _problems(inspection: Inspection) -> list[Problem]:
    problems = list(inspection.problems)
    if not inspection.dataset.labeled:
        problems.insert(
            0,
            Problem(
                "",
                "no training case has a label",
                "Add labels for a few cases: training needs at least one to know what to look for.",
                fatal=True,
            ),
        )
    return problems


def _overview(inspection: Inspection) -> Table:
    dataset = inspection.dataset
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_row("layout", f"{dataset.layout}, {inspection.dims}D")
    for name, cases in (
        ("labeled", dataset.labeled),
        ("unlabeled", dataset.unlabeled),
        ("test", dataset.test),
    ):
        table.add_row(name, _count(cases))
    table.add_row("channels", ", ".join(_channel_names(inspection)) or "unknown")
    classes = ", ".join(f"{name} ({number})" for name, number in inspection.classes.items())
    ignored = f"; {dataset.ignore} is ignored" if dataset.ignore is not None else ""
    table.add_row("classes", classes + ignored)
    return table


def _count(cases: Sequence[Case]) -> str:
    if not cases:
        return "none"
    without = sum(case.is_test and case.label is None for case in cases)
    subjects = _counted(len({case.subject for case in cases}), "subject")
    note = f", {without} without a label" if without else ""
    return f"{_counted(len(cases), 'case')} of {subjects}{note}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _channel_names(inspection: Inspection) -> list[str]:
    if inspection.dataset.channels:
        return list(inspection.dataset.channels)
    counts = Counter(len(item.channels) for item in inspection.fingerprints.values())
    usual = counts.most_common(1)[0][0] if counts else 0
    return [f"channel {number}" for number in range(usual)]


def _geometry(fingerprints: Sequence[Fingerprint]) -> Table:
    table = Table("", "smallest", "median", "largest", box=None, padding=(0, 2, 0, 0))
    table.columns[0].style = "bold"
    table.add_row("shape", *_extremes([item.shape for item in fingerprints]))
    if any(item.orientation or set(item.spacing) != {1} for item in fingerprints):
        table.add_row("spacing in mm", *_extremes([item.spacing for item in fingerprints]))
    else:
        table.add_row("spacing in mm", "not stored")
    orientations = Counter(item.orientation for item in fingerprints if item.orientation)
    if orientations:
        most = [f"{name} ({count})" for name, count in orientations.most_common(3)]
        table.add_row("orientation", ", ".join(most) + (", ..." if len(orientations) > 3 else ""))
    return table


def _extremes(rows: Iterable[tuple[float, ...]]) -> list[str]:
    """Smallest, median and largest along each axis by itself."""
    sizes = np.percentile(np.array(list(rows)), (0, 50, 100), axis=0, method="lower")
    return [" x ".join(f"{size:.4g}" for size in summary) for summary in sizes]


def _intensities(inspection: Inspection) -> Table:
    columns = ("intensities", "minimum", "0.5 %", "median", "99.5 %", "maximum", "zeros")
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    table.columns[0].style = "bold"
    for column in table.columns[1:]:
        column.justify = "right"
    for number, name in enumerate(_channel_names(inspection)):
        channels = [
            item.channels[number]
            for item in inspection.fingerprints.values()
            if number < len(item.channels)
        ]
        if channels:
            table.add_row(name, *_intensity_row(channels))
    return table


def _intensity_row(channels: Sequence[ChannelStatistics]) -> list[str]:
    values = (
        min(channel.minimum for channel in channels),
        np.median([channel.low for channel in channels]),
        np.median([channel.median for channel in channels]),
        np.median([channel.high for channel in channels]),
        max(channel.maximum for channel in channels),
    )
    zeros = float(np.mean([channel.zeros for channel in channels]))
    return [f"{value:.4g}" for value in values] + [_share(zeros)]


def _volumes(inspection: Inspection) -> Table:
    looked = [item.voxels for item in inspection.fingerprints.values() if item.voxels is not None]
    table = Table(
        "class", "mean share of voxels", "cases that show it", box=None, padding=(0, 2, 0, 0)
    )
    table.columns[0].style = "bold"
    for column in table.columns[1:]:
        column.justify = "right"
    for name, number in inspection.classes.items():
        shares = [voxels.get(number, 0) / sum(voxels.values()) for voxels in looked]
        shown = sum(share > 0 for share in shares)
        table.add_row(name, _share(float(np.mean(shares))), f"{shown} of {len(looked)}")
    return table


def _share(share: float) -> str:
    if 0 < share < 1e-4:
        return "< 0.01 %"
    return f"{100 * share:.{2 if share < 0.1 else 1}f} %"


def _complaints(inspection: Inspection) -> list[RenderableType]:
    problems = _problems(inspection)
    if not problems:
        return []
    cases = list(dict.fromkeys(problem.case for problem in problems))
    # where not all fit on the page, those that stop the training come first
    stopping = {problem.case for problem in problems if problem.fatal}
    cases.sort(key=lambda case: case not in stopping)
    root = f"{inspection.dataset.root}/"
    lines: list[RenderableType] = []
    for case in cases[:CASES]:
        lines.append(Text(case or "the dataset as a whole", style="bold"))
        for problem in problems:
            if problem.case == case:
                kind, style = ("error", "bold red") if problem.fatal else ("warning", "yellow")
                what = f" {problem.what.replace(root, '')}. "
                line = Text.assemble((f"{kind}:", style), what, (problem.remedy, "dim"))
                lines.append(Padding(line, (0, 0, 0, 2)))
    if len(cases) > CASES:
        rest = len(cases) - CASES
        lines.append(Text(f"... and {rest} more with problems."))
    return [*lines, Text("")]


def _next(inspection: Inspection) -> list[RenderableType]:
    problems = _problems(inspection)
    errors = [problem for problem in problems if problem.fatal]
    if errors:
        cases = len({problem.case for problem in errors if problem.case})
        where = f" in {_counted(cases, 'case')}" if cases else ""
        says = f"Not ready to train: put right {_counted(len(errors), 'error')}{where} first."
        return [Text(says, style="bold red")]
    data = shlex.quote(str(inspection.dataset.root))
    labeled, unlabeled = len(inspection.dataset.labeled), len(inspection.dataset.unlabeled)
    if unlabeled:
        says, options = "Ready to train:", ""
    elif labeled > 1:
        few = max(1, min(8, labeled // 5))
        says = f"Ready to train. Every case is labeled: to learn from {few} labels and use the "
        says += "other images unlabeled, run"
        options = f" --labeled {few}"
    else:
        says = "Ready to train, but without unlabeled images only on the one label there is:"
        options = " --method supervised"
    command = f"segpl train {data}{options} --out runs/first"
    # whole on one line, however long, so that it can be copied
    return [Text(says, style="bold green"), Text(f"  {command}", no_wrap=True, overflow="ignore")]
