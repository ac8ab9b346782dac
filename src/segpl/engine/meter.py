"""Running means of terms and monitors, kept on the device until the next log line."""

from __future__ import annotations

import torch
from torch import Tensor

from segpl.engine.checkpoint import MeterState
from segpl.errors import DivergedError, InputError
from segpl.types import StepOutput

NEVER = float("inf")


class Meter:
    def __init__(self) -> None:
        self.sums: dict[str, Tensor] = {}
        self.weights: dict[str, float] = {}
        self.broken: dict[str, Tensor] = {}  # first step with a non-finite term
        self.count = 0

    @torch.no_grad()
    def add(self, output: StepOutput, total: Tensor, step: int) -> None:
        self.count += 1
        terms = {name: term.value.detach() for name, term in output.terms.items()}
        for name, value in {**terms, "total": total.detach(), **output.monitors}.items():
            previous = self.sums.get(name)
            self.sums[name] = value.double() if previous is None else previous + value
        for name, term in output.terms.items():
            self.weights[name] = self.weights.get(name, 0.0) + term.weight
            now = torch.where(terms[name].isfinite(), NEVER, float(step))
            previous = self.broken.get(name)
            self.broken[name] = now if previous is None else torch.minimum(previous, now)

    def state(self) -> MeterState:
        """What has been added since the last row, as JSON values; exact."""
        sums = {name: value.item() for name, value in self.sums.items()}
        return {"count": self.count, "sums": sums, "weights": self.weights}

    def restore(self, state: MeterState, device: torch.device) -> None:
        if not state["count"] > 0 or not {*state["weights"], "total"} <= state["sums"].keys():
            raise InputError(
                "the log values in the checkpoint are damaged. Restore the file, or train again "
                "with another --out."
            )
        self.count, self.weights = state["count"], dict(state["weights"])
        self.sums = {
            name: torch.tensor(value, dtype=torch.float64, device=device)
            for name, value in state["sums"].items()
        }
        self.broken = {name: torch.tensor(NEVER, device=device) for name in self.weights}

    def row(self, lr: float) -> dict[str, float]:
        """Means since the last call. Only here does training wait for the device."""
        names = list(self.sums)
        means = (torch.stack([self.sums[name] for name in names]) / self.count).tolist()
        values = dict(zip(names, means, strict=True))
        firsts = torch.stack(list(self.broken.values())).tolist()
        broken = dict(zip(self.broken, firsts, strict=True))
        name, first = min(broken.items(), key=lambda item: item[1])
        if first != NEVER:
            others = ", ".join(f"{other} {values[other]:.3g}" for other in broken if other != name)
            raise DivergedError(
                f"step {int(first)}: term '{name}' is {values[name]}"
                + (f" ({others})" if others else "")
                + ". Lower train.lr or the weight of that term, or set train.precision=float32 if "
                "it is bfloat16. An earlier checkpoint, if there is one, is unaffected."
            )
        row: dict[str, float] = {}
        for name in broken:
            row[name] = values.pop(name)
            row[f"{name}.weight"] = self.weights[name] / self.count
        row["total"] = values.pop("total")
        row["lr"] = lr
        row.update(values)
        self.sums, self.weights, self.broken, self.count = {}, {}, {}, 0
        return row
