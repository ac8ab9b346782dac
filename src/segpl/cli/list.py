"""List the available methods, layouts, losses, threshold parts or settings.

Families, rules, scopes and priors are parts of the threshold of bpl and bpl-mix.
"""

from __future__ import annotations

import argparse

KINDS = ("methods", "layouts", "losses", "families", "rules", "scopes", "priors", "settings")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, help="what to list")
    parser.add_argument(
        "--method", default=None, help="method whose settings to list (default: bpl-mix)"
    )


def run(args: argparse.Namespace) -> int:
    from rich.console import Console

    console = Console(highlight=False, markup=False, soft_wrap=True)
    for line in lines_of(args.kind, args.method):
        console.print(line)
    return 0


def lines_of(kind: str, method: str | None) -> list[str]:
    if kind == "settings":
        from segpl.settings import DEFAULT_METHOD, resolve

        config = resolve({"method": {"name": method or DEFAULT_METHOD}})
        return [f"{name} = {value!r}" for name, value in config.leaves().items()]
    summaries = summaries_of(kind)
    width = max(map(len, summaries)) + 1
    return [f"{name:{width}} {summary}" for name, summary in summaries.items()]


def summaries_of(kind: str) -> dict[str, str]:
    """A one-line summary of each name."""
    if kind == "methods":
        from segpl.methods.base import METHODS

        return {name: entry.summary for name, entry in METHODS.classes.items()}
    if kind == "layouts":
        from segpl.data.layouts import LAYOUTS

        return {name: first_line(entry) for name, entry in LAYOUTS.classes.items()}
    if kind == "losses":
        from segpl.losses import LOSSES

        return {name: first_line(entry) for name, entry in LOSSES.items()}
    if kind == "families":
        from segpl.threshold.base import FAMILIES

        return {name: entry.summary for name, entry in FAMILIES.classes.items()}
    if kind == "rules":
        from segpl.threshold.rules import RULES

        return {name: first_line(entry) for name, entry in RULES.items()}
    if kind == "scopes":
        from segpl.threshold.scopes import SCOPES, SUMMARIES

        return {name: SUMMARIES[name] for name in SCOPES}
    from segpl.threshold.priors import PRIORS

    return {name: entry.summary for name, entry in PRIORS.items()}


def first_line(entry: object) -> str:
    return (entry.__doc__ or "").splitlines()[0]
