"""A report of runs as one HTML file that opens offline and asks for nothing from outside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from markupsafe import Markup, escape

import segpl
from segpl.files import write_text
from segpl.report.figures import MEANINGS
from segpl.report.gathered import Gathered
from segpl.report.page.html import svg, templates
from segpl.report.page.slices import CLASS_COLORS, UNSURE, Browser
from segpl.report.sections.answer import answers
from segpl.report.sections.repeat import recipes
from segpl.report.sections.section import Section
from segpl.report.tables import counted

LAYER_NAMES = {
    "errors": "right and wrong",
    "truth": "truth",
    "prediction": "prediction",
    "uncertainty": "uncertainty",
}


def write_report(
    path: Path,
    found: Gathered,
    sections: Sequence[Section],
    *,
    browsers: Sequence[Browser] = (),
    sheets: dict[str, str] | None = None,
    picture_note: str = "",
    command: str = "",
) -> None:
    """Write the page.

    Args:
        path: the file.
        found: the runs.
        sections: in their order; the one with the key `repeat` comes after the pictures.
        browsers: slices of cases, for each run.
        sheets: pictures by the names that browsers use, as data addresses.
        picture_note: what was left out of the pictures, or why there are none.
        command: wrote this report.
    """
    environment = templates()
    environment.filters["svg"] = svg
    environment.filters["prose"] = prose
    html = environment.get_template("report.html").render(
        title=title_of(found),
        answers=answers(found),
        warnings=warnings_of(found),
        sections=[section for section in sections if section.key != "repeat"],
        repeat=[section for section in sections if section.key == "repeat"],
        recipes=recipes(found),
        browsers=browsers,
        sheets=sheets or {},
        browser_data=[asdict(browser) for browser in browsers],
        legends=[
            ("right and wrong", MEANINGS),
            *class_legends(found),
            ("uncertainty", {"the stronger, the less sure": UNSURE}),
        ],
        layer_names=LAYER_NAMES,
        picture_note=picture_note,
        command=command,
        version=segpl.__version__,
    )
    write_text(path, html)


def prose(text: str) -> Markup:
    """Words with `commands` in a typewriter's letters; everything else is only text."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def title_of(found: Gathered) -> str:
    names = list(dict.fromkeys(dataset_name(dataset) for dataset in found.datasets))
    where = names[0] if len(names) == 1 else counted(len(found.datasets), "dataset")
    methods = counted(len(found.labels), "method")
    return f"{methods} on {where}"


def warnings_of(found: Gathered) -> list[str]:
    """What a reader must know before the answer is believed."""
    said = [f"{name} is left out: {why}" for name, why in found.broken.items()]
    if len(found.datasets) > 1 and not found.has_data_by_seed:
        said.append(
            f"These runs are of {len(found.datasets)} datasets: {', '.join(found.datasets)}. "
            "Methods are compared within each of them alone."
        )
    elif len(found.datasets) > 1:
        said.append("Every seed has images of its own; methods are compared at equal seeds.")
    tests = {run.split.test for run in found.runs if run.split and run.split.test}
    if len(tests) > 1 and len(found.datasets) == 1:
        said.append(
            "The runs were not tested on the same cases: differences are those of the cases that "
            "two methods share, and means of different cases stand side by side in the table."
        )
    leaked = [
        run.name for run in found.runs if run.split and set(run.split.test) & set(run.split.labeled)
    ]
    if leaked:
        said.append(f"Test cases of {', '.join(leaked)} were trained on.")
    return said


def dataset_name(path: str) -> str:
    """The last part of its path, and the one above where that alone says nothing."""
    parts = Path(path).parts
    return "/".join(parts[-2:]) if parts[-1:] in (("data",), ("dataset",)) else Path(path).name


def class_legends(found: Gathered) -> list[tuple[str, dict[str, str]]]:
    """The color of each class in truth and prediction; datasets may have classes of their own."""
    known: dict[tuple[str, ...], list[str]] = {}
    for run in found.runs:
        if run.plan:
            names = known.setdefault(tuple(run.plan.classes)[1:], [])
            if (name := dataset_name(run.dataset)) not in names:
                names.append(name)
    return [
        (
            "truth and prediction" + (f" of {', '.join(names)}" if len(known) > 1 else ""),
            {name: CLASS_COLORS[i % len(CLASS_COLORS)] for i, name in enumerate(classes)},
        )
        for classes, names in known.items()
    ]
