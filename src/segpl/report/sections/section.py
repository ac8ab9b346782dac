"""A part of a report: words, tables and figures under one heading."""

from __future__ import annotations

from dataclasses import dataclass, field

from matplotlib.figure import Figure

from segpl.report.tables import Table

WIDE = 6.5  # inches


@dataclass(frozen=True, slots=True)
class NamedTable:
    name: str  # of its file among the assets
    table: Table
    title: str = ""
    folded: bool = False  # shown on demand only


@dataclass(frozen=True, slots=True)
class NamedFigure:
    name: str
    figure: Figure
    description: str  # for who cannot see it, and below it

    @property
    def is_wide(self) -> bool:
        """Whether it would be too small to read in a column of several."""
        return bool(self.figure.get_figwidth() > WIDE)


@dataclass(frozen=True, slots=True)
class Section:
    key: str  # its address in the page
    title: str
    words: tuple[str, ...] = ()
    tables: tuple[NamedTable, ...] = ()
    figures: tuple[NamedFigure, ...] = ()
    missing: tuple[str, ...] = ()  # what could not be shown, and what to do
    notes: tuple[str, ...] = field(default=())  # small print
