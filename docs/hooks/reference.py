"""Reference pages, generated from the code when the manual is built."""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[2]
KEY = re.compile(r"\[([A-Z][A-Za-z]+\d{4})((?:, [^\]]*)?)\](?!\()")
MODULES = ("segpl.evaluate.statistics", "segpl.evaluate.uncertainty")


def on_files(files: Files, config: Any, **_: Any) -> Files:
    for name, write in PAGES.items():
        content = "\n".join(write()) + "\n"
        files.append(File.generated(config, f"reference/{name}.md", content=content))
    for name in ("CONTRIBUTING", "CHANGELOG"):
        text = (ROOT / f"{name}.md").read_text(encoding="utf-8").replace("](docs/", "](")
        text = text.replace("](CONTRIBUTING.md", "](contributing.md").replace(
            "](CHANGELOG.md", "](changelog.md"
        )
        files.append(File.generated(config, f"{name.lower()}.md", content=text))
    return files


def commands() -> Iterator[str]:
    from segpl.cli.main import COMMANDS

    yield "# Commands\n\n`segpl COMMAND --help` prints the same text.\n"
    yield from table(
        "command", "what it does", {f"[`{c}`](#segpl-{c})": t for c, t in COMMANDS.items()}
    )
    for name in COMMANDS:
        module = importlib.import_module(f"segpl.cli.{name}")
        parser = argparse.ArgumentParser(prog=f"segpl {name}")
        module.add_arguments(parser)
        text, _, examples = inspect.cleandoc(module.__doc__ or "").partition("Examples:")
        yield f"\n## segpl {name}\n\n{text}\n"
        if examples:
            yield f"```\n{textwrap.dedent(examples.strip(chr(10))).rstrip()}\n```\n"
        options = {option(action): help_of(action) for action in parser._actions[1:]}
        yield from table("argument", "meaning", options)


