"""What a prior of mean 0.9 does on generated vessels, by the rule that its threshold is used with.

With weight 0.1, a threshold that is drawn from the prior and used as the boundary of foreground
takes the foreground away, whether a head learns it or not. One that selects voxels does not.
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from statistics import median
from typing import Any

import pytest
import torch
from tiny import build, vessel_crop

from segpl.engine.step import optimizer_for, take_step
from segpl.methods.latent_threshold import ThresholdSettings
from segpl.networks.network import NetworkSettings
from segpl.types import Batch, Labeled, Unlabeled

STEPS = 450
SEEDS = range(3)  # of the weights
SCANS = 8  # of which the first is labeled
PAPER = {"family": "normal", "rule": "binarize", "scope": "batch"}  # head at the prior


def high(**threshold: Any) -> dict[str, Any]:
    return {"threshold": ThresholdSettings(prior_mean=0.9, prior_std=0.1, **threshold)}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "segpl": ("segpl", {}),
    "segpl-vi": ("segpl-vi", {"prior_mean": 0.9, "prior_std": 0.1}),
    "drawn": ("bpl", high(**PAPER)),
    "bpl": ("bpl", high()),
    "bpl-exact": ("bpl", high(e_step="exact")),
}


@cache
def foreground_after(variant: str, seed: int = 0) -> float:
    """Predicted foreground of the unlabeled crops after training, as a share of the true one."""
    name, settings = VARIANTS[variant]
    ramp = {"alpha": 0.1, "ramp_begin": 0.1, "ramp_end": 0.2}
    plain = NetworkSettings(residual=False)  # as in the paper
    method = build(name, 2, seed=seed, network=plain, settings={**settings, **ramp}).train()
    optimizer = optimizer_for(method, 0.01)
    crops = [vessel_crop(2, seed) for seed in range(SCANS)]
    (scan, label), others = crops[0], torch.stack([crop[0][None] for crop in crops[1:]])
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        chosen = torch.randint(0, SCANS - 1, (2,), generator=generator)
        batch = Batch(Labeled(scan[None, None], label[None]), Unlabeled(others[chosen]), generator)
        take_step(method, optimizer, batch, step / STEPS, nullcontext(), taken=step)
    truth = sum(int((crop[1] > 0).sum()) for crop in crops[1:])
    with torch.no_grad():
        return float((method.eval().predict(others) > 0.5).sum()) / truth


@pytest.mark.parametrize("variant", ["drawn", "segpl-vi"])
def test_high_threshold_as_boundary_takes_the_foreground_away(variant):
    # single trainings may keep more, and rounding decides which
    assert median(foreground_after(variant, seed) for seed in SEEDS) < 0.3


@pytest.mark.parametrize("variant", ["bpl", "bpl-exact"])
def test_high_threshold_that_selects_leaves_the_foreground(variant):
    assert 0.7 < foreground_after(variant) < 1.6


def test_foreground_is_there_without_a_high_threshold():
    assert 0.7 < foreground_after("segpl") < 1.6
