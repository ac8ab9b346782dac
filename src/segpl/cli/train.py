"""Train a model from labeled and unlabeled scans.

Detects the layout of the dataset, derives a plan, and writes settings, plan,
split, log and checkpoints to the run folder.

Examples:
  segpl train data --out runs/a                       # for up to an hour
  segpl train data --time 2h --out runs/a             # for about two hours
  segpl train data --labeled 8 --out runs/b           # hide the other labels
  segpl train data --method segpl --set method.alpha=0.5 --out runs/c
  segpl train data --out runs/a --resume              # after an interruption
  segpl train runs/a/config.toml --out runs/d         # repeat a run
  segpl train data --folds 5 --out runs/e             # cross-validate first
  segpl train data --folds 5 --fold 2 --out runs/f    # one fold of five
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segpl.cli.check import add_yes
from segpl.cli.options import add_overrides, next_command

if TYPE_CHECKING:
    from segpl.experiments.folds import FoldEstimate
    from segpl.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, nargs="?", help="dataset folder, or a config.toml")
    parser.add_argument("--out", type=Path, required=True, help="run folder to create")
    parser.add_argument(
        "--steps", type=int, help="optimizer steps (default: as many as fit into --time)"
    )
    parser.add_argument(
        "--time",
        metavar="TIME",
        help="train for about this long, such as 30m or 1h30m, instead of --steps; with --folds, "
        "the time of each training run; not a hard limit (default: 30m on a GPU with 40 GB or "
        "more, otherwise 1h, and at most 6,000 steps)",
    )
    parser.add_argument("--seed", type=int, help="seed of weights, crops and sampling (default: 0)")
    parser.add_argument("--config", type=Path, metavar="TOML", help="file with settings")
    parser.add_argument(
        "--plan", type=Path, metavar="JSON", help="use this plan instead of deriving one"
    )
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint")
    parser.add_argument(
        "--folds",
        type=int,
        metavar="N",
        help="run N-fold cross-validation on the labeled cases first, to estimate the expected "
        "Dice (OUT/folds.csv; runs in OUT/fold-0, ...)",
    )
    parser.add_argument(
        "--fold",
        type=int,
        metavar="K",
        help="with --folds: train only fold K, counted from 0; masks and scores of its held-out "
        "cases are in OUT/fold-K/validation",
    )
    parser.add_argument(
        "--estimate-only",
        action="store_true",
        help="with --folds: skip the final run on all labels; add it later with --resume",
    )
    add_data_arguments(parser)


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that the plan depends on."""
    parser.add_argument(
        "--method", help="bpl-mix (default), segpl-vi, supervised, ...; see `segpl list methods`"
    )
    parser.add_argument(
        "--labeled",
        type=int,
        metavar="N",
        help="use N labels and hide the others, to simulate few labels (default: 0, all labels)",
    )
    parser.add_argument(
        "--validation",
        type=int,
        metavar="N",
        help="hold out N labeled cases for validation (default: 0)",
    )
    parser.add_argument(
        "--test",
        type=int,
        metavar="N",
        help="hold out N labeled cases for testing, besides the dataset's test cases (default: 0)",
    )
    add_yes(parser)
    parser.add_argument("--device", help="auto (default), cpu, cuda or cuda:N")
    add_overrides(parser, "any setting, such as method.alpha=0.1; see `segpl list settings`")


