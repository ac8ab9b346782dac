"""Options that several commands share, and the next command to run with those already given."""

from __future__ import annotations

import argparse
import importlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segpl.experiments.engines.base import Engine
    from segpl.experiments.engines.slurm import SlurmEngine


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


def add_engine(parser: argparse.ArgumentParser, task: str, description: str | None = None) -> None:
    """Options for where tasks execute; `task` is what the help calls one."""
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
    where.add_argument("--cpus", type=int, metavar="N", help=f"CPU cores per {task} (default: 1)")
    where.add_argument(
        "--gpus", type=float, metavar="N", help=f"GPUs per {task} (default: 1 with --device cuda)"
    )
    where.add_argument("--memory", type=float, metavar="GB", help=f"main memory per {task}")
    where.add_argument(
        "--retries",
        type=int,
        metavar="N",
        help=f"retries of a {task} whose process or machine is lost (default: 3)",
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


def options_of(kind: Any, args: argparse.Namespace) -> Any:
    """A dataclass of options with the arguments of the same names."""
    return kind(**{entry.name: getattr(args, entry.name) for entry in fields(kind)})


def chosen_engine(args: argparse.Namespace, out: Path) -> Engine:
    from segpl.experiments.engines.base import EngineOptions
    from segpl.experiments.engines.choice import make_engine

    return make_engine(args.on, options_of(EngineOptions, args), out)


def require_script(engine: Engine) -> SlurmEngine:
    """The engine, if it has the batch script that --print shows."""
    from segpl.errors import InputError
    from segpl.experiments.engines.slurm import SlurmEngine

    if not isinstance(engine, SlurmEngine):
        raise InputError("--print needs --on slurm: other engines have no batch script.")
    return engine


def add_rule(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rule",
        default="entropy",
        metavar="NAME",
        help="how to rank scans: entropy (default), disagreement, distance or random",
    )


def parser_of(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    importlib.import_module(f"segpl.cli.{command}").add_arguments(parser)
    return parser


def next_command(command: str, given: Mapping[str, Any]) -> str:
    """`segpl COMMAND` with the `given` values of its arguments, by name; others are ignored."""
    words = [word for action in parser_of(command)._actions for word in words_of(action, given)]
    return shlex.join(["segpl", command, *words])


def words_of(action: argparse.Action, given: Mapping[str, Any]) -> Iterator[str]:
    """The words of one argument; none if it has its default value."""
    value = given.get(action.dest)
    if value is None or value == action.default:
        return
    option = action.option_strings[-1:]
    values = [str(one) for one in (value if isinstance(value, list | tuple) else [value])]
    if action.nargs == 0:
        yield action.option_strings[0 if value else -1]  # --preview or --no-preview
    elif isinstance(action, argparse._AppendAction):
        for one in values:
            yield from (*option, one)
    else:
        yield from (*option, *values)
