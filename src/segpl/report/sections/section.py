"""One part of a report: text, tables and figures under a heading."""

from __future__ import annotations

from dataclasses import dataclass

from matplotlib.figure import Figure

from segpl.report.tables import Table

WIDE = 6.5  # inches


@dataclass(frozen=True, slots=True)
class NamedTable:
    name: str  # file name among the assets
    table: Table
    title: str = ""
    folded: bool = False  # collapsed until the reader opens it


@dataclass(frozen=True, slots=True)
class NamedFigure:
    name: str
    figure: Figure
    description: str  # caption, and alternative text

    @property
    def is_wide(self) -> bool:
        """Whether it would be unreadable in one of several columns."""
        return bool(self.figure.get_figwidth() > WIDE)


@dataclass(frozen=True, slots=True)
class Section:
    key: str  # anchor
    title: str
    text: tuple[str, ...] = ()
    tables: tuple[NamedTable, ...] = ()
    figures: tuple[NamedFigure, ...] = ()
    missing: tuple[str, ...] = ()  # what could not be shown, and how to get it

    @property
    def is_empty(self) -> bool:
        return not (self.tables or self.figures)
