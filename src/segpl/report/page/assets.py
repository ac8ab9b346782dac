"""Tables and figures of a report as separate files: CSV, LaTeX, PNG, SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segpl.errors import InputError
from segpl.files import nearest_folder, require_writable, write_text
from segpl.records import csv_text
from segpl.report.figures import save_figure
from segpl.report.sections.section import Section
from segpl.report.tables import Table

PRINT_DPI = 200
LATEX = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "²": r"$^2$", "<": r"$<$", ">": r"$>$", "…": r"\dots{}"}
)


def write_assets(folder: Path, sections: Sequence[Section]) -> None:
    """Every table as CSV and LaTeX, every figure as PNG and SVG."""
    require_own_assets(folder, sections)
    for section in sections:
        for entry in section.tables:
            table = entry.table
            write_text(folder / f"{entry.name}.csv", csv_text([table.columns, *table.rows]))
            write_text(folder / f"{entry.name}.tex", as_latex(table))
        for shown in section.figures:
            for suffix in ("png", "svg"):
                save_figure(shown.figure, folder / f"{shown.name}.{suffix}", dpi=PRINT_DPI)


def require_assets_folder(folder: Path) -> None:
    """Raise if assets cannot be written into `folder`. Creates nothing."""
    if not (nearest := nearest_folder(folder)).is_dir():
        raise InputError(
            f"{nearest} is not a folder, so nothing can be written to {folder}. Choose another "
            "--assets."
        )
    require_writable(folder / "scores.csv")


def require_own_assets(folder: Path, sections: Sequence[Section]) -> None:
    """Refuse to replace other files: assets come in pairs, such as scores.csv and scores.tex."""
    for section in sections:
        names = [(entry.name, "csv", "tex") for entry in section.tables]
        names += [(entry.name, "png", "svg") for entry in section.figures]
        for name, *suffixes in names:
            found = [path for suffix in suffixes if (path := folder / f"{name}.{suffix}").exists()]
            if len(found) == 1:
                raise InputError(
                    f"{found[0]} exists and was not written by a report. Choose another --assets."
                )


def as_latex(table: Table) -> str:
    """A `tabular` with significant differences in bold, and the note as a comment."""
    lines = [
        f"% {escape_latex(table.note)}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\hline",
        " & ".join(map(escape_latex, table.columns)) + r" \\",
        r"\hline",
    ]
    for index, row in enumerate(table.rows):
        cells = [
            rf"\textbf{{{cell}}}" if (index, column) in table.bold else cell
            for column, cell in enumerate(map(escape_latex, row))
        ]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def escape_latex(text: str) -> str:
    return " ".join(text.split()).translate(LATEX)
