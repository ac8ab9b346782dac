"""Scaling of steps with crops and cases, steps with data on disk, and prediction."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from segpl.data.cache import Volume
from segpl.data.masks import class_index
from segpl.data.prefetch import AHEAD
from segpl.data.sampler import Resident, place_volumes
from segpl.data.stored import StoredArray
from segpl.experiments.bench.counts import seconds_per_step
from segpl.experiments.bench.steps import Stopwatch, measuring, start_trial
from segpl.experiments.bench.tables import Figures, spread
from segpl.experiments.bench.trial import TrainingTrial
from segpl.experiments.bench.workload import Workload, generate_volumes
from segpl.predict.window import outer_product, predict_windows, window_profiles
from segpl.settings import Config

FACTORS = (0.5, 2.0)  # voxels of a crop, and number of crops
MANY_CASES = 1000

DISK_CASES = 200
DISK_FILES = 8  # different files; each is the image of several cases
DISK_SIDES = {"cuda": (512, 512, 300), "cpu": (48, 48, 32)}
DEVICE_CAP = {"cuda": 2e9, "cpu": 1e6}  # bytes
DISK_STEPS = 2 * AHEAD  # timed steps per turn

OVERLAP = 0.5  # the default of `segpl predict`
WINDOW_BATCH = 4
TRAINING_STEPS = {"cuda": 100, "cpu": 20}  # labels of an untrained network depend on rounding
# sides of the image, as a multiple of the patch: a whole number gives MONAI the same windows
IMAGE_SIDES = {"cuda": 3, "cpu": 2}


def compared(names: Iterable[str], times: Sequence[Figures]) -> list[Figures]:
    """A record of each, with its time relative to the first one."""
    return [
        {"name": name, **found, "x": found["ms"] / times[0]["ms"]}
        for name, found in zip(names, times, strict=True)
    ]


def repeated(volumes: Sequence[Resident], count: int) -> list[Resident]:
    return [volumes[number % len(volumes)] for number in range(count)]


def measure_scaling(config: Config, workload: Workload, stopwatch: Stopwatch) -> list[Figures]:
    """Step times for other crop sizes, numbers of crops and numbers of cases."""
    variants, device = scaled_workloads(workload), stopwatch.device
    with measuring(device), ExitStack() as stack:
        trials = []
        for one in variants.values():
            placed = place_volumes(generate_volumes(one.plan, 2), device, math.inf)
            # further cases repeat the first two volumes, to save memory
            trials.append(TrainingTrial(config, one, repeated(placed, one.cases), device))
            stack.enter_context(trials[-1].batches)
        return compared(variants, stopwatch.time([trial.step for trial in trials]))


def scaled_workloads(workload: Workload) -> dict[str, Workload]:
    """The workload and its variants, by name."""
    variants = {"as above": workload}
    for factor in FACTORS:
        patch = scaled_patch(workload, factor)
        plan = replace(workload.plan, patch=patch)
        variants[f"crops of {'x'.join(map(str, patch))}"] = replace(workload, plan=plan)
        labeled, unlabeled = factor * workload.labeled, factor * workload.unlabeled
        if labeled.is_integer() and unlabeled.is_integer():
            name = f"{labeled:g} + {unlabeled:g} crops"
            variants[name] = replace(workload, labeled=int(labeled), unlabeled=int(unlabeled))
    return variants | {f"{MANY_CASES:,} cases": replace(workload, cases=MANY_CASES)}


def scaled_patch(workload: Workload, factor: float) -> tuple[int, ...]:
    """A patch of about `factor` times the volume, with sides that the strides divide."""
    plan = workload.plan
    steps = [math.prod(row[axis] for row in plan.strides) for axis in range(plan.dims)]
    scale = factor ** (1 / plan.dims)
    return tuple(
        max(1, round(scale * side / step)) * step
        for side, step in zip(plan.patch, steps, strict=True)
    )


def measure_data(
    configs: Sequence[Config], workload: Workload, stopwatch: Stopwatch
) -> list[Figures]:
    """Step times of each method with volumes on the device and with crops read from disk."""
    device, records = stopwatch.device, []
    with TemporaryDirectory() as folder, measuring(device):
        (volume,) = generate_volumes(workload.plan, 1, DISK_SIDES[device.type])
        stored = [stored_volume(volume, Path(folder), number) for number in range(DISK_FILES)]
        resident = repeated(place_volumes(stored, device, math.inf), DISK_CASES)
        streamed = place_volumes(
            stored * (DISK_CASES // DISK_FILES), device, DEVICE_CAP[device.type]
        )
        for config in configs:
            trial, _ = start_trial(config, workload, resident, device)
            records += compare_volumes(trial, resident, streamed, stopwatch)
    return records


def compare_volumes(
    trial: TrainingTrial, resident: list[Resident], streamed: list[Resident], watch: Stopwatch
) -> list[Figures]:
    """Steps of one trial with both kinds of volumes, in turn."""
    places = {f"{trial.method.title()}, on the device": resident}
    places[f"{trial.method.title()}, on disk"] = streamed
    seconds: list[list[float]] = [[], []]
    waited: list[float] = [0.0, 0.0]
    for _ in range(watch.rounds):
        for place, volumes in enumerate(places.values()):
            # opened for each turn, so that no crops are read ahead during the other turn
            with trial.batches_of(volumes) as trial.batches:
                for _ in range(AHEAD):
                    trial.step()
                before = trial.batches.waited
                seconds[place].append(seconds_per_step(trial.step, trial.device, DISK_STEPS))
                waited[place] += trial.batches.waited - before
        watch.advance()
    records = compared(places, [spread(spent) for spent in seconds])
    records[1]["waiting"] = waited[1] / DISK_STEPS / sum(seconds[1])
    return records


def stored_volume(volume: Volume, folder: Path, number: int) -> Volume:
    """A copy of the volume in files, as the cache stores it."""
    parts: dict[str, Any] = {}
    for part in ("image", "label"):
        path = folder / f"{number}.{part}.npy"
        np.save(path, getattr(volume, part))
        parts[part] = StoredArray.find(volume.name, path)
    return replace(volume, **parts)


def measure_prediction(config: Config, workload: Workload, stopwatch: Stopwatch) -> list[Figures]:
    """Prediction of one image by a network trained for a few steps: segpl's, then MONAI's."""
    from monai.inferers.utils import sliding_window_inference  # importing MONAI takes seconds

    plan, device, cudnn = workload.plan, stopwatch.device, torch.backends.cudnn
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
        # ours: MONAI's Gaussian has a lower bound
        weights = outer_product(window_profiles(plan.patch)).to(device)

        def segpl() -> Tensor:
            return predict_windows(image, ours.method.predict, plan, overlap=OVERLAP)

        @torch.no_grad()
        def monai(*, tf32: bool) -> Tensor:
            before, cudnn.allow_tf32 = cudnn.allow_tf32, tf32
            whole: Tensor = sliding_window_inference(
                *(image[None], plan.patch, WINDOW_BATCH, plain.method.predict, OVERLAP),
                roi_weight_map=weights,
            )
            cudnn.allow_tf32 = before
            return whole[0]

        works: dict[str, Callable[[], Tensor]] = {"segpl": segpl}
        works["MONAI, float32"] = partial(monai, tf32=False)
        if device.type == "cuda":
            works["MONAI, TF32 convolutions"] = partial(monai, tf32=True)
        labels = [class_index(work().cpu().numpy()) for work in works.values()]
        records = compared(works, stopwatch.time(list(works.values())))
    for record, own in zip(records[1:], labels[1:], strict=True):
        record["equal_labels"] = float((own == labels[0]).mean())
    return records
