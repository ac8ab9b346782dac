from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import Recorded

from segpl.errors import InputError
from segpl.losses import targets_of
from segpl.threshold.calibration import Temperature, batch_calibration_error
from segpl.types import IGNORE


def overconfident(outputs, factor, shape=(2, 40, 40), seed=0):
    """Logits times `factor`, with labels drawn from the original logits."""
    draw = torch.Generator().manual_seed(seed)
    images, *sides = shape
    logits = 1.5 * torch.randn((images, outputs, *sides), generator=draw)
    if outputs == 1:
        chance = torch.rand((images, *sides), generator=draw)
        label = (chance < logits[:, 0].sigmoid()).long()
    else:
        label = torch.randint(outputs, (images, *sides), generator=draw)
    return factor * logits, label


def fitted(temperature, logits, label, steps=150):
    optimizer = torch.optim.Adam(temperature.parameters(), lr=0.05)
    for _ in range(steps):
        optimizer.zero_grad()
        temperature.loss(logits, label).backward()
        optimizer.step()
    return temperature.value.detach()


def test_logits_are_divided_channel_by_channel():
    temperature = Temperature(2)
    with torch.no_grad():
        temperature.log_temperature.copy_(torch.tensor([0.0, 0.1]))
    divided = temperature(torch.ones(1, 2, 3))
    assert divided[0, 0].tolist() == pytest.approx([1.0] * 3)
    assert divided[0, 1].tolist() == pytest.approx([0.904837] * 3, abs=1e-4)  # exp(-0.1)


@pytest.mark.parametrize("factor", [3.0, 0.5])
def test_fit_recovers_the_factor_and_lowers_the_calibration_error(factor):
    logits, label = overconfident(1, factor)
    temperature = Temperature()
    before = batch_calibration_error(logits.sigmoid(), *targets_of(label, 1))
    value = fitted(temperature, logits, label)
    after = batch_calibration_error(temperature(logits).sigmoid(), *targets_of(label, 1))
    assert value.item() == pytest.approx(factor, rel=0.2)
    assert before.item() > 0.06
    assert after.item() < 0.5 * before.item()


def test_gradient_of_the_loss_reaches_only_the_temperature():
    logits, label = overconfident(1, 3.0)
    logits.requires_grad_()
    temperature = Temperature()
    temperature.loss(logits, label).backward()
    assert logits.grad is None
    # overconfident: a higher temperature lowers the loss
    assert temperature.log_temperature.grad.item() < 0


def test_ignored_voxels_do_not_influence_the_temperature():
    logits, label = overconfident(1, 3.0)
    label[:, :10] = IGNORE
    other = logits.clone()
    other[:, :, :10] = 99
    losses = [Temperature().loss(z, label).item() for z in (logits, other)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_temperature_is_bounded_for_a_network_without_mistakes():
    """The loss falls with the temperature; without a bound it would reach 0."""
    logits = torch.tensor([-2.0, 2.0, 3.0]).view(1, 1, 3)
    label = torch.tensor([[0, 1, 1]])
    temperature = Temperature()
    with torch.no_grad():
        temperature.log_temperature.fill_(-200.0)
    assert temperature.value.item() == pytest.approx(1 / 50)
    assert temperature(logits).isfinite().all()
    assert temperature.loss(logits, label).isfinite()


def test_half_precision_logits_are_divided_in_float32():
    logits, label = overconfident(1, 3.0)
    temperature = Temperature()
    with torch.autocast("cpu", torch.bfloat16):
        assert temperature(logits.bfloat16()).dtype == torch.float32
        loss = temperature.loss(logits.bfloat16(), label)
    expected = temperature.loss(logits.bfloat16().float(), label)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


def test_calibration_error_worked_out_by_hand():
    """Two bins: |0.2 - 0.5| for p = 0.1, 0.3 with one positive, and 0.2 for p = 0.8, both positive.

    Each bin has half of the weight: 0.25. The voxel of weight 0 does not count.
    """
    probability = torch.tensor([[[0.1, 0.3, 0.8, 0.8, 0.6]]])
    target = torch.tensor([[[0.0, 1.0, 1.0, 1.0, 0.0]]])
    weight = torch.tensor([[[1.0, 1.0, 1.0, 1.0, 0.0]]])
    error = batch_calibration_error(probability, target, weight, bins=2)
    assert error.item() == pytest.approx(0.25)


def test_underconfident_background_does_not_cancel_overconfident_foreground():
    """Binned by max(p, 1 - p), both would have confidence 0.9 and accuracy 0.9."""
    probability = torch.tensor([0.9] * 10 + [0.1] * 10).view(1, 1, 20)
    target = torch.tensor([1.0] * 8 + [0.0] * 12).view(1, 1, 20)
    error = batch_calibration_error(probability, target, torch.ones(1, 1, 20))
    assert error.item() == pytest.approx(0.1, abs=1e-5)


def test_calibration_does_not_synchronize_with_the_device():
    logits, label = overconfident(3, 3.0)
    target, weight = targets_of(label, 3)
    with Recorded() as recorded:
        Temperature(3).loss(logits, label)
        batch_calibration_error(logits.sigmoid(), target, weight)
    assert recorded.synchronizations() == []
    assert recorded.largest <= logits.numel()


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    logits=st.lists(st.floats(-(2.0**80), 2.0**80, width=32), min_size=4, max_size=4),
    labels=st.lists(st.sampled_from([IGNORE, 0, 1]), min_size=4, max_size=4),
    raw=st.floats(-1e4, 1e4),
)
def test_loss_and_gradient_of_any_logits_are_finite(logits, labels, raw):
    temperature = Temperature()
    with torch.no_grad():
        temperature.log_temperature.fill_(raw)
    loss = temperature.loss(torch.tensor(logits).view(1, 1, 4), torch.tensor(labels).view(1, 4))
    loss.backward()
    assert loss.isfinite()
    assert temperature.log_temperature.grad.isfinite().all()


