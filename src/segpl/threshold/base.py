"""What a threshold is: a random number with a distribution, of one of several families.

Tensors of a distribution broadcast against probabilities (B, K, *S): one threshold for all is of
shape (1, 1, 1...), one for each image (B, 1, 1...), one for each voxel (B, 1, *S).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from segpl.registry import Registry


class Distribution(ABC):
    """The distribution of a threshold."""

    @property
    @abstractmethod
    def mean(self) -> Tensor: ...

    @property
    @abstractmethod
    def std(self) -> Tensor: ...

    @abstractmethod
    def sample(self, generator: torch.Generator) -> Tensor:
        """One draw; differentiable in the parameters where the family can be."""

    @abstractmethod
    def cdf(self, value: Tensor) -> Tensor:
        """Probability that the threshold lies below `value`; differentiable in the parameters."""

    @abstractmethod
    def kl(self, prior: Distribution) -> Tensor:
        """Divergence from a prior of the same family, one number for each threshold."""


class Family(ABC):
    """How the priors and the posteriors of one kind are made."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for lists
    parameters: ClassVar[int]  # that describe a posterior

    @abstractmethod
    def prior(self, mean: Tensor, std: Tensor) -> Distribution:
        """The prior with this mean and spread."""

    @abstractmethod
    def anchor(self, prior: Distribution) -> tuple[Tensor, ...]:
        """What `moved` begins from: the parameters of the posterior nearest to a prior.

        Worth keeping where the prior is fixed: it may be the answer of an iteration.
        """

    @abstractmethod
    def shifted(self, anchor: tuple[Tensor, ...], numbers: Tensor) -> Distribution:
        """The posterior that unbounded `numbers` (numbers, ...) describe; zeros do not move it."""

    def posterior(self, numbers: Tensor, mean: Tensor, std: Tensor) -> Distribution:
        """`moved` from the posterior whose mean and spread are nearest to `mean` and `std`."""
        return self.shifted(self.anchor(self.prior(mean, std)), numbers)


FAMILIES = Registry[Family]("threshold family", "segpl.threshold", Family)  # type: ignore[type-abstract]  # only its concrete children are ever built
