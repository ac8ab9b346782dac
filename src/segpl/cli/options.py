"""Options that several commands share."""

from __future__ import annotations

import argparse


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
