"""Derive a training plan (spacing, patch, network) to read or edit.

Examples:
  segpl plan data --out plan.json
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
    add_data_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from segpl.assembly import plan_for
    from segpl.display import say
    from segpl.errors import InputError, count_noun
    from segpl.settings import gather_settings, resolve

    if args.out.exists():
        raise InputError(f"{args.out} already exists. Choose another --out, or delete it first.")
    given = {"settings": settings_from(args), "overrides": args.set, "yes": args.yes}
    plan = plan_for(resolve(gather_settings(args.data, **given)))
    plan.write(args.out)
    training = {**vars(args), "plan": args.out, "out": "runs/first"}
    say(
        f"{args.out}: patch {'x'.join(map(str, plan.patch))}, "
        f"{count_noun(len(plan.strides), 'downsampling step')}, "
        f"spacing {' x '.join(f'{value:g}' for value in plan.spacing)}. Edit it, then: "
        f"{next_command('train', training)}"
    )
    return 0
