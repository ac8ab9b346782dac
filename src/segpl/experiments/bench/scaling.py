"""How step time grows with the size and number of crops and cases, and with data on disk."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from segpl.data.cache import Volume
from segpl.data.prefetch import AHEAD
from segpl.data.sampler import place_volumes
from segpl.data.stored import StoredArray
from segpl.experiments.bench.measure import Stopwatch, measuring
from segpl.experiments.bench.results import OtherResult
from segpl.experiments.bench.trial import TrainingTrial
from segpl.experiments.bench.workload import Workload, generate_volumes
from segpl.settings import Config

VOLUME_FACTORS = (0.5, 2.0)
BATCH_FACTORS = (1, 2, 4)
MANY_CASES = (10, 1000)
DISK_CASES = 4
FEWEST_DATA_STEPS = 2 * AHEAD  # fewer would be read before the clock starts
DISK_SIDES = {"cuda": 4, "cpu": 2}  # sides of a volume on disk, as a multiple of the patch


def measure_scaling(config: Config, workload: Workload, stopwatch: Stopwatch) -> list[OtherResult]:
    """Step times for other crop sizes, numbers of crops and numbers of cases."""
    variants, device = scaled_workloads(workload), stopwatch.device
    with measuring(device):
        trials = []
        for one in variants.values():
            placed = place_volumes(generate_volumes(one.plan, 2), device, math.inf)
            # cases beyond the first two are the same volumes again, to save memory
            volumes = (placed * one.cases)[: one.cases]
            trials.append(TrainingTrial(config, one, volumes, device))
            stopwatch.advance()
        times = stopwatch.time([trial.step for trial in trials])
    return [
        OtherResult(name, seconds, one.crops, one.voxels)
        for (name, one), seconds in zip(variants.items(), times, strict=True)
    ]


def scaled_workloads(workload: Workload) -> dict[str, Workload]:
    """The workload and its variants, by what distinguishes them."""
    labeled, unlabeled = workload.labeled, workload.unlabeled
    unit = math.gcd(labeled, unlabeled)
    variants = {"as above": workload}
    for factor in VOLUME_FACTORS:
        patch = scaled_patch(workload, factor)
        plan = replace(workload.plan, patch=patch)
        variants[f"crops of {'x'.join(map(str, patch))}"] = replace(workload, plan=plan)
    for factor in BATCH_FACTORS:
        first, second = factor * labeled // unit, factor * unlabeled // unit
        if first != labeled:
            name = f"{first} + {second} crops"
            variants[name] = replace(workload, labeled=first, unlabeled=second)
    return variants | {f"{count:,} cases": replace(workload, cases=count) for count in MANY_CASES}


def scaled_patch(workload: Workload, factor: float) -> tuple[int, ...]:
    """A patch of about `factor` times the volume whose sides the strides divide."""
    plan = workload.plan
    steps = [math.prod(row[axis] for row in plan.strides) for axis in range(plan.dims)]
    scale = factor ** (1 / plan.dims)
    return tuple(
        max(1, round(scale * side / step)) * step
        for side, step in zip(plan.patch, steps, strict=True)
    )


def measure_data(config: Config, workload: Workload, stopwatch: Stopwatch) -> list[OtherResult]:
    """Step times with volumes on the device and with the same volumes on disk."""
    plan, device = workload.plan, stopwatch.device
    sides = [DISK_SIDES[device.type] * side for side in plan.patch]
    memory = {"on the device": math.inf, "on disk": 0.0}
    with TemporaryDirectory() as folder, measuring(device), ExitStack() as stack:
        stored = [
            stored_volume(volume, Path(folder))
            for volume in generate_volumes(plan, DISK_CASES, sides)
        ]
        results = []
        for name, most in memory.items():
            placed = place_volumes(stored, device, most)
            trial = TrainingTrial(config, workload, placed, device)
            batches = stack.enter_context(trial.batches)
            trial.step()
            batches.waited, before = 0.0, trial.steps
            # not in turn with another trial: crops would be read during its turn
            (seconds,) = stopwatch.time([trial.step])
            waiting = None if most else batches.waited / (trial.steps - before) / seconds.median
            results.append(OtherResult(name, seconds, workload.crops, workload.voxels, waiting))
    return results


def stored_volume(volume: Volume, folder: Path) -> Volume:
    """The volume in files, as the cache stores it."""
    parts = []
    for part in ("image", "label"):
        path = folder / f"{volume.name}.{part}.npy"
        np.save(path, getattr(volume, part))
        parts.append(StoredArray.find(volume.name, path))
    return replace(volume, image=parts[0], label=parts[1])
