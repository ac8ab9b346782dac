"""Measure how fast methods train and predict on this machine, and what they cost.

Each step is the step of `segpl train` on generated volumes. It is compared with
supervised training, with plain PyTorch and with MONAI. Without options, four
sizes are measured; on a CPU, with small crops.

Examples:
  segpl bench
  segpl bench segpl segpl-vi cps --setting large thin
  segpl bench all --patch 256 256 --channels 3 --parts steps  # 2D images
  segpl bench --plan runs/a/plan.json --out bench.json  # the plan of a run
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segpl.experiments.bench.workload import Workload
    from segpl.settings import Config

BENCH_PARTS = ("steps", "scaling", "data", "prediction")
BENCH_STEPS = {"cuda": 30, "cpu": 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "methods",
        nargs="*",
        metavar="METHOD",
        help="methods to measure, or `all` (default: supervised, segpl, segpl-vi, cps, fixmatch "
        "and bpl-mix)",
    )
    parser.add_argument(
        "--setting",
        nargs="+",
        metavar="NAME",
        help="large, thin, multimodal or 2d (default: all of them)",
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=BENCH_PARTS,
        default=BENCH_PARTS,
        metavar="PART",
        help="steps (of all methods); for the first setting also scaling, data (on disk) and "
        "prediction (default: all)",
    )
    parser.add_argument(
        "--patch",
        type=int,
        nargs="+",
        metavar="N",
        help="another crop size in voxels; two numbers for 2D",
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
        help="labeled crops per step (default: from the setting or the plan, or 1)",
    )
    parser.add_argument(
        "--unlabeled",
        type=int,
        metavar="N",
        help="unlabeled crops per step (default: from the setting, or 2 per labeled crop)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help=f"timed steps per method (default: {BENCH_STEPS['cuda']} on a GPU, "
        f"{BENCH_STEPS['cpu']} on a CPU)",
    )
    parser.add_argument("--device", help="auto (default), cpu, cuda or cuda:N")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any setting, such as network.width=16 or train.compile=off; a method setting applies "
        "to all methods that have it",
    )
    parser.add_argument("--out", type=Path, metavar="JSON", help="also write all figures here")


def run(args: argparse.Namespace) -> int:
    from segpl.display import say
    from segpl.engine.device import choose_device
    from segpl.errors import InputError
    from segpl.experiments.bench.parts import run_bench
    from segpl.experiments.bench.workload import configs_for
    from segpl.settings import with_overrides

    if args.out and args.out.exists():
        raise InputError(f"{args.out} already exists. Choose another --out, or delete it first.")
    shape = {name: getattr(args, name) for name in ("patch", "channels", "classes")}
    given = {name: value for name, value in shape.items() if value is not None}
    options = [*(["plan"] if args.plan else []), *given]
    for first in (["plan"] if args.plan else []) + (["setting"] if args.setting else []):
        if others := [name for name in options if name != first]:
            raise InputError(
                f"--{' and --'.join(others)} cannot be combined with --{first} "
                f"{getattr(args, first)}. Omit one of them, or edit a copy of a plan."
            )
    content: dict[str, Any] = {"train": {"device": args.device} if args.device else {}}
    if not options:
        content["network"] = {"residual": False}  # the plain encoder of the paper
    configs = configs_for(args.methods, with_overrides(content, args.set))
    device = choose_device(configs[0].train.device)
    if device.type == "cpu" and not options:
        say("On a CPU, the crops are small and few. --patch measures another size.")
    steps = args.steps if args.steps is not None else BENCH_STEPS[device.type]
    workloads = chosen_workloads(args, given, configs[0], small=device.type == "cpu")
    run_bench(configs, workloads, device, parts=args.parts, steps=steps, out=args.out)
    if args.out:
        say(f"Wrote {args.out}.")
    return 0


def chosen_workloads(
    args: argparse.Namespace, given: Mapping[str, Any], config: Config, *, small: bool
) -> list[Workload]:
    """The named settings, or the one that the plan or the patch describes."""
    from segpl.data.plan import Plan
    from segpl.experiments.bench.workload import SETTINGS, Workload, plan_for_patch, workload_of

    if args.plan or given:
        default: dict[str, Any] = {"patch": [32, 32, 32], "channels": 1, "classes": 2}
        plan = Plan.read(args.plan) if args.plan else plan_for_patch(**{**default, **given})
        batch = config.train.batch or plan.batch if args.labeled is None else args.labeled
        workloads = [Workload("your size", plan, batch, batch * config.train.ratio)]
    else:
        workloads = [workload_of(name, small=small) for name in args.setting or SETTINGS]
    crops = {name: getattr(args, name) for name in ("labeled", "unlabeled")}
    changed = {name: value for name, value in crops.items() if value is not None}
    return [replace(workload, **changed) for workload in workloads]
