"""How to reproduce a report: commands, settings, cases and versions of every run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from segpl.report.collection import RunCollection
from segpl.report.run_record import RunRecord
from segpl.report.sections.section import NamedTable, Section
from segpl.report.tables import Table

SPLIT_PARTS = ("labeled", "unlabeled", "validation", "test")
IN_DATA_TABLE = ("data.path", "data.layout", "data.plan")


@dataclass(frozen=True, slots=True)
class Reproduction:
    """How to train one run again."""

    name: str
    command: str
    started_by: str  # the original command, which may have trained other runs too
    cases: tuple[tuple[str, str], ...]  # part of the split -> names


def repeat_section(found: RunCollection) -> Section:
    tables = [
        NamedTable("settings", settings_table(found), "Settings"),
        NamedTable("splits", split_table(found), "Data and cases"),
        NamedTable("versions", versions_table(found), "Versions"),
    ]
    if any(run.postprocessing for run in found.runs):
        tables.insert(2, NamedTable("components", component_table(found), "Post-processing"))
    missing = found.problems("no post-processing")
    return Section("repeat", "Reproduce", tables=tuple(tables), missing=missing)


def reproductions(found: RunCollection) -> list[Reproduction]:
    return [
        Reproduction(run.name, train_command(run), started_by(run.environment), case_names(run))
        for run in found.runs
    ]


def train_command(run: RunRecord) -> str:
    """The command that trains this run again from its config and plan."""
    config, plan = run.path / "config.toml", run.path / "plan.json"
    return shlex.join(
        ["segpl", "train", "--config", str(config), "--set", f"data.plan={plan}", "--out", "NEW"]
    )


def settings_table(found: RunCollection) -> Table:
    """One column per method; all values where its runs differ, for example in the seed."""
    names = sorted(
        {name for run in found.runs for name in run.summary.changed} - set(IN_DATA_TABLE)
    )

    def values(label: str, name: str) -> str:
        known = [str(run.settings[name]) for run in found.of(label) if name in run.settings]
        return ", ".join(dict.fromkeys(known)) or "-"

    return Table(
        columns=["setting", *found.labels],
        rows=[[name, *(values(label, name) for label in found.labels)] for name in names],
        note="Settings that differ from their default. A dash: the method has no such setting.",
    )


def split_table(found: RunCollection) -> Table:
    return Table(
        columns=["run", "data", *SPLIT_PARTS],
        rows=[
            [
                run.name,
                run.dataset,
                *(str(len(getattr(run.split, part))) if run.split else "-" for part in SPLIT_PARTS),
            ]
            for run in found.runs
        ],
        note="Numbers of cases. Their names are below, and in split.json of each run folder.",
    )


def component_table(found: RunCollection) -> Table:
    """One row for all runs with the same decision on a class."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for run in found.runs:
        decided = run.postprocessing
        if decided is None:
            continue
        chosen = decided.checkpoints.get("last", decided).largest
        for name, labels in decided.labels.items():
            kept = "largest component" if name in chosen else "all components"
            if labels.is_single and kept == "all components":
                kept += " (the largest one alone has a lower validation Dice)"
            row = (name, str(labels.labels), str(labels.in_parts), kept)
            rows.setdefault(row, []).append(run.name)
    return Table(
        columns=["runs", "class", "labels", "with several components", "predictions keep"],
        rows=[[", ".join(names), *row] for row, names in rows.items()],
        note="Components of each class in the training labels, ignoring specks.",
    )


def versions_table(found: RunCollection) -> Table:
    """One row for all runs with the same packages, machine and source."""
    packages = list(dict.fromkeys(name for run in found.runs for name in _packages(run)))
    rows: dict[tuple[str, ...], list[str]] = {}
    for run in found.runs:
        known = run.environment
        cells = (
            known.get("segpl"),
            _commit(known),
            known.get("python"),
            *(_packages(run).get(name) for name in packages),
            known.get("device"),
            known.get("platform"),
        )
        row = tuple("-" if cell is None else str(cell) for cell in cells)
        rows.setdefault(row, []).append(run.name)
    return Table(
        columns=["runs", "segpl", "commit", "python", *packages, "device", "platform"],
        rows=[[", ".join(names), *row] for row, names in rows.items()],
        note="Versions at the start of each run.",
    )


def started_by(environment: Mapping[str, Any]) -> str:
    command = environment.get("command")
    if not isinstance(command, list) or not command:
        return "-"
    first, *rest = (str(part) for part in command)
    name = PurePath(first).name
    return shlex.join(["segpl" if name == "__main__.py" else name, *rest])


def case_names(run: RunRecord) -> tuple[tuple[str, str], ...]:
    if run.split is None:
        return ()
    return tuple((part, ", ".join(getattr(run.split, part)) or "none") for part in SPLIT_PARTS)


def _packages(run: RunRecord) -> Mapping[str, Any]:
    packages = run.environment.get("packages")
    return packages if isinstance(packages, Mapping) else {}


def _commit(environment: Mapping[str, Any]) -> str | None:
    git = environment.get("git")
    if not isinstance(git, Mapping) or not git.get("commit"):
        return None
    return str(git["commit"])[:10] + (" (modified)" if git.get("changed") else "")
