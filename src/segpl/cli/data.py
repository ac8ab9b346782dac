"""Download a public dataset: task01, task04 or task05 of the Decathlon.

Addresses and checksums come from MONAI. An interrupted download resumes where
it stopped. CARVE and BRATS 2018 require registration:
  CARVE14     https://arteryvein.grand-challenge.org
  BRATS 2018  https://www.med.upenn.edu/sbia/brats2018/registration.html

Examples:
  segpl data get task04               # hippocampus, Task04_Hippocampus
  segpl data get task05 --out data    # prostate, data/Task05_Prostate
  segpl data get task01 --out data    # brain tumor, 7 GB
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", metavar="get", help="download, verify and unpack")
    parser.add_argument("name", nargs="?", help="task01, task04 or task05")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="folder to unpack the dataset into (default: the current folder)",
    )


def run(args: argparse.Namespace) -> int:
    from segpl.cli.options import next_command
    from segpl.data.download import DOWNLOADS, get_dataset, require_download
    from segpl.display import download_bar, plain_console
    from segpl.errors import InputError

    if args.action != "get" or args.name is None:
        if args.action in DOWNLOADS:
            command = next_command("data", {"action": "get", "name": args.action, "out": args.out})
            raise InputError(f"to download {args.action}, use `{command}`.")
        raise InputError(
            "name a dataset to download, such as `segpl data get task04`. Known: "
            f"{', '.join(DOWNLOADS)}. For a dataset of your own, use `segpl check FOLDER`."
        )
    require_download(args.name)  # before the bar
    with download_bar() as advance:
        folder = get_dataset(args.name, args.out, advance)
    plain_console().print(f"{shlex.quote(str(folder))} is complete.")
    return 0
