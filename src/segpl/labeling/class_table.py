"""The classes of a labeling session, and their numbers in label files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segpl.data.case import Dataset
from segpl.data.plan import Plan
from segpl.data.prepare import class_indices
from segpl.data.problems import are_classes
from segpl.data.readers import read_case_label
from segpl.errors import InputError
from segpl.labeling.rounds import Rounds

Indices = NDArray[np.uint8]  # (*S), places in a table of classes


@dataclass(frozen=True, slots=True)
class ClassTable:
    """Classes in the order of their index in the browser; background has index 0."""

    names: tuple[str, ...]
    numbers: tuple[int, ...]  # in label files

    def __post_init__(self) -> None:
        if len(self.names) > 256:
            raise InputError(
                f"the dataset has {len(self.names)} classes, but at most 255 can be drawn."
            )

    def indices(self, labels: NDArray[Any], source: object) -> Indices:
        """Numbers of a label file as indices."""
        classes = dict(zip(self.names, self.numbers, strict=True))
        indices = class_indices(labels.astype(np.int32), classes, None, str(source))
        return indices.astype(np.uint8)

    def labels(self, indices: Indices) -> NDArray[np.int32]:
        """Indices as numbers of a label file."""
        return np.asarray(self.numbers, np.int32)[indices]


def find_classes(dataset: Dataset, rounds: Rounds, dims: int) -> ClassTable:
    """Classes of the latest run, otherwise of the dataset, otherwise those in its labels."""
    plan = next((folder.plan for folder in reversed(rounds.started)), None)
    classes = Plan.read(plan).classes if plan and plan.exists() else dataset.classes
    if classes is None:
        found: set[int] = set()
        for case in dataset.labeled:
            numbers = set(np.unique(read_case_label(case, dims).array).tolist())
            numbers -= {0, dataset.ignore}
            found |= numbers if are_classes(numbers) else set()
        names = ["foreground"] if len(found) < 2 else [f"class-{one}" for one in sorted(found)]
        classes = {"background": 0, **dict(zip(names, sorted(found) or [1], strict=True))}
    else:
        dataset.require_numbers(classes, plan or dataset.root)
    ignore = {} if dataset.ignore is None else {"ignore": dataset.ignore}
    pairs = [*classes.items(), *ignore.items()]
    return ClassTable(tuple(name for name, _ in pairs), tuple(number for _, number in pairs))
