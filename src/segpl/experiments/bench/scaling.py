"""How step time grows with the size and number of crops and cases, and with data on disk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from segpl.data.sampler import Resident, place_volumes
from segpl.experiments.bench.measure import EVERYTHING, Advance, measuring, time_steps
from segpl.experiments.bench.results import OtherResult
from segpl.experiments.bench.trial import TrainingTrial
from segpl.experiments.bench.workload import Workload, generate_volumes
from segpl.settings import Config

VOLUME_FACTORS = (0.5, 2.0)
BATCH_FACTORS = (1, 2, 4)
MANY_CASES = (10, 1000)
DISK_CASES = 4
DISK_SIDES = {"cuda": 4, "cpu": 2}  # sides of a volume on disk, as a multiple of the patch


def measure_scaling(
    config: Config,
    workload: Workload,
    device: torch.device,
    *,
    steps: int,
    advance: Advance = lambda: None,
) -> list[OtherResult]:
    """Step times for other crop sizes, numbers of crops and numbers of cases."""
    variants = scaled_workloads(workload)
    with measuring(device):
        trials = []
        for one in variants.values():
            placed = place_volumes(generate_volumes(one.plan, 2), device, EVERYTHING)
            # cases beyond the first two are the same volumes again, to save memory
            volumes = (placed * one.cases)[: one.cases]
            trials.append(TrainingTrial(config, one, volumes, device))
            advance()
        times = time_steps(trials, device, steps=steps, advance=advance)
    return [
        OtherResult(name, seconds, one.crops, one.crops * math.prod(one.plan.patch))
        for (name, one), seconds in zip(variants.items(), times, strict=True)
    ]


def scaled_workloads(workload: Workload) -> dict[str, Workload]:
    """The workload and its variants, by what distinguishes them."""
    labeled, unlabeled = workload.labeled, workload.unlabeled
    unit = math.gcd(labeled, unlabeled)
    variants = {"as above": workload}
    for factor in VOLUME_FACTORS:
        patch = scaled_patch(workload, factor)
        variants[f"crops of {'x'.join(map(str, patch))}"] = workload.with_patch(patch)
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


def measure_data(
    config: Config,
    workload: Workload,
    device: torch.device,
    *,
    steps: int,
    advance: Advance = lambda: None,
) -> list[OtherResult]:
    """Step times with volumes on the device and with the same volumes on disk."""
    plan = workload.plan
    sides = [DISK_SIDES[device.type] * side for side in plan.patch]
    with TemporaryDirectory() as folder, measuring(device):
        stored = [
            replace(
                volume,
                image=mapped(Path(folder, f"{volume.name}-image.npy"), volume.image),
                label=mapped(Path(folder, f"{volume.name}-label.npy"), volume.label),
            )
            for volume in generate_volumes(plan, DISK_CASES, sides)
        ]
        places: dict[str, Sequence[Resident]] = {
            "on the device": place_volumes(stored, device, EVERYTHING),
            "on disk": place_volumes(stored, device, 0),
        }
        trials = []
        for placed in places.values():
            trials.append(TrainingTrial(config, workload, placed, device))
            advance()
        times = time_steps(trials, device, steps=steps, advance=advance)
    voxels = workload.crops * math.prod(plan.patch)
    return [
        OtherResult(name, seconds, workload.crops, voxels)
        for name, seconds in zip(places, times, strict=True)
    ]


def mapped(path: Path, array: NDArray[Any] | None) -> NDArray[Any]:
    """The array, written to `path` and memory-mapped."""
    assert array is not None
    np.save(path, array)
    stored: NDArray[Any] = np.load(path, mmap_mode="r")
    return stored
