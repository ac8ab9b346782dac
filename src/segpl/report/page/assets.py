"""Tables and figures of a report as files of their own: CSV, LaTeX, PNG, SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from segpl.files import csv_text, write_atomically, write_text
from segpl.report.sections.section import Section
from segpl.report.tables import Table

DPI = 200
LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "²": r"$^2$",
    "<": r"$<$",
    ">": r"$>$",
    "…": r"\dots{}",
}


def write_assets(folder: Path, sections: Sequence[Section]) -> list[Path]:
    """Every table as CSV and LaTeX, every figure as PNG and SVG; returns the files."""
    written: list[Path] = []
    for section in sections:
        for entry in section.tables:
            table = entry.table
            write_text(folder / f"{entry.name}.csv", csv_text([table.columns, *table.rows]))
            write_text(folder / f"{entry.name}.tex", as_latex(table))
            written += [folder / f"{entry.name}.{suffix}" for suffix in ("csv", "tex")]
        for shown in section.figures:
            for suffix in ("png", "svg"):
                path = folder / f"{shown.name}.{suffix}"
                figure = shown.figure
                write_atomically(
                    path,
                    lambda draft, figure=figure: figure.savefig(draft, dpi=DPI),  # type: ignore[misc]
                )
                written.append(path)
    return written


def as_latex(table: Table) -> str:
    """A `tabular` with the best means in bold, and its note as a comment."""
    lines = [
        f"% {escaped(table.note)}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.columns) - 1)}}}",
        r"\hline",
        " & ".join(map(escaped, table.columns)) + r" \\",
        r"\hline",
    ]
    for number, row in enumerate(table.rows):
        cells = [
            rf"\textbf{{{escaped(cell)}}}" if (number, index) in table.best else escaped(cell)
            for index, cell in enumerate(row)
        ]
        lines.append(" & ".join(cells) + r" \\")
    return "\n".join([*lines, r"\hline", r"\end{tabular}", ""])


def escaped(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in " ".join(text.split()))
