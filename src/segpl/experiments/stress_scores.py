"""Scores of one run on degraded images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from segpl.data.cache import Volume
from segpl.data.plan import Plan
from segpl.errors import DivergedError
from segpl.evaluate.metrics import dice, iou
from segpl.evaluate.validation import masks_by_class
from segpl.experiments.stress_inputs import ATTACKS, StressedRun, StressSettings
from segpl.losses import dice_cross_entropy, supervised_loss
from segpl.predict.window import blend_windows, predict_windows
from segpl.report.stress_rows import CLEAN, PATCH_SIZE, StressRow, write_stress
from segpl.views.artifacts import ARTIFACTS
from segpl.views.attacks import fgsm, pgd

CERTAIN = 1e-6  # probabilities closer to 0 or 1 have no finite logit in single precision
# severity and plan (which sets the window) -> prediction (K, *S) of the degraded image
PredictDegraded = Callable[[float, Plan], Tensor]


@dataclass(frozen=True, slots=True)
class StressScorer:
    """Measures one run and writes the table after each degradation."""

    path: Path  # stress.csv
    rows: list[StressRow]  # of all runs; grows
    tested: StressedRun
    settings: StressSettings
    volumes: list[Volume]

    def __len__(self) -> int:
        """Number of predictions."""
        levels = len(self.settings.degradations) * len(self.settings.levels)
        return len(self.volumes) * (1 + levels + len(self.settings.patches))

    def measure(self, window_plans: Sequence[Plan], advance: Callable[[], None]) -> None:
        """Measure what the table lacks; `window_plans` are the plans with other window sizes."""
        run = self.tested.run
        run.method.eval()
        self._measure(CLEAN, {0.0: run.plan}, advance)
        for degradation in self.settings.degradations:
            self._measure(degradation, dict.fromkeys(self.settings.levels, run.plan), advance)
        self._measure(PATCH_SIZE, {float(max(plan.patch)): plan for plan in window_plans}, advance)

    def _measure(
        self, degradation: str, plans: dict[float, Plan], advance: Callable[[], None]
    ) -> None:
        """Add the rows of one degradation, at each severity with its plan."""
        done = {
            (row.severity, row.case)
            for row in self.rows
            if row.run == self.tested.name and row.degradation == degradation
        }
        found: list[StressRow] = []
        for volume in self.volumes:
            missing = [level for level in plans if (level, volume.name) not in done]
            for _ in range(len(plans) - len(missing)):
                advance()
            if not missing:
                continue
            image = torch.from_numpy(np.array(volume.image)).to(self.tested.run.device)
            predict = self._predictor(degradation, image, volume)
            for level in missing:
                prediction = predict(level, plans[level])
                found += self._score(prediction, volume, plans[level], degradation, level)
                advance()
        if found:
            self.rows.extend(found)
            write_stress(self.path, self.rows)

    def _predictor(self, degradation: str, image: Tensor, volume: Volume) -> PredictDegraded:
        """Random draws, and the first gradient of an attack, are shared by all severities."""
        predict = self.tested.run.method.predict
        if degradation in ATTACKS:
            return self._attack(degradation, image, volume)
        if degradation not in ARTIFACTS:
            return lambda level, plan: predict_windows(image, predict, plan)
        # independent of the run, so that all runs see the same degraded image
        seed = crc32(f"{self.settings.seed}/{degradation}/{volume.name}".encode())

        def predict_degraded(level: float, plan: Plan) -> Tensor:
            degraded = ARTIFACTS[degradation](image, level, torch.Generator().manual_seed(seed))
            return predict_windows(degraded, predict, plan)

        return predict_degraded

    def _attack(self, attack: str, image: Tensor, volume: Volume) -> PredictDegraded:
        run, bound, steps = self.tested.run, self.settings.epsilon, self.settings.steps
        assert volume.label is not None
        label = torch.from_numpy(np.array(volume.label)).long().to(run.device)
        objective = PredictionLoss(run.method.predict, label, run.plan)
        start = objective.loss_and_gradient(image)
        if attack == "fgsm":
            return lambda level, _: objective.prediction(fgsm(image, start[1], bound * level))
        return lambda level, _: objective.prediction(
            pgd(image, objective, bound * level, steps=steps, start=start)
        )

    def _score(
        self, prediction: Tensor, volume: Volume, plan: Plan, degradation: str, level: float
    ) -> list[StressRow]:
        run = self.tested.run
        if not bool(prediction.isfinite().all()):
            raise DivergedError(
                f"the predictions of {run.path} for case {volume.name} ({degradation}, severity "
                f"{level:g}) are not finite. Use another checkpoint, or train again."
            )
        assert volume.label is not None
        label = np.asarray(volume.label)
        masks = masks_by_class(prediction.cpu().numpy(), label, plan, run.largest)
        return [
            StressRow(
                self.tested.name, degradation, level, volume.name, name, dice(*pair), iou(*pair)
            )
            for name, pair in masks.items()
        ]


@dataclass(slots=True)
class PredictionLoss:
    r"""Dice + cross-entropy loss of the blended prediction of an image against its label.

    $$L(x) = \ell\Big(\frac{\sum_w g_w\, p(x_w)}{\sum_w g_w},\ y\Big)$$

    The windows $x_w$, their Gaussian weights $g_w$ and the network $p$ are those of the prediction,
    so the attack differentiates exactly what it attacks. Windows are recomputed in the backward
    pass: memory holds the graph of one batch of windows, not of the image.
    """

    predict: Callable[[Tensor], Tensor]  # (b, C, *patch) to probabilities (b, K, *patch)
    label: Tensor  # (*S) int64, class index or IGNORE
    plan: Plan
    _last: tuple[Tensor, Tensor] | None = field(default=None, init=False, repr=False)

    def prediction(self, image: Tensor) -> Tensor:
        """Prediction (K, *S) of an image (C, *S); the last one is cached."""
        if self._last is None or self._last[0] is not image:
            prediction = predict_windows(image, self.predict, self.plan)
            self._last = image, prediction.to(image.device)
        return self._last[1]

    def loss(self, image: Tensor) -> float:
        return self._loss(self.prediction(image)).item()

    def loss_and_gradient(self, image: Tensor) -> tuple[float, Tensor]:
        """The loss of an image (C, *S) and its gradient (C, *S)."""
        leaf = image.detach().float().requires_grad_()
        recomputed = partial(
            checkpoint, self.predict, use_reentrant=False, preserve_rng_state=False
        )
        with torch.enable_grad():
            prediction = blend_windows(leaf, recomputed, self.plan)
            loss = self._loss(prediction.to(image.device))
            (gradient,) = torch.autograd.grad(loss, leaf)
        return loss.item(), gradient

    def _loss(self, prediction: Tensor) -> Tensor:
        logits = torch.logit(prediction.unsqueeze(0), eps=CERTAIN)
        return supervised_loss(logits, self.label.unsqueeze(0), dice_cross_entropy)
