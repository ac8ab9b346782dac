from __future__ import annotations

import pytest
import torch

from segpl.networks.head import ThresholdHead
from segpl.networks.pool import average_pool

both_dims = pytest.mark.parametrize("dims", [2, 3])


def features(dims: int, *, images: int = 2, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((images, 6, *[9] * dims), generator=generator)


@both_dims
def test_threshold_starts_at_a_half_with_the_spread_of_the_prior(dims):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = ThresholdHead(dims, 6, start_std=0.2)
    posterior = head(features(dims))
    assert posterior.mean.item() == pytest.approx(0.5, abs=0.05)
    assert posterior.std.item() == pytest.approx(0.2, rel=0.1)


@both_dims
def test_one_threshold_answers_for_the_whole_batch(dims):
    posterior = ThresholdHead(dims, 6, start_std=0.1)(features(dims, images=3))
    assert posterior.mean.shape == posterior.log_variance.shape == ()


@both_dims
def test_threshold_depends_on_the_features(dims):
    head = ThresholdHead(dims, 6, start_std=0.1)
    first, second = head(features(dims, seed=0)), head(features(dims, seed=1))
    assert first.mean != second.mean
    assert first.log_variance != second.log_variance


def test_axis_thinner_than_the_pooling_is_taken():
    posterior = ThresholdHead(3, 6, start_std=0.1)(torch.randn(1, 6, 8, 8, 3))
    assert posterior.mean.isfinite()


def test_threshold_is_computed_in_float32_under_bfloat16():
    head = ThresholdHead(2, 6, start_std=0.1)
    plain = head(average_pool(features(2).bfloat16(), 4).float())  # pooling twice is pooling once
    with torch.autocast("cpu", torch.bfloat16):
        posterior = head(features(2).bfloat16())
    assert posterior.mean.dtype == torch.float32
    assert torch.equal(posterior.mean, plain.mean)
