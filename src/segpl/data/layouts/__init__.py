"""Dataset layouts, one module each: where the files are.

`read_dataset` detects the layout; `LAYOUTS` contains all of them by name.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from segpl.data.case import Case, Dataset
from segpl.data.layouts.base import (
    Layout,
    channel_names,
    class_numbers,
    default_subject,
    read_description,
)
from segpl.errors import InputError, MissingFileError
from segpl.registry import Registry

LAYOUTS = Registry("layout", "segpl.data.layouts", Layout)  # type: ignore[type-abstract]  # never instantiated itself
SHOWN_FILES = 8  # files of a folder in a message


def read_dataset(root: Path, layout: str | None = None, *, subject: str | None = None) -> Dataset:
    """Find the cases of a dataset.

    Args:
        root: folder of the dataset.
        layout: name of its layout; detected by default.
        subject: regular expression with one group that extracts the subject from a case name, so
            that scans of one person stay together; by default common endings are removed.
    """
    if not root.exists():
        raise MissingFileError(f"{root} does not exist. Pass the dataset folder.")
    if not root.is_dir():
        raise InputError(f"{root} is a file. Pass the dataset folder.")
    dataset = (_requested(layout, root) if layout else _detected(root)).read(root)
    return replace(_described(dataset), cases=_with_subjects(dataset.cases, subject))


def read_like(root: Path, layout: str) -> Dataset:
    """A dataset that probably has the layout of the training data; detected if it does not."""
    is_alike = root.is_dir() and layout in LAYOUTS.names and LAYOUTS.get(layout)().matches(root)
    return read_dataset(root, layout if is_alike else None)


def _requested(name: str, root: Path) -> Layout:
    layout = LAYOUTS.get(name)()
    if not layout.matches(root):
        raise InputError(
            f"{root} does not have the layout '{name}', which needs {layout.needs}; it contains "
            f"{_content(root)}. Omit --layout to detect the layout."
        )
    return layout


def _detected(root: Path) -> Layout:
    # strict layouts come first, or a general one would claim their datasets
    layouts = sorted((kind() for kind in LAYOUTS.classes.values()), key=lambda layout: layout.order)
    for layout in layouts:
        if layout.matches(root):
            return layout
    needs = "; ".join(f"{layout.needs} ({layout.name})" for layout in layouts)
    raise InputError(
        f"{root} has no known layout. Looked for: {needs}. It contains {_content(root)}. "
        f"{_suggestion(root, layouts)}"
        "The simplest layout is images/a.nii.gz, images/b.nii.gz and labels/a.nii.gz: a label has "
        "the name of its image, and an image without a label is used as unlabeled."
    )


def _suggestion(root: Path, layouts: list[Layout]) -> str:
    folders = sorted(path for path in root.iterdir() if path.is_dir() and path.name[0] != ".")
    for folder in folders:
        if any(layout.matches(folder) for layout in layouts):
            return f"Did you mean {folder}? "
    return ""


def _content(root: Path) -> str:
    names = sorted(
        f"{path.name}/" if path.is_dir() else path.name
        for path in root.iterdir()
        if not path.name.startswith(".")
    )
    more = f" and {len(names) - SHOWN_FILES} more" if len(names) > SHOWN_FILES else ""
    return ", ".join(names[:SHOWN_FILES]) + more if names else "nothing"


def _described(dataset: Dataset) -> Dataset:
    """The dataset with the names in its labels.json or dataset.json, if the layout read none."""
    for source in (dataset.root / "labels.json", dataset.root / "dataset.json"):
        content = read_description(source)
        classes, ignore = class_numbers(content.labels, source)
        if dataset.classes is None and classes:
            dataset = replace(dataset, classes=classes, ignore=ignore)
        if not dataset.channels:
            dataset = replace(dataset, channels=channel_names(content.channel_names))
    return dataset


def _with_subjects(cases: tuple[Case, ...], subject: str | None) -> tuple[Case, ...]:
    guessed = tuple(
        replace(case, subject=default_subject(case.name)) if case.subject == case.name else case
        for case in cases
    )
    if subject is None:
        return guessed
    example = r"for example --subject '(patient\d+)_frame'"
    try:
        pattern = re.compile(subject)
    except re.error as error:
        raise InputError(
            f"--subject '{subject}' is not a valid regular expression: {error}. Correct it, "
            f"{example}."
        ) from error
    if pattern.groups != 1:
        raise InputError(
            f"--subject '{subject}' has {pattern.groups} groups. Put one pair of parentheses "
            f"around the subject, {example}."
        )
    matches = [pattern.search(case.name) for case in cases]
    if not any(match and match[1] for match in matches):
        raise InputError(
            f"--subject '{subject}' matches none of the {len(cases)} case names, for example "
            f"'{cases[0].name}'. Change it so that its group matches a part of them."
        )
    return tuple(
        replace(case, subject=match[1]) if match and match[1] else case
        for case, match in zip(guessed, matches, strict=True)
    )
