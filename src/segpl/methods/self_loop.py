"""Self-Loop: pseudo-labels from a network that keeps solving jigsaw puzzles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import Parameter
from torch.nn.functional import cross_entropy

from segpl.losses import get_loss, supervised_loss, voxelwise_entropy
from segpl.methods.base import (
    Method,
    alpha_at,
    forward_together,
    mask_padding,
    require,
    require_ramp,
    shares,
    unlabeled_of,
)
from segpl.networks.jigsaw_head import JigsawHead
from segpl.networks.network import Network
from segpl.types import Batch, PseudoLabels, StepOutput, Term, Unlabeled
from segpl.views.jigsaw import Jigsaw


class SelfLoop(Method):
    r"""Mean prediction of a network that solves jigsaw puzzles of the image meanwhile [Li2020].

    $$\text{E: } \theta_q = \theta_{q-1} - \eta \nabla L_J(\theta_{q-1}, x_u^{(q)}), \quad
      y_u = \frac1Q \sum_{q=1}^{Q} p_{\theta_q}(x_u), \quad w = 1 - H(y_u) / \log 2$$
    $$\text{M: } L_L(p_l, y_l) + \lambda L_J(\theta, x_u^{(1)}) + \alpha\, L_U(p_u, y_u; w)$$

    $x^{(q)}$ is the image with its tiles in one of P orders, $L_J$ the cross-entropy of a head that
    tells which one, $\theta_0 = \theta$ the weights as they are, $H$ the binary entropy.

    Differs from the source: the Q steps move a copy of the weights, which is then forgotten, and
    the network itself follows the puzzle through a term of its objective; they move all that the
    head reads, not an encoder; the weight $w$ by entropy and all numbers in the settings are ours.
    """

    name: ClassVar[str] = "self-loop"
    summary: ClassVar[str] = "soft pseudo-labels of a network that solves jigsaw puzzles in a loop"

    @dataclass(frozen=True, slots=True)
    class Settings:
        rounds: int = 3  # Q
        loop_lr: float = 0.01  # eta
        tiles: int = 2  # along each axis that is long enough
        permutations: int = 10  # P, fewer where the tiles have fewer
        jigsaw_weight: float = 0.02  # lambda
        alpha: float = 0.1  # weight of the unlabeled images
        ramp_begin: float = 0.3  # progress at which alpha leaves 0
        ramp_end: float = 0.6  # progress at which alpha is reached
        loss: str = "dice-cross-entropy"

        def __post_init__(self) -> None:
            require(self, 1, math.inf, "rounds")
            require(self, 2, 8, "tiles")
            require(self, 2, 1000, "permutations")
            require(self, 0, math.inf, "loop_lr", "jigsaw_weight")
            require_ramp(self)

    def __init__(self, build: Callable[[], Network], settings: Any) -> None:
        super().__init__(build, settings)
        self.loss = get_loss(settings.loss)
        dims, features = self.network.dims, self.network.features
        tiles, orders = settings.tiles, settings.permutations
        self.puzzle = Jigsaw(dims, tiles=tiles, count=orders)
        self.head = JigsawHead(dims, features, tiles=tiles, orders=orders)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, K, *S) of the voxels and (B, P) of the order of the tiles."""
        output = self.network(image)
        return output.logits, self.head(output.features)

    def answer(self, image: Tensor, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """`forward` with these weights; running statistics stay those of the images as they are."""
        buffers = {name: buffer.clone() for name, buffer in self.named_buffers()}
        # a layer with two names, as in DynUNet, would be put back as its replacement if tied
        answer: tuple[Tensor, Tensor] = functional_call(
            self, {**weights, **buffers}, (image,), tie_weights=False
        )
        return answer

    def loop(self, image: Tensor, numbers: Tensor) -> Tensor:
        """Probabilities (Q, B, K, *S) after each step down a puzzle's loss, by copied weights."""
        weights = {name: weight.detach() for name, weight in self.named_parameters()}
        answers = []
        for turn in range(self.settings.rounds):
            number = numbers[:, turn % numbers.shape[1]]  # another puzzle in each round
            # as parameters they pass through what was compiled for the puzzle of the M-step
            leaves = {name: Parameter(weight) for name, weight in weights.items()}
            _, scores = self.answer(self.puzzle(image, number), leaves)
            loss = cross_entropy(scores, number)
            slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            # without a slope is the last layer, which the head does not see
            weights = {
                name: weight if slope is None else weight - self.settings.loop_lr * slope
                for (name, weight), slope in zip(weights.items(), slopes, strict=True)
            }
            with torch.no_grad():
                logits, _ = self.answer(image, weights)
            answers.append(logits.sigmoid())
        return torch.stack(answers)

    def label(self, unlabeled: Unlabeled, numbers: Tensor) -> PseudoLabels:
        """E-step: the mean over the loop, and how sure it is."""
        answers = self.loop(unlabeled.image, numbers)
        target = answers.mean(0)  # (B, K, *S)
        certainty = (1 - voxelwise_entropy(target) / math.log(2)).clamp(min=0)
        inside = mask_padding(unlabeled, torch.ones_like(target))
        spread = answers.std(0, correction=0)
        monitors = {
            "certainty": (certainty * inside).sum() / inside.sum().clamp(min=1),
            "loop_spread": (spread * inside).sum() / inside.sum().clamp(min=1),
        }
        return PseudoLabels(target, certainty * inside, monitors=monitors)

    def step(self, batch: Batch, progress: float) -> StepOutput:
        unlabeled = unlabeled_of(self, batch)
        numbers = self.puzzle.draw(unlabeled.image, batch.generator)  # (B, P)
        pseudo = self.label(unlabeled, numbers)
        on_labeled, on_unlabeled = forward_together(self.network, batch.labeled, unlabeled)
        number = numbers[:, 0]
        shuffled = self.puzzle(unlabeled.image, number)
        _, scores = self.answer(shuffled, dict(self.named_parameters()))

        alpha = alpha_at(self.settings, progress)
        terms = {
            "supervised": Term(supervised_loss(on_labeled.logits, batch.labeled.label, self.loss)),
            "jigsaw": Term(cross_entropy(scores, number), self.settings.jigsaw_weight),
            "pseudo": Term(self.loss(on_unlabeled.logits, pseudo.target, pseudo.weight), alpha),
        }
        solved = (scores.detach().argmax(1) == number).float().mean()
        monitors = {**shares(batch.labeled.label, pseudo), **pseudo.monitors, "solved": solved}
        return StepOutput(terms, monitors, (pseudo,))
