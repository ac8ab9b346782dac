"""The command line: `segpl COMMAND ...`. Importing it loads neither torch nor MONAI."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

import segpl
from segpl.errors import UserError, did_you_mean

COMMANDS = {
    "demo": "see it work on generated scans, with no data at all",
    "check": "look at a dataset: what is there, what is wrong, what to do",
    "plan": "derive the plan of a training, to be read or edited",
    "train": "train a model from labeled and unlabeled scans",
    "predict": "write masks for new scans",
    "evaluate": "score predictions against labels",
    "stress": "score runs on disturbed images: artifacts, attacks, other windows",
    "cost": "compare what methods cost: weights, FLOPs, memory, time",
    "compare": "train methods on the same cases over several seeds and test the differences",
    "report": "write one page about runs: which method is best, and is it significant",
    "list": "name the methods, layouts, losses or settings",
}

# what to do after an interruption, where work is kept
GOING_ON = {
    "train": "Go on with the same command and --resume.",
    "predict": "The same command, without --overwrite, goes on from there.",
    "report": "What --fill has predicted is kept: the same command goes on from there.",
    **dict.fromkeys(("compare", "demo", "stress"), "The same command goes on from there."),
}


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    parser = argparse.ArgumentParser(
        prog="segpl",
        description="Semi-supervised medical image segmentation: a few labeled scans, many "
        "unlabeled ones.",
        epilog="`segpl COMMAND --help` explains a command. No data yet? Try `segpl demo`.",
    )
    parser.add_argument("--version", action="version", version=f"segpl {segpl.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    if not given or given[0].startswith("-"):
        parser.parse_args(given)
        return 2
    chosen, *rest = given
    if chosen not in COMMANDS:
        parser.exit(2, f"segpl: no command '{chosen}'. {did_you_mean(chosen, COMMANDS)}\n")
    return run_command(chosen, importlib.import_module(f"segpl.cli.{chosen}"), rest)


def run_command(name: str, module: ModuleType, arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=f"segpl {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    try:
        # options may stand between the positional arguments too
        code: int = module.run(parser.parse_intermixed_args(arguments))
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except PermissionError as error:
        sys.stderr.write(
            f"error: {error.filename} may not be opened: {error.strerror}. Ask its owner for "
            "permission.\n"
        )
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"interrupted. {GOING_ON.get(name, '')}".strip() + "\n")
        return 130
    except BrokenPipeError:
        return 1
    return code
