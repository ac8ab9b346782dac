"""Try segpl without data: compare the default with supervised training.

Generates 3 labeled, 40 unlabeled and 20 test scans of the pelvis, trains both
methods, scores the test cases, and writes demo.html. Takes 1 to 2 minutes on
two CPU cores.

Examples:
  segpl demo
  segpl demo --methods supervised segpl segpl-vi  # the methods of the paper
"""

from __future__ import annotations

import argparse
from pathlib import Path

from segpl.cli.options import next_command

STEPS = 400


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, help="default: segpl-demo, with a suffix for another --seed or --steps"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["supervised", "bpl-mix"],
        metavar="METHOD",
        help="methods to train (default: supervised bpl-mix)",
    )
    parser.add_argument(
        "--steps", type=int, default=STEPS, help=f"steps per method (default: {STEPS})"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of scans and weights (default: 0)"
    )


def run(args: argparse.Namespace) -> int:
    from segpl.display import plain_console
    from segpl.experiments.demo import run_demo
    from segpl.report.sections.answer import answers
    from segpl.report.sections.scores import methods_table
    from segpl.report.tables import print_table
    from segpl.settings import resolve

    out = args.out or default_folder(args.steps, args.seed)
    methods = list(dict.fromkeys(args.methods))
    train = {"steps": args.steps, "seed": args.seed}
    for method in methods:  # reject wrong options before anything slow
        resolve({"method": {"name": method}, "train": train})
    command = next_command("demo", vars(args))
    found = run_demo(out, methods, steps=args.steps, seed=args.seed, command=command)
    console = plain_console()
    print_table(methods_table(found), console)
    for answer in answers(found):
        console.print(answer.headline, *answer.sentences)
    console.print(f"Open {out / 'demo.html'} in a browser.")
    return 0


def default_folder(steps: int, seed: int) -> Path:
    """A folder for each length and seed: a longer run would resume a shorter one."""
    parts = ("segpl-demo", str(seed or ""), f"{steps}-steps" if steps != STEPS else "")
    return Path("-".join(part for part in parts if part))
