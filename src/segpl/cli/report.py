"""Show runs on one page: which method is best, by how much, is it sure; then all that was measured.

The page is one file that opens offline: tables, curves, slices of the worst, median and best case
of each run, and how to repeat it. Runs that differ in their seed alone are one method. What a run
lacks is told on the page.

Examples:
  segpl report runs/a runs/b --out report.html
  segpl report comparison/runs/* --out report.html --fill       predict and score what is missing
  segpl report comparison/runs/* --stress stress/stress.csv --assets figures --out report.html
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folders of runs")
    parser.add_argument("--out", type=Path, required=True, help="the page, such as report.html")
    parser.add_argument(
        "--stress", type=Path, metavar="CSV", help="table that `segpl stress` wrote of these runs"
    )
    parser.add_argument(
        "--assets",
        type=Path,
        metavar="DIR",
        help="every table as CSV and LaTeX too, every figure as PNG and SVG",
    )
    parser.add_argument(
        "--fill",
        action="store_true",
        help="first predict the test cases of each run, with probabilities and 5 samples, and "
        "score them by every metric; what is there is kept",
    )
    parser.add_argument("--device", default="auto", help="of --fill: auto, cpu, cuda or cuda:N")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from segpl.errors import InputError
    from segpl.experiments.report import fill_all, make_report
    from segpl.report.sections.answer import answers

    if args.out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {args.out} is no page: give a name that ends with .html.")
    if args.fill:
        fill_all(args.runs, device=args.device)
    options = [
        part
        for name, value in (("--stress", args.stress), ("--assets", args.assets))
        if value
        for part in (name, str(value))
    ]
    command = shlex.join(
        ["segpl", "report", *map(str, args.runs), *options, "--out", str(args.out)]
    )
    found = make_report(
        args.runs, args.out, stress=args.stress, assets=args.assets, command=command
    )
    console = Console(highlight=False, markup=False, soft_wrap=True)
    for each in answers(found):
        console.print(each.headline)
    notes = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    for name, why in found.broken.items():
        notes.print(f"{name} is left out: {why}", style="yellow")
    console.print(f"Open {shlex.quote(str(args.out))} in a browser.")
    return 1 if found.broken else 0
