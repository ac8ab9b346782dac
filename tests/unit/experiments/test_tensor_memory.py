"""Bytes of tensors, on sequences short enough to be added up by hand."""

from __future__ import annotations

import torch

from segpl.experiments.bench.counts import TensorMemory

KILO = 256 * 4  # bytes of 256 numbers


def test_peak_is_the_largest_total_of_live_tensors():
    with TensorMemory() as memory:
        first = torch.zeros(256)
        second = torch.zeros(512)
        del first
        torch.zeros(256)
        del second
        torch.zeros(128)
    assert memory.peak == 3 * KILO


def test_views_of_one_memory_count_once():
    with TensorMemory() as memory:
        whole = torch.zeros(256)
        parts = [whole[:128], whole.view(16, 16), whole.t()]
    assert memory.peak == KILO
    del parts


def test_tensors_saved_for_the_backward_pass_are_counted():
    """exp saves its output: four in a row hold four tensors, or two without gradients."""
    start = torch.zeros(256, requires_grad=True)
    with TensorMemory() as memory:
        start.exp().exp().exp().exp()
    kept = memory.peak
    with TensorMemory() as memory, torch.no_grad():
        start.exp().exp().exp().exp()
    assert kept == 4 * KILO
    assert memory.peak == 2 * KILO


def test_gradients_of_the_backward_pass_are_counted():
    weight = torch.zeros(256, requires_grad=True)
    total = weight.mul(2).sum()
    with TensorMemory() as memory:
        total.backward()
    assert weight.grad is not None
    assert memory.peak == 4 + KILO  # the gradients of the total and of the weight


def test_freed_memory_is_counted_again_only_when_it_is_used_again():
    with TensorMemory() as memory:
        for _ in range(10):
            torch.zeros(256)
    assert memory.peak == KILO


def test_operation_in_place_takes_nothing():
    with TensorMemory() as memory:
        torch.zeros(256).add_(1).mul_(2)
    assert memory.peak == KILO
