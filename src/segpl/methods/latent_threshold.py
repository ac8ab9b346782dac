"""The threshold as a latent variable: its settings and its inference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from segpl.errors import InputError, unknown
from segpl.losses import dice_loss
from segpl.methods.base import ThresholdPrediction
from segpl.networks.graphs import Function, Recordable
from segpl.networks.heads import ThresholdMap
from segpl.networks.network import Network
from segpl.resize import POOLED_SIDE, average_pool
from segpl.threshold.base import FAMILIES, Distribution, Prior
from segpl.threshold.categorical import Categorical
from segpl.threshold.exact import dice_of_thresholds, grid_posterior
from segpl.threshold.histogram import GRID_POINTS
from segpl.threshold.rules import DATA_DRIVEN_RULES, RULES, SELECTING_RULES
from segpl.threshold.scopes import SCOPES, CoarseDraws, pool_to_scope, thresholds_per_location
from segpl.types import PseudoLabels, Term

E_STEPS = ("variational", "exact")
MIN_TEMPERATURE = 1e-6  # below, all mass is on one threshold and gradients overflow
MIN_MASS = 1e-30  # of a grid cell under the prior, to keep its logarithm finite
MONITORS = (
    *("energy", "kl", "free_energy", "threshold", "threshold_std"),
    *("kept", "share_foreground", "share_background", "share_left_out"),
)


@dataclass(frozen=True, slots=True)
class ThresholdSettings:
    family: str = "logit-normal"  # family of prior and posterior: `segpl list families`
    rule: str = "marginal-select"  # from probability and threshold to label: `segpl list rules`
    scope: str = "image"  # what shares a threshold: `segpl list scopes`
    # `variational`: a head predicts the posterior; `exact`: Bayes' rule on a grid
    e_step: str = "variational"
    prior_mean: float = 0.5  # mean of the prior
    prior_std: float = 0.1  # standard deviation of the prior
    temperature: float = 0.05  # temperature of the likelihood exp(-loss / temperature)

    def __post_init__(self) -> None:
        choices = {
            "family": FAMILIES.names,
            "rule": RULES,
            "scope": SCOPES,
            "e_step": E_STEPS,
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise unknown(f"method.threshold.{name}", getattr(self, name), known)
        if not MIN_TEMPERATURE <= self.temperature < math.inf:
            raise InputError(
                f"method.threshold.temperature is {self.temperature}: it must be "
                f"{MIN_TEMPERATURE:g} or more, and finite. Low values trust the images, "
                "high values the prior."
            )
        for name in ("prior_mean", "prior_std"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(
                    f"method.threshold.{name} is {getattr(self, name)}: it must lie between 0 and "
                    "1, like thresholds."
                )
        self.reject_voxel_histograms()

    def reject_voxel_histograms(self) -> None:
        """Reject settings that would need a histogram for every voxel."""
        if self.scope != "voxel":
            return
        for name, value, other in (
            ("e_step", "exact", "e_step 'variational'"),
            ("family", "categorical", "a two-parameter family like 'beta'"),
        ):
            if getattr(self, name) == value:
                raise InputError(
                    f"method.threshold.{name} is '{value}' with scope 'voxel', which would need a "
                    f"histogram for every voxel. Use another scope, or {other}."
                )


class LatentThreshold(Recordable, nn.Module):
    r"""Infers $q(T)$ from the predictions of a network, and labels images with it.

    $$F = E_q[\log p(x \mid T)] - \mathrm{KL}(q(T) \,\|\, p(T)), \quad
      \log p(x \mid T) = -\frac{1 - D(T)}{\tau}$$

    $D$ is the soft Dice between the probabilities and the labels that the rule derives from them.
    The exact E-step computes the posterior by Bayes' rule, and $F = \log Z$. The variational
    E-step takes one gradient step of a head on $F$, where the Dice of the labels in use replaces
    the expected Dice: the labels at one draw, which send the head no gradient, or the averaged
    labels of a marginal rule. With scope `voxel`, the divergence is the mean over voxels. Neither
    E-step trains the network.
    """

    prior_mean: Tensor  # ()
    prior_std: Tensor  # ()

    def __init__(self, settings: ThresholdSettings, network: Network) -> None:
        super().__init__()
        self.settings = settings
        self.family = FAMILIES.get(settings.family)()
        for name in ("prior_mean", "prior_std"):
            self.register_buffer(name, torch.tensor(getattr(settings, name)), persistent=False)
        self.head: ThresholdMap | None = None
        if settings.e_step == "variational":
            self.head = ThresholdMap(
                network.dims,
                network.features,
                parameters=self.family.parameters,
                thresholds=thresholds_per_location(settings.scope, network.outputs),
            )
        self.cached: References | None = None
        self.cached_mean: Tensor | None = None

    def references(self) -> References:
        """The prior and the start of the head, recomputed after a move to another device."""
        mean, std = self.prior_mean, self.prior_std
        if self.cached is None or self.cached_mean is not mean:
            with torch.no_grad(), torch.autocast(mean.device.type, enabled=False):
                prior = self.family.prior(mean, std)
                self.cached = References(
                    prior,
                    self.family.anchor(prior) if self.head else (),
                    self.log_masses(mean, std),
                )
            self.cached_mean = mean
        return self.cached

    def log_masses(self, mean: Tensor, std: Tensor) -> Tensor:
        """Log mass (G,) of the prior in each cell of an even grid on (0, 1)."""
        if self.head is not None:
            return mean.new_empty(0)
        # double: near 1, float32 cannot represent small differences of the CDF
        edges = torch.linspace(0, 1, GRID_POINTS + 1, device=mean.device, dtype=torch.float64)
        masses = self.family.prior(mean.double(), std.double()).cdf(edges).diff()  # (G,)
        return masses.clamp(min=MIN_MASS).log().float()

    def forward(
        self,
        logits: Tensor,
        inside: Tensor,
        features: Tensor,
        generator: torch.Generator,
    ) -> PseudoLabels:
        """Label unlabeled images, given their logits (U, K, *S), without gradient, and features.

        Returns labels without gradient, the term that trains the head, and monitors. Voxels where
        `inside` (U, 1, *S) is 0 have weight 0.
        """
        with torch.autocast(logits.device.type, enabled=False):
            inputs = pool_features(features), logits, inside
            outputs = self.calls(*inputs) if self.calls else self.compute(*inputs, generator)
        target, weight, cost, *values = outputs
        terms = {} if self.head is None else {"threshold_cost": Term(cost)}
        # the M-step takes the labels as given: it must not move the threshold to suit the network
        return PseudoLabels(target, weight, terms, dict(zip(MONITORS, values, strict=True)))

    def recordable(self) -> nn.Module | None:
        """None if the E-step draws random numbers or sorts voxels."""
        settings = self.settings
        is_repeatable = (
            self.head is not None
            and settings.rule in DATA_DRIVEN_RULES
            and settings.scope != "voxel"
        )
        return Function(self.compute, self) if is_repeatable else None

    def compute(
        self,
        pooled: Tensor,
        logits: Tensor,
        inside: Tensor,
        generator: Any = None,  # needed by rules that draw the threshold
    ) -> tuple[Tensor, ...]:
        """Target and weight without gradient, the cost, and the `MONITORS`."""
        probability = logits.sigmoid()
        if self.head is None:
            found = self.exact(probability, inside)
        else:
            found = self.variational(self.head(pooled), logits.shape[2:])
        pseudo = RULES[self.settings.rule](probability, found.posterior, generator)
        weight = pseudo.weight * inside
        loss = dice_loss(logits, pseudo.target, weight) if found.loss is None else found.loss
        energy = loss / self.settings.temperature
        cost = energy + found.divergence
        target, weight = pseudo.target.detach(), weight.detach()
        monitors = (energy, found.divergence, -cost)
        shares = label_fractions(target, weight, inside)
        return (
            target,
            weight,
            cost,
            *(one.detach() for one in monitors),
            *mean_moments(found.posterior),
            *shares,
        )

    def variational(self, numbers: Tensor, sides: Sequence[int]) -> Inferred:
        """The posterior with the parameters (n, U, k, *coarse) that the head predicts."""
        scope, references = self.settings.scope, self.references()
        posterior = self.family.shifted(references.anchor, pool_to_scope(numbers, scope, sides))
        if scope == "voxel":
            places = self.family.shifted(references.anchor, numbers)
            posterior = CoarseDraws(posterior, places, tuple(sides))
        return Inferred(posterior, posterior.kl(references.prior).mean())

    @torch.no_grad()
    def predict(self, probability: Tensor, features: Tensor) -> ThresholdPrediction:
        """The posterior for images with these probabilities (B, K, *S), without training."""
        if self.head is None:
            inferred = self.exact(probability, torch.ones_like(probability))
        else:
            inferred = self.variational(self.head(pool_features(features)), probability.shape[2:])
        selects = self.settings.rule in SELECTING_RULES
        return ThresholdPrediction(probability, inferred.posterior, selects)

    @torch.no_grad()
    def exact(self, probability: Tensor, weight: Tensor) -> Inferred:
        """The posterior by Bayes' rule, and the expected loss under it."""
        settings, prior_log = self.settings, self.references().log_mass
        dice = dice_of_thresholds(
            probability,
            weight.expand_as(probability),
            scope=settings.scope,
            selects=settings.rule in SELECTING_RULES,
        )  # (b, k, G)
        log_mass = grid_posterior(dice, prior_log, temperature=settings.temperature)
        loss = (log_mass.exp() * (1 - dice)).sum(-1).mean()
        places = [1] * (probability.dim() - 2)
        posterior = Categorical(log_mass.view(*log_mass.shape[:2], *places, GRID_POINTS))
        return Inferred(posterior, posterior.kl(Categorical(prior_log)).mean(), loss)


