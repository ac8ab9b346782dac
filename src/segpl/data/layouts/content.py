"""Everything below a folder that could be an image or a label, and what cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from unicodedata import normalize

from segpl.data.case import Dataset
from segpl.data.dicom.header import walk_visible
from segpl.data.readers import stem_of, suffix_of

OWN_FILES = ("split.json", "predictions.json")  # mark folders that segpl wrote


class FoundFile(NamedTuple):
    path: str  # below the dataset
    folders: tuple[str, ...]  # in composed Unicode, as the stem
    stem: str
    suffix: str


class Content(NamedTuple):
    files: list[FoundFile]  # of a known format, sorted
    unusable: dict[str, str]  # path below the folder -> why it cannot be read


def list_content(root: Path) -> Content:
    """List a folder and its subfolders, except hidden ones, runs and predictions."""
    files: list[FoundFile] = []
    unusable: dict[str, str] = {}
    for here, folders, names in walk_visible(root):
        inside = here.relative_to(root).parts
        if inside and not set(OWN_FILES).isdisjoint(names):
            folders.clear()
            continue
        for name in [name for name in folders if suffix_of(name)]:
            unusable["/".join((*inside, name))] = "a folder with the name of a file"
            folders.remove(name)
        for name in names:
            path = "/".join((*inside, name))
            if name.endswith(".hdr") and f"{name[:-4]}.img" in names:
                unusable[path] = "half of a .hdr and .img pair, which is not supported"
            elif not suffix_of(name):
                continue
            elif not (here / name).is_file():
                unusable[path] = "a link to a file that does not exist"
            else:
                composed = tuple(normalize("NFC", folder) for folder in inside)
                suffix = name[len(name) - len(suffix_of(name)) :]
                files.append(FoundFile(path, composed, stem_of(name), suffix))
    return Content(files, unusable)


def unused_files(dataset: Dataset, content: Content) -> list[str]:
    """Files of a known format that belong to no case, and DICOM files of other kinds."""
    used = {path for case in dataset.cases for path in (*case.images, *case.label_files)}
    files = [file.path for file in content.files if dataset.root / file.path not in used]
    return [*dataset.unused, *files]
