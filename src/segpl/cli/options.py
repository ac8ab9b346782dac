"""Options that several commands share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segpl.experiments.engines.base import Engine
    from segpl.experiments.engines.slurm import SlurmEngine

ENGINE_OPTIONS = (
    *("jobs", "address", "cpus", "gpus", "memory", "retries"),
    *("partition", "account", "time_limit"),
)


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        choices=("last", "best"),
        default="last",
        help="last (default), or best on the validation cases",
    )


def add_overrides(parser: argparse.ArgumentParser, description: str) -> None:
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help=description
    )


def add_engine(parser: argparse.ArgumentParser, task: str, description: str = "") -> None:
    """Options of where to execute tasks; `task` is what a task is called."""
    where = parser.add_argument_group(f"where the {task}s execute", description)
    where.add_argument(
        "--on",
        default="local",
        choices=("local", "ray", "slurm"),
        help="this machine (default), a Ray cluster, or Slurm",
    )
    where.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help=f"{task}s to execute in parallel (default: 1; on a cluster, as many as fit)",
    )
    where.add_argument(
        "--address",
        metavar="HOST:PORT",
        help="Ray cluster (default: the one that this machine is part of)",
    )
    where.add_argument("--cpus", type=int, metavar="N", help=f"CPU cores per {task} (default 1)")
    where.add_argument(
        "--gpus", type=float, metavar="N", help=f"GPUs per {task} (default: 1 with --device cuda)"
    )
    where.add_argument("--memory", type=float, metavar="GB", help=f"main memory per {task}")
    where.add_argument(
        "--retries",
        type=int,
        metavar="N",
        help=f"retries of a {task} whose process or machine is lost (default 3)",
    )
    where.add_argument(
        "--print",
        action="store_true",
        help="print the batch script of --on slurm, without submitting it",
    )
    where.add_argument("--partition", help="Slurm partition")
    where.add_argument("--account", help="Slurm account")
    where.add_argument(
        "--time-limit",
        metavar="TIME",
        help=f"time limit of a Slurm job, such as 12h (default: 4h); a longer {task} is requeued "
        "and resumes",
    )


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """The arguments of `EngineOptions`."""
    return {name: getattr(args, name) for name in ENGINE_OPTIONS}


def require_script(engine: Engine) -> SlurmEngine:
    """The engine, if it has the batch script that --print shows."""
    from segpl.errors import InputError
    from segpl.experiments.engines.slurm import SlurmEngine

    if not isinstance(engine, SlurmEngine):
        raise InputError("--print needs --on slurm: other engines have no batch script.")
    return engine