@dataclass(frozen=True, slots=True)
class Inferred:
    """The threshold as one E-step infers it."""

    posterior: Distribution
    divergence: Tensor  # () KL from the prior, averaged over thresholds
    loss: Tensor | None = None  # () expected under the posterior, if it was computed


@dataclass(frozen=True, slots=True)
class References:
    """The prior in the forms that inference needs."""

    prior: Prior
    anchor: tuple[Tensor, ...]  # initial posterior of the head; empty without a head
    log_mass: Tensor  # (G,) of the prior per grid cell; empty if unused


def pool_features(features: Tensor) -> Tensor:
    """Features (B, F, *S) on a coarse grid (B, F, *POOLED_SIDE), detached.

    A head that could change them would make its threshold look good by making the network worse.
    """
    return average_pool(features.detach(), POOLED_SIDE).float()


@torch.no_grad()
def mean_moments(posterior: Distribution) -> tuple[Tensor, Tensor]:
    mean, std = posterior.moments
    return mean.mean(), std.mean()


@torch.no_grad()
def label_fractions(target: Tensor, weight: Tensor, inside: Tensor) -> tuple[Tensor, ...]:
    """Fractions of voxels that are labeled, labeled foreground, labeled background, and excluded.

    Averaged over channels.
    """
    total = inside.expand_as(weight).sum().clamp(min=1)
    kept = weight.sum() / total
    foreground = (weight * target).sum() / total
    return kept, foreground, kept - foreground, 1 - kept
