"""Train several methods on the same cases, with several seeds, and score them on the test cases.

Every seed draws its own labeled cases, weights and crops; the test cases stay the same, and all
methods of a seed share labels, plan and network. An interrupted comparison goes on where it was.

Examples:
  segpl compare data --labeled 8 --steps 1000 --out comparison
  segpl compare data --methods segpl mean-teacher --seeds 0 1 --out comparison
  segpl compare --phantom --seeds 0 1 2 3 4 --out comparison    generated scans, no data needed
  segpl compare data --set methods.segpl.alpha=1 --set methods.ua-mt.network.dropout=0.5 --out c
  segpl compare data --config benchmarks/comparison/drive.toml --jobs 8 --out comparison
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, nargs="?", help="folder of the dataset")
    parser.add_argument("--phantom", action="store_true", help="generate lung vessels as data")
    parser.add_argument("--out", type=Path, required=True, help="folder of the comparison")
    parser.add_argument(
        "--methods",
        nargs="+",
        metavar="METHOD",
        help="or labels of variants (default: all); supervised is always there",
    )
    parser.add_argument("--seeds", nargs="+", type=int, metavar="SEED", help="default: 0 1 2")
    parser.add_argument("--steps", type=int, help="of each training (default 2000)")
    parser.add_argument(
        "--labeled",
        type=int,
        metavar="N",
        help="keep N labels, hide the others; 0: all, where no method needs unlabeled cases",
    )
    parser.add_argument("--test", type=int, metavar="N", help="hold N labeled cases out to score")
    parser.add_argument("--device", help="auto (default), cpu, cuda or cuda:N")
    parser.add_argument(
        "--jobs", type=int, default=1, help="trainings at the same time (default 1)"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="TOML",
        help="settings of all; [compare] has methods and seeds, [methods.NAME] those of one "
        "method, or of a variant of the method that its key 'method' names",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any setting of all, such as train.lr=0.003, or of one: methods.segpl.alpha=1",
    )


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from segpl.errors import InputError
    from segpl.experiments.compare import (
        BASELINE,
        compare,
        compare_settings,
        read_compare_config,
    )
    from segpl.files import write_text
    from segpl.report.comparison.outcomes import seeds_table
    from segpl.report.comparison.words import comparison_words
    from segpl.report.tables import as_markdown, print_table
    from segpl.settings import with_overrides

    if bool(args.data) == args.phantom:
        raise InputError("name one dataset, or give --phantom to generate one.")
    given = [
        f"{key}={value}"
        for key, value in (
            ("train.steps", args.steps),
            ("train.device", args.device),
            ("split.labeled", args.labeled),
            ("split.test", args.test),
        )
        if value is not None
    ]
    content = read_compare_config(args.config) if args.config else {}
    content = with_overrides(content, [*given, *args.set])
    settings = compare_settings(content, args.methods, args.seeds)
    outcomes = compare(args.data, args.out, settings, jobs=args.jobs)
    table = seeds_table(outcomes, BASELINE, jobs=args.jobs)
    words = comparison_words(outcomes, BASELINE, own_cases=args.phantom)
    listed = "".join(f"\n- {line}" for line in words)
    write_text(args.out / "comparison.md", f"{as_markdown(table)}{listed}\n")
    console = Console(highlight=False, soft_wrap=True)
    print_table(table, console)
    for line in words:
        console.print(line, markup=False)
    console.print(f"One row for each training: {shlex.quote(str(args.out / 'comparison.csv'))}")
    failed = [outcome for outcome in outcomes if outcome.error]
    for outcome in failed:
        console.print(f"{outcome.method}, seed {outcome.seed}: {outcome.error}", markup=False)
    return 1 if failed else 0
