"""The values passed between the data pipeline, a method and the trainer.

Shape comments use one alphabet everywhere: B batch, C channels, K output channels, F features,
*S spatial axes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np

if TYPE_CHECKING:  # preparing scans does not need torch
    import torch
    from torch import Tensor

IGNORE = -1  # in a label: exclude this voxel from all losses and scores


@dataclass(frozen=True, slots=True)
class Labeled:
    image: Tensor  # (B, C, *S)
    label: Tensor  # (B, *S) int64, class index or IGNORE


@dataclass(frozen=True, slots=True)
class Unlabeled:
    image: Tensor  # (B, C, *S)
    inside: Tensor | None = None  # (B, *S) bool, False in padding; None: no padding


class CropShares:
    """How the processes of a run share the crops of a batch; this class is for a single process.

    Every process draws the random numbers of all crops, but transforms only its own. Images of
    other processes are NaN: a network computes only the outputs of its own crops and gathers the
    others. A method that combines images, for example by mixing, gathers them first.
    """

    own: slice = slice(None)  # the crops of this process

    def gather(self, crops: Tensor) -> Tensor:
        """The crops (B, ...) of all processes, given those of this process."""
        return crops

    def place(self, crops: Tensor) -> Tensor:
        """A batch (B, ...) with the crops of this process, and NaN in place of all others."""
        return crops


WHOLE = CropShares()


@dataclass(frozen=True, slots=True)
class Batch:
    labeled: Labeled
    unlabeled: Unlabeled | None
    generator: torch.Generator  # all randomness of one step, on the device of the images
    shares: CropShares = WHOLE  # crops of this process

    def choices(self, purpose: str) -> np.random.Generator:
        """Random numbers on the host, for decisions that must not wait for the device.

        Depends only on the generator's seed and `purpose`: every purpose has its own stream.
        """
        return np.random.default_rng([self.generator.initial_seed(), crc32(purpose.encode())])


@dataclass(frozen=True, slots=True)
class NetOutput:
    logits: Tensor  # (B, K, *S)
    features: Tensor  # (B, F, *S) before the last layer; coarser than the image in some networks
    trunk: Tensor  # (B, G, *S) before the last block if known, else the features
    pooled: Tensor | None = None  # (B, F, *POOLED_SIDE) mean features, if the network pools them

    @property
    def to_pool(self) -> Tensor:
        """The pooled features if known: pooling them again does not change them."""
        return self.features if self.pooled is None else self.pooled


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of the objective. The trainer multiplies, so the log shows value and weight."""

    value: Tensor  # ()
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class PseudoLabels:
    """Result of an E-step, which the M-step takes as given."""

    target: Tensor  # (B, K, *S) in [0, 1]; hard or soft
    weight: Tensor  # (B, K, *S) in [0, 1]; 0 excludes a voxel
    terms: dict[str, Term] = field(default_factory=dict)  # e.g. the KL of the threshold
    monitors: dict[str, Tensor] = field(default_factory=dict)
    on_grid: bool = True  # on the grid of the unlabeled crops; False after a spatial transform
    # for labeled and unlabeled images: the forward pass behind the labels, for the M-step to reuse
    outputs: tuple[NetOutput, ...] = ()


LabelSets = tuple[PseudoLabels, ...]  # one for each network that labels


@dataclass(frozen=True, slots=True)
class StepOutput:
    terms: dict[str, Term]
    monitors: dict[str, Tensor] = field(default_factory=dict)  # () each, without gradient
    pseudo: LabelSets = ()  # the labels behind the `pseudo` term, for monitoring
