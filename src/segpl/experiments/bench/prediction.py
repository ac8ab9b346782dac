"""Sliding-window prediction compared with MONAI's, with the same weights and windows."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from segpl.data.masks import label_values
from segpl.data.sampler import place_volumes
from segpl.experiments.bench.measure import EVERYTHING, Advance, measuring, time_steps
from segpl.experiments.bench.results import OtherResult
from segpl.experiments.bench.trial import TrainingTrial
from segpl.experiments.bench.workload import GENERATED_CASES, Workload, generate_volumes
from segpl.predict.window import overlap_fractions, predict_windows, window_steps, window_weights
from segpl.settings import Config

OVERLAP = 0.5  # the default of `segpl predict`
WINDOW_BATCH = 4
TRAINING_STEPS = {"cuda": 100, "cpu": 20}  # labels of an untrained network are rounding errors
IMAGE_SIDES = {"cuda": 3, "cpu": 2}  # sides of the image, as a multiple of the patch
MOST_PREDICTIONS = 5


class OurPrediction:
    def __init__(self, trial: TrainingTrial, workload: Workload, image: Tensor) -> None:
        self.predict, self.plan, self.image = trial.method.predict, workload.plan, image
        trial.method.eval()

    def step(self) -> Tensor:
        return predict_windows(self.image, self.predict, self.plan, overlap=OVERLAP)


class MonaiPrediction:
    """`sliding_window_inference` of an eager network in float32."""

    def __init__(self, trial: TrainingTrial, workload: Workload, image: Tensor) -> None:
        trial.method.eval()
        self.network, self.patch, self.image = trial.method.network, workload.plan.patch, image
        steps = window_steps(image.shape[1:], self.patch, OVERLAP)
        self.overlap = overlap_fractions(steps, self.patch)
        self.weights = window_weights(self.patch).to(image.device)

    @torch.no_grad()
    def step(self) -> Tensor:
        from monai.inferers.utils import sliding_window_inference

        whole: Tensor = sliding_window_inference(
            self.image[None],
            roi_size=self.patch,
            sw_batch_size=WINDOW_BATCH,
            predictor=lambda windows: self.network(windows).logits.sigmoid(),
            overlap=self.overlap,
            roi_weight_map=self.weights,
        )
        return whole[0]


def measure_prediction(
    config: Config,
    workload: Workload,
    device: torch.device,
    *,
    steps: int,
    advance: Advance = lambda: None,
) -> list[OtherResult]:
    """Prediction of one image by a network that was trained for a few steps, ours first."""
    plan = workload.plan
    sides = [IMAGE_SIDES[device.type] * side for side in plan.patch]
    with measuring(device):
        placed = place_volumes(generate_volumes(plan, GENERATED_CASES), device, EVERYTHING)
        ours = TrainingTrial(config, workload, placed, device)
        for _ in range(TRAINING_STEPS[device.type]):
            ours.step()
        advance()
        plain = TrainingTrial(config, workload, placed, device, plain=True)
        plain.method.load_state_dict(ours.method.state_dict())
        (volume,) = generate_volumes(plan, 1, sides)
        image = torch.from_numpy(volume.image).to(device)
        segpl = OurPrediction(ours, workload, image)
        monai = MonaiPrediction(plain, workload, image)
        labels = [label_values(one.step().cpu().numpy(), plan) for one in (segpl, monai)]
        few = min(steps, MOST_PREDICTIONS)
        times = time_steps([segpl, monai], device, steps=few, advance=advance)
    name = "MONAI sliding windows, float32"
    first, second = (OtherResult(name, seconds, voxels=math.prod(sides)) for seconds in times)
    equal = float((labels[0] == labels[1]).mean())
    return [replace(first, name="segpl"), replace(second, equal_labels=equal)]
