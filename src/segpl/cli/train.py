"""Train a model from labeled and unlabeled scans.

The layout of the dataset is found, a plan is derived from it, and everything goes into one folder:
settings, plan, split, log and checkpoints.

Examples:
  segpl train data --out runs/a
  segpl train data --labeled 8 --out runs/b                        hide all labels but 8
  segpl train data --method segpl --steps 5000 --set method.alpha=0.5 --out runs/c
  segpl train data --out runs/a --resume                           go on after an interruption
  segpl train runs/a/config.toml --out runs/d                      repeat a run
  segpl train data --labeled 5 --folds 5 --out runs/e              say what Dice to expect, too
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from segpl.experiments.folds import FoldEstimate
    from segpl.run import Run

FOLDS = 5  # of a cross-validation, where nobody has asked for a number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "data", type=Path, nargs="?", help="folder of the dataset, or a config.toml"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--steps", type=int, help="optimizer steps (default 2000)")
    parser.add_argument("--seed", type=int, help="of weights, crops and draws (default 0)")
    parser.add_argument("--config", type=Path, metavar="TOML", help="file with settings")
    parser.add_argument(
        "--plan", type=Path, metavar="JSON", help="use this plan, such as an edited one"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument(
        "--folds",
        type=int,
        metavar="N",
        help="train N times more before, each time with a part of the labeled cases held out, and "
        "say what Dice to expect (OUT/folds.csv; the runs are OUT/fold-0 and so on)",
    )
    parser.add_argument(
        "--estimate-only",
        action="store_true",
        help="with --folds: leave the training on all labels for later; --resume does it",
    )
    add_data_arguments(parser)


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """What a plan depends on."""
    parser.add_argument("--method", help="bpl-mix (default), segpl-vi, supervised; see segpl list")
    parser.add_argument(
        "--labeled",
        type=int,
        metavar="N",
        help="keep N labels and hide the others (default: all; a fifth where nothing is unlabeled "
        "and the method needs it)",
    )
    parser.add_argument(
        "--validation", type=int, metavar="N", help="hold N labeled cases out to watch (default 0)"
    )
    parser.add_argument(
        "--test",
        type=int,
        metavar="N",
        help="hold N labeled cases out to the end (default: the dataset's own test cases; of a "
        "dataset with 10 or more cases, all labeled, a fifth)",
    )
    parser.add_argument("--device", help="auto (default), cpu, cuda or cuda:N")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="any setting, such as method.alpha=0.1; `segpl list settings` names them",
    )


def settings_of(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The options that were given, as sections of settings."""
    plan: Path | None = getattr(args, "plan", None)
    settings: dict[str, dict[str, Any]] = {}
    for section, key, value in (
        ("method", "name", args.method),
        ("train", "steps", getattr(args, "steps", None)),
        ("train", "seed", getattr(args, "seed", None)),
        ("train", "device", args.device),
        ("split", "labeled", args.labeled),
        ("split", "validation", args.validation),
        ("split", "test", args.test),
        ("data", "plan", str(plan.resolve()) if plan else None),
    ):
        if value is not None:
            settings.setdefault(section, {})[key] = value
    return settings


def run(args: argparse.Namespace) -> int:
    from segpl.display import say
    from segpl.errors import InputError
    from segpl.run import train

    data: Path | None = args.data
    config: Path | None = args.config
    if data is not None and data.suffix == ".toml":
        if config is not None:
            raise InputError(f"{data} and --config {config} are two configs. Give one of them.")
        # another machine might derive another plan from the same data
        plan = data.with_name("plan.json")
        args.plan = args.plan or (plan if plan.exists() else None)
        data, config = None, data
    given: dict[str, Any] = {
        "data": data or "",
        "out": args.out,
        "config": config,
        "settings": settings_of(args),
        "overrides": args.set,
    }
    if args.estimate_only and args.folds is None:
        raise InputError("--estimate-only leaves nothing to do without --folds N.")
    if args.folds is not None:
        from segpl.experiments.folds import cross_validate

        estimate = cross_validate(**given, folds=args.folds, resume=args.resume)
        show(estimate, args.out)
        if args.estimate_only:
            return 0
    trained = train(**given, resume=args.resume or args.folds is not None)
    target = "" if trained.split.test else " IMAGES"
    folder, predictions = (shlex.quote(str(path)) for path in (args.out, args.out / "predictions"))
    say(
        f"Done: {trained.parameters:,} weights in {args.out}. Next: "
        f"segpl predict {folder}{target} --out {predictions}"
    )
    split = trained.split
    if args.folds is not None:
        say(estimate.words[0])
    elif not split.validation and not split.test and (subjects := labeled_subjects(trained)) > 1:
        count = min(FOLDS, subjects)
        say(f"What Dice to expect: segpl train --out {folder} --resume --folds {count}")
    return 0


def labeled_subjects(run: Run) -> int:
    """How many people the labeled cases are of."""
    from segpl.assembly import open_dataset

    dataset = open_dataset(run.config)
    return len({dataset.case(name).subject for name in run.split.labeled})


def show(estimate: FoldEstimate, out: Path) -> None:
    """The table of the folds, what it says, and where it is kept."""
    from rich.console import Console

    from segpl.report.tables import print_table

    console = Console(highlight=False, soft_wrap=True)
    print_table(estimate.table, console)
    for line in estimate.words:
        console.print(line, markup=False)
    console.print(f"One row for each case and class: {shlex.quote(str(out / 'folds.csv'))}")
