"""Sliding-window prediction compared with MONAI's, with the same weights and windows."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from segpl.data.masks import label_values
from segpl.data.sampler import place_volumes
from segpl.experiments.bench.measure import Stopwatch, measuring
from segpl.experiments.bench.results import OtherResult
from segpl.experiments.bench.trial import TrainingTrial
from segpl.experiments.bench.workload import Workload, generate_volumes
from segpl.predict.window import predict_windows, window_profiles
from segpl.settings import Config

OVERLAP = 0.5  # the default of `segpl predict`
WINDOW_BATCH = 4
TRAINING_STEPS = {"cuda": 100, "cpu": 20}  # labels of an untrained network are rounding errors
# sides of the image, as a multiple of the patch: a whole number gives MONAI the same windows
IMAGE_SIDES = {"cuda": 3, "cpu": 2}
MOST_PREDICTIONS = 5


def measure_prediction(
    config: Config, workload: Workload, stopwatch: Stopwatch
) -> list[OtherResult]:
    """Prediction of one image by a network that was trained for a few steps, ours first."""
    from monai.inferers.utils import sliding_window_inference  # importing MONAI takes seconds

    plan, device = workload.plan, stopwatch.device
    sides = [IMAGE_SIDES[device.type] * side for side in plan.patch]
    with measuring(device):
        volumes = place_volumes(generate_volumes(plan, workload.cases), device, math.inf)
        ours = TrainingTrial(config, workload, volumes, device)
        for _ in range(TRAINING_STEPS[device.type]):
            ours.step()
        plain = TrainingTrial(config, workload, volumes, device, plain=True)
        plain.method.load_state_dict(ours.method.state_dict())
        for method in (ours.method, plain.method):
            method.eval()
        (volume,) = generate_volumes(plan, 1, sides)
        image = torch.from_numpy(np.asarray(volume.image)).to(device)
        weights = torch.ones(())  # ours: MONAI's Gaussian has a lower bound
        for profile in window_profiles(plan.patch):
            weights = weights[..., None] * profile
        weights = weights.to(device)

        def segpl() -> Tensor:
            return predict_windows(image, ours.method.predict, plan, overlap=OVERLAP)

        @torch.no_grad()
        def monai() -> Tensor:
            whole: Tensor = sliding_window_inference(
                *(image[None], plan.patch, WINDOW_BATCH, plain.method.predict, OVERLAP),
                roi_weight_map=weights,
            )
            return whole[0]

        first, second = (label_values(one().cpu().numpy(), plan) for one in (segpl, monai))
        times = stopwatch.time([segpl, monai])
    voxels, equal = math.prod(sides), float((first == second).mean())
    return [
        OtherResult("segpl", times[0], voxels=voxels),
        OtherResult("MONAI sliding windows", times[1], voxels=voxels, equal_labels=equal),
    ]
