"""`log.csv`: what training measured, the same to the bit for the same seed and machine."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from segpl.files import append_text, write_text


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as lines, with quotes around names that hold a comma."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class CsvLog:
    """Rows of numbers, each on the disk as soon as it is added.

    The columns are those of the first row.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = []

    def cut_after(self, step: int) -> None:
        """Drop rows of steps that a resumed training will take again, and a torn last row."""
        if not self.path.exists():
            return
        with self.path.open(newline="", encoding="utf-8") as handle:
            rows = list(csv.reader(handle))
        if not rows:
            return
        self.columns = rows[0]
        kept = [
            row
            for row in rows[1:]
            if len(row) == len(self.columns) and row[0].isdigit() and int(row[0]) <= step
        ]
        if not kept:
            self.columns = []
            self.path.unlink()
            return
        write_text(self.path, csv_text([rows[0], *kept]))

    def last(self, column: str) -> float:
        """The newest number of a column; 0 where there is none yet."""
        if not self.path.exists():
            return 0.0
        with self.path.open(newline="", encoding="utf-8") as handle:
            rows = list(csv.DictReader(handle))
        return float(rows[-1][column]) if rows else 0.0

    def add(self, row: Mapping[str, float | int]) -> None:
        is_new = not self.columns
        if is_new:
            self.columns = list(row)
        assert set(row) == set(self.columns), "a log keeps its columns"
        line = ",".join(repr(row[name]) for name in self.columns) + "\n"
        append_text(self.path, ",".join(self.columns) + "\n" + line if is_new else line)
