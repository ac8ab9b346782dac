"""The `segpl` command. Importing it loads neither torch nor MONAI."""

from __future__ import annotations

import argparse
import difflib
import gc
import importlib
import io
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import segpl
from segpl.errors import Spelling, UserError, did_you_mean

COMMANDS = {
    "demo": "try segpl on generated scans; no data needed",
    "check": "check a dataset and list its problems",
    "plan": "derive a training plan to read or edit",
    "train": "train a model from labeled and unlabeled scans",
    "next": "list the scans to label next",
    "predict": "write masks for new scans",
    "label": "label scans in the browser, starting from predictions",
    "evaluate": "score predictions against labels",
    "stress": "score runs on degraded images, under attacks and with other window sizes",
    "bench": "measure speed, memory and cost of methods on this machine",
    "compare": "compare methods over several seeds, with significance tests",
    "report": "summarize runs on one HTML page",
    "paper": "repeat an experiment of the paper",
    "data": "download a public dataset",
    "cache": "list or remove prepared scans",
    "list": "list methods, layouts, losses or settings",
}

# these always import torch
TORCH_COMMANDS = ("demo", "plan", "train", "next", "predict", "stress", "bench", "compare", "paper")

# printed after an interruption, for commands that keep their work
RESUME_ADVICE = {
    "train": "To continue, run the same command with --resume.",
    "predict": "The same command without --overwrite resumes where it stopped.",
    "label": "Labels and unsaved strokes are kept. The same command opens them again.",
    "report": "Finished predictions are kept. The same command resumes where it stopped.",
    **dict.fromkeys(
        ("compare", "demo", "stress", "paper", "data"), "The same command resumes where it stopped."
    ),
}

NOT_STARTED = "Training had not started yet, and nothing was saved. Run the same command again."


def main(arguments: Sequence[str] | None = None) -> int:
    Spelling.is_command_line = True
    given = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names that are not UTF-8
    parser = argparse.ArgumentParser(
        prog="segpl",
        description="Semi-supervised medical image segmentation from a few labeled and many "
        "unlabeled scans.",
        epilog="Run `segpl COMMAND --help` for the options of a command. No data yet? Try "
        "`segpl demo`.",
    )
    parser.add_argument("--version", action="version", version=f"segpl {segpl.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, text in COMMANDS.items():
        commands.add_parser(name, help=text, add_help=False)
    if not given:
        parser.print_help()
        return 0
    chosen, *rest = given
    if chosen.startswith("-"):
        parser.parse_known_args([chosen, "list"])  # --help and --version exit
        parser.exit(2, f"segpl: no option {chosen} before the command. See `segpl --help`.\n")
    if chosen not in COMMANDS:
        parser.exit(2, f"segpl: no command '{chosen}'. {did_you_mean(chosen, COMMANDS)}\n")
    return run_command(chosen, importlib.import_module(f"segpl.cli.{chosen}"), rest)


def import_torch() -> None:
    """Import torch without garbage collection, which would scan its objects repeatedly.

    They live until the process ends. Freezing them makes later collections and the exit faster.
    """
    if "torch" in sys.modules:
        return
    gc.disable()
    try:
        importlib.import_module("torch")
        gc.freeze()
    finally:
        gc.enable()


def unknown_arguments(unknown: Sequence[str], known: Sequence[str]) -> str:
    option = next((word for word in unknown if word.startswith("-")), "")
    if not option:
        return f"unexpected arguments: {shlex.join(unknown)}. See --help."
    name = option.partition("=")[0].lower()
    close = [one for one in known if one.startswith(name)]
    close = close or difflib.get_close_matches(name, known, n=1)
    hint = f"Did you mean {close[0]}?" if close else "See --help for the options."
    return f"no option {option}. {hint}"


def run_command(name: str, module: ModuleType, arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=f"segpl {name}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(parser)
    known = [option for action in parser._actions for option in action.option_strings]
    args = argparse.Namespace()
    try:
        # first: a misspelled --out is not a missing one, and --time of `train` not --time-limit
        options = [word for word in arguments if word.startswith("--")]
        unknown = [word for word in options if word.partition("=")[0] not in (*known, "--")]
        if not unknown:
            # allows options between positional arguments
            args, unknown = parser.parse_known_intermixed_args(arguments)
        if unknown:
            parser.exit(2, f"segpl {name}: {unknown_arguments(unknown, known)}\n")
        with sigterm_interrupts():
            if name in TORCH_COMMANDS:
                import_torch()
            if name in TORCH_COMMANDS and name != "train":
                from segpl.engine.distributed import require_one_process

                require_one_process(f"segpl {name}")
            code: int = module.run(args)
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except PermissionError as error:
        sys.stderr.write(
            f"error: cannot open {error.filename}: {error.strerror}. Check the permissions of the "
            "file.\n"
        )
        return 1
    except KeyboardInterrupt as stop:
        is_unstarted = name == "train" and not ("out" in args and args.out.exists())
        advice = NOT_STARTED if is_unstarted else RESUME_ADVICE.get(name, "")
        # of the processes of torchrun, only the first one prints
        if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ["RANK"] == "0":
            sys.stderr.write(f"interrupted. {advice}".strip() + "\n")
        number: int = stop.args[0] if stop.args else signal.SIGINT
        return 128 + number
    except BrokenPipeError:
        return 1
    return code


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt on the first SIGTERM, unless the caller handles or ignores it."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def interrupt(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second signal ends the process at once
    raise KeyboardInterrupt(number)
