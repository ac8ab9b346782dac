"""nnU-Net raw datasets: one file per channel, numbered `_0000`, `_0001`, ..."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from segpl.data.case import Case, Dataset
from segpl.data.layouts.base import (
    Layout,
    channel_names,
    class_numbers,
    image_files,
    labels_by_stem,
    read_description,
    reject_orphans,
)
from segpl.data.readers import stem_of, suffix_of
from segpl.errors import InputError, MissingFileError

CHANNEL = re.compile(r"(?P<case>.+)_(?P<channel>\d{4})")


class NnUnet(Layout):
    """`imagesTr/CASE_0000.nii.gz`, `labelsTr/CASE.nii.gz`, `imagesTs`, `dataset.json`.

    Images without a label are unlabeled training cases, including those in `imagesTs`. Images with
    a label in `labelsTs` are test cases. Version 1, with `modality` in dataset.json, works too.
    """

    name: ClassVar[str] = "nnunet"
    needs: ClassVar[str] = "imagesTr/CASE_0000.nii.gz and labelsTr/CASE.nii.gz"
    order: ClassVar[int] = 20

    def matches(self, root: Path) -> bool:
        if not (root / "imagesTr").is_dir():
            return False
        if read_description(root / "dataset.json").channel_names is not None:
            return True
        # four digits may also number the patients, but then the labels have them too
        labels = {stem_of(path) for path in image_files(root / "labelsTr")}
        found = [CHANNEL.fullmatch(stem_of(path)) for path in image_files(root / "imagesTr")]
        return all(found) and any(match[1] in labels for match in found if match)

    def read(self, root: Path) -> Dataset:
        source = root / "dataset.json"
        description = read_description(source)
        channels = channel_names(description.channel_names or description.modality)
        classes, ignore = class_numbers(description.labels, source)

        def files(folder: str) -> list[Path]:
            ending = description.file_ending
            return [path for path in image_files(root / folder) if path.name.endswith(ending)]

        found = image_files(root / "imagesTr")
        if found and not files("imagesTr"):
            raise InputError(
                f"{source} has the file_ending '{description.file_ending}', but the files in "
                f"{root / 'imagesTr'} end differently, such as {found[0].name}. Correct "
                "file_ending."
            )
        cases: list[Case] = []
        for part in ("Tr", "Ts"):
            images = _group_channels(files(f"images{part}"))
            labels = labels_by_stem(files(f"labels{part}"))
            reject_orphans(
                [path for name, path in labels.items() if name not in images],
                [path for group in images.values() for path in group.values()],
            )
            count = 1 + max((max(group) for group in images.values()), default=0)
            cases += [
                Case(
                    name,
                    _all_channels(name, group, channels or tuple(map(str, range(count)))),
                    labels.get(name),
                    is_test=part == "Ts" and name in labels,
                )
                for name, group in images.items()
            ]
        return Dataset(root, self.name, tuple(cases), channels, classes, ignore)


def _group_channels(files: list[Path]) -> dict[str, dict[int, Path]]:
    """Case -> channel number -> file."""
    groups: dict[str, dict[int, Path]] = {}
    for path in files:
        match = CHANNEL.fullmatch(stem_of(path))
        if match is None:
            raise InputError(
                f"{path} does not end in a channel number such as _0000, as every image of an "
                "nnU-Net dataset must. Rename it, or move it out of the folder."
            )
        group = groups.setdefault(match[1], {})
        if int(match[2]) in group:
            raise InputError(
                f"channel {match[2]} of case {match[1]} exists twice: {group[int(match[2])]} "
                f"and {path}. Remove one of them."
            )
        group[int(match[2])] = path
    return groups


def _all_channels(name: str, group: dict[int, Path], channels: tuple[str, ...]) -> tuple[Path, ...]:
    some = next(iter(group.values()))
    for number, channel in enumerate(channels):
        if number not in group:
            missing = some.parent / f"{name}_{number:04d}{suffix_of(some)}"
            raise MissingFileError(
                f"case {name} has no {channel} image: {missing} does not exist. Add it, or remove "
                "the case or the channel."
            )
    surplus = [path for number, path in group.items() if number >= len(channels)]
    if surplus:
        raise InputError(
            f"case {name} has the image {surplus[0]}, but dataset.json names only the channels "
            f"{', '.join(channels)}. Add it to channel_names, or remove it."
        )
    return tuple(group[number] for number in range(len(channels)))
