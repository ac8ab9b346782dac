"""List the unlabeled scans to label next, and why.

Predicts every unlabeled scan of the run once. Skips scans that were labeled
since the run was trained. Save the labels of the listed scans where the dataset
expects them, or use `segpl label`, then train a new run.

Rules:
  entropy       uncertain predictions, for each class in turn, with noise that
                decays as labels are added (default)
  disagreement  networks of the run disagree on the boundary
  distance      unlike the labeled scans and each other
  random        random scans with predicted foreground (baseline)

Examples:
  segpl next runs/a
  segpl next runs/a --count 10 --rule disagreement
  segpl next runs/a --out next.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path

from segpl.cli.options import add_checkpoint, add_rule, next_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder")
    parser.add_argument(
        "--count", type=int, default=5, metavar="N", help="maximum number of scans (default: 5)"
    )
    add_rule(parser)
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of the random choices (default: 0)"
    )
    parser.add_argument("--device", default="auto", help="auto (default), cpu, cuda or cuda:N")
    add_checkpoint(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--out", type=Path, metavar="CSV", help="also write a CSV file")


def run(args: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from segpl.assembly import open_dataset
    from segpl.display import plain_console, say
    from segpl.files import write_text
    from segpl.labeling.label_files import label_targets
    from segpl.labeling.ranking import rank_cases, require_numbers, require_rule
    from segpl.records import csv_text, require_own_table
    from segpl.report.tables import Table, number, print_table
    from segpl.run import load_run

    require_rule(args.rule)  # before the run is loaded
    require_numbers(args.count, args.seed)
    columns = ("case", "score", "reason")
    if args.out:
        require_own_table(args.out, columns)
    trained = load_run(args.run, device=args.device, checkpoint=args.checkpoint)
    found = rank_cases(trained, rule=args.rule, count=args.count, seed=args.seed)
    if args.out:
        rows = [(one.case, one.score, one.reason) for one in found]
        write_text(args.out, csv_text([columns, *rows]))
    if args.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
        return 0
    rows_shown = [[one.case, number(one.score), one.reason] for one in found]
    print_table(Table(list(columns), rows_shown), plain_console(soft_wrap=False))
    source = trained.config.data
    places = label_targets(open_dataset(trained.config), None).values()
    needs_folder = not source.labels and None in places
    labels = "my-labels" if needs_folder else source.labels or None
    given = {"data": source.path, "labels": labels, "run": args.run, "rule": args.rule}
    say(f"To label them: {next_command('label', given)}")
    return 0
