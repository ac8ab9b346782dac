"""Download a public dataset: task01, task04 or task05 of the Decathlon.

Addresses and checksums come from MONAI. An interrupted download resumes where
it stopped. CARVE and BRATS 2018 require registration:
  CARVE14     https://arteryvein.grand-challenge.org
  BRATS 2018  https://www.med.upenn.edu/sbia/brats2018/registration.html

Examples:
  segpl data get task05 --out data    # prostate, data/Task05_Prostate
  segpl data get task04 --out data    # hippocampus
  segpl data get task01 --out data    # brain tumor, 7 GB
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("get",), help="download, verify and unpack")
    parser.add_argument("name", help="task01, task04 or task05")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="folder to unpack the dataset into"
    )


def run(args: argparse.Namespace) -> int:
    from segpl.data.download import get_dataset
    from segpl.display import download_bar, plain_console

    with download_bar() as advance:
        folder = get_dataset(args.name, args.out, advance)
    plain_console().print(f"{shlex.quote(str(folder))} is complete.")
    return 0
