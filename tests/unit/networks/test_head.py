from __future__ import annotations

import pytest
import torch

from segpl.networks.heads import ThresholdHead

both_dims = pytest.mark.parametrize("dims", [2, 3])


def features(dims: int, *, images: int = 2, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((images, 6, *[4] * dims), generator=generator)


@both_dims
def test_threshold_starts_at_one_half_with_the_std_of_the_prior(dims):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        head = ThresholdHead(dims, 6, start_std=0.2)
    posterior = head(features(dims))
    assert posterior.mean.item() == pytest.approx(0.5, abs=0.05)
    assert posterior.std.item() == pytest.approx(0.2, rel=0.1)


def test_threshold_is_computed_in_float32_under_bfloat16_autocast():
    head = ThresholdHead(2, 6, start_std=0.1)
    plain = head(features(2).bfloat16().float())
    with torch.autocast("cpu", torch.bfloat16):
        posterior = head(features(2).bfloat16())
    assert posterior.mean.dtype == torch.float32
    torch.testing.assert_close(posterior.mean, plain.mean, rtol=1e-4, atol=1e-5)


def test_whole_batch_shares_one_threshold():
    posterior = ThresholdHead(2, 6, start_std=0.1)(features(2, images=3))
    assert posterior.mean.shape == posterior.log_variance.shape == ()


def test_threshold_depends_on_the_features():
    head = ThresholdHead(2, 6, start_std=0.1)
    first, second = head(features(2, seed=0)), head(features(2, seed=1))
    assert first.mean != second.mean
    assert first.log_variance != second.log_variance
