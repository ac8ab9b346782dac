"""Self-Loop: pseudo-labels from a network that keeps solving jigsaw puzzles."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import Parameter
from torch.nn.functional import cross_entropy

from segpl.errors import require_range
from segpl.losses import voxelwise_entropy
from segpl.methods.base import Method, forward_together, mask_padding
from segpl.methods.settings import LinearRampSettings
from segpl.networks.heads import JigsawHead
from segpl.networks.network import Network
from segpl.types import Batch, LabelSets, PseudoLabels, StepOutput, Term
from segpl.views.jigsaw import Jigsaw


class SelfLoop(Method):
    r"""Mean prediction of a network while it solves jigsaw puzzles of the image [Li2020].

    $$\text{E: } \theta_q = \theta_{q-1} - \eta \nabla L_J(\theta_{q-1}, x_u^{(q)}), \quad
      y_u = \frac1Q \sum_{q=1}^{Q} p_{\theta_q}(x_u), \quad w = 1 - H(y_u) / \log 2$$
    $$\text{M: } L_L(p_l, y_l) + \lambda L_J(\theta, x_u^{(1)}) + \alpha\, L_U(p_u, y_u; w)$$

    $x^{(q)}$ is the image with its tiles in one of P orders, $L_J$ the cross-entropy of a head that
    classifies the order, $\theta_0 = \theta$ the current weights, $H$ the binary entropy.

    A reconstruction from the abstract and the first figure of the source; we found no released
    code. Differs from both: the Q steps update a temporary copy of all weights that the head
    depends on, not only those of an encoder. The network itself learns the puzzle through a term of
    its objective. The entropy weight $w$ and all defaults are ours.
    """

    name: ClassVar[str] = "self-loop"
    summary: ClassVar[str] = (
        "soft labels of a network solving jigsaw puzzles; reconstructed from an abstract"
    )
    is_reconstruction: ClassVar[bool] = True
    use: ClassVar[str] = "as a baseline from the paper; it is slow"
    reads: ClassVar[tuple[str, ...]] = ("logits", "features")

    @dataclass(frozen=True)
    class Settings(LinearRampSettings):
        rounds: int = 3  # Q, puzzles solved per E-step
        loop_lr: float = 0.01  # eta, learning rate of the loop
        tiles: int = 2  # tiles along each axis that is long enough
        permutations: int = 10  # P, number of tile orders; at most all orders of the tiles
        jigsaw_weight: float = 0.02  # lambda, weight of the puzzle

        def __post_init__(self) -> None:
            super().__post_init__()
            require_range(self, 1, math.inf, "rounds")
            require_range(self, 2, 8, "tiles")
            require_range(self, 2, 1000, "permutations")
            require_range(self, 0, math.inf, "loop_lr", "jigsaw_weight")

    settings: Settings

    def __init__(self, build: Callable[[], Network], settings: Settings) -> None:
        super().__init__(build, settings)
        dims, features = self.network.dims, self.network.features
        tiles, orders = settings.tiles, settings.permutations
        self.puzzle = Jigsaw(dims, tiles=tiles, count=orders)
        self.head = JigsawHead(dims, features, tiles=tiles, orders=orders)

    def label(self, batch: Batch, progress: float) -> LabelSets:
        """E-step: the mean prediction over the loop, weighted by its certainty.

        Solving the first puzzle with the current weights is a term of the objective.
        """
        unlabeled = self.unlabeled(batch)
        numbers = self.puzzle.draw(unlabeled.image, batch.generator)  # (B, P)
        answers = self.loop(unlabeled.image, numbers)
        target = answers.mean(0)  # (B, K, *S)
        certainty = (1 - voxelwise_entropy(target) / math.log(2)).clamp(min=0)
        inside = mask_padding(unlabeled, torch.ones_like(target))
        spread = answers.std(0, correction=0)

        first = numbers[:, 0]
        _, scores = self.answer(self.puzzle(unlabeled.image, first), dict(self.named_parameters()))
        monitors = {
            "certainty": (certainty * inside).sum() / inside.sum().clamp(min=1),
            "loop_spread": (spread * inside).sum() / inside.sum().clamp(min=1),
            "solved": (scores.detach().argmax(1) == first).float().mean(),
        }
        terms = {"jigsaw": Term(cross_entropy(scores, first), self.settings.jigsaw_weight)}
        return (PseudoLabels(target, certainty * inside, terms, monitors),)

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        """M-step: learn given labels, pseudo-labels, and the first puzzle."""
        (labels,) = pseudo
        on_labeled, on_unlabeled = forward_together(
            self.network, batch.labeled.image, self.unlabeled(batch).image
        )
        loss = self.loss(on_unlabeled.logits, labels.target, labels.weight)
        return self.semi_supervised(batch, on_labeled, labels, loss, progress)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, K, *S) of the voxels and (B, P) of the tile order."""
        output = self.network(image)
        return output.logits, self.head(output.features)

    def answer(self, image: Tensor, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """`forward` with other weights. Shuffled images do not change running statistics."""
        buffers = {name: buffer.clone() for name, buffer in self.named_buffers()}
        # DynUNet has layers with two names: tied, they would keep the replacement weights
        answer: tuple[Tensor, Tensor] = functional_call(
            self, {**weights, **buffers}, (image,), tie_weights=False
        )
        return answer

    def loop(self, image: Tensor, numbers: Tensor) -> Tensor:
        """Probabilities (Q, B, K, *S) after each gradient step on a puzzle, with copied weights."""
        weights = {name: weight.detach() for name, weight in self.named_parameters()}
        answers = []
        for turn in range(self.settings.rounds):
            number = numbers[:, turn % numbers.shape[1]]  # a new puzzle each round
            # as parameters, they reuse the graph compiled for the puzzle of the M-step
            leaves = {name: Parameter(weight) for name, weight in weights.items()}
            _, scores = self.answer(self.puzzle(image, number), leaves)
            loss = cross_entropy(scores, number)
            slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            if self.network.shares:
                self.network.shares.average([slope for slope in slopes if slope is not None])
            # the last layer has no gradient: the head does not depend on it
            weights = {
                name: weight if slope is None else weight - self.settings.loop_lr * slope
                for (name, weight), slope in zip(weights.items(), slopes, strict=True)
            }
            with torch.no_grad():
                logits, _ = self.answer(image, weights)
            answers.append(logits.sigmoid())
        return torch.stack(answers)
