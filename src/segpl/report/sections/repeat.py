"""How to repeat what a report shows: commands, settings, cases and versions of every run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from segpl.report.gathered import FoundRun, Gathered
from segpl.report.sections.section import NamedTable, Section
from segpl.report.tables import Table

PARTS = ("labeled", "unlabeled", "validation", "test")
OWN = ("data.path", "data.layout", "data.plan")  # told by the table of data


@dataclass(frozen=True, slots=True)
class Recipe:
    """One run, as it could be trained again."""

    name: str
    command: str
    begun_by: str  # the command that trained it, perhaps with others
    cases: tuple[tuple[str, str], ...]  # part of the split -> names


def repeat_section(found: Gathered) -> Section:
    return Section(
        "repeat",
        "How to repeat it",
        words=("Settings that are not the default, one column for each method.",),
        tables=(
            NamedTable("settings", settings_table(found)),
            NamedTable("splits", split_table(found), "Data and cases"),
            NamedTable("versions", versions_table(found), "Versions"),
        ),
    )


def recipes(found: Gathered) -> list[Recipe]:
    return [
        Recipe(run.name, command_of(run), begun_by(run.environment), _cases(run))
        for run in found.runs
    ]


def command_of(run: FoundRun) -> str:
    """What trains this run again, whatever started it: its own config is all it needs."""
    config, plan = run.path / "config.toml", run.path / "plan.json"
    return shlex.join(
        ["segpl", "train", "--config", str(config), "--set", f"data.plan={plan}", "--out", "NEW"]
    )


def settings_table(found: Gathered) -> Table:
    """A column for each method; where its runs differ, such as in their seeds, all values."""
    names = sorted({name for run in found.runs for name in run.changed if name not in OWN})
    return Table(
        columns=["setting", *found.labels],
        rows=[
            [name, *(_values(found.of(label), name) for label in found.labels)] for name in names
        ],
        note="A dash: a setting that the method does not have.",
    )


def split_table(found: Gathered) -> Table:
    return Table(
        columns=["run", "data", "labeled", "unlabeled", "validation", "test"],
        rows=[
            [
                run.name,
                run.dataset,
                *(str(len(getattr(run.split, part))) if run.split else "-" for part in PARTS),
            ]
            for run in found.runs
        ],
        note="Numbers of cases; their names are below and in split.json of each run folder.",
    )


def versions_table(found: Gathered) -> Table:
    """A row for all runs that had the same packages, machine and source."""
    packages = list(
        dict.fromkeys(name for run in found.runs for name in _packages(run.environment))
    )
    rows: dict[tuple[str, ...], list[str]] = {}
    for run in found.runs:
        known = run.environment
        row = (
            _text(known.get("segpl")),
            _commit(known),
            _text(known.get("python")),
            *(_text(_packages(known).get(name)) for name in packages),
            _text(known.get("device")),
            _text(known.get("platform")),
        )
        rows.setdefault(row, []).append(run.name)
    return Table(
        columns=["runs", "segpl", "commit", "python", *packages, "device", "platform"],
        rows=[[", ".join(names), *row] for row, names in rows.items()],
        note="As each run found them when it began.",
    )


def begun_by(environment: Mapping[str, Any]) -> str:
    command = environment.get("command")
    if not isinstance(command, list) or not command:
        return "-"
    first, *rest = (str(part) for part in command)
    name = PurePath(first).name
    return shlex.join(["segpl" if name == "__main__.py" else name, *rest])


def _cases(run: FoundRun) -> tuple[tuple[str, str], ...]:
    if run.split is None:
        return ()
    return tuple((part, ", ".join(getattr(run.split, part)) or "none") for part in PARTS)


def _packages(environment: Mapping[str, Any]) -> Mapping[str, Any]:
    packages = environment.get("packages")
    return packages if isinstance(packages, Mapping) else {}


def _commit(environment: Mapping[str, Any]) -> str:
    git = environment.get("git")
    if not isinstance(git, Mapping) or not git.get("commit"):
        return "-"
    return str(git["commit"])[:10] + (" (changed)" if git.get("changed") else "")


def _values(runs: Sequence[FoundRun], name: str) -> str:
    values = [str(run.settings[name]) for run in runs if name in run.settings]
    return ", ".join(dict.fromkeys(values)) or "-"


def _text(value: object) -> str:
    return "-" if value is None else str(value)
