"""Where the files of a dataset are: one file for each way of arranging them.

`read_dataset` finds the arrangement by itself; `LAYOUTS` holds the known ones by name.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from segpl.data.case import Case, Dataset
from segpl.data.layouts.base import Layout, default_subject
from segpl.errors import InputError, MissingFileError
from segpl.registry import Registry

LAYOUTS = Registry("layout", "segpl.data.layouts", Layout)  # type: ignore[type-abstract]  # never instantiated itself


def read_dataset(root: Path, layout: str | None = None, *, subject: str | None = None) -> Dataset:
    """Find the cases under `root`.

    Args:
        root: folder of the dataset.
        layout: name of its layout; found from its content if not given.
        subject: regular expression with one group that finds the subject in a case name, so that
            scans of one person are never split; a guess by common endings if not given.
    """
    if not root.exists():
        raise MissingFileError(f"{root} does not exist. Give the folder that holds the dataset.")
    if not root.is_dir():
        raise InputError(f"{root} is a file, and a dataset is a folder. Give the folder it is in.")
    dataset = (_named(layout, root) if layout else _found(root)).read(root)
    return replace(dataset, cases=_with_subjects(dataset.cases, subject))


def _named(name: str, root: Path) -> Layout:
    layout = LAYOUTS.get(name)()
    if not layout.finds(root):
        raise InputError(
            f"{root} does not follow the layout '{name}', which needs {layout.needs}; "
            f"it holds {_content(root)}. Leave --layout away to have the layout found."
        )
    return layout


def _found(root: Path) -> Layout:
    known = _in_order()
    for layout in known:
        if layout.finds(root):
            return layout
    needs = "; ".join(f"{layout.needs} ({layout.name})" for layout in known)
    raise InputError(
        f"{root} holds no dataset in a known layout. Looked for: {needs}. "
        f"It holds {_content(root)}. {_one_below(root, known)}"
        "The smallest layout that works is images/a.nii.gz, images/b.nii.gz and labels/a.nii.gz: "
        "a label has the name of its image, and an image without one is used unlabeled."
    )


def _in_order() -> list[Layout]:
    """Strictest first, so that a general layout never takes what a special one understands."""
    return sorted((kind() for kind in LAYOUTS.classes.values()), key=lambda layout: layout.order)


def _one_below(root: Path, known: list[Layout]) -> str:
    folders = sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
    for folder in folders:
        if any(layout.finds(folder) for layout in known):
            return f"Did you mean {folder}? "
    return ""


def _content(root: Path) -> str:
    names = sorted(
        f"{path.name}/" if path.is_dir() else path.name
        for path in root.iterdir()
        if not path.name.startswith(".")
    )
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more if names else "nothing"


def _with_subjects(cases: tuple[Case, ...], subject: str | None) -> tuple[Case, ...]:
    guessed = tuple(
        replace(case, subject=default_subject(case.name)) if case.subject == case.name else case
        for case in cases
    )
    if subject is None:
        return guessed
    try:
        pattern = re.compile(subject)
    except re.error as error:
        raise InputError(
            f"--subject '{subject}' is no valid regular expression: {error}. "
            r"An example that works: --subject '(patient\d+)'"
        ) from error
    if pattern.groups != 1:
        raise InputError(
            f"--subject '{subject}' has {pattern.groups} groups, and one pair of brackets must "
            r"enclose the subject, as in --subject '(patient\d+)_frame'"
        )
    matches = [pattern.search(case.name) for case in cases]
    if not any(match and match[1] for match in matches):
        raise InputError(
            f"--subject '{subject}' matches none of the {len(cases)} case names, such as "
            f"'{cases[0].name}'. Change it so that its brackets enclose a part of them."
        )
    return tuple(
        replace(case, subject=match[1]) if match and match[1] else case
        for case, match in zip(guessed, matches, strict=True)
    )
