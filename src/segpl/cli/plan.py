"""Derive a training plan (spacing, patch, network), to read or edit it.

Examples:
  segpl plan data --out plan.json
  segpl plan data --time 12h --out plan.json    # for a long training run
  segpl train data --plan plan.json --out runs/a
"""

from __future__ import annotations

import argparse
from pathlib import Path

from segpl.cli.options import next_command
from segpl.cli.train import add_data_arguments, settings_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, help="dataset folder")
    parser.add_argument(
        "--out", type=Path, required=True, help="file to write, for example plan.json"
    )
    parser.add_argument(
        "--time",
        metavar="TIME",
        help="time budget of the training run, such as 12h; with 2h or more, a plan for a GPU may "
        "have larger patches",
    )
    add_data_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from segpl.assembly import plan_for
    from segpl.display import say
    from segpl.errors import InputError
    from segpl.settings import gather_settings, resolve
    from segpl.training import time_budget

    if args.out.exists():
        raise InputError(f"{args.out} already exists. Choose another --out, or delete it first.")
    given = {"settings": settings_from(args), "overrides": args.set, "yes": args.yes}
    content = gather_settings(args.data, **given)
    budget = time_budget(args.time, content)
    plan = plan_for(resolve(content), seconds=budget.seconds if budget else 0.0)
    plan.write(args.out)
    training = {**vars(args), "plan": args.out, "out": "runs/first"}
    say(
        f"{args.out}: patch {'x'.join(map(str, plan.patch))}, "
        f"{len(plan.strides)} downsampling steps, "
        f"spacing {' x '.join(f'{value:g}' for value in plan.spacing)}. Edit it, then: "
        f"{next_command('train', training)}"
    )
    return 0
