"""Check a dataset: list its cases, its problems and how to fix them.

The exit status is 1 if training would fail.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from segpl.cli.options import next_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, help="dataset folder")
    parser.add_argument(
        "--layout",
        help="file layout: a name (see `segpl list layouts`), or patterns such as "
        "'{case}_T1.nii.gz -> {case}_seg.nii.gz' (default: detect it)",
    )
    add_yes(parser)
    parser.add_argument(
        "--subject",
        metavar="REGEX",
        help="regular expression whose group is the subject, such as '(patient[0-9]+)'; cases "
        "of one subject are never split",
    )


def add_yes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--yes", action="store_true", help="accept the proposed layout for other file names"
    )


def run(args: argparse.Namespace) -> int:
    from segpl.data.check import has_errors, inspect_all, render
    from segpl.data.layouts import read_dataset
    from segpl.data.layouts.content import list_content, unused_files
    from segpl.display import bar, plain_console

    dataset = read_dataset(args.data, args.layout, subject=args.subject, accept=args.yes)
    content = list_content(args.data)
    with bar("reading cases", len(dataset.cases)) as advance:
        inspection = inspect_all(dataset, content.unusable, advance)
    settings = {"layout": args.layout, "subject": args.subject}
    chosen = [f"data.{name}={value}" for name, value in settings.items() if value]
    training = {**vars(args), "set": chosen, "out": "runs/first"}
    page = render(
        inspection, next_command("train", training), unused=unused_files(dataset, content)
    )
    plain_console(soft_wrap=False).print(page, crop=False)
    return 1 if has_errors(inspection) else 0
