"""Axes of an experiment: every combination of their values is a run.

An axis over a setting of methods makes variants of them, which are compared with each other. Any
other axis repeats the comparison for each value, like a dataset of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from segpl.errors import InputError, did_you_mean
from segpl.methods.base import METHODS
from segpl.records import flat_items
from segpl.settings import DEFAULT_METHOD, merge_settings, resolve

SHORT_NAMES = {"labels": "split.labeled", "seed": "train.seed"}
UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")  # in the name of a folder


@dataclass(frozen=True, slots=True)
class Axis:
    setting: str  # full name, such as `split.labeled` or `method.alpha`
    values: tuple[Any, ...]

    @property
    def is_of_method(self) -> bool:
        return self.setting.startswith("method.")

    def name(self, value: Any) -> str:
        """How the value appears in the name of a variant or a dataset: `alpha-0.1`."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return f"{self.setting.rpartition('.')[2]}-{UNSAFE.sub('-', text)}"

    def table(self, value: Any) -> dict[str, Any]:
        """The value as a section; settings of a method have none."""
        result = value
        for key in reversed(self.setting.removeprefix("method.").split(".")):
            result = {key: result}
        return dict(result)


@dataclass(frozen=True, slots=True)
class Axes:
    where: str  # for messages
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    settings: tuple[Axis, ...] = ()

    def datasets(self, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
        """Each dataset once for every combination of the settings that are not of methods."""
        result: dict[str, Mapping[str, Any]] = {}
        for name, table in tables.items():
            if self.seeds and "seeds" in table:
                raise InputError(f"{self.where}: [datasets.{name}] has seeds, too. Remove one.")
            seeds = {"seeds": list(self.seeds)} if self.seeds else {}
            for names, given in combinations(a for a in self.settings if not a.is_of_method):
                full = "-".join((name, *names))
                self._reject_repeated(full, result)
                result[full] = merge_settings({**table, **seeds}, given)
        return result

    def variants(
        self, tables: Mapping[str, Mapping[str, Any]]
    ) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
        """All variants, with those of the axes, and the names of the ones to compare."""
        own = [axis for axis in self.settings if axis.is_of_method]
        if not (self.methods or own):
            return dict(tables), []
        result, chosen = dict(tables), list[str]()
        used: set[str] = set()
        for label in self.methods or (DEFAULT_METHOD,):
            method = str(tables.get(label, {}).get("method", label))
            known = method_settings(method) if method in METHODS.classes else set[str]()
            fitting = [axis for axis in own if axis.setting in known]
            used |= {axis.setting for axis in fitting}
            for names, given in combinations(fitting):
                full = "-".join((label, *names))
                if names:
                    self._reject_repeated(full, result)
                    base = {**tables.get(label, {}), "method": method}
                    result[full] = merge_settings(base, given)
                chosen.append(full)
        if unused := [axis.setting for axis in own if axis.setting not in used]:
            raise InputError(
                f"{self.where}: no method of the comparison has the setting '{unused[0]}'."
            )
        return result, chosen

    def _reject_repeated(self, name: str, known: Mapping[str, Any]) -> None:
        if name in known:
            raise InputError(
                f"{self.where}: two runs would write to the same folder, '{name}'. Remove or "
                "rename one of them."
            )


def combinations(axes: Iterable[Axis]) -> Iterator[tuple[list[str], dict[str, Any]]]:
    """The names and the settings of every combination of values."""
    for chosen in product(*([(axis, value) for value in axis.values] for axis in axes)):
        names, given = [], dict[str, Any]()
        for axis, value in chosen:
            names.append(axis.name(value))
            given = merge_settings(given, axis.table(value))
        yield names, given


def parse_axes(content: Any, source: str) -> Axes:
    """Check the table [axes] of a file."""
    where = f"{source}: [axes]"
    if not isinstance(content, Mapping):
        raise InputError(f"{where} is {content!r}, but must be a table.")
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    axes: list[Axis] = []
    found: set[str] = set()
    for name, values in flat_items(content):
        if not isinstance(values, list) or not values:
            raise InputError(f"{where}: {name} is {values!r}, but must be a list of values.")
        if any(value in values[:place] for place, value in enumerate(values)):
            raise InputError(f"{where}: {name} is {values}, but each value may appear only once.")
        setting = name if name == "method" else find_setting(name, where)
        if setting in found:
            raise InputError(f"{where}: {setting} is given twice. Remove one.")
        found.add(setting)
        if setting == "method":
            methods = tuple(map(str, values))
        elif setting == "train.seed":
            seeds = tuple(values)
        else:
            axes.append(Axis(setting, tuple(values)))
    return Axes(where, methods, seeds, tuple(axes))


def find_setting(name: str, where: str) -> str:
    """The full name of a setting; the section may be left out if only one has it."""
    known = {setting for method in METHODS.names for setting in method_settings(method)}
    known |= {name for name in resolve({}).leaves() if not name.startswith("method.")}
    full = SHORT_NAMES.get(name, name)
    if full in known:
        return full
    found = sorted(one for one in known if one.partition(".")[2] == full)
    if len(found) > 1:
        raise InputError(f"{where}: '{name}' can be {' or '.join(found)}. Write it in full.")
    if not found:
        short = {one.partition(".")[2] for one in known} | {"method", *SHORT_NAMES}
        raise InputError(f"{where}: no setting '{name}'. {did_you_mean(name, known | short)}")
    return found[0]


@cache
def method_settings(method: str) -> set[str]:
    leaves = resolve({"method": {"name": method}}).leaves()
    return {name for name in leaves if name.startswith("method.") and name != "method.name"}
