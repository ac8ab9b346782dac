"""See it work with no data at all: three methods on generated lung vessels, and a page of results.

Generates 2 labeled, 16 unlabeled and 8 test volumes, trains supervised, SegPL and SegPL-VI,
scores the test cases and writes demo.html. A few minutes on two CPU cores.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, help="default: segpl-demo, or segpl-demo-N with another seed N"
    )
    parser.add_argument("--steps", type=int, default=350, help="of each training (default 350)")
    parser.add_argument("--seed", type=int, default=0, help="of scans and weights (default 0)")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from segpl.experiments.demo import DemoSettings, run_demo
    from segpl.report.sections.answer import answers
    from segpl.report.sections.scores import methods_table
    from segpl.report.tables import print_table

    out = args.out or Path(f"segpl-demo-{args.seed}" if args.seed else "segpl-demo")
    found = run_demo(out, DemoSettings(steps=args.steps, seed=args.seed))
    console = Console(highlight=False, soft_wrap=True)
    print_table(methods_table(found), console)
    for answer in answers(found):
        console.print(answer.headline, *answer.sentences, markup=False)
    console.print(f"Open {out / 'demo.html'} in a browser.", markup=False)
    return 0
