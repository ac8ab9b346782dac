"""Score predictions against labels: one row for each case, class and metric."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("predictions", type=Path, help="folder that `segpl predict` wrote")
    parser.add_argument(
        "labels", type=Path, help="folder of label files, or a dataset whose labels are used"
    )
    parser.add_argument(
        "--out", type=Path, help="table to write (default: scores.csv beside the predictions)"
    )


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from segpl.evaluate.scores import pair_cases, score_pairs, write_scores
    from segpl.report.tables import counted, print_table, summary_table

    # names and paths are shown as they are, on one line, for copying
    notes = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    pairing = pair_cases(args.predictions, args.labels)
    columns = (TextColumn("scoring"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=notes, transient=True) as progress:
        task = progress.add_task("scoring", total=len(pairing.pairs))
        scores = score_pairs(pairing, advance=lambda: progress.advance(task))
    out: Path = args.out or args.predictions / "scores.csv"
    write_scores(out, scores)

    print_table(summary_table(scores), Console())
    if pairing.without_label:
        names = ", ".join(pairing.without_label)
        notes.print(f"Not scored, for want of a label: {names}", style="yellow")
    if pairing.without_prediction:
        count = counted(len(pairing.without_prediction), "case")
        notes.print(f"Labelled but not predicted: {count}.")
    notes.print(f"Scores of each case: {out}")
    return 0
