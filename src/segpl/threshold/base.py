"""Thresholds as random variables: the interface of distributions and families.

Tensors of a distribution broadcast against probabilities (B, K, *S). A threshold shared by all has
shape (1, 1, 1...), one per image (B, 1, 1...), one per voxel (B, 1, *S).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from segpl.registry import Registry


class Prior(ABC):
    """The distribution of a threshold before an image is seen."""

    @property
    @abstractmethod
    def mean(self) -> Tensor: ...

    @property
    @abstractmethod
    def std(self) -> Tensor: ...

    @abstractmethod
    def cdf(self, value: Tensor) -> Tensor:
        """Probability that the threshold is below `value`; differentiable in the parameters."""


class Distribution(Prior):
    """The distribution of a threshold."""

    @property
    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and std, for families that compute both faster together."""
        return self.mean, self.std

    @abstractmethod
    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw one sample; differentiable in the parameters if the family allows it."""

    @abstractmethod
    def kl(self, prior: Prior) -> Tensor:
        """KL divergence from a prior of the same family, one number per threshold."""


class Family(ABC):
    """Builds the priors and posteriors of one kind."""

    name: ClassVar[str]
    summary: ClassVar[str]  # one line for `segpl list`
    parameters: ClassVar[int]  # per posterior

    @abstractmethod
    def prior(self, mean: Tensor, std: Tensor) -> Prior:
        """Return the prior with this mean and standard deviation."""

    @abstractmethod
    def anchor(self, prior: Prior) -> tuple[Tensor, ...]:
        """Return the parameters of the posterior closest to a prior, the origin of `shifted`.

        It may need an iterative solver, so cache it while the prior does not change.
        """

    @abstractmethod
    def shifted(self, anchor: tuple[Tensor, ...], offsets: Tensor) -> Distribution:
        """Return the posterior at unbounded `offsets` (parameters, ...) from the anchor."""

    def posterior(self, offsets: Tensor, mean: Tensor, std: Tensor) -> Distribution:
        """Return the posterior at `offsets` from the prior with this mean and std."""
        return self.shifted(self.anchor(self.prior(mean, std)), offsets)


FAMILIES = Registry[Family]("threshold family", "segpl.threshold", Family)  # type: ignore[type-abstract]  # only concrete subclasses are instantiated
