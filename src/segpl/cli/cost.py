"""Compare what methods cost: weights, FLOPs, memory and time, on random crops.

Each number stands beside its ratio to supervised training on the same images, all labeled. No
method named: all of them. About a minute for all methods on two CPU cores.

Examples:
  segpl cost
  segpl cost segpl segpl-vi cps --patch 64 64 64 --set network.width=16
  segpl cost --patch 256 256 --channels 3 --classes 4         pictures
  segpl cost --plan runs/a/plan.json --out cost.csv           as in a training
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("methods", nargs="*", metavar="METHOD", help="`segpl list methods`")
    parser.add_argument(
        "--patch",
        type=int,
        nargs="+",
        metavar="N",
        help="voxels of a crop (default 32 32 32); two numbers are 2D",
    )
    parser.add_argument("--channels", type=int, metavar="N", help="of an image (default 1)")
    parser.add_argument("--classes", type=int, metavar="N", help="background too (default 2)")
    parser.add_argument(
        "--plan", type=Path, metavar="JSON", help="crop, channels, classes and network of this plan"
    )
    parser.add_argument(
        "--labeled", type=int, metavar="N", help="labeled crops in a step (default 1, or planned)"
    )
    parser.add_argument(
        "--unlabeled",
        type=int,
        metavar="N",
        help="unlabeled crops in a step (default: 2 for each labeled one)",
    )
    parser.add_argument("--steps", type=int, default=5, help="timed steps (default 5)")
    parser.add_argument("--device", help="auto (default), cpu, cuda or cuda:N")
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the networks, as a training on a GPU does; takes up to a minute a method",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any setting, such as network.width=16 or train.precision=float32; one of a method is "
        "given to all methods that have it",
    )
    parser.add_argument("--out", type=Path, metavar="CSV", help="write the table here too")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    from segpl.data.plan import Plan
    from segpl.display import bar, say
    from segpl.errors import InputError
    from segpl.experiments.cost import Workload, configs_for, measure, moves, plan_for_patch
    from segpl.experiments.cost_table import cost_table, write_costs
    from segpl.report.tables import print_table
    from segpl.settings import with_overrides

    if args.out and args.out.exists():
        raise InputError(f"{args.out} exists. Choose another --out, or remove it first.")
    train: dict[str, Any] = {"compile": "on" if args.compile else "off"}
    if args.device:
        train["device"] = args.device
    configs = configs_for(args.methods, with_overrides({"train": train}, args.set))
    if args.plan:
        names = ("patch", "channels", "classes")
        given = [f"--{name}" for name in names if getattr(args, name) is not None]
        if given:
            raise InputError(
                f"{' and '.join(given)} cannot be given with --plan {args.plan}, which says it "
                "already. Edit a copy of the plan, or leave --plan out."
            )
        plan = Plan.read(args.plan)
    else:
        plan = plan_for_patch(
            args.patch or [32, 32, 32],
            channels=1 if args.channels is None else args.channels,
            classes=2 if args.classes is None else args.classes,
        )
    settings = configs[0].train
    labeled = args.labeled if args.labeled is not None else settings.batch or plan.batch
    unlabeled = args.unlabeled if args.unlabeled is not None else labeled * settings.ratio
    workload = Workload(plan, labeled, unlabeled)
    with bar("measuring", moves(configs, args.steps)) as advance:
        report = measure(configs, workload, steps=args.steps, advance=advance)

    # a table that is folded to a narrow window, or to a pipe, cannot be read
    console = Console(highlight=False)
    console.width = max(console.width, 140)
    print_table(cost_table(report), console)
    if args.out:
        write_costs(args.out, report)
        say(f"Written to {args.out}.")
    return 0
