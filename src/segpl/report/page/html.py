"""Templates, and figures as inline drawings."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from segpl.errors import InputError
from segpl.files import require_writable, storage_errors

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def templates() -> Environment:
    """The templates of `templates/`; values are escaped, and an unknown name is an error."""
    environment = Environment(
        loader=PackageLoader("segpl", "report/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["code"] = code_spans
    return environment


def require_own_page(path: Path) -> None:
    """Refuse to replace a page that segpl did not write, and paths that cannot be written."""
    require_writable(path)
    if path.exists():
        with storage_errors(path), path.open(encoding="utf-8", errors="replace") as handle:
            is_ours = 'name="generator" content="segpl' in handle.read(2000)
        if not is_ours:
            raise InputError(f"{path} exists and was not written by segpl. Choose another --out.")


def code_spans(text: str) -> Markup:
    """Escaped text, with `backquoted` parts as code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def svg(figure: Figure, description: str) -> Markup:
    """The figure as inline SVG that takes the page's font and text color."""
    from matplotlib import rc_context  # a page of predicted masks has no figure

    from segpl.report.figures import INK, finish_layout

    buffer = io.StringIO()
    # a fixed salt: the same figure gives the same file
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "segpl"}):
        finish_layout(figure)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"\s*<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = re.sub(r' id="[A-Za-z0-9.]+_\d+"', "", drawing)  # repeated in every figure
    drawing = drawing.replace(INK, "currentColor")
    opening = f'<svg role="img" aria-label="{escape(description)}"'
    return Markup(drawing.replace("<svg", opening, 1))
