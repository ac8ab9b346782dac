"""`postprocessing.json`: which classes keep only their largest component, and why.

    {"labels": {"liver": ...}, "largest": ["liver"], "checkpoints": {"last": {"step": ...}}}

`largest` follows from the labels alone. A checkpoint with validation scores has its own list.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from segpl.records import read_record

FEWEST_SUBJECTS = 3  # labeled subjects with a class that are needed to decide
MARGIN = 0.001  # smallest change in mean Dice that counts


@dataclass(frozen=True, slots=True)
class LabelComponents:
    """Number of labels with a class, and how many have several components."""

    subjects: int  # labeled subjects with the class
    labels: int  # labels with the class
    in_parts: int  # labels in which the class has several components

    @property
    def is_single(self) -> bool:
        """Whether every label has a single component, with enough subjects to decide."""
        return self.in_parts == 0 and self.subjects >= FEWEST_SUBJECTS


@dataclass(frozen=True, slots=True)
class ComponentEffect:
    """Effect of keeping only the largest component of a class, over the validation cases."""

    dice: float  # mean over cases, all components
    dice_largest: float  # mean over cases, largest component only
    cases: int
    better: int  # cases that improve
    worse: int

    @property
    def is_loss(self) -> bool:
        """Whether the mean falls, or more cases get worse than improve."""
        return self.dice - self.dice_largest > MARGIN or self.worse > self.better


@dataclass(frozen=True, slots=True)
class CheckpointComponents:
    """The effect on the validation cases, for one checkpoint."""

    step: int
    weights: str  # hash of the checkpoint
    largest: tuple[str, ...]  # classes that keep only their largest component
    classes: dict[str, ComponentEffect]


@dataclass(frozen=True, slots=True)
class PostProcessing:
    labels: dict[str, LabelComponents]  # by foreground class
    largest: tuple[str, ...]  # classes that keep only their largest component
    checkpoints: dict[str, CheckpointComponents] = field(default_factory=dict)


def read_postprocessing(path: Path) -> PostProcessing:
    return read_record(path, PostProcessing, "Delete it to predict without post-processing.")
