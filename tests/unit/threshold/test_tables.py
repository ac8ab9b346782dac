from __future__ import annotations

import pytest
import torch

from segpl.threshold.tables import interpolate_table


def test_table_is_interpolated_linearly():
    table = torch.tensor([0.0, 1.0, 4.0])
    position = torch.tensor([0.0, 0.5, 1.0, 1.75, 2.0])
    assert interpolate_table(table, position).tolist() == [0, 0.5, 1, 3.25, 4]


@pytest.mark.parametrize("leading", [(1, 1, 1), (2, 1, 1), (2, 3, 1), (2, 1, 5), (1, 1)])
def test_every_position_reads_the_table_of_its_image_and_class(leading):
    generator = torch.Generator().manual_seed(0)
    table = torch.rand((*leading, 9), generator=generator)
    position = torch.rand((2, 3, 5), generator=generator) * 8
    full = table.expand(2, 3, 5, 9)
    cell = position.long().unsqueeze(-1)
    below, above = full.gather(-1, cell).squeeze(-1), full.gather(-1, cell + 1).squeeze(-1)
    expected = torch.lerp(below, above, position.frac())
    assert torch.allclose(interpolate_table(table, position), expected, atol=1e-5)


def test_gradients_agree_with_finite_differences():
    generator = torch.Generator().manual_seed(0)
    table = torch.rand((2, 1, 6), generator=generator, dtype=torch.float64)
    position = torch.rand((2, 4), generator=generator, dtype=torch.float64) * 5
    inputs = (table.requires_grad_(), position.requires_grad_())
    assert torch.autograd.gradcheck(interpolate_table, inputs, atol=1e-6)


def test_gradient_of_a_mean_over_many_voxels_is_accurate():
    """Each of 100,000 voxels contributes 1e-5; each entry receives half."""
    table = torch.zeros(3, requires_grad=True)
    interpolate_table(table, torch.full((100_000,), 0.5)).mean().backward()
    assert table.grad.tolist() == pytest.approx([0.5, 0.5, 0], rel=1e-4)
