"""Dataset layouts, one module each: where the files are.

`read_dataset` detects the layout; `LAYOUTS` contains all of them by name.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from unicodedata import normalize

from segpl.data.case import Case, Dataset, is_patterns
from segpl.data.dicom.header import files_below, is_dicom
from segpl.data.layouts.base import (
    Layout,
    channel_names,
    class_numbers,
    default_subject,
    has_label_word,
    image_files,
    labels_by_stem,
    read_description,
    reject_nested_labels,
)
from segpl.data.layouts.content import list_content, unused_files
from segpl.data.layouts.folders import LABEL_FOLDERS, Folders, label_folders
from segpl.data.layouts.pairing import find_patterns
from segpl.data.layouts.patterns import Patterns, parse_patterns
from segpl.data.readers import suffix_of
from segpl.display import say
from segpl.errors import InputError, MissingFileError, UserError, count_noun, name_some
from segpl.records import read_toml
from segpl.registry import Registry

LAYOUTS = Registry("layout", "segpl.data.layouts", Layout)  # type: ignore[type-abstract]  # never instantiated itself
SHOWN_FILES = 8  # files of a folder in a message


def read_dataset(
    root: Path,
    layout: str | None = None,
    *,
    subject: str | None = None,
    accept: bool = False,
    labels: Path | str | None = None,
) -> Dataset:
    """Find the cases of the dataset in a folder.

    The `layout`, a name or patterns, is by default read from its segpl.toml or detected; `accept`
    uses detected patterns without confirmation. The group of the regular expression `subject` is
    the subject in a case name, so that scans of one person stay together; by default common endings
    are removed. Files in the folder `labels`, named after the cases, replace their labels. Empty
    strings count as None.
    """
    if not root.exists():
        raise MissingFileError(f"{root} does not exist. Pass the dataset folder.")
    if not root.is_dir():
        raise InputError(f"{root} is a file. Pass the dataset folder.")
    layout = layout or stated_layout(root)
    if not layout:
        dataset = _detect(root, accept=accept)
    elif is_patterns(layout):
        dataset = parse_patterns(layout).read(root)
    else:
        dataset = _requested(layout, root).read(root)
    cases = _with_subjects(dataset.cases, subject or None)
    cases = _with_labels(cases, Path(labels)) if labels else cases
    for folder in label_folders(root) if dataset.layout == Folders.name else []:
        reject_nested_labels(folder, [case for case in cases if not case.label])
    return replace(_described(dataset), cases=cases)


def read_label_folder(folder: Path) -> Dataset:
    """The labels in a folder; in that of a dataset, with the classes that it names, if any."""
    cases = [Case(name, (), path) for name, path in labels_by_stem(image_files(folder)).items()]
    found = Dataset(folder, "labels", tuple(cases))
    if folder.absolute().name.lower() not in (*LABEL_FOLDERS, "labelstr", "labelsts"):
        return found
    # `dataset.json` may belong to another tool; the labels can be scored without it
    with suppress(UserError):
        named = _described(replace(found, root=folder.absolute().parent))
        return found if named.classes is None else named
    return found


def accepted_layout(root: Path) -> str | None:
    """The patterns that `--yes` accepts, after printing them; None for a standard layout."""
    dataset = read_dataset(root, accept=True)
    if not is_patterns(dataset.layout):
        return None
    say(f"Accepted layout:\n{describe_patterns(dataset)}")
    return dataset.layout


def read_like(root: Path, layout: str) -> Dataset:
    """A dataset that probably has the layout of the training data; detected if it does not."""
    is_alike = layout in LAYOUTS.names and root.is_dir() and LAYOUTS.get(layout)().matches(root)
    return read_dataset(root, layout if is_alike else None, accept=True)


def stated_layout(root: Path) -> str:
    """The layout in the segpl.toml of a dataset; empty without one."""
    path = root / "segpl.toml"
    content = read_toml(path) if path.is_file() else {}
    layout = content.get("layout", "")
    if not isinstance(layout, str) or content.keys() - {"layout"}:
        raise InputError(
            f"{path} may contain only the layout. Write one line, for example\n\n"
            '  layout = "{case}_T1.nii.gz -> {case}_seg.nii.gz"\n'
        )
    return layout


def _requested(name: str, root: Path) -> Layout:
    layout = LAYOUTS.get(name)()
    if not layout.matches(root):
        raise InputError(
            f"{root} does not have the layout '{name}', which needs {layout.needs}; it contains "
            f"{_content(root)}. Omit --layout to detect the layout."
        )
    return layout


def _detect(root: Path, *, accept: bool) -> Dataset:
    """Read a dataset whose layout is not given; patterns must be accepted."""
    # strict layouts come first, or a general one would claim their datasets
    layouts = sorted((kind() for kind in LAYOUTS.classes.values()), key=lambda layout: layout.order)
    layout = next((layout for layout in layouts if layout.matches(root)), None)
    is_strict = layout is not None and not layout.is_general
    problem = f"{root} has no standard layout."
    try:
        if layout is None:
            raise _unknown_layout(root, layouts)
        dataset = layout.read(root)
    except UserError as error:
        found = [] if is_strict else find_patterns(root)
        if not found:
            raise
        problem = str(error) if layout else problem
    else:
        is_labeled = any(case.label for case in dataset.cases)
        found = [] if is_strict or is_labeled else find_patterns(root)
        if not found:
            return dataset
    if len(found) > 1:
        lines = "\n".join(f'  layout = "{patterns.text}"' for patterns in found[:SHOWN_FILES])
        others = len(found) - SHOWN_FILES
        more = f"\n  ... and {count_noun(others, 'more line')} like these" if others > 0 else ""
        raise InputError(
            f"{root} has several kinds of files that could be labels. Write the correct "
            f"line to {root / 'segpl.toml'}:\n\n{lines}{more}\n{_combined(root, found)}"
        )
    dataset = found[0].read(root)
    if accept:
        return dataset
    ignored = unused_files(dataset, list_content(root))
    more = ""
    if any(has_label_word(path) for path in ignored):
        more = ", for example add ignored masks of other structures with ' + '"
    raise InputError(
        f"{problem} The file names suggest this layout:\n\n"
        f"{describe_patterns(dataset)}\n\n"
        f"If this is right, write this line to {root / 'segpl.toml'}. If not, correct it first"
        f"{more}:\n\n"
        f'  layout = "{dataset.layout}"\n\n'
        "Instead, you can repeat the command with --yes (segpl check, plan and train).\n"
    )


def _combined(root: Path, found: list[Patterns]) -> str:
    """Propose a layout whose labels consist of one mask per structure, if that is possible."""
    distinct = dict.fromkeys(pattern for patterns in found for pattern in patterns.labels)
    labels = tuple(replace(one, is_optional=True) for one in distinct)
    try:
        cases = Patterns(found[0].images, labels).read(root).cases
    except UserError:
        return ""
    masks = [case.masks for case in cases if case.masks]
    labels = tuple(
        replace(one, is_optional=any(own[number] is None for own in masks))
        for number, one in enumerate(distinct)
    )
    combined = Patterns(found[0].images, labels)
    note = ""
    if any(one.is_optional for one in labels):
        note = "; a question mark means that a structure without a mask is absent"
    return (
        "\nIf these are masks of several structures, write this line instead. Omit the structures "
        f'that you do not need{note}:\n\n  layout = "{combined.text}"\n'
    )


def _unknown_layout(root: Path, layouts: list[Layout]) -> InputError:
    simplest = (
        "The simplest layout is images/a.nii.gz, images/b.nii.gz and labels/a.nii.gz: a label has "
        "the name of its image, and an image without a label is used as unlabeled."
    )
    if not any(root.iterdir()):
        return InputError(f"{root} is empty. {simplest}")
    parent = root.resolve().parent
    if root.name.lower().startswith("image") and any(one.matches(parent) for one in layouts):
        return InputError(f"{root} contains only the images. Did you mean {parent}?")
    content = list_content(root)
    levels = zip(*(file.folders for file in content.files), strict=False)
    shared = list(takewhile(lambda names: len(set(names)) == 1, levels))
    for depth in range(len(shared), 0, -1):  # the dataset may be a folder below
        below = root.joinpath(*Path(content.files[0].path).parts[:depth])
        if any(one.matches(below) for one in layouts) or find_patterns(below):
            return InputError(f"{root} has no known layout. Did you mean {below}?")
    folders = [path for path in sorted(root.iterdir()) if path.is_dir()]
    series = [folder for folder in folders if LAYOUTS.get("dicom")().matches(folder)]
    volumes = [folder for folder in folders if folder not in series and image_files(folder)]
    if len(series) == len(volumes) == 1:
        command = ["segpl", "train", str(series[0]), "--set", f"data.labels={volumes[0]}"]
        return InputError(
            f"{root} has no known layout: {series[0].name} contains DICOM series, and "
            f"{volumes[0].name} contains volumes. If these are labels named after the "
            f"cases, train with `{shlex.join(command)}`."
        )
    odd = "".join(
        f" {path} is {why}." for path, why in list(content.unusable.items())[:SHOWN_FILES]
    )
    count = count_noun(len(content.files), "image")
    found = f"Found {count}, but no labels that belong to them. " if content.files else ""
    others = Counter(path.suffix.lower() for path in files_below(root) if not suffix_of(path))
    if content.files and any(is_dicom(path) for path in files_below(root) if not suffix_of(path)):
        found += "It also contains DICOM files. If the volumes are their labels, move them out and "
        found += "use `segpl train --set data.labels=FOLDER`, with files named after the cases. "
    formats = ", ".join(f"{suffix} ({n})" for suffix, n in others.most_common(3) if suffix)
    if formats and not content.files:
        found = f"Files of these types are not read: {formats}. "
    return InputError(
        f"{root} has no known layout. It contains {_content(root)}.{odd} {found}"
        f"{simplest} Describe other names with --layout, for example --layout "
        "'{case}/scan.nii.gz -> {case}/liver.nii.gz'. `segpl list layouts` shows other layouts."
    )


def describe_patterns(dataset: Dataset) -> str:
    """What the patterns of a dataset match, as lines for the terminal."""
    patterns = parse_patterns(dataset.layout)
    rows = [
        ("image", f"{one.text}  ({count_noun(len(dataset.cases), 'file')})")
        for one in patterns.images
    ]
    for number, one in enumerate(patterns.labels):
        masks = [case.masks[number] if case.masks else case.label for case in dataset.cases]
        files = len(masks) - masks.count(None)
        rows.append(("label", f"{one.text}  ({count_noun(files, 'file')})"))
    kinds = {"labeled": dataset.labeled, "unlabeled": dataset.unlabeled, "test": dataset.test}
    for kind, cases in kinds.items():
        for first in cases[:1]:
            paths = [path.relative_to(dataset.root) for path in (*first.images, *first.label_files)]
            rows.append(
                (kind, f"{len(cases):,}, such as {first.name}: {', '.join(map(str, paths))}")
            )
    content = list_content(dataset.root)
    unused = [*unused_files(dataset, content), *content.unusable]
    rows.append(("ignored", name_some(unused, SHOWN_FILES) if unused else "nothing"))
    return "\n".join(f"  {name:<10}{text}" for name, text in rows)


def _content(root: Path) -> str:
    names = sorted(
        f"{path.name}/" if path.is_dir() else path.name
        for path in root.iterdir()
        if not path.name.startswith(".")
    )
    return name_some(names, SHOWN_FILES) if names else "nothing"


def _described(dataset: Dataset) -> Dataset:
    """The dataset with the names in its labels.json or dataset.json, if the layout read none."""
    for source in (dataset.root / "labels.json", dataset.root / "dataset.json"):
        content = read_description(source)
        classes, ignore = class_numbers(content.labels, source)
        if (
            source.name == "labels.json"
            and dataset.has_masks
            and dataset.classes
            and classes
            and (classes, ignore) != (dataset.classes, dataset.ignore)
        ):
            names = ", ".join(f"{name} ({number})" for name, number in dataset.classes.items())
            raise InputError(
                f"{source} differs from the classes of the masks, which follow from the label "
                f"patterns in their order: {names}. Remove the file, or correct it."
            )
        if dataset.classes is None and classes:
            dataset = replace(dataset, classes=classes, ignore=ignore)
        if not dataset.channels:
            dataset = replace(dataset, channels=channel_names(content.channel_names))
    return dataset


def _with_labels(cases: tuple[Case, ...], folder: Path) -> tuple[Case, ...]:
    """The cases, with labels from `folder` in place of their own."""
    if not folder.is_dir():
        raise MissingFileError(f"{folder} does not exist. Pass a folder of labels.")
    found = labels_by_stem(image_files(folder))
    strange = sorted(found.keys() - {case.name for case in cases})
    if strange:
        raise InputError(
            f"{found[strange[0]]} is not named after any case, for example '{cases[0].name}'. "
            "Rename it, or move it elsewhere."
        )
    reject_nested_labels(folder, [case for case in cases if case.name not in found])
    return tuple(
        replace(case, label=found[case.name], segments=None, masks=())
        if case.name in found
        else case
        for case in cases
    )


def _with_subjects(cases: tuple[Case, ...], subject: str | None) -> tuple[Case, ...]:
    guessed = tuple(
        replace(case, subject=default_subject(case.name)) if case.subject == case.name else case
        for case in cases
    )
    if subject is None:
        return guessed
    example = r"for example '(patient\d+)_frame'"
    try:
        pattern = re.compile(normalize("NFC", subject))  # as the names of cases
    except re.error as error:
        raise InputError(
            f"the subject pattern '{subject}' is not a valid regular expression: {error}. "
            f"Correct it, {example}."
        ) from error
    if pattern.groups != 1:
        raise InputError(
            f"the subject pattern '{subject}' has {pattern.groups} groups. Put one pair of "
            f"parentheses around the subject, {example}."
        )
    matches = [pattern.search(case.name) for case in cases]
    if not any(match and match[1] for match in matches):
        raise InputError(
            f"the subject pattern '{subject}' matches no case name, for example "
            f"'{cases[0].name}'. Change it so that its group matches a part of them."
        )
    return tuple(
        replace(case, subject=match[1]) if match and match[1] else case
        for case, match in zip(guessed, matches, strict=True)
    )
