from __future__ import annotations

import pytest
import torch

from segpl.views.intensity import add_noise


def test_noise_has_the_given_standard_deviation():
    change = add_noise(torch.zeros(4, 1, 50, 50), 0.3, torch.Generator().manual_seed(0))
    assert change.std().item() == pytest.approx(0.3, rel=0.05)
    assert change.mean().item() == pytest.approx(0, abs=0.01)


def test_noise_is_added_to_the_image():
    image = torch.arange(12.0).view(1, 1, 3, 4)
    noise = add_noise(torch.zeros_like(image), 0.3, torch.Generator().manual_seed(0))
    assert torch.equal(add_noise(image, 0.3, torch.Generator().manual_seed(0)), image + noise)


def test_every_image_gets_different_noise():
    change = add_noise(torch.zeros(2, 1, 5, 5), 0.3, torch.Generator().manual_seed(0))
    assert not torch.equal(change[0], change[1])


def test_noise_depends_only_on_the_generator():
    image = torch.zeros(1, 1, 5, 5)
    first, same, other = (
        add_noise(image, 1.0, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
    )
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_zero_standard_deviation_changes_nothing():
    image = torch.arange(12.0).view(1, 1, 3, 4)
    assert torch.equal(add_noise(image, 0.0, torch.Generator().manual_seed(0)), image)
