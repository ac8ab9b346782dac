"""Measure how fast methods train and predict on this machine, and what they cost.

Training steps are those of `segpl train`, on generated volumes. They are
compared with supervised training, plain PyTorch and MONAI. By default, six
methods are measured in four settings; on a CPU, with small crops.

Examples:
  segpl bench
  segpl bench segpl segpl-vi cps --setting large thin
  segpl bench all --patch 256 256 --parts steps  # 2D images
  segpl bench --plan runs/a/plan.json --out bench.json  # the plan of a run
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segpl.cli.options import add_overrides

if TYPE_CHECKING:
    from segpl.experiments.bench.workload import Workload
    from segpl.settings import Config

BENCH_PARTS = ("steps", "prediction", "scaling", "data")
ROUNDS = {"cuda": 5, "cpu": 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "methods",
        nargs="*",
        metavar="METHOD",
        help="methods to measure, or `all` (default: supervised, segpl, segpl-vi, cps, fixmatch "
        "and bpl-mix)",
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--setting",
        nargs="+",
        metavar="NAME",
        help="large, thin, multimodal or 2d (default: all of them)",
    )
    size.add_argument(
        "--patch",
        type=int,
        nargs="+",
        metavar="N",
        help="crop size in voxels, instead of a setting; two numbers for 2D",
    )
    size.add_argument(
        "--plan",
        type=Path,
        metavar="JSON",
        help="use the crops, channels, classes and network of this plan",
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=BENCH_PARTS,
        metavar="PART",
        help="what to measure: steps, prediction, scaling, data (on disk); prediction and scaling "
        "only in the first setting (default: all; on a CPU, all but data)",
    )
    parser.add_argument(
        "--rounds", type=int, metavar="N", help="timed rounds (default: 5; on a CPU, 3)"
    )
    parser.add_argument("--device", help="auto (default), cpu, cuda or cuda:N")
    add_overrides(
        parser,
        "any setting, such as network.width=16 or train.compile=off; a method setting applies "
        "to all methods that have it",
    )
    parser.add_argument("--out", type=Path, metavar="JSON", help="also write all results here")


def run(args: argparse.Namespace) -> int:
    from segpl.display import say
    from segpl.engine.device import choose_device
    from segpl.errors import InputError
    from segpl.experiments.bench.run import run_bench
    from segpl.experiments.bench.workload import configs_for
    from segpl.settings import with_overrides

    if args.out and args.out.exists():
        raise InputError(f"{args.out} already exists. Choose another --out, or delete it first.")
    content: dict[str, Any] = {"train": {"device": args.device} if args.device else {}}
    is_named = not (args.plan or args.patch)
    if is_named:
        content["network"] = {"residual": False}  # the plain encoder of the paper
    configs = configs_for(args.methods, with_overrides(content, args.set))
    device = choose_device(configs[0].train.device)
    is_small = device.type == "cpu"
    if is_small and is_named:
        say("On a CPU, the default crops are small and few. Use --patch to measure another size.")
    workloads = chosen_workloads(args, configs[0], small=is_small)
    parts = args.parts or BENCH_PARTS[: 3 if is_small else 4]
    rounds = ROUNDS[device.type] if args.rounds is None else args.rounds
    run_bench(configs, workloads, device, parts=parts, rounds=rounds, out=args.out)
    if args.out:
        say(f"Wrote {args.out}.")
    return 0


def chosen_workloads(args: argparse.Namespace, config: Config, *, small: bool) -> list[Workload]:
    """The chosen settings, or one workload for the given plan or patch."""
    from segpl.data.plan import Plan
    from segpl.experiments.bench.workload import SETTINGS, Workload, named_workload, plan_for_patch

    if not (args.plan or args.patch):
        return [named_workload(name, small=small) for name in args.setting or SETTINGS]
    plan = Plan.read(args.plan) if args.plan else plan_for_patch(args.patch)
    batch = config.train.batch or plan.batch
    return [Workload("your size", plan, batch, batch * config.train.ratio)]
