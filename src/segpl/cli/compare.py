"""Compare methods on the same cases over several seeds.

The seed determines labeled cases, initial weights and crops. Test and
validation cases stay the same, and all methods with one seed share labels,
plan and network. Pass a dataset to compare methods with supervised training on
its test cases, or a TOML file with datasets, variants and questions. The result
is OUT/report.html, with significance tests. An interrupted comparison resumes
where it stopped.

Examples:
  segpl compare data --labeled 8 --test 20 --steps 1000 --out comparison
  segpl compare data --test 20 --methods segpl cps --seeds 0 1 --out comparison
  segpl compare data --test 20 --set methods.segpl.alpha=1 --out comparison
  segpl compare --phantom --out comparison                # generated scans
  segpl compare questions.toml --data /datasets --jobs 8 --out comparison
  segpl compare questions.toml --only hippocampus --out comparison
  segpl compare data --test 20 --dry-run --out comparison # expected time
  segpl compare data --test 20 --on ray --gpus 1 --out comparison
  segpl compare data --test 20 --on slurm --gpus 1 --jobs 16 --out comparison
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from segpl.cli.options import add_engine, add_overrides, chosen_engine, require_script

if TYPE_CHECKING:
    from segpl.experiments.engines.base import Engine
    from segpl.experiments.experiment import Experiment

EXPERIMENT_OPTIONS = ("phantom", "methods", "seeds", "steps", "labeled", "test", "device")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        type=Path,
        nargs="?",
        help="dataset folder, or TOML file that describes an experiment",
    )
    parser.add_argument("--phantom", action="store_true", help="use generated lung vessels as data")
    parser.add_argument("--out", type=Path, required=True, help="output folder")
    parser.add_argument(
        "--methods",
        nargs="+",
        default=[],
        metavar="METHOD",
        help="methods or variants to compare with supervised training (default: all)",
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[], metavar="N", help="seeds (default: 0 1 2)"
    )
    parser.add_argument(
        "--steps", type=int, help="steps per run (default: 2000; segpl train takes up to 6000)"
    )
    parser.add_argument(
        "--labeled",
        type=int,
        metavar="N",
        help="use N labels and hide the others (default: 0, all labels)",
    )
    parser.add_argument(
        "--test",
        type=int,
        metavar="N",
        help="hold out N labeled cases for testing; needed if the dataset has no test cases",
    )
    parser.add_argument("--device", help="auto (default), cpu, cuda or cuda:N")
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(),
        metavar="ROOT",
        help="folder that contains the datasets of a TOML file (default: the current folder)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="DATASET",
        help="train on these datasets of a TOML file only",
    )
    add_overrides(
        parser,
        "any setting of all runs, for example train.lr=0.003, or of one method: "
        "methods.segpl.alpha=1",
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="print the number of runs and the expected time, estimated from a few training steps "
        "of each method; writes no runs",
    )
    add_engine(parser, "run")


def run(args: argparse.Namespace) -> int:
    from segpl.api import read_comparison
    from segpl.display import plain_console
    from segpl.experiments.compare import run_experiment
    from segpl.report.tables import print_table

    described = {name: getattr(args, name) for name in EXPERIMENT_OPTIONS}
    experiment = read_comparison(args.source or "", overrides=args.set, **described)
    engine = chosen_engine(args, args.out)
    if args.dry_run or args.print:
        show_plan(args, experiment, engine)
        return 0
    command = shlex.join(["segpl", *sys.argv[1:]])
    where = {"root": args.data, "only": args.only, "engine": engine}
    result = run_experiment(experiment, args.out, command=command, **where)
    console = plain_console()
    for answer in result.answers:
        console.print(f"\n{answer.title}")
        print_table(answer.table, console)
        for sentence in answer.sentences:
            console.print(sentence)
    console.print(f"\nOne row per run: {shlex.quote(str(args.out / 'comparison.csv'))}")
    if result.page.exists():
        console.print(f"Open {shlex.quote(str(result.page))} in a browser.")
    for title, error in result.failures.items():
        console.print(f"{title} failed: {error}")
    return 1 if result.failures else 0


def show_plan(args: argparse.Namespace, experiment: Experiment, engine: Engine) -> None:
    """Print the batch script of Slurm, or the number of runs and their expected time."""
    from segpl.display import plain_console
    from segpl.experiments.estimate import batch_script, estimate_comparison

    console = plain_console()
    if args.print:
        script = batch_script(experiment, args.out, require_script(engine), args.only)
        console.print(script)
    if args.dry_run:
        estimate = estimate_comparison(experiment, args.out, engine, root=args.data, only=args.only)
        for sentence in estimate.sentences:
            console.print(sentence)
