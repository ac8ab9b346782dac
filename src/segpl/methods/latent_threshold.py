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
from segpl.threshold.exact import exact_posterior
from segpl.threshold.histogram import POINTS
from segpl.threshold.priors import PRIORS, Answers, FixedPrior, prior_named
from segpl.threshold.rules import RULES, SELECTING
from segpl.threshold.scopes import SCOPES, JoinedDraws, channels_of, shared
from segpl.types import PseudoLabels, Term

E_STEPS = ("variational", "exact")
LEAST_MASS = 1e-30  # of a cell of the prior: its logarithm stays finite


@dataclass(frozen=True, slots=True)
class ThresholdSettings:
    family: str = "beta"  # of prior and posterior: `segpl list families`
    rule: str = "marginal-select"  # from probability and threshold to label: `segpl list rules`
    scope: str = "image"  # who shares a threshold: `segpl list scopes`
    e_step: str = "variational"  # a head learns the posterior; `exact`: Bayes' rule on a grid
    prior: str = "fixed"  # or learnt: `labeled`, `confidence`
    prior_mean: float = 0.7  # to begin with, where the prior is learnt
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
        if not 0 < self.temperature < math.inf:
            raise InputError(
                f"method.threshold.temperature is {self.temperature}: it must be above 0. A small "
                "one trusts the images, a large one the prior."
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
    variational E-step takes one step of a head up the free energy $F$, in which a rule that
    averages over $T$ puts the Dice of its average in the place of the average Dice; the exact
    E-step has the posterior by Bayes' rule. Neither moves the network.
    """

    def __init__(self, settings: ThresholdSettings, network: Network) -> None:
        super().__init__()
        self.settings = settings
        self.family = FAMILIES.get(settings.family)()
        self.prior = prior_named(settings.prior)(settings.prior_mean, settings.prior_std)
        self.head: ThresholdMap | None = None
        if settings.e_step == "variational":
            self.head = ThresholdMap(
                network.dims,
                network.features,
                numbers=self.family.numbers,
                thresholds=channels_of(settings.scope, network.outputs),
            )
        self.kept: References | None = None

    def references(self) -> References:
        """Prior and start as of now; where they are fixed, they are worked out once."""
        mean, std = self.prior.mean, self.prior.std
        if self.kept is not None and self.kept.device == mean.device:
            return self.kept
        with torch.no_grad(), torch.autocast(mean.device.type, enabled=False):
            prior = self.family.prior(mean, std)
            found = References(prior, self.family.start(mean, std), log_masses(prior, mean.device))
        self.kept = found if isinstance(self.prior, FixedPrior) else None
        return found

    def forward(
        self, answers: Answers, logits: Tensor, features: Tensor, generator: torch.Generator
    ) -> PseudoLabels:
        """E-step: the labels of unlabelled images.

        Args:
            answers: what the network says of labelled and unlabelled images.
            logits: (U, K, *S) of the unlabelled ones, without a gradient.
            features: (U, F, *S) of the unlabelled ones.
            generator: randomness of the step.

        Returns:
            Labels that carry a gradient to the head where the rule has one, the term that trains
            it, and monitors. Voxels that do not count by `answers.weight` have weight 0.
        """
        with torch.autocast(logits.device.type, enabled=False):
            return self.infer(answers, logits, features, generator)

    def infer(
        self, answers: Answers, logits: Tensor, features: Tensor, generator: torch.Generator
    ) -> PseudoLabels:
        settings = self.settings
        self.prior.update(answers, generator)
        references = self.references()
        if self.head is None:
            posterior: Distribution = self.exact(answers, references)
            divergence = posterior.kl(Categorical(references.log_mass)).mean()
        else:
            posterior = self.learnt(self.head(features), references, logits.shape[2:])
            divergence = posterior.kl(references.prior).mean()
        pseudo = RULES[settings.rule](answers.unlabeled, posterior, generator)
        weight = pseudo.weight * answers.weight
        energy = dice_loss(logits, pseudo.target, weight) / settings.temperature
        cost = energy + divergence
        monitors = {"energy": energy.detach(), "kl": divergence.detach()}
        monitors |= {"free_energy": -cost.detach(), **described(posterior, "threshold")}
        if settings.yardstick:
            monitors |= described(self.exact(answers, references), "exact_threshold")
        terms = {} if self.head is None else {"threshold": Term(cost)}
        return PseudoLabels(pseudo.target, weight, terms, monitors)

    def learnt(self, numbers: Tensor, references: References, sides: Sequence[int]) -> Distribution:
        """The posterior that the head's numbers (n, U, k, *coarse) describe."""
        scope, start = self.settings.scope, references.start
        posterior = self.family.moved(start, shared(numbers, scope, sides))
        if scope != "voxel":
            return posterior
        return JoinedDraws(posterior, self.family.moved(start, numbers), tuple(sides))

    def exact(self, answers: Answers, references: References) -> Categorical:
        log_mass = exact_posterior(
            answers.unlabeled,
            answers.weight.expand_as(answers.unlabeled),
            references.log_mass,
            scope=self.settings.scope,
            temperature=self.settings.temperature,
            selects=self.settings.rule in SELECTING,
        )  # (b, k, G)
        places = [1] * (answers.unlabeled.dim() - 2)
        return Categorical(log_mass.view(*log_mass.shape[:2], *places, POINTS))


@dataclass(frozen=True, slots=True)
class References:
    """What posteriors are held against."""

    prior: Distribution
    start: tuple[Tensor, ...]  # of a head's posterior
    log_mass: Tensor  # (G,) of the prior in each cell of the grid

    @property
    def device(self) -> torch.device:
        return self.log_mass.device


@torch.no_grad()
def described(posterior: Distribution, name: str) -> dict[str, Tensor]:
    return {name: posterior.mean.mean(), f"{name}_std": posterior.std.mean()}


def log_masses(prior: Distribution, device: torch.device) -> Tensor:
    """Logarithm (G,) of what a prior gives to each of the equal parts of (0, 1)."""
    edges = torch.linspace(0, 1, POINTS + 1, device=device)  # (G + 1,)
    return prior.cdf(edges).diff().clamp(min=LEAST_MASS).log()
