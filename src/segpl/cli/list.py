"""Name what can be chosen: methods, layouts, losses, or every setting with its default."""

from __future__ import annotations

import argparse

KINDS = ("methods", "layouts", "losses", "settings")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, help="what to name")
    parser.add_argument("--method", default=None, help="whose settings (default: segpl-vi)")


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for line in lines_of(args.kind, args.method):
        console.print(line)
    return 0


def lines_of(kind: str, method: str | None) -> list[str]:
    if kind == "methods":
        from segpl.methods.base import METHODS

        return [f"{name:21} {entry.summary}" for name, entry in METHODS.classes.items()]
    if kind == "layouts":
        from segpl.data.layouts import LAYOUTS

        return [
            f"{name:12} {(entry.__doc__ or '').splitlines()[0]}"
            for name, entry in LAYOUTS.classes.items()
        ]
    if kind == "losses":
        from segpl.losses import LOSSES

        return [
            f"{name:20} {(entry.__doc__ or '').splitlines()[0]}" for name, entry in LOSSES.items()
        ]
    from segpl.config import DEFAULT_METHOD, resolve

    config = resolve({"method": {"name": method or DEFAULT_METHOD}})
    return [f"{name} = {value!r}" for name, value in config.leaves().items()]
