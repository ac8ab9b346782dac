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
TOO_WIDE = 130  # characters of LaTeX; longer equations are broken at \\qquad
# what latex2mathml does not know or browsers draw badly
LATEX = {r"\\arg\\max(_\w)?": r"\\text{arg max}\1\\,", r"\\[bB]ig[lr]?(?![a-z])": ""}
MATHML = {
    '<mn mathvariant="double-struck">1</mn>': "<mi>\U0001d7d9</mi>",
    '<mi mathvariant="double-struck">E</mi>': "<mi>\U0001d53c</mi>",
    "<mi>&#x0007E;</mi>": '<mo lspace="0.28em" rspace="0.28em">&#x0007E;</mo>',
}
# operators whose name is a word: latex2mathml leaves no space around them
NAMED = re.compile(
    r"(?P<before></m(?:i|n|sub|sup|subsup|frac)>|&#x00029;</mo>)?"
    r"<m[io]>(?P<name>log|ln|max|min|exp)</m[io]>"
    r"(?P<bracket>(?=<mo stretchy=\"false\">&#x00028;))?"
)
PRIME = re.compile(r"<msup>(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msup>")

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
    return html.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}")


def mathml(latex: str, display: str) -> str:
    for before, after in LATEX.items():
        latex = re.sub(before, after, latex)
    latex = " ".join(latex.split())
    if display == "inline":
        return converted(latex, display)
    lines = broken(latex, r"\\qquad")
    lines = [part for line in lines for part in broken(line, r"(?<=,) *\\quad")]
    return "".join(f'<div class="equation">{converted(line, display)}</div>' for line in lines)


def broken(latex: str, at: str) -> list[str]:
    return re.split(at, latex) if len(latex) > TOO_WIDE else [latex]


def converted(latex: str, display: str) -> str:
    text: str = convert(latex, display=display)
    for before, after in MATHML.items():
        text = text.replace(before, after)
    text = NAMED.sub(spaced, text)
    return PRIME.sub(r'<mrow>\1<mo lspace="0" rspace="0">&#x02032;</mo></mrow>', text)


def spaced(match: re.Match[str]) -> str:
    """An operator with thin spaces, as in TeX: after a factor, and before anything but `(`."""
    before = "0.17em" if match["before"] else "0"
    after = "0" if match["bracket"] is not None else "0.17em"
    operator = f'<mo form="prefix" lspace="{before}" rspace="{after}">{match["name"]}</mo>'
    return f"{match['before'] or ''}{operator}"
