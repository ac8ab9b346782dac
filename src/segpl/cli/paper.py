"""Repeat an experiment of the paper: carve, brats2018, task01 or task05.

Checks the unpacked dataset, prepares it as the paper describes, trains all
methods of the paper's table, prints our numbers next to the paper's, and
redraws its figures. `segpl data get` downloads Task01 and Task05; CARVE and
BRATS require registration. Any other dataset given with --data replaces the
paper's, and the tables name both. The paper's settings and numbers, and what it
leaves open, are in benchmarks/paper/NAME.toml. An interrupted command resumes
where it stopped.

Examples:
  segpl data get task05 --out data
  segpl paper task05 --data data/Task05_Prostate --jobs 2 --out paper-task05
  segpl paper carve --data CARVE14 --only volumes-2 --seeds 0 --out carve
  segpl paper carve --data DRIVE --set paper.data.unlabeled=12 --out drive
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from segpl.cli import compare
from segpl.cli.options import add_engine, add_overrides, chosen_engine, parser_of

if TYPE_CHECKING:
    from segpl.data.paper.other import OtherData


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="carve, brats2018, task01 or task05")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help="folder of the unpacked dataset"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="output folder (default: paper-NAME)"
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[], metavar="N", help="seeds (default: 0 1 2 3 4)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="DATASET",
        help="numbers of labels, such as volumes-2 (default: all)",
    )
    parser.add_argument("--device", help="auto (default), cpu, cuda or cuda:N")
    add_overrides(
        parser,
        "any setting of all runs, such as train.steps=100, or of the preparation, such as "
        "paper.data.test=10",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="prepare the data and print the number of runs and their time, without training",
    )
    parser.add_argument(
        "--iou-only",
        action="store_true",
        help="print only the IoU table; skip the figures and the tables of cost, robustness and "
        "uncertainty",
    )
    add_engine(parser, "run")


def run(args: argparse.Namespace) -> int:
    from segpl.display import plain_console
    from segpl.experiments.engines.base import Task
    from segpl.experiments.paper.extras import extras
    from segpl.experiments.paper.results import write_csv
    from segpl.experiments.paper.run import PLAN, PREPARED, read_paper
    from segpl.report.tables import print_table

    paper = read_paper(args.name, args.set)
    out = args.out or Path(f"paper-{args.name}")
    # the preparation may take long: wrong options and a missing cluster are errors before it
    engine = chosen_engine(args, out)
    if not (args.print or (out / "data" / PREPARED).exists()):
        engine.check([Task("", str, args.device or "auto")])
    experiment = paper.experiment(out / "data" / PLAN, args.seeds)
    names = [dataset.name for dataset in experiment.datasets]
    experiment.require_datasets(args.only)
    only = args.only
    if other := paper.prepare(args.data, out / "data"):
        paper = paper.on(other, out / "data")
        only = chosen_budgets(other, only, names)
    plan = (out / "data" / PLAN).resolve()
    own = {"data": out / "data", "only": only, "set": [f"data.plan={plan}", *paper.overrides]}
    given = argparse.Namespace(**vars(args) | own)  # replaces the defaults of `segpl compare`
    words = [str(paper.file), "--out", str(out)]
    code = compare.run(parser_of("compare").parse_args(words, given))
    if args.dry_run or args.print:
        return code
    device = args.device or "auto"
    results = paper.results(out, plan, args.seeds, device=device)
    console, table = plain_console(), results.iou_table()
    print_table(table, console)
    write_csv(out / "paper.csv", table)
    console.print(f"IoU: {shlex.quote(str(out / 'paper.csv'))}")
    for shown in () if args.iou_only else extras(results, out, device=device):
        if isinstance(shown, str):
            console.print(shown)
        else:
            print_table(shown, console)
    return code


def chosen_budgets(other: OtherData, only: Sequence[str], names: Sequence[str]) -> Sequence[str]:
    """The numbers of labels to train with, if another dataset replaces the paper's."""
    from segpl.display import say
    from segpl.errors import InputError

    fewer = "Use fewer unlabeled cases with --set paper.data.unlabeled=N and another --out."
    left_out = ", ".join(name for name in only or names if name not in other.budgets)
    if only and left_out:
        raise InputError(f"--only {left_out}: {other.name} has too few labels. {fewer}")
    say(f"{other.name} replaces the paper's dataset.")
    if left_out:
        say(f"Left out, because the dataset has too few labels: {left_out}. {fewer}")
    return only or other.budgets
