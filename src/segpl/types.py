"""The values that travel between the data, a method and the trainer.

One alphabet for shapes in the whole library: B batch, C channels, K output channels, F features,
*S spatial axes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

IGNORE = -1  # in a label: leave this voxel out of every loss and every score


@dataclass(frozen=True, slots=True)
class Labeled:
    image: Tensor  # (B, C, *S)
    label: Tensor  # (B, *S) int64, class index or IGNORE


@dataclass(frozen=True, slots=True)
class Unlabeled:
    image: Tensor  # (B, C, *S)
    # (B, *S) bool, False where a crop reaches beyond its scan; None: nowhere
    inside: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    labeled: Labeled
    unlabeled: Unlabeled | None
    generator: torch.Generator  # all randomness of one step, on the device of the images
    validation: Labeled | None = None  # crops of validation cases, for calibration only

    def choices(self, purpose: str) -> np.random.Generator:
        """Randomness on the host, for choices that must not wait for the device.

        A function of the generator's seed and of `purpose`, so each purpose has a stream of its
        own.
        """
        return np.random.default_rng([self.generator.initial_seed(), crc32(purpose.encode())])


@dataclass(frozen=True, slots=True)
class NetOutput:
    logits: Tensor  # (B, K, *S)
    features: Tensor  # (B, F, *S) before the last layer; some networks keep them coarser
    trunk: Tensor  # (B, G, *S) before the last block, where it is known; else the features

    def images(self, which: slice) -> NetOutput:
        """The same of some of the images."""
        return NetOutput(self.logits[which], self.features[which], self.trunk[which])


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of the objective; the trainer multiplies, so that the log shows both parts."""

    value: Tensor  # ()
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class PseudoLabels:
    """What an E-step hands to an M-step."""

    target: Tensor  # (B, K, *S) in [0, 1]; hard or soft
    weight: Tensor  # (B, K, *S) in [0, 1]; 0 leaves a voxel out
    terms: dict[str, Term] = field(default_factory=dict)  # such as the KL of the threshold
    monitors: dict[str, Tensor] = field(default_factory=dict)
    on_grid: bool = True  # each voxel is that of the unlabeled crops; False: a view moved them


@dataclass(frozen=True, slots=True)
class StepOutput:
    terms: dict[str, Term]
    monitors: dict[str, Tensor] = field(default_factory=dict)  # () each, without gradient
    pseudo: tuple[PseudoLabels, ...] = ()  # the labels that the step learns from, for onlookers
