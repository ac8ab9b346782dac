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
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path


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
        "--seeds", nargs="+", type=int, default=[], metavar="SEED", help="default: 0 1 2"
    )
    parser.add_argument("--steps", type=int, help="training steps (default 2000)")
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
    parser.add_argument("--jobs", type=int, default=1, help="runs to train in parallel (default 1)")
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
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any setting of all runs, for example train.lr=0.003, or of one method: "
        "methods.segpl.alpha=1",
    )


def run(args: argparse.Namespace) -> int:
    from segpl.api import compare
    from segpl.display import plain_console
    from segpl.report.tables import print_table

    result = compare(
        args.source or "",
        out=args.out,
        phantom=args.phantom,
        methods=args.methods,
        seeds=args.seeds,
        steps=args.steps,
        labeled=args.labeled,
        test=args.test,
        device=args.device,
        jobs=args.jobs,
        data=args.data,
        only=args.only,
        overrides=args.set,
        command=shlex.join(["segpl", *sys.argv[1:]]),
    )
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