def settings_from(args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The given options as sections of settings."""
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
    from segpl.engine.distributed import is_first_process, require_one_process
    from segpl.engine.folder import RunFolder
    from segpl.errors import InputError
    from segpl.training import train

    data: Path | None = args.data
    config: Path | None = args.config
    if data is not None and data.suffix == ".toml":
        if config is not None:
            raise InputError(f"two configs given: {data} and --config {config}. Remove one.")
        # the derived plan depends on the machine, so a repeated run uses the same one
        plan = data.with_name("plan.json")
        args.plan = args.plan or (plan if plan.exists() else None)
        data, config = None, data
    given: dict[str, Any] = {
        "data": data or "",
        "out": args.out,
        "time": args.time,
        "config": config,
        "settings": settings_from(args),
        "overrides": args.set,
        "yes": args.yes,
    }
    has_fold = args.fold is not None
    if args.folds is None and (has_fold or args.estimate_only):
        option = "--fold" if has_fold else "--estimate-only"
        raise InputError(f"{option} needs the number of folds, --folds N. Five are common.")
    estimate = None
    if args.folds is not None:
        from segpl.experiments.folds import cross_validate

        require_one_process("segpl train --folds")
        estimate = cross_validate(**given, folds=args.folds, fold=args.fold, resume=args.resume)
        if estimate is None:
            say_next_fold(args)
            return 0
        show_estimate(estimate, args.out)
        if args.estimate_only or has_fold:
            if not RunFolder(args.out).last.exists():  # a final run predicts itself
                say(f"To predict with the mean of the folds: {prediction_command(args)}")
            return 0
        given["time"] = None  # cross-validation has chosen the number of steps
    trained = train(**given, resume=args.resume or args.folds is not None)
    if not is_first_process():
        return 0
    say(
        f"Done: trained a network with {trained.parameters:,} weights in {args.out}. Next: "
        f"{prediction_command(args)}"
    )
    split = trained.split
    if estimate:
        say(estimate.sentences[0])
    elif not (split.validation or split.test or RunFolder(args.out).folds.exists()):
        say(f"The Dice on new scans is unknown. {estimation_advice(args, trained)}")
    return 0


def estimation_advice(args: argparse.Namespace, trained: Run) -> str:
    """How to estimate the Dice of a run without validation and test cases."""
    from segpl.assembly import open_dataset
    from segpl.data.split import SUGGESTED_FOLDS
    from segpl.engine.folder import RunFolder
    from segpl.settings import read_config, resolve

    dataset = open_dataset(trained.config)
    subjects = len({dataset.case(name).subject for name in trained.split.labeled})
    if subjects < 2:
        return "Cross-validation (--folds) needs labels of two subjects or more."
    started = next(RunFolder(args.out).path.glob("fold-*/config.toml"), None)
    count = min(SUGGESTED_FOLDS, subjects)
    if started:  # with --fold; the others must be of the same cross-validation
        count = resolve(read_config(started), str(started)).split.folds
    # the run knows its other options
    estimated = {"out": args.out, "resume": True, "folds": count, "device": args.device}
    return f"To estimate it by cross-validation: {next_command('train', estimated)}"


def prediction_command(args: argparse.Namespace) -> str:
    from segpl.data.split import Split
    from segpl.engine.folder import RunFolder
    from segpl.settings import read_config

    folder = RunFolder(args.out)
    is_dataset = args.data is not None and args.data.is_dir()
    data = args.data if is_dataset else read_config(folder.config)["data"]["path"]
    given = {
        "run": args.out,
        "inputs": [] if Split.read(folder.split).test else [data],
        "out": args.out / "predictions",
        "device": args.device,
    }
    return next_command("predict", given)


def say_next_fold(args: argparse.Namespace) -> None:
    from segpl.display import say
    from segpl.engine.folder import RunFolder

    say(
        f"Done: fold {args.fold}. Masks and scores of its held-out cases: "
        f"{shlex.quote(str(args.out / f'fold-{args.fold}' / 'validation'))}"
    )
    folders = [RunFolder(args.out / f"fold-{number}") for number in range(args.folds)]
    missing = [number for number, folder in enumerate(folders) if not folder.last.exists()]
    if missing:
        following = {**vars(args), "fold": missing[0], "resume": False}
        say(
            f"Folds left to train: {len(missing)} of {args.folds}. Next: "
            f"{next_command('train', following)}"
        )


def show_estimate(estimate: FoldEstimate, out: Path) -> None:
    """Print the table of the folds and where it is stored."""
    from segpl.display import plain_console
    from segpl.report.tables import print_table

    console = plain_console()
    print_table(estimate.table, console)
    for line in estimate.sentences:
        console.print(line)
    console.print(f"Scores by case and class: {shlex.quote(str(out / 'folds.csv'))}")
