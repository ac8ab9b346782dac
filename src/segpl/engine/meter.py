"""Running means of terms and monitors, kept on the device until the next log line."""

from __future__ import annotations

import math
from itertools import product

import torch
from torch import Tensor

from segpl.engine.checkpoint import MeterState
from segpl.errors import DivergedError, InputError
from segpl.types import StepOutput


class Meter:
    def __init__(self) -> None:
        self.names: list[str] = []  # terms, total, monitors
        self.sums: Tensor | None = None  # (names,) float64
        self.weights: dict[str, float] = {}  # by term
        self.terms: dict[int, Tensor] = {}  # (terms,) by step
        self.count = 0

    @torch.no_grad()
    def add(self, output: StepOutput, total: Tensor, step: int) -> None:
        self.count += 1
        terms = {name: term.value for name, term in output.terms.items()}
        values = {**terms, "total": total, **output.monitors}
        # one vector, because separate scalars would add 0.1 ms to every step; in float64, because
        # float32 cannot hold large counts
        exact = [v if v.is_floating_point() else v.double() for v in values.values()]
        added = torch.stack(exact).detach().double()
        if self.sums is None:
            self.names, self.sums = list(values), added
        elif self.names != list(values):
            raise _damaged_state()
        else:
            self.sums = self.sums + added
        self.terms[step] = added[: len(terms)]
        for name, term in output.terms.items():
            self.weights[name] = self.weights.get(name, 0.0) + term.weight

    def state(self) -> MeterState:
        """What has been added since the last row, as JSON values; exact."""
        assert self.sums is not None
        sums = dict(zip(self.names, self.sums.tolist(), strict=True))
        return {"count": self.count, "sums": sums, "weights": self.weights}

    def restore(self, state: MeterState, device: torch.device) -> None:
        self.count, self.weights = state["count"], dict(state["weights"])
        self.names = list(state["sums"])
        terms = [*self.weights, "total"]
        if not self.count > 0 or self.names[: len(terms)] != terms:
            raise _damaged_state()
        sums = list(state["sums"].values())
        self.sums = torch.tensor(sums, dtype=torch.float64, device=device)

    def row(self, lr: float) -> dict[str, float]:
        """Means since the last call. Only here does training wait for the device."""
        assert self.sums is not None
        found = torch.cat([self.sums / self.count, *self.terms.values()]).tolist()
        values = dict(zip(self.names, found, strict=False))
        each = product(self.terms, self.weights)  # terms of the first step, then of the second, ...
        for (step, name), value in zip(each, found[len(self.names) :], strict=True):
            if math.isfinite(value):
                continue
            others = ", ".join(f"{n} {values[n]:.3g}" for n in self.weights if n != name)
            raise DivergedError(
                f"step {step}: term '{name}' is {values[name]}"
                + (f" ({others})" if others else "")
                + ". Lower train.lr or the weight of that term, or set train.precision=float32 if "
                "it is bfloat16. An earlier checkpoint, if there is one, is unaffected."
            )
        row: dict[str, float] = {}
        for name in self.weights:
            row[name] = values.pop(name)
            row[f"{name}.weight"] = self.weights[name] / self.count
        row["total"] = values.pop("total")
        row["lr"] = lr
        row.update(values)
        self.sums, self.weights, self.terms, self.count = None, {}, {}, 0
        return row


def _damaged_state() -> InputError:
    return InputError(
        "the log values in the checkpoint are damaged. Restore the file, or train again with "
        "another --out."
    )
