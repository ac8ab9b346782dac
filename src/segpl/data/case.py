"""What a layout finds: cases, and what the numbers in their labels mean."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from segpl.errors import InputError, MissingFileError


@dataclass(frozen=True, slots=True)
class Case:
    """One scan. Without a label it is an unlabeled case."""

    name: str
    images: tuple[Path, ...]  # one file for each channel, or one file with all of them
    label: Path | None = None
    is_test: bool = False  # set aside by whoever made the dataset
    subject: str = ""  # cases of one subject are never split; the name where nothing else is known

    def __post_init__(self) -> None:
        if not self.subject:
            object.__setattr__(self, "subject", self.name)

    def without_label(self) -> Case:
        return replace(self, label=None)


@dataclass(frozen=True, slots=True)
class Dataset:
    root: Path
    layout: str
    cases: tuple[Case, ...]
    channels: tuple[str, ...] = ()  # names of modalities, where the dataset gives them
    # name -> number in the label files, background first; None: the labels themselves must tell
    classes: dict[str, int] | None = None
    ignore: int | None = None  # this number in a label file means: nobody knows

    def __post_init__(self) -> None:
        counts = Counter(case.name for case in self.cases)
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            files = [str(c.images[0]) for c in self.cases if c.name == twice[0]]
            raise InputError(
                f"{len(twice)} case name(s) appear more than once in {self.root}: "
                f"'{twice[0]}' is {' and '.join(files)}. Rename one of them."
            )
        if not self.cases:
            raise InputError(f"{self.root} ({self.layout} layout) holds no image.")

    @property
    def labeled(self) -> list[Case]:
        return [case for case in self.cases if case.label and not case.is_test]

    @property
    def unlabeled(self) -> list[Case]:
        return [case for case in self.cases if not case.label and not case.is_test]

    @property
    def test(self) -> list[Case]:
        return [case for case in self.cases if case.is_test]

    def case(self, name: str) -> Case:
        for case in self.cases:
            if case.name == name:
                return case
        raise MissingFileError(
            f"case '{name}' is no longer in {self.root}. Restore its files, or start a new run."
        )
