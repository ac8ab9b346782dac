"""Find the images to predict in files, folders and datasets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segpl.data.layouts import read_like
from segpl.data.layouts.base import image_files
from segpl.data.layouts.nnunet import CHANNEL
from segpl.data.plan import Plan
from segpl.data.readers import SUFFIXES, is_series, stem_of, suffix_of
from segpl.errors import InputError, MissingFileError

CHANNEL_LAYOUT = "nnunet"  # its image names always end in the channel number


@dataclass(frozen=True, slots=True)
class Job:
    """One image to predict."""

    name: str
    images: tuple[Path, ...]  # as in a case: channels of one scan, or slices of a DICOM series


def find_inputs(inputs: Sequence[Path], plan: Plan, *, layout: str) -> list[Job]:
    """Images in files, folders of images, and datasets.

    A dataset gives its test cases, or all cases if it has none. `layout` is that of the training
    data, whose file names the inputs probably share.
    """
    files: list[Path] = []
    jobs: list[Job] = []
    for path in inputs:
        if path.is_dir():
            jobs += _folder_jobs(path, plan, layout)
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
    jobs += _file_jobs(files, plan, layout)
    if not jobs:
        raise InputError("there is nothing to predict. Pass an image or a folder of images.")
    _reject_duplicates(jobs)
    return jobs


def _folder_jobs(folder: Path, plan: Plan, layout: str) -> list[Job]:
    if files := image_files(folder):
        return _file_jobs(files, plan, layout)
    if not any(folder.iterdir()):
        raise InputError(f"{folder} is empty. Pass a folder of images.")
    dataset = read_like(folder, layout)
    return [Job(case.name, case.images) for case in dataset.test or dataset.cases]


def _file_jobs(files: Sequence[Path], plan: Plan, layout: str) -> list[Job]:
    """One job per file, or per group `case_0000`, `case_0001`, ... of single channels."""
    alone = [Job(stem_of(path), (path,)) for path in files]
    _reject_duplicates(alone)
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
            f"case {name} has {len(group)} channel file(s) ({found}), but the run was trained on "
            f"{channels}: {', '.join(plan.channels)}. Give one file per channel, from {name}_0000 "
            f"to {name}_{channels - 1:04d}."
        )
    return [
        Job(name, tuple(group[channel] for channel in sorted(group)))
        for (_, name), group in groups.items()
    ]


def _reject_duplicates(jobs: Sequence[Job]) -> None:
    seen: dict[str, Job] = {}
    for job in jobs:
        if job.name in seen:
            raise InputError(
                f"two inputs are named '{job.name}': {seen[job.name].images[0]} and "
                f"{job.images[0]}. Rename one, or predict them into different folders."
            )
        seen[job.name] = job