def option(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest}`"
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return f"`{action.option_strings[-1]}{value}`"


def help_of(action: argparse.Action) -> str:
    text = (action.help or "") % {**vars(action), "prog": "segpl"}
    choices = ", ".join(f"`{choice}`" for choice in action.choices or ())
    return f"{text}: {choices}" if choices else text


def settings() -> Iterator[str]:
    from segpl.settings import SECTIONS

    yield "# Settings\n"
    yield "How to change a setting: [Change settings](../how-to/settings.md)."
    yield "The settings of a method are listed with [the method](methods.md).\n"
    for name, kind in SECTIONS.items():
        yield f"\n## {name}\n"
        yield from settings_table(kind, name)


def settings_table(kind: Any, prefix: str) -> Iterator[str]:
    from segpl.cli.list import as_toml

    yield "| setting | default | meaning |\n| --- | --- | --- |"
    for name, default, comment in settings_of(kind, prefix):
        yield f"| `{name}` | `{as_toml(default)}` | {cell(comment)} |"


def settings_of(kind: Any, prefix: str) -> Iterator[tuple[str, Any, str]]:
    """Name, default and comment of each setting of a dataclass, including nested ones."""
    comments = comments_of(kind)
    values = kind()
    for entry in dataclasses.fields(kind):
        name, value = f"{prefix}.{entry.name}", getattr(values, entry.name)
        if dataclasses.is_dataclass(value):
            yield from settings_of(type(value), name)
        else:
            yield name, value, comments.get(entry.name, "")


def comments_of(kind: type) -> dict[str, str]:
    """The comment of each field, on its own lines or on the lines above."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        source = textwrap.dedent(inspect.getsource(base))
        lines = source.splitlines()
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        comments = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                first = node.lineno
                while lines[first - 2].strip().startswith("#"):
                    first -= 1
                numbers = range(first, (node.end_lineno or first) + 1)
                found[node.target.id] = " ".join(comments[n] for n in numbers if n in comments)
    return found


def methods() -> Iterator[str]:
    from segpl.methods.base import METHODS

    yield "# Methods\n"
    yield "Choose a method with `--method NAME`. How they relate to each other:"
    yield "[Pseudo-labeling as EM](../explanation/em.md). How they compare:"
    yield "[Evidence](../explanation/evidence.md).\n"
    summaries = {
        kind.title(f"[`{name}`](#{name})"): kind.summary for name, kind in METHODS.classes.items()
    }
    yield from table("method", "summary", summaries)
    for name, kind in METHODS.classes.items():
        yield f"\n## {name}\n\n{docstring(kind)}\n"
        if not kind.needs_unlabeled:
            yield "Uses labeled images only.\n"
        if kind.network_defaults:
            pairs = (f"`network.{key}={value}`" for key, value in kind.network_defaults.items())
            yield f"Default network settings of this method: {', '.join(pairs)} (U-Net only).\n"
        yield from settings_table(kind.Settings, "method")


def names() -> Iterator[str]:
    from segpl.cli.list import TABLES, summaries_of

    yield "# Names\n\nNames that settings and options accept. `segpl list KIND` prints them.\n"
    for kind in TABLES:
        if kind != "methods":
            yield f"\n## {kind}\n"
            rows = {f"`{name}`": text for name, text in summaries_of(kind).items()}
            yield from table("name", "meaning", rows)


def metrics() -> Iterator[str]:
    from segpl.evaluate import metrics, surface

    yield "# Metrics\n"
    yield "Choose metrics with `segpl evaluate --metrics NAME ...`."
    yield "$P$ is the predicted mask of a class, $T$ the true one."
    yield "How to use them: [Evaluate](../how-to/evaluate.md).\n"
    yield "| name | what it measures | best | empty masks |\n| --- | --- | --- | --- |"
    for name, metric in metrics.METRICS.items():
        function = getattr(metrics, name, None) or getattr(surface, name, None) or metrics.volume
        policy = metrics.POLICIES.get(metric.kind, "as measured")
        yield f"| `{name}` | {cell(first_line(function))} | {metric.best} | {policy} |"


def api() -> Iterator[str]:
    import segpl

    yield "# Python API\n\nA worked example: [Use segpl from Python](../how-to/python.md).\n"
    for name in sorted(segpl.__all__, key=str.lower):
        yield from describe(getattr(segpl, name), f"segpl.{name}", "##")
    for name in MODULES:
        module = importlib.import_module(name)
        yield f"\n## {name}\n\n{docstring(module)}\n"
        for key, value in vars(module).items():
            if getattr(value, "__module__", "") == name and not key.startswith("_"):
                yield from describe(value, key, "###")


def describe(value: Any, name: str, heading: str) -> Iterator[str]:
    if not callable(value):
        return
    yield f"\n{heading} {name}\n"
    yield f"```python\n{signature(value, name)}\n```\n\n{docstring(value)}\n"
    if not inspect.isclass(value):
        return
    for key, member in vars(value).items():
        if key.startswith("_") or not (inspect.isfunction(member) or isinstance(member, property)):
            continue
        if isinstance(member, property):
            text = docstring(member.fget)
            yield f"- `{key}`: {text}" if text else f"- `{key}`"
        else:
            short = name.rpartition(".")[2]
            yield f"\n{heading}# {short}.{key}\n"
            yield f"```python\n{signature(member, f'{short}.{key}')}\n```\n\n{docstring(member)}\n"


def signature(function: Callable[..., Any], name: str) -> str:
    """The signature, with one argument per line if it is long, and unquoted annotations."""
    plain = inspect.signature(function)
    arguments = [
        text for p in plain.parameters.values() if p.name != "self" for text in texts(function, p)
    ]
    kinds = [p.kind for p in plain.parameters.values() if p.name != "self"]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    answer = plain.return_annotation
    returns = "" if inspect.isclass(function) or answer is plain.empty else f" -> {answer}"
    text = f"{name}({', '.join(arguments)}){returns}"
    if len(text) > 88:
        text = f"{name}(\n" + "".join(f"    {a},\n" for a in arguments) + f"){returns}"
    return re.sub(r"(: | -> )'([^']*)'", r"\1\2", text).replace(" -> '", " -> ").rstrip("'")


def texts(function: Callable[..., Any], argument: inspect.Parameter) -> list[str]:
    """An argument as text; keyword arguments that a `TypedDict` lists, one by one."""
    if not str(argument.annotation).startswith("Unpack["):
        return [str(argument)]
    (kind,) = get_args(get_type_hints(function)[argument.name])
    return [f"{name}: {hint.__forward_arg__} = ..." for name, hint in kind.__annotations__.items()]


def docstring(value: Any) -> str:
    """A docstring as Markdown: sections as lists, citations as links to the bibliography."""
    text = inspect.cleandoc(value.__doc__ or "")
    text = re.sub(r"^ {4}(?! )(\*{0,2}\w+): ", r"- `\1`: ", text, flags=re.MULTILINE)
    text = re.sub(
        r"^(Args|Returns|Raises):\n(?: {4}(?! ))?", r"**\1**\n\n", text, flags=re.MULTILINE
    )
    return linked(re.sub(r"^ {8}(?! )", "  ", text, flags=re.MULTILINE))


def linked(text: str) -> str:
    return KEY.sub(lambda m: f"[[{m[1]}{m[2]}]](../bibliography.md#{m[1].lower()})", text)


def first_line(value: Any) -> str:
    return docstring(value).split("\n\n")[0].replace("\n", " ")


def table(left: str, right: str, rows: dict[str, str]) -> Iterator[str]:
    yield f"| {left} | {right} |\n| --- | --- |"
    for name, text in rows.items():
        yield f"| {name} | {cell(text)} |"


def cell(text: str) -> str:
    """Text for a table: on one line, bars escaped except in equations."""
    parts = " ".join(linked(text).split()).split("$")
    return "$".join(p if n % 2 else p.replace("|", "\\|") for n, p in enumerate(parts))


PAGES: dict[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "settings": settings,
    "methods": methods,
    "names": names,
    "metrics": metrics,
    "api": api,
}
