"""Find the images to predict in files, folders and datasets."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from segpl.data.case import Case, Dataset, is_patterns
from segpl.data.layouts import LAYOUTS, SHOWN_FILES, read_dataset, read_like, stated_layout
from segpl.data.layouts.base import has_label_word, image_files
from segpl.data.layouts.content import list_content
from segpl.data.layouts.nnunet import CHANNEL
from segpl.data.layouts.pairing import find_patterns, looks_like_label
from segpl.data.layouts.patterns import FIELD, parse_patterns
from segpl.data.plan import Plan
from segpl.data.readers import SUFFIXES, is_series, stem_of, suffix_of
from segpl.errors import (
    InputError,
    MissingFileError,
    UserError,
    count_noun,
    join_names,
    name_some,
    require_utf8,
)

CHANNEL_LAYOUT = "nnunet"  # its image names always end in the channel number


@dataclass(frozen=True, slots=True)
class Job:
    """One image to predict."""

    name: str
    images: tuple[Path, ...]  # as in a case: channels of one scan, or slices of a DICOM series

    def __post_init__(self) -> None:
        for path in (*self.images, self.name):
            require_utf8(path)


def find_inputs(
    inputs: Sequence[Path],
    plan: Plan,
    *,
    layout: str,
    tell: Callable[[str], None] = lambda note: None,
) -> list[Job]:
    """Images in files, folders of images, and datasets.

    A dataset gives its test cases, or all cases if it has none. `layout` is that of the training
    data, whose file names the inputs probably share. `tell` receives notes about skipped files and
    about channels and classes that differ from the plan.
    """
    files: list[Path] = []
    jobs: list[Job] = []
    for path in inputs:
        if path.is_dir():
            jobs += _folder_jobs(path, plan, layout, tell)
        elif not path.exists():
            raise MissingFileError(f"{path} does not exist. Pass an image or a folder of images.")
        elif is_series([path]):
            raise InputError(
                f"{path} is one file of a DICOM series. Pass the folder of the series: "
                f"{path.parent}"
            )
        elif not suffix_of(path):
            raise InputError(
                f"{path} has an unknown image format. Known suffixes: {', '.join(SUFFIXES)}."
            )
        else:
            files.append(path)
    jobs += _file_jobs(files, plan, layout, tell)
    if not jobs:
        raise InputError("there is nothing to predict. Pass an image or a folder of images.")
    _reject_duplicates(jobs, layout)
    return jobs


def _folder_jobs(folder: Path, plan: Plan, layout: str, tell: Callable[[str], None]) -> list[Job]:
    files, jobs = image_files(folder), list[Job]()
    dataset = _matched(folder, layout) if is_patterns(layout) else None
    if dataset is None and not files:
        if not any(folder.iterdir()):
            raise InputError(f"{folder} is empty. Pass a folder of images.")
        try:
            dataset = read_like(folder, layout)
        except UserError:
            is_known = any(kind().matches(folder) for kind in LAYOUTS.classes.values())
            if is_known or stated_layout(folder):
                raise
            if not (jobs := _patient_jobs(folder, plan, layout)):
                raise
    elif dataset is None and (stated_layout(folder) or find_patterns(folder)):
        dataset = read_dataset(folder, accept=True)
    if dataset:
        _tell_differences(dataset, plan, tell)
        cases = dataset.test or dataset.cases
        jobs = [Job(case.name, _planned_channels(case, dataset, plan)) for case in cases]
    elif files:
        _reject_unclear(folder, files)
        jobs = _file_jobs(files, plan, layout, tell)
    if dataset is None or files or is_patterns(dataset.layout):
        content = list_content(folder)
        known = {path for job in jobs for path in job.images}
        skipped = [file.path for file in content.files if folder / file.path not in known]
        if skipped := [*skipped, *content.unusable]:
            tell(f"Skipped in {folder}: {name_some(skipped, SHOWN_FILES)}.")
    return jobs


def _patient_jobs(folder: Path, plan: Plan, layout: str) -> list[Job]:
    """Cases named after subfolders that contain one image each; none if some may be labels."""
    patients: dict[str, list[Path]] = defaultdict(list)
    for file in list_content(folder).files:
        if any(map(has_label_word, (*file.folders, file.stem))):
            return []
        patients[file.folders[0]].append(folder / file.path)
    name, paths = max(patients.items(), key=lambda item: len(item[1]), default=("", []))
    if len(paths) > 1:
        suffix, channels = suffix_of(paths[0]), ", ".join(plan.channels)
        names = [f"{{case}}_{index:04d}{suffix}" for index in range(len(plan.channels))]
        if is_patterns(layout):
            names = [one.text for one in parse_patterns(layout).images]
        example = join_names([str(folder / FIELD.sub(name, one)) for one in names])
        raise InputError(
            f"{folder / name} contains {len(paths)} images, such as {paths[0].name}, and it is "
            f"unclear which ones are the channels of the run: {channels}. Name them, for example, "
            f"{example}, or keep one image per folder."
        )
    return [Job(name, tuple(paths)) for name, paths in patients.items()]


def _matched(folder: Path, layout: str) -> Dataset | None:
    """The cases whose files are named as in training, in the same folders or in a single one."""
    patterns = parse_patterns(layout)
    labels = tuple(replace(one, is_optional=True) for one in patterns.labels)  # not read here
    patterns = replace(patterns, labels=labels)
    for one in (patterns, patterns.without_folders()):
        if len(set(one.images)) < len(one.images):
            continue  # only the folders distinguish the channels
        with suppress(UserError):
            return one.read(folder)
    return None


def _reject_unclear(folder: Path, files: Sequence[Path]) -> None:
    """Refuse a folder in which some files may be labels, but it is unclear of which images."""
    labels = [path for path in files if has_label_word(stem_of(path))]
    if not labels and has_label_word(folder.name):
        labels = list(files)
    if labels and (len(labels) < len(files) or looks_like_label(labels[0])):
        raise InputError(
            f"it is unclear which files in {folder} are images: {labels[0].name} is named like a "
            "label. Pass the images by name, or move other files to another folder."
        )


def _tell_differences(dataset: Dataset, plan: Plan, tell: Callable[[str], None]) -> None:
    channels = dataset.channels
    if channels and _names_channels(plan) and not set(plan.channels) <= set(channels):
        tell(
            f"note: {dataset.root} has the channels {', '.join(channels)}, but the run was trained "
            f"on {', '.join(plan.channels)}."
        )
    if dataset.classes and dataset.classes != plan.classes:
        tell(
            f"note: {dataset.root} has the classes {_class_list(dataset.classes)}, but the run "
            f"predicts {_class_list(plan.classes)}."
        )


def _names_channels(plan: Plan) -> bool:
    return plan.channels != tuple(f"channel-{index}" for index in range(len(plan.channels)))


def _class_list(classes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} ({number})" for name, number in classes.items())


def _planned_channels(case: Case, dataset: Dataset, plan: Plan) -> tuple[Path, ...]:
    """The files of a case in the order of the plan, chosen by the names of the channels."""
    names, files = dataset.channels, case.images
    if is_series(files):
        return files
    if len(files) == len(names) and set(plan.channels) <= set(names):
        files = tuple(files[names.index(name)] for name in plan.channels)
    if len(files) not in (1, len(plan.channels)):
        raise InputError(
            f"case {case.name} has {count_noun(len(files), 'image')} "
            f"({', '.join(path.name for path in files)}), but the run was trained on "
            f"{len(plan.channels)}: {', '.join(plan.channels)}. Pass the images by name."
        )
    return files


def _file_jobs(
    files: Sequence[Path], plan: Plan, layout: str, tell: Callable[[str], None]
) -> list[Job]:
    """One job per file, or per group of single channels.

    These are named as in training, after the channels of the plan, or `case_0000`, `case_0001`, and
    so on.
    """
    # a single file is no group, and listing its folder may take long
    if is_patterns(layout) and len(files) > 1 and len(parse_patterns(layout).images) > 1:
        named = _named_channels(files, layout)
        if sum(len(job.images) for job in named) == len(files):
            return named
    if named := _joined_by_name(files, plan):
        known = {path for job in named for path in job.images}
        return [*named, *_file_jobs([one for one in files if one not in known], plan, layout, tell)]
    alone = [Job(stem_of(path), (path,)) for path in files]
    _reject_duplicates(alone, layout)
    groups: dict[tuple[Path, str], dict[int, Path]] = defaultdict(dict)
    for path in files:
        match = CHANNEL.fullmatch(stem_of(path))
        if match is None:
            return alone
        groups[path.parent, match["case"]][int(match["channel"])] = path
    channels = len(plan.channels)
    for (_, name), group in groups.items():
        # a lone _0000 may hold all channels, as color images do; reading it will tell
        if list(group) == [0] or sorted(group) == list(range(channels)):
            continue
        if layout != CHANNEL_LAYOUT and max(group) >= channels:
            return alone  # these number slices or frames, not channels
        found = ", ".join(path.name for path in group.values())
        raise InputError(
            f"case {name} has {count_noun(len(group), 'channel file')} ({found}), but the run was "
            f"trained on {channels}: {', '.join(plan.channels)}. Give one file per channel, from "
            f"{name}_0000 to {name}_{channels - 1:04d}."
        )
    jobs = [
        Job(name, tuple(group[channel] for channel in sorted(group)))
        for (_, name), group in groups.items()
    ]
    # numbers say which channel is which only if training files were numbered, too
    first = next((job.images for job in jobs if len(job.images) > 1), ())
    if first and _names_channels(plan) and is_patterns(layout):
        named_files = zip(map(stem_of, first), plan.channels, strict=True)
        tell(f"note: {', '.join(f'{stem} is {channel}' for stem, channel in named_files)}.")
    return jobs


def _joined_by_name(files: Sequence[Path], plan: Plan) -> list[Job]:
    """The cases with one file per channel of the plan, such as `case_T1` and `case_FLAIR`."""
    if len(plan.channels) == 1 or len(files) == 1:
        return []
    names = sorted(map(re.escape, plan.channels), key=len, reverse=True)
    ending = re.compile(f"(?P<case>.+?)[_. -](?P<channel>{'|'.join(names)})")
    groups: dict[tuple[Path, str], dict[str, Path]] = defaultdict(dict)
    for path in files:
        if match := ending.fullmatch(stem_of(path)):
            groups[path.parent, match["case"]][match["channel"]] = path
    return [
        Job(case, tuple(map(group.__getitem__, plan.channels)))
        for (_, case), group in groups.items()
        if len(group) == len(plan.channels)
    ]


def _named_channels(files: Sequence[Path], layout: str) -> list[Job]:
    """The cases whose files are named as in training and are all among `files`."""
    datasets = [_matched(folder, layout) for folder in {path.parent: None for path in files}]
    cases = [case for dataset in datasets if dataset for case in dataset.cases]
    return [Job(case.name, case.images) for case in cases if set(case.images) <= set(files)]


def _reject_duplicates(jobs: Sequence[Job], layout: str) -> None:
    remedy = "Rename one, pass the folder above if it has one folder per patient, "
    remedy += "or predict them into different folders."
    if is_patterns(layout) and len(parse_patterns(layout).images) > 1:
        remedy += (
            " If they are channels of one scan, pass the folder above them, with files named as in "
            f"training: {layout}."
        )
    seen: dict[str, Job] = {}
    for job in jobs:
        if job.name in seen:
            raise InputError(
                f"two inputs are named '{job.name}': {seen[job.name].images[0]} and "
                f"{job.images[0]}. {remedy}"
            )
        seen[job.name] = job
