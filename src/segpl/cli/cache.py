"""List the datasets in the cache, or remove their prepared scans.

Training prepares removed scans again. Do not remove scans while a run trains on
them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from segpl.data.cache_entries import CachedDataset, CachedFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--remove",
        type=Path,
        nargs="+",
        default=[],
        metavar="FOLDER",
        help="remove the prepared scans of images in these folders or below, such as a dataset",
    )
    parser.add_argument(
        "--remove-missing",
        action="store_true",
        help="remove the prepared scans of folders that no longer exist",
    )
    parser.add_argument(
        "--yes", action="store_true", help="remove the scans instead of only listing them"
    )


def run(args: argparse.Namespace) -> int:
    from rich.filesize import decimal

    from segpl.data.cache import cache_root
    from segpl.data.cache_entries import cached_folders, folder_size, group_folders
    from segpl.data.known_cases import fingerprints_file
    from segpl.display import plain_console

    root = cache_root()
    known = cached_folders()
    is_removal = bool(args.remove or args.remove_missing)
    chosen = choose(known, args.remove, args.remove_missing) if is_removal else known
    console = plain_console(soft_wrap=False)
    datasets = group_folders(chosen)
    if datasets:
        console.print(table_of(datasets))
    kernels = root / "compiled"
    if not is_removal and kernels.is_dir():
        console.print(f"Compiled networks: {decimal(folder_size(kernels))}.")
    total = decimal(sum(one.size for one in chosen))
    if not is_removal:
        console.print(f"{root} contains {total} of prepared scans.")
    elif not chosen:
        console.print("There is nothing to remove.")
    elif not args.yes:
        console.print(f"Add --yes to remove {total}.")
    else:
        for one in chosen:
            one.remove()
        for folder in (*(one.path for one in datasets), *args.remove):
            fingerprints_file(folder.expanduser()).unlink(missing_ok=True)
        console.print(f"Removed {total}.")
    return 0


def choose(
    known: list[CachedFolder], folders: list[Path], is_missing_chosen: bool
) -> list[CachedFolder]:
    from segpl.errors import MissingFileError

    resolved = {folder.expanduser().resolve(): folder for folder in folders}
    for path, given in resolved.items():
        if not any(one.folder.is_relative_to(path) for one in known):
            raise MissingFileError(
                f"the cache has no images of {given}. `segpl cache` lists its contents."
            )
    return [
        one
        for one in known
        if any(one.folder.is_relative_to(path) for path in resolved)
        or (is_missing_chosen and not one.exists)
    ]


def table_of(datasets: list[CachedDataset]) -> Table:
    from datetime import datetime

    from rich.filesize import decimal
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("dataset, or folder of images", overflow="fold")
    for name in ("cases", "size"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("last used", no_wrap=True)
    table.add_column("")
    for one in sorted(datasets, key=lambda one: -one.size):
        day = datetime.fromtimestamp(one.last_used).date().isoformat()
        table.add_row(str(one.path), f"{one.cases:,}", decimal(one.size), day, one.state)
    return table
