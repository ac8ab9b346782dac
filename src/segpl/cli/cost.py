"""Measure what methods cost: weights, FLOPs, memory and time on random crops.

Each value comes with its ratio to supervised training on the same number of
images. All methods together take about a minute on two CPU cores.

Examples:
  segpl cost
  segpl cost segpl segpl-vi cps --patch 64 64 64 --set network.width=16
  segpl cost --patch 256 256 --channels 3 --classes 4  # 2D images
  segpl cost --plan runs/a/plan.json --out cost.csv    # with the plan of a run
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "methods", nargs="*", metavar="METHOD", help="methods to measure (default: all)"
    )
    parser.add_argument(
        "--patch",
        type=int,
        nargs="+",
        metavar="N",
        help="crop size in voxels (default 32 32 32); two numbers for 2D",
    )
    parser.add_argument("--channels", type=int, metavar="N", help="image channels (default 1)")
    parser.add_argument(
        "--classes", type=int, metavar="N", help="classes, including background (default 2)"
    )
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="JSON",
        help="take crop, channels, classes and network from this plan",
    )
    parser.add_argument(
        "--labeled",
        type=int,
        metavar="N",
        help="labeled crops per step (default: from the plan, or 1)",
    )
    parser.add_argument(
        "--unlabeled",
        type=int,
        metavar="N",
        help="unlabeled crops per step (default: 2 per labeled crop)",
    )
    parser.add_argument("--steps", type=int, default=5, help="number of timed steps (default 5)")
    parser.add_argument("--device", help="auto (default), cpu, cuda or cuda:N")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any setting, such as network.width=16 or train.compile=on; a method setting applies "
        "to all methods that have it",
    )
    parser.add_argument("--out", type=Path, metavar="CSV", help="also write the table to this file")


def run(args: argparse.Namespace) -> int:

    from segpl.data.plan import Plan
    from segpl.display import bar, plain_console, say
    from segpl.errors import InputError
    from segpl.experiments.cost import (
        conditions,
        configs_for,
        cost_table,
        measure,
        plan_for_patch,
        write_costs,
    )
    from segpl.experiments.cost_trial import Workload
    from segpl.report.tables import print_table
    from segpl.settings import with_overrides

    if args.out and args.out.exists():
        raise InputError(f"{args.out} already exists. Choose another --out, or delete it first.")
    train = {"compile": "off"} | ({"device": args.device} if args.device else {})
    configs = configs_for(args.methods, with_overrides({"train": train}, args.set))
    shape = {name: getattr(args, name) for name in ("patch", "channels", "classes")}
    given = {name: value for name, value in shape.items() if value is not None}
    if args.plan and given:
        raise InputError(
            f"--{' and --'.join(given)} cannot be combined with --plan {args.plan}. Edit a copy of "
            "the plan, or omit --plan."
        )
    default: dict[str, Any] = {"patch": [32, 32, 32], "channels": 1, "classes": 2}
    plan = Plan.read(args.plan) if args.plan else plan_for_patch(**default | given)
    settings = configs[0].train
    labeled = args.labeled if args.labeled is not None else settings.batch or plan.batch
    unlabeled = args.unlabeled if args.unlabeled is not None else labeled * settings.ratio
    workload = Workload(plan, labeled, unlabeled)
    with bar("measuring", len(configs) * (args.steps + 2)) as advance:
        costs = measure(configs, workload, steps=args.steps, advance=advance)

    facts = conditions(configs[0], workload, args.steps)
    # a table wrapped to a narrow terminal or a pipe is unreadable
    console = plain_console(soft_wrap=False)
    console.width = max(console.width, 140)
    print_table(cost_table(costs, facts), console)
    if args.out:
        write_costs(args.out, costs, facts)
        say(f"Wrote {args.out}.")
    return 0
