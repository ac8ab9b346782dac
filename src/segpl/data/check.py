"""Show an inspection in the terminal: what was found, what is wrong, what to run next."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from segpl.data.case import Case, Dataset
from segpl.data.fingerprint import Fingerprint
from segpl.data.inspect import Inspection, inspect
from segpl.data.planner import Resources, check_sizes, derive_plan, padded_cases
from segpl.data.problems import Problem, segment_name, warning
from segpl.data.split import SplitSettings, make_split, subject_notes
from segpl.errors import UserError, count_noun, in_voxels, name_some

MOST_CASES = 20  # maximum number of cases whose problems are listed
# a plan for a GPU is finer; which one there is would be known only with torch
COMPUTERS = [Resources(2**33, accelerated=accelerated) for accelerated in (False, True)]
MOST_UNUSED = 5  # ignored files that are named
ADD_LABELS = "Add labels for a few cases, or describe the names of their files with --layout."
DICOM_LABELS = (
    "The labels of series are DICOM-SEG or RTSTRUCT files, or volumes such as CASE.nii.gz in "
    "another folder, which `segpl train --set data.labels=FOLDER` reads and checks."
)


def has_errors(inspection: Inspection) -> bool:
    """Whether training on this dataset would fail."""
    return any(problem.fatal for problem in _problems(inspection))


def render(inspection: Inspection, command: str, *, unused: Sequence[str] = ()) -> RenderableType:
    """Everything that was found, every problem, and `command` if training is possible.

    `unused` are files that belong to no case.
    """
    fingerprints = list(inspection.fingerprints.values())
    tables = [_overview(inspection, unused)]
    if fingerprints:
        tables += [_geometry(fingerprints), _intensities(inspection)]
    if any(item.voxels for item in fingerprints):
        tables.append(_class_sizes(inspection))
    return Group(
        Rule(Text(inspection.dataset.root.resolve().name), align="left"),
        *(Padding(table, (0, 0, 1, 0)) for table in tables),
        *_naming_advice(inspection),
        *_problem_list(inspection),
        *_next_step(inspection, command),
    )


def inspect_all(
    dataset: Dataset, unusable: Mapping[str, str], advance: Callable[[], None]
) -> Inspection:
    """Every problem of a dataset, with those of its split and plan.

    All labels are read: this only checks the files. `unusable` are files and folders that look like
    images but cannot be read, and why.
    """
    names = [case.name for case in dataset.cases]
    found = inspect(dataset, read_labels_of=names, advance=advance)
    remedy = "Replace it with a readable file, or remove it."
    odd = [warning("", f"{path} is {why}", remedy) for path, why in unusable.items()]
    return replace(found, problems=(*found.problems, *odd, *planning_problems(found)))


def planning_problems(inspection: Inspection) -> list[Problem]:
    """What `segpl train` would still reject if all files are fine: the split or the plan."""
    dataset = inspection.dataset
    training = {case.name for case in (*dataset.labeled, *dataset.unlabeled)}
    prints = {name: one for name, one in inspection.fingerprints.items() if name in training}
    if has_errors(inspection) or not prints:
        return []
    problems: list[Problem] = []
    try:
        split = make_split(dataset, SplitSettings())
        problems += [warning("", note.rstrip("."), "") for note in subject_notes(split, dataset)]
        training_only = replace(inspection, fingerprints=prints)
        plan, finer = (derive_plan(training_only, computer) for computer in COMPUTERS)
        for item in prints.values():
            try:
                check_sizes(plan, [item])
                check_sizes(finer, [item])
            except UserError as error:
                problems.append(Problem(item.case, str(error).rstrip("."), ""))
        padded = padded_cases(plan, list(prints.values()))
    except UserError as error:
        return [*problems, Problem("", str(error).rstrip("."), "")]
    what = "after resampling is much smaller than the others"
    remedy = "It will be padded. Leave it out if it shows too little."
    return problems + [
        warning(case, f"the image of {in_voxels(shape, plan.dims)} {what}", remedy)
        for case, shape in padded.items()
    ]


def _problems(inspection: Inspection) -> list[Problem]:
    if inspection.dataset.labeled:
        return list(inspection.problems)
    remedy = DICOM_LABELS if inspection.dataset.layout == "dicom" else ADD_LABELS
    return [Problem("", "no training case has a label", remedy), *inspection.problems]


def _number_table(*columns: str) -> Table:
    """A table without lines: bold names on the left, numbers aligned right."""
    table = Table(*columns, box=None, padding=(0, 2, 0, 0))
    table.columns[0].style = "bold"
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _overview(inspection: Inspection, unused: Sequence[str]) -> Table:
    dataset = inspection.dataset
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_row("layout", f"{dataset.layout}, {inspection.dims}D")
    for name, cases in (
        ("labeled", dataset.labeled),
        ("unlabeled", dataset.unlabeled),
        ("test", dataset.test),
    ):
        table.add_row(name, _count_cases(cases))
    table.add_row("channels", ", ".join(_channel_names(inspection)) or "unknown")
    classes = ", ".join(f"{name} ({number})" for name, number in inspection.classes.items())
    ignored = f"; {dataset.ignore} is ignored" if dataset.ignore is not None else ""
    table.add_row("classes", classes + ignored)
    if unused:
        table.add_row("ignored", Text(name_some(unused, MOST_UNUSED)))
    return table


def _count_cases(cases: Sequence[Case]) -> str:
    if not cases:
        return "none"
    unlabeled_tests = sum(case.is_test and case.label is None for case in cases)
    note = f", {unlabeled_tests} without a label" if unlabeled_tests else ""
    subjects = count_noun(len({case.subject for case in cases}), "subject")
    return f"{count_noun(len(cases), 'case')} from {subjects}{note}"


def _channel_names(inspection: Inspection) -> list[str]:
    if inspection.dataset.channels:
        return list(inspection.dataset.channels)
    counts = Counter(len(item.channels) for item in inspection.fingerprints.values())
    usual = counts.most_common(1)[0][0] if counts else 0
    return [f"channel {number}" for number in range(usual)]


def _geometry(fingerprints: Sequence[Fingerprint]) -> Table:
    table = Table("", "smallest", "median", "largest", box=None, padding=(0, 2, 0, 0))
    table.columns[0].style = "bold"
    table.add_row("shape", *_range([item.shape for item in fingerprints]))
    if any(item.orientation or set(item.spacing) != {1} for item in fingerprints):
        table.add_row("spacing (mm)", *_range([item.spacing for item in fingerprints]))
    else:
        table.add_row("spacing (mm)", "not stored")
    orientations = Counter(item.orientation for item in fingerprints if item.orientation)
    if orientations:
        most = [f"{name} ({count})" for name, count in orientations.most_common(3)]
        table.add_row("orientation", ", ".join(most) + (", ..." if len(orientations) > 3 else ""))
    return table


def _range(rows: Iterable[Sequence[float]]) -> list[str]:
    """Minimum, median and maximum of each axis."""
    sizes = np.percentile(np.array(list(rows)), (0, 50, 100), axis=0, method="lower")
    return [" x ".join(f"{size:.4g}" for size in row) for row in sizes]


def _intensities(inspection: Inspection) -> Table:
    table = _number_table("intensities", "minimum", "0.5 %", "median", "99.5 %", "maximum", "zeros")
    for number, name in enumerate(_channel_names(inspection)):
        channels = [
            item.channels[number]
            for item in inspection.fingerprints.values()
            if number < len(item.channels)
        ]
        if channels:
            values = (
                min(channel.minimum for channel in channels),
                np.median([channel.low for channel in channels]),
                np.median([channel.median for channel in channels]),
                np.median([channel.high for channel in channels]),
                max(channel.maximum for channel in channels),
            )
            zeros = float(np.mean([channel.zeros for channel in channels]))
            table.add_row(name, *(f"{value:.4g}" for value in values), _percent(zeros))
    return table


def _class_sizes(inspection: Inspection) -> Table:
    labels = [item.voxels for item in inspection.fingerprints.values() if item.voxels is not None]
    table = _number_table("class", "mean size", "present in")
    for name, number in inspection.classes.items():
        shares = [voxels.get(number, 0) / sum(voxels.values()) for voxels in labels]
        present = sum(share > 0 for share in shares)
        size = f"{_percent(float(np.mean(shares)))} of the image"
        table.add_row(name, size, f"{present} of {count_noun(len(labels), 'label')}")
    return table


def _naming_advice(inspection: Inspection) -> Iterator[RenderableType]:
    """How to name classes that have only numbers."""
    if inspection.dataset.classes is not None or not inspection.dataset.labeled:
        return
    path = inspection.dataset.root / "labels.json"
    named = _agreed_names(inspection)
    own = "the names of the segments" if named else "your own names"
    yield Text(f"The classes have no names. To name them, write {path} with {own}:")
    example = json.dumps({"labels": named or inspection.classes}, ensure_ascii=False)
    yield _whole_line(f"  {example}\n")


def _agreed_names(inspection: Inspection) -> dict[str, int]:
    """The classes with the names of their segments, if all labels name all of them alike."""
    named = {"background": 0}
    for number in inspection.classes.values():
        found = {
            segment_name(item.meanings.get(number, ""))
            for item in inspection.fingerprints.values()
            if item.voxels and item.voxels.get(number)
        }
        name = found.pop() if number and len(found) == 1 else ""
        # these have another meaning in labels.json
        if name and not name.isdecimal() and name.casefold() not in ("background", "ignore"):
            named.setdefault(name, number)
    return named if len(named) == len(inspection.classes) else {}


def _percent(share: float) -> str:
    if 0 < share < 1e-4:
        return "< 0.01 %"
    return f"{100 * share:.{2 if share < 0.1 else 1}f} %"


def _problem_list(inspection: Inspection) -> Iterator[RenderableType]:
    problems = _problems(inspection)
    if not problems:
        return
    by_case: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        by_case[problem.case].append(replace(problem, case=""))
    # errors first: the list may be cut off
    shown = sorted(by_case, key=lambda case: not any(one.fatal for one in by_case[case]))
    alike: dict[tuple[Problem, ...], list[str]] = defaultdict(list)
    for case in shown[:MOST_CASES]:
        alike[tuple(by_case[case])].append(case or "whole dataset")
    root = f"{inspection.dataset.root}/"
    for found, cases in alike.items():
        yield _whole_line(", ".join(cases), "bold")
        for problem in found:
            kind, style = ("error", "bold red") if problem.fatal else ("warning", "yellow")
            what = f" {problem.what.replace(root, '')}. "
            line = Text.assemble((f"{kind}:", style), what, (problem.remedy, "dim"))
            yield Padding(line, (0, 0, 0, 2))
    if len(shown) > MOST_CASES:
        yield Text(f"... and {count_noun(len(shown) - MOST_CASES, 'more case')} with problems.")
    yield Text("")


def _next_step(inspection: Inspection, command: str) -> list[RenderableType]:
    errors = [problem for problem in _problems(inspection) if problem.fatal]
    if errors:
        cases = {problem.case for problem in errors}
        where = "" if "" in cases else f" in {count_noun(len(cases), 'case')}"
        text = f"Not ready to train: fix {count_noun(len(errors), 'error')}{where} first."
        return [Text(text, style="bold red")]
    text = "Ready to train:"
    if not inspection.dataset.unlabeled:
        text = (
            "Ready to train. All cases are labeled, and training uses all labels. To simulate few "
            "labels, add --labeled N:"
        )
    return [Text(text, style="bold green"), _whole_line(f"  {command}")]


def _whole_line(text: str, style: str = "") -> Text:
    """One line, however long, so that it can be copied."""
    return Text(text, style, no_wrap=True, overflow="ignore")
