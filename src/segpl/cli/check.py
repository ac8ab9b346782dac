"""Say what a dataset holds, what is wrong with it, and what to do.

Exits with 1 if training would fail.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=Path, help="folder of the dataset")
    parser.add_argument(
        "--layout",
        metavar="NAME",
        help="how its files are arranged: decathlon, emssl, folders or nnunet; found if not given",
    )
    parser.add_argument(
        "--subject",
        metavar="REGEX",
        help="pattern whose brackets enclose the subject in a case name, such as '(patient[0-9]+)'",
    )


def run(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from segpl.data.check import has_fatal, report
    from segpl.data.inspect import inspect
    from segpl.data.layouts import read_dataset

    dataset = read_dataset(args.data, args.layout, subject=args.subject)
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("reading cases", total=len(dataset.cases))
        inspection = inspect(
            dataset,
            # every label: this is a check of files, and nothing is learned from it
            read_labels_of=[case.name for case in dataset.cases],
            advance=lambda: progress.advance(task),
        )
    Console().print(report(inspection), crop=False)
    return 1 if has_fatal(inspection) else 0
