"""`log.csv` and other tables of a run. The same seed and machine give the same `log.csv`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from segpl.errors import InputError, MissingFileError
from segpl.files import append_text, write_text
from segpl.records import csv_text, read_csv


class CsvLog:
    """Appends rows of numbers to a CSV file, each to disk at once.

    The first row sets the columns.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = []

    def cut_after(self, step: int) -> None:
        """Drop the rows after `step`, which a resumed run repeats, and a half-written last row."""
        if not self.path.exists():
            return
        rows = read_csv(self.path)
        self.columns = rows[0] if rows else []
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
        """The latest value of a column; 0 without rows."""
        if not self.path.exists():
            return 0.0
        values = read_log(self.path).get(column)
        return values[-1] if values else 0.0

    def add(self, row: Mapping[str, float | int]) -> None:
        is_new = not self.columns
        if is_new:
            self.columns = list(row)
        if set(row) != set(self.columns):
            raise InputError(
                f"{self.path} has the columns {','.join(self.columns)[:80]}, not those of this "
                "run. The file was edited or damaged: restore it, or train again."
            )
        line = ",".join(repr(row[name]) for name in self.columns) + "\n"
        append_text(self.path, ",".join(self.columns) + "\n" + line if is_new else line)


def read_log(path: Path) -> dict[str, list[float]]:
    """The columns of a `log.csv` or `times.csv`; an empty cell is nan."""
    if not path.is_file():
        raise MissingFileError(f"{path} does not exist. Training writes it.")
    header, *rows = read_csv(path) or [[]]
    if not header or header[0] != "step":
        raise InputError(
            f"{path} is not a training log: its first column is not 'step' but "
            f"'{','.join(header)[:80]}'. Use the log.csv of a run folder."
        )
    log: dict[str, list[float]] = {column: [] for column in header}
    for number, row in enumerate(rows, 2):
        try:
            for column, cell in zip(header, row, strict=True):
                log[column].append(float(cell) if cell else float("nan"))
        except ValueError as error:
            raise InputError(
                f"{path}, row {number}: '{','.join(row)[:80]}' does not match the columns "
                f"{', '.join(header)[:200]}. The file is damaged: delete the row, or train again."
            ) from error
    return log
