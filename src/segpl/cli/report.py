"""Write an HTML report: the best method, its lead, and all scores.

The report is a single file that opens offline. It has tables, curves, pictures
of every scored case, and the commands that reproduce it. Runs that differ only
in their seed count as one method. Test cases without scores are predicted and
scored first; for a run without test cases, a few unlabeled scans are predicted.
The report lists what is missing.

Examples:
  segpl report runs/a runs/b --out report.html
  segpl report comparison/runs/* --out report.html --fill  # every metric
  segpl report runs/* --stress stress/stress.csv --out report.html
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from segpl.cli.options import next_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run folders")
    parser.add_argument(
        "--out", type=Path, required=True, help="file to write, such as report.html"
    )
    parser.add_argument(
        "--stress", type=Path, metavar="CSV", help="stress.csv that `segpl stress` wrote"
    )
    parser.add_argument(
        "--assets",
        type=Path,
        metavar="DIR",
        help="also write every table as CSV and LaTeX, and every figure as PNG and SVG",
    )
    parser.add_argument(
        "--fill",
        action="store_true",
        help="first predict the test cases of all runs with probabilities and 5 samples, and "
        "score them by every metric; existing files are kept, except that masks without "
        "probabilities are predicted again",
    )
    parser.add_argument(
        "--device", default="auto", help="for predictions: auto (default), cpu, cuda or cuda:N"
    )


def run(args: argparse.Namespace) -> int:
    from segpl.display import plain_console
    from segpl.errors import InputError
    from segpl.report.collection import without_scores
    from segpl.report.page.report import check_files, write_report
    from segpl.report.sections.answer import answers

    if args.out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--out {args.out} must end with .html.")
    check_files(args.out, args.assets, args.stress)
    failed: list[Path] = []
    if args.fill:
        from segpl.experiments.scoring import fill_all

        failed = fill_all(args.runs, device=args.device)
    elif missing := without_scores(args.runs):
        from segpl.experiments.scoring import predict_missing

        predict_missing(missing, device=args.device)
    given = {"stress": args.stress, "assets": args.assets}
    known = {"runs": args.runs, "out": args.out, "fill": args.fill, **given}
    command = next_command("report", known)
    found = write_report(args.runs, args.out, command=command, **given)
    console = plain_console()
    for each in answers(found):
        console.print(each.headline)
    notes = plain_console(stderr=True)
    for name, why in found.left_out.items():
        notes.print(f"{name} is left out: {why}", style="yellow")
    for problem in found.problems("scores"):
        notes.print(problem, style="yellow")
    console.print(f"Open {shlex.quote(str(args.out))} in a browser.")
    return 1 if found.left_out or failed else 0
