"""Adam. Constructing torch's optimizer would import torch's compiler, which takes seconds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adam import adam

BETAS, EPSILON = (0.9, 0.999), 1e-8  # torch's defaults


class Adam:
    """Bit-identical to `torch.optim.Adam`. Weights without a gradient do not change."""

    def __init__(self, weights: Sequence[Tensor], lr: float) -> None:
        self.weights = weights
        self.lr = lr
        self.is_fused = weights[0].is_cuda  # one kernel launch for all weights
        # by index of the weight, with torch's names
        self.state: dict[int, dict[str, Tensor]] = {}

    def zero_grad(self) -> None:
        for weight in self.weights:
            weight.grad = None

    @torch.no_grad()
    def step(self) -> None:
        changed = [index for index, weight in enumerate(self.weights) if weight.grad is not None]
        for index in changed:
            if index not in self.state:
                self.state[index] = self.initial_state(self.weights[index])
        states = [self.state[index] for index in changed]
        adam(
            [self.weights[index] for index in changed],
            [grad for weight in self.weights if (grad := weight.grad) is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            foreach=False,
            fused=self.is_fused,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=self.lr,
            weight_decay=0.0,
            eps=EPSILON,
            maximize=False,
        )

    def initial_state(self, weight: Tensor) -> dict[str, Tensor]:
        return {
            "step": torch.zeros((), device=weight.device if self.is_fused else "cpu"),
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
        }

    def load_state(self, state: dict[int, dict[str, Tensor]]) -> None:
        """Copy `state` in the memory layout of each weight: another one may round differently."""
        self.state = {index: self.initial_state(self.weights[index]) for index in state}
        for index, values in state.items():
            for name, value in values.items():
                self.state[index][name].copy_(value)