def brute_force(probability, target, weight, bins):
    """The definition, bin by bin and voxel by voxel."""
    triples = list(
        zip(
            probability.flatten().tolist(),
            target.flatten().tolist(),
            weight.flatten().tolist(),
            strict=True,
        )
    )
    whole = sum(w for _, _, w in triples)
    error = 0.0
    for number in range(bins):
        inside = [t for t in triples if min(int(t[0] * bins), bins - 1) == number]
        share = sum(w for _, _, w in inside)
        if share > 0:
            confidence = sum(w * p for p, _, w in inside) / share
            frequency = sum(w * y for _, y, w in inside) / share
            error += share / whole * abs(confidence - frequency)
    return error


def test_fresh_temperature_changes_nothing():
    logits = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(Temperature()(logits), logits)
    assert torch.equal(Temperature(3)(logits), logits)


def test_each_class_finds_its_own_temperature():
    """Only the second channel is overconfident."""
    logits, _ = overconfident(2, 1.0, shape=(2, 60, 60))
    draw = torch.rand((2, 60, 60), generator=torch.Generator().manual_seed(5))
    logits[:, 0] = -logits[:, 1]
    label = (draw < logits[:, 1].sigmoid()).long()
    logits[:, 1] *= 3
    value = fitted(Temperature(2), logits, label)
    assert value.tolist() == pytest.approx([1.0, 3.0], rel=0.25)


def test_label_with_a_channel_axis_is_rejected():
    with pytest.raises(InputError, match=r"drop it with label\.squeeze"):
        Temperature().loss(torch.zeros(1, 1, 4, 4), torch.zeros(1, 1, 4, 4, dtype=torch.int64))


@pytest.mark.parametrize(("shape", "bins"), [((2, 1, 9, 9), 15), ((1, 3, 4, 5, 6), 10)])
def test_calibration_error_agrees_with_a_loop_over_bins(shape, bins):
    draw = torch.Generator().manual_seed(0)
    probability = torch.rand(shape, generator=draw).double()
    target = (torch.rand(shape, generator=draw) < probability**2).double()
    weight = torch.rand(shape, generator=draw).double()
    probability.view(-1)[:4] = torch.tensor([0.0, 1.0, 0.0, 1.0])
    error = batch_calibration_error(probability, target, weight, bins=bins)
    assert error.item() == pytest.approx(brute_force(probability, target, weight, bins), abs=1e-5)


def test_calibration_error_without_any_weight_is_zero():
    some = torch.rand(1, 1, 9, generator=torch.Generator().manual_seed(0))
    assert batch_calibration_error(some, some.round(), torch.zeros(1, 1, 9)).item() == 0
