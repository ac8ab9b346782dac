"""The threshold as a latent variable: its settings, and the E-step that infers it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from segpl.errors import InputError, unknown
from segpl.losses import dice_loss
from segpl.networks.network import Network
from segpl.networks.threshold_map import ThresholdMap
from segpl.threshold.base import FAMILIES, Distribution
from segpl.threshold.categorical import Categorical
from segpl.threshold.exact import dice_of_thresholds, grid_posterior
from segpl.threshold.histogram import GRID_POINTS
from segpl.threshold.priors import PRIORS, StepPredictions, get_prior
from segpl.threshold.rules import RULES, SELECTING_RULES
from segpl.threshold.scopes import SCOPES, CoarseDraws, pool_to_scope, thresholds_per_location
from segpl.types import PseudoLabels, Term

E_STEPS = ("variational", "exact")
COLDEST = 1e-6  # beyond it all is on the best threshold, and gradients leave the range of floats
LEAST_MASS = 1e-30  # of a cell of the prior: its logarithm stays finite


@dataclass(frozen=True, slots=True)
class ThresholdSettings:
    family: str = "logit-normal"  # of prior and posterior: `segpl list families`
    rule: str = "marginal-select"  # from probability and threshold to label: `segpl list rules`
    scope: str = "image"  # who shares a threshold: `segpl list scopes`
    e_step: str = "variational"  # a head learns the posterior; `exact`: Bayes' rule on a grid
    prior: str = "fixed"  # or learned: `labeled`, `confidence`
    prior_mean: float = 0.5  # to begin with, where the prior is learned
    prior_std: float = 0.1
    temperature: float = 0.05  # of the likelihood exp(-loss / temperature)
    yardstick: bool = False  # log the exact posterior beside that of the head

    def __post_init__(self) -> None:
        choices = {
            "family": FAMILIES.names,
            "rule": RULES,
            "scope": SCOPES,
            "e_step": E_STEPS,
            "prior": PRIORS,
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise unknown(f"method.threshold.{name}", getattr(self, name), known)
        if not COLDEST <= self.temperature < math.inf:
            raise InputError(
                f"method.threshold.temperature is {self.temperature}: it must be {COLDEST:g} or "
                "more, and finite. A small one trusts the images, a large one the prior."
            )
        for name in ("prior_mean", "prior_std"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(
                    f"method.threshold.{name} is {getattr(self, name)}: it must lie between 0 and "
                    "1, as thresholds do."
                )
        self.refuse_what_has_no_voxels()

    def refuse_what_has_no_voxels(self) -> None:
        """Where every voxel has a threshold, there is nothing to count over."""
        if self.scope != "voxel":
            return
        for name, value in (("e_step", "exact"), ("family", "categorical"), ("yardstick", True)):
            if getattr(self, name) == value:
                others = (
                    "another scope, or "
                    + {
                        "e_step": "e_step 'variational'",
                        "family": "a family of two numbers such as 'beta'",
                        "yardstick": "no yardstick",
                    }[name]
                )
                raise InputError(
                    f"method.threshold.{name} is {str(value).lower()!r} with scope 'voxel', where "
                    f"a histogram for each voxel would be needed. Use {others}."
                )


class LatentThreshold(nn.Module):
    r"""Infers $q(T)$ from what a network says, and makes labels of it.

    $$F = E_q[\log p(x \mid T)] - \mathrm{KL}(q(T) \,\|\, p(T)), \quad
      \log p(x \mid T) = -\frac{1 - D(T)}{\tau}$$

    $D$ is the soft Dice of the probabilities against the labels that the rule makes of them. The
    exact E-step has the posterior by Bayes' rule, and $F = \log Z$. The variational one takes one
    step of a head, up $F$ with the Dice of the labels in use in the place of the expected Dice:
    those at one draw, of which the head feels nothing, or the averages of a marginal rule. With the
    scope `voxel` the divergence is the mean over voxels, so that the prior holds each place by its
    share of the image. Neither E-step moves the network.
    """

    def __init__(self, settings: ThresholdSettings, network: Network) -> None:
        super().__init__()
        self.settings = settings
        self.family = FAMILIES.get(settings.family)()
        self.prior = get_prior(settings.prior)(settings.prior_mean, settings.prior_std)
        self.head: ThresholdMap | None = None
        if settings.e_step == "variational":
            self.head = ThresholdMap(
                network.dims,
                network.features,
                parameters=self.family.parameters,
                thresholds=thresholds_per_location(settings.scope, network.outputs),
            )
        self.kept: References | None = None
        self.kept_state: tuple[object, ...] = ()

    def references(self) -> References:
        """Prior and start as of now; they are worked out anew when the numbers have changed."""
        mean, std = self.prior.mean, self.prior.std
        state = (mean.device, mean.dtype, mean._version, std._version)
        if self.kept is None or self.kept_state != state:
            with torch.no_grad(), torch.autocast(mean.device.type, enabled=False):
                prior = self.family.prior(mean, std)
                self.kept = References(
                    prior,
                    self.family.anchor(prior) if self.head else (),
                    self.log_masses(mean, std),
                )
            self.kept_state = state
        return self.kept

    def log_masses(self, mean: Tensor, std: Tensor) -> Tensor:
        """Logarithm (G,) of what the prior gives to each of the equal parts of (0, 1)."""
        if self.head is not None and not self.settings.yardstick:
            return mean.new_empty(0)
        # double: towards 1 a cumulative probability in float32 has no room for small masses
        edges = torch.linspace(0, 1, GRID_POINTS + 1, device=mean.device, dtype=torch.float64)
        masses = self.family.prior(mean.double(), std.double()).cdf(edges).diff()  # (G,)
        return masses.clamp(min=LEAST_MASS).log().float()

    def forward(
        self, answers: StepPredictions, logits: Tensor, features: Tensor, generator: torch.Generator
    ) -> PseudoLabels:
        """E-step: the labels of unlabeled images.

        Args:
            answers: what the network says of labeled and unlabeled images.
            logits: (U, K, *S) of the unlabeled ones, without a gradient.
            features: (U, F, *S) of the unlabeled ones.
            generator: randomness of the step.

        Returns:
            Labels that carry a gradient to the head where the rule has one, the term that trains
            it, and monitors. Voxels that do not count by `answers.weight` have weight 0.
        """
        with torch.autocast(logits.device.type, enabled=False):
            return self.infer(answers, logits, features, generator)

    def infer(
        self, answers: StepPredictions, logits: Tensor, features: Tensor, generator: torch.Generator
    ) -> PseudoLabels:
        settings = self.settings
        self.prior.update(answers, generator)
        if self.head is None:
            found = self.exact(answers.unlabeled, answers.weight)
        else:
            found = self.learned(self.head(features), logits.shape[2:])
        pseudo = RULES[settings.rule](answers.unlabeled, found.posterior, generator)
        weight = pseudo.weight * answers.weight
        loss = dice_loss(logits, pseudo.target, weight) if found.loss is None else found.loss
        energy = loss / settings.temperature
        cost = energy + found.divergence
        monitors = {"energy": energy.detach(), "kl": found.divergence.detach()}
        monitors |= {"free_energy": -cost.detach(), **described(found.posterior, "threshold")}
        if settings.yardstick:
            exact = self.exact(answers.unlabeled, answers.weight)
            monitors |= described(exact.posterior, "exact_threshold")
        terms = {} if self.head is None else {"threshold_cost": Term(cost)}
        return PseudoLabels(pseudo.target, weight, terms, monitors)

    def learned(self, numbers: Tensor, sides: Sequence[int]) -> Inferred:
        """The posterior that the head's numbers (n, U, k, *coarse) describe."""
        scope, references = self.settings.scope, self.references()
        posterior = self.family.shifted(references.anchor, pool_to_scope(numbers, scope, sides))
        if scope == "voxel":
            places = self.family.shifted(references.anchor, numbers)
            posterior = CoarseDraws(posterior, places, tuple(sides))
        return Inferred(posterior, posterior.kl(references.prior).mean())

    @torch.no_grad()
    def posterior(self, probability: Tensor, features: Tensor) -> Distribution:
        """What is known of the threshold of images (B, K, *S) in prediction; nothing is learned."""
        if self.head is None:
            return self.exact(probability, torch.ones_like(probability)).posterior
        return self.learned(self.head(features), probability.shape[2:]).posterior

    @torch.no_grad()
    def exact(self, probability: Tensor, weight: Tensor) -> Inferred:
        """The posterior by Bayes' rule, and the mean of the loss over it."""
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
    """What an E-step found."""

    posterior: Distribution
    divergence: Tensor  # () from the prior, the mean over thresholds
    loss: Tensor | None = None  # () expected over the threshold, where that is known


@dataclass(frozen=True, slots=True)
class References:
    """What posteriors are held against."""

    prior: Distribution
    anchor: tuple[Tensor, ...]  # of a head's posterior; empty without a head
    log_mass: Tensor  # (G,) of the prior in each cell of the grid; empty where none is used


@torch.no_grad()
def described(posterior: Distribution, name: str) -> dict[str, Tensor]:
    return {name: posterior.mean.mean(), f"{name}_std": posterior.std.mean()}
