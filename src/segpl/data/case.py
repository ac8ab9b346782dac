"""Cases of a dataset, and the meaning of the numbers in their labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from unicodedata import normalize

from segpl.data.dicom.label import SegmentNumbers
from segpl.errors import InputError, MissingFileError, require_utf8

LARGEST_CLASS = 65535  # number of a class in label files, which must fit 16 bits
ARROW, AND = " -> ", " + "  # between the patterns of a layout


@dataclass(frozen=True, slots=True)
class Case:
    """One scan. Without a label it is an unlabeled case."""

    name: str
    # one file per channel, or one file with all channels, or the slices of a DICOM series
    images: tuple[Path, ...]
    label: Path | None = None
    is_test: bool = False  # a test case of the dataset itself
    subject: str = ""  # cases of one subject stay together in a split; the name by default
    segments: SegmentNumbers | None = None  # numbers of the names in a DICOM label
    # one mask per class, in the order of their numbers, or None; empty for one file
    masks: tuple[Path | None, ...] = ()

    def __post_init__(self) -> None:
        for path in (*self.images, *self.label_files, self.name):
            require_utf8(path)
        # names come from files, folders and lists, which may spell ü differently
        object.__setattr__(self, "name", normalize("NFC", self.name))
        object.__setattr__(self, "subject", normalize("NFC", self.subject or self.name))

    @property
    def label_files(self) -> tuple[Path, ...]:
        return tuple(path for path in self.masks or (self.label,) if path is not None)

    @property
    def mask_numbers(self) -> tuple[int, ...]:
        """The class numbers of the label files, if each file is the mask of a class."""
        return tuple(n for n, mask in enumerate(self.masks, start=1) if mask is not None)

    @property
    def has_plain_label(self) -> bool:
        """Whether the label is a single file of class numbers, which a new label can replace."""
        return self.label is not None and self.segments is None and not self.masks

    def without_label(self) -> Case:
        return replace(self, label=None, masks=())


@dataclass(frozen=True, slots=True)
class Dataset:
    root: Path
    layout: str
    cases: tuple[Case, ...]
    channels: tuple[str, ...] = ()  # names of the modalities, if the dataset gives them
    # name -> number in the label files, background first; None: read from the labels
    classes: dict[str, int] | None = None
    ignore: int | None = None  # number in the label files that marks unlabeled voxels
    unused: tuple[str, ...] = ()  # DICOM files of other kinds: the first of each, and the kind

    def __post_init__(self) -> None:
        if not self.cases:
            raise InputError(f"{self.root} ({self.layout} layout) contains no images.")
        name, count = Counter(case.name for case in self.cases).most_common(1)[0]
        if count > 1:
            files = [str(case.images[0]) for case in self.cases if case.name == name]
            raise InputError(
                f"{self.root} has {count} cases named '{name}': {' and '.join(files)}. Rename "
                "them, or remove all but one."
            )

    @property
    def labeled(self) -> list[Case]:
        return [case for case in self.cases if case.label and not case.is_test]

    @property
    def unlabeled(self) -> list[Case]:
        return [case for case in self.cases if not case.label and not case.is_test]

    @property
    def test(self) -> list[Case]:
        return [case for case in self.cases if case.is_test]

    @property
    def has_masks(self) -> bool:
        """Whether the layout has one mask per class, which numbers the classes."""
        return AND in self.layout.partition(ARROW)[2]

    def require_numbers(self, classes: Mapping[str, int], source: Path) -> None:
        """Reject a dataset whose classes have other numbers than in `source`."""
        for name, number in (self.classes or {}).items():
            if classes.get(name, number) != number:
                raise InputError(
                    f"class '{name}' is {classes[name]} in {source} and {number} in {self.root}. "
                    f"Both must use the same numbers. {self._numbering()}"
                )

    def require_names(self, classes: Mapping[str, int], plan: Path) -> None:
        """Reject a plan that gives a number of this dataset another name."""
        own = {number: name for name, number in (self.classes or {}).items() if number}
        for name, number in classes.items():
            if own.get(number, name) != name:
                raise InputError(
                    f"class {number} is '{name}' in {plan} and '{own[number]}' in {self.root}. "
                    "Correct the names in the plan, or omit --plan to derive one from the dataset."
                )

    def _numbering(self) -> str:
        if self.has_masks:
            return "The order of the label patterns in the layout sets those of several masks."
        return (
            "Those of a DICOM dataset follow from the names of all segments; labels.json in its "
            "folder sets them."
        )

    def case(self, name: str) -> Case:
        for case in self.cases:
            if case.name == name:
                return case
        raise MissingFileError(
            f"case '{name}' is no longer in {self.root}. Restore its files, or start a new run."
        )


def is_patterns(layout: str) -> bool:
    """Whether a layout is given by patterns instead of a name."""
    return "{" in layout
