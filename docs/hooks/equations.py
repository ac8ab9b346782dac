"""Equations as MathML, rendered when the manual is built: pages need no JavaScript for them.

`$...$` is an equation within a sentence, `$$...$$` one on a line of its own. Code is left alone.
"""

from __future__ import annotations

import re
from typing import Any

from latex2mathml.converter import convert

CODE = r"(?P<code>^ *```.*?^ *```|`[^`\n]+`)"
DISPLAY = r"\$\$(?P<display>.+?)\$\$"
INLINE = r"(?<![\w$\\])\$(?P<inline>[^$\n]+?)\$(?![\w$])"
PATTERN = re.compile(f"{CODE}|{DISPLAY}|{INLINE}", re.MULTILINE | re.DOTALL)
TOKEN = "EQUATION{}ENDS"

equations: dict[str, list[str]] = {}  # MathML of each page, in order


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put a token in the place of each equation, so that Markdown does not touch its LaTeX."""
    found = equations[page.file.src_uri] = []

    def replace(match: re.Match[str]) -> str:
        if match["code"]:
            return match[0]
        latex = match["display"] or match["inline"]
        found.append(mathml(latex, "block" if match["display"] else "inline"))
        token = TOKEN.format(len(found) - 1)
        return f"\n\n{token}\n\n" if match["display"] else token

    return PATTERN.sub(replace, markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    for number, text in enumerate(equations.pop(page.file.src_uri, [])):
        token = TOKEN.format(number)
        html = html.replace(f"<p>{token}</p>", text).replace(token, text)
    return html


def mathml(latex: str, display: str) -> str:
    text: str = convert(" ".join(latex.split()), display=display)
    return f'<div class="equation">{text}</div>' if display == "block" else text
