"""List methods, layouts, losses, threshold parts or settings.

Families, rules and scopes are threshold parts of bpl and bpl-mix.
"""

from __future__ import annotations

import argparse
import importlib

TABLES = {  # module and name of the table of each kind
    "methods": ("methods.base", "METHODS"),
    "layouts": ("data.layouts", "LAYOUTS"),
    "losses": ("losses", "LOSSES"),
    "families": ("threshold.base", "FAMILIES"),
    "rules": ("threshold.rules", "RULES"),
    "scopes": ("threshold.scopes", "SUMMARIES"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = (*TABLES, "settings")
    parser.add_argument(
        "kind",
        nargs="?",
        choices=kinds,
        metavar="KIND",
        help=f"{', '.join(kinds)} (default: an overview)",
    )
    parser.add_argument(
        "--method", default=None, help="method whose settings to list (default: bpl-mix)"
    )


def run(args: argparse.Namespace) -> int:
    from segpl.display import plain_console
    from segpl.errors import InputError

    if args.method and args.kind != "settings":
        raise InputError("--method needs `segpl list settings`.")
    console = plain_console()
    for line in lines_of(args.kind, args.method):
        console.print(line)
    return 0


def lines_of(kind: str | None, method: str | None) -> list[str]:
    if kind is None:
        names = {one: ", ".join(summaries_of(one)) for one in TABLES}
        return [f"segpl list {one:10} {text}" for one, text in names.items()] + [
            f"segpl list {'settings':10} all settings and their defaults"
        ]
    if kind == "settings":
        from segpl.settings import DEFAULT_METHOD, resolve

        config = resolve({"method": {"name": method or DEFAULT_METHOD}})
        return [f"{name} = {as_toml(value)}" for name, value in config.leaves().items()]
    if kind == "methods":
        return [line for name in summaries_of(kind) for line in lines_of_method(name)]
    summaries = summaries_of(kind)
    width = max(map(len, summaries)) + 1
    return [f"{name:{width}} {summary}" for name, summary in summaries.items()]


def as_toml(value: object) -> str:
    """A default as in a configuration file."""
    return str(value).lower() if isinstance(value, bool) else repr(value)


def lines_of_method(name: str) -> list[str]:
    from segpl.methods.base import METHODS
    from segpl.settings import DEFAULT_METHOD

    method = METHODS.get(name)
    default = " (default)" if name == DEFAULT_METHOD else ""
    return [f"{method.title() + default:28}{method.summary}", f"{'':28}Use it {method.use}."]


def summaries_of(kind: str) -> dict[str, str]:
    """A one-line summary of each name."""
    module, table = TABLES[kind]
    entries = getattr(importlib.import_module(f"segpl.{module}"), table)
    return {
        name: getattr(entry, "summary", None) or first_line(entry)
        for name, entry in getattr(entries, "classes", entries).items()
    }


def first_line(entry: object) -> str:
    text = entry if isinstance(entry, str) else entry.__doc__ or ""
    return text.splitlines()[0]
