"""What every method promises of its terms, in 2D and 3D, for two classes and for three."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from marks import (
    both_dims,
    both_tasks,
    every_loss,
    every_method,
    every_one_vs_rest,
    every_user_of_unlabeled,
)
from tiny import SIDE, build, build_with, make_batch, moved, table_network, total_of, trainable

from segpl.errors import InputError
from segpl.types import IGNORE, Batch, Labeled, Unlabeled


def with_gradients(batch: Batch) -> tuple[Batch, torch.Tensor, torch.Tensor]:
    """The batch, its labeled and its unlabeled images, all tracked by autograd."""
    assert batch.unlabeled is not None
    labeled = batch.labeled.image.clone().requires_grad_()
    unlabeled = batch.unlabeled.image.clone().requires_grad_()
    tracked = replace(batch, labeled=replace(batch.labeled, image=labeled))
    return replace(tracked, unlabeled=Unlabeled(unlabeled)), labeled, unlabeled


@every_method
@both_dims
@both_tasks
def test_every_term_is_a_finite_scalar(name, dims, classes):
    output = build(name, dims, classes=classes).step(make_batch(dims, classes=classes), 1.0)
    assert "supervised" in output.terms
    for key, term in output.terms.items():
        assert term.value.shape == (), key
        assert term.value.isfinite(), key
        assert 0 <= term.weight < float("inf"), key


@every_method
@both_dims
@both_tasks
def test_every_term_moves_some_weight(name, dims, classes):
    """A loss that reaches no parameter is a bug that training curves do not show."""
    method = build(name, dims, classes=classes)
    output = method.step(make_batch(dims, classes=classes), 1.0)
    for key, term in output.terms.items():
        assert term.value.requires_grad, f"{key} is detached from the network"
        assert moved(term.value, trainable(method)), f"{key} has zero gradient"


@every_method
@both_dims
@both_tasks
def test_every_weight_is_moved_by_some_term(name, dims, classes):
    method = build(name, dims, classes=classes)
    total_of(method.step(make_batch(dims, classes=classes), 1.0)).backward()
    frozen = {id(p) for n in method.networks() if n.is_frozen for p in n.parameters()}
    for key, parameter in method.named_parameters():
        if id(parameter) in frozen:
            assert parameter.grad is None, f"{key} belongs to a teacher, and a term moves it"
        else:
            assert parameter.grad is not None, f"{key} is never trained"
        # a branch may have been shown nothing, but the network itself always was
        if key.startswith("network."):
            assert parameter.grad.abs().sum() > 0, f"{key} has zero gradient"


@every_method
@both_dims
@both_tasks
def test_supervised_term_moves_the_network(name, dims, classes):
    method = build(name, dims, classes=classes)
    output = method.step(make_batch(dims, classes=classes), 1.0)
    assert moved(output.terms["supervised"].value, trainable(method.network))


@every_method
@both_dims
@both_tasks
def test_monitors_are_finite_scalars_without_gradient(name, dims, classes):
    output = build(name, dims, classes=classes).step(make_batch(dims, classes=classes), 1.0)
    assert "labeled_foreground" in output.monitors
    for key, value in output.monitors.items():
        assert value.shape == (), key
        assert value.isfinite(), key
        assert not value.requires_grad, f"{key} would keep every step's graph alive"


@every_method
@both_dims
def test_share_of_labeled_foreground_leaves_ignored_voxels_out(name, dims):
    batch = make_batch(dims)
    output = build(name, dims).step(batch, 1.0)
    known = batch.labeled.label[batch.labeled.label != IGNORE]
    expected = (known == 1).float().mean().item()
    assert output.monitors["labeled_foreground"].item() == pytest.approx(expected)


@every_user_of_unlabeled
@both_dims
def test_labeled_only_batch_is_refused_by_name(name, dims):
    method = build(name, dims)
    with pytest.raises(InputError, match=f"method '{name}' needs unlabeled images"):
        method.step(make_batch(dims, unlabeled=False), 1.0)


@every_user_of_unlabeled
@both_dims
@both_tasks
def test_supervised_term_sees_labeled_images_only(name, dims, classes):
    """Instance normalization keeps images apart, so any leak is a mix-up of the batch's halves."""
    batch, labeled, unlabeled = with_gradients(make_batch(dims, classes=classes))
    term = build(name, dims, classes=classes).step(batch, 1.0).terms["supervised"].value
    assert moved(term, [labeled])
    assert not moved(term, [unlabeled])


@every_user_of_unlabeled
@both_dims
@both_tasks
def test_other_terms_see_unlabeled_images_and_labeled_ones_only_where_declared(name, dims, classes):
    batch, labeled, unlabeled = with_gradients(make_batch(dims, classes=classes))
    method = build(name, dims, classes=classes)
    terms = method.step(batch, 1.0).terms
    others = {key: term for key, term in terms.items() if key != "supervised"}
    assert others
    assert method.looks_at_labeled <= others.keys()
    for key in others.keys() - method.spares_networks:
        term = others[key]
        assert moved(term.value, [unlabeled]), f"{key} does not see the unlabeled images"
        sees_labeled = moved(term.value, [labeled])
        assert sees_labeled == (key in method.looks_at_labeled), f"{key}: labeled images"


@every_method
@both_dims
@both_tasks
def test_no_network_learns_from_a_term_that_spares_it(name, dims, classes):
    method = build(name, dims, classes=classes)
    spared = {parameter for network in method.networks() for parameter in network.parameters()}
    others = [p for p in trainable(method) if p not in spared]
    terms = method.step(make_batch(dims, classes=classes), 1.0).terms
    for key in method.spares_networks & terms.keys():
        assert not moved(terms[key].value, [p for p in spared if p.requires_grad]), key
        assert moved(terms[key].value, others), key


@every_method
@both_dims
def test_no_term_answers_to_crops_of_validation_cases(name, dims):
    """What a network would learn from them would flow back to their images as well."""
    batch = make_batch(dims, validation=True)
    image = batch.validation.image.clone().requires_grad_()
    settings = {"calibrate": "all"} if name == "bpl" else {}
    method = build(name, dims, settings=settings)
    output = method.step(replace(batch, validation=replace(batch.validation, image=image)), 1.0)
    for key, term in output.terms.items():
        assert not moved(term.value, [image]), f"{key} learns from validation cases"


@every_method
@both_dims
def test_supervised_term_belongs_to_the_labels_as_they_are_paired(name, dims):
    """An image's own label is the one that its gradient answers to."""
    batch, labeled, _ = with_gradients(make_batch(dims))
    label = batch.labeled.label.clone()
    label[1] = IGNORE
    batch = replace(batch, labeled=Labeled(labeled, label))
    term = build(name, dims, settings={"loss": "cross-entropy"}).step(batch, 1.0)
    (gradient,) = torch.autograd.grad(term.terms["supervised"].value, [labeled])
    assert gradient[0].abs().sum() > 0
    assert gradient[1].abs().sum() == 0


def unmixed(name: str, loss: str) -> dict[str, object]:
    """Settings under which voxel n of the M-step is voxel n of a crop; mixing has its own tests."""
    still = {"paste": 0.0, "cutmix": 0.0} if name == "bpl-mix" else {}
    return {"loss": loss, **still}


@every_method
@every_loss
@both_dims
@both_tasks
def test_predictions_at_ignored_voxels_change_nothing(name, loss, dims, classes):
    batch = make_batch(dims, classes=classes)
    outputs = 1 if classes == 2 else classes
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn((4, outputs, *[SIDE] * dims), generator=generator)
    ignored = (batch.labeled.label == IGNORE).unsqueeze(1)
    other = logits.clone()
    other[:2] = torch.where(ignored, -5 * logits[:2], logits[:2])
    values = [
        build_with(name, lambda table=table: table_network(table), settings=unmixed(name, loss))
        .step(batch, 1.0)
        .terms["supervised"]
        .value
        for table in (logits, other)
    ]
    assert not torch.equal(logits, other)
    assert torch.equal(*values)


@every_user_of_unlabeled
@every_loss
@both_dims
@both_tasks
def test_predictions_beyond_an_unlabeled_scan_change_nothing(name, loss, dims, classes):
    batch = make_batch(dims, classes=classes)
    outputs = 1 if classes == 2 else classes
    inside = torch.zeros((2, *[SIDE] * dims), dtype=torch.bool)
    inside[:, 2:-2] = True
    scans = Unlabeled(batch.unlabeled.image, inside)
    logits = torch.randn((4, outputs, *[SIDE] * dims), generator=torch.Generator().manual_seed(3))
    other = logits.clone()
    other[2:] = torch.where(inside.unsqueeze(1), logits[2:], -5 * logits[2:])
    steps = [
        build_with(
            name, lambda table=table: table_network(table), settings=unmixed(name, loss)
        ).step(replace(batch, unlabeled=scans, generator=torch.Generator().manual_seed(0)), 1.0)
        for table in (logits, other)
    ]
    assert not torch.equal(logits, other)
    for what in steps[0].terms:
        assert torch.equal(*(step.terms[what].value for step in steps)), what
    for what in steps[0].monitors:
        assert torch.equal(*(step.monitors[what] for step in steps)), what


@every_user_of_unlabeled
@both_dims
@both_tasks
def test_pseudo_labels_carry_no_gradient_and_lie_from_0_to_1(name, dims, classes):
    """A method that learns from labels it made says which; their share is watched."""
    batch = make_batch(dims, classes=classes)
    output = build(name, dims, classes=classes).step(batch, 1.0)
    assert bool(output.pseudo) == ("pseudo" in output.terms)
    assert bool(output.pseudo) == ("pseudo_foreground" in output.monitors)
    outputs = 1 if classes == 2 else classes
    for pseudo in output.pseudo:
        assert pseudo.target.shape[1:] == (outputs, *[SIDE] * dims)
        for values in (pseudo.target, pseudo.weight):
            assert not values.requires_grad
            assert 0 <= values.min() <= values.max() <= 1


@every_user_of_unlabeled
@both_dims
@both_tasks
def test_share_of_each_class_in_pseudo_labels_is_logged_where_there_are_several(
    name, dims, classes
):
    """One sigmoid for two classes has no share but that of the foreground."""
    batch = make_batch(dims, classes=classes)
    output = build(name, dims, classes=classes).step(batch, 1.0)
    logged = {key: value for key, value in output.monitors.items() if "pseudo_foreground_" in key}
    expected = {
        f"pseudo_foreground_{k}": sum(
            float((one.target * one.weight)[:, k].sum() / one.weight.amax(1).sum().clamp(min=1))
            for one in output.pseudo
        )
        / len(output.pseudo)
        for k in range(1, classes)
        if classes > 2 and output.pseudo
    }
    assert {key: value.item() for key, value in logged.items()} == pytest.approx(expected)


@every_method
@both_dims
def test_terms_and_monitors_keep_their_names_through_the_training(name, dims):
    """A log has the columns of its first line."""
    method = build(name, dims)
    names = set()
    for progress in (0.0, 0.05, 0.3, 0.7, 1.0):
        output = method.step(make_batch(dims), progress)
        names.add((tuple(output.terms), tuple(output.monitors)))
    assert len(names) == 1


@every_method
@both_dims
def test_networks_of_a_method_share_no_weight(name, dims):
    """A teacher or a twin that is the student itself agrees with it for nothing."""
    networks = build(name, dims).networks()
    places = [p.data_ptr() for network in networks for p in network.parameters()]
    assert len(places) == len(set(places))


@every_method
@both_dims
def test_teacher_follows_its_student_without_becoming_it(name, dims):
    """Nothing but `after_update` moves a teacher, and it moves by less than the student."""
    method = build(name, dims)
    teachers = [network for network in method.networks() if network.is_frozen]
    students = {id(p) for p in trainable(method)}
    for teacher in teachers:
        before = {key: value.clone() for key, value in teacher.state_dict().items()}
        for steps in (100, 101):
            total_of(method.step(make_batch(dims), 1.0)).backward()
            assert all(torch.equal(v, before[k]) for k, v in teacher.state_dict().items())
            with torch.no_grad():
                for parameter in trainable(method):
                    parameter.add_(0.1)
            method.after_update(steps)
            moves = [(v - before[k]).max() for k, v in teacher.named_parameters()]
            assert all(0 < move < 0.1 for move in moves)
            before = {key: value.clone() for key, value in teacher.state_dict().items()}
        assert not students & {id(p) for p in teacher.parameters()}


@every_method
@both_dims
def test_teacher_stays_out_of_training_mode(name, dims):
    method = build(name, dims).train(False).train(True)
    for network in method.networks():
        assert all(module.training != network.is_frozen for module in network.modules())
        assert network.is_in_training


@every_one_vs_rest
@both_dims
@pytest.mark.parametrize("progress", [0.0, 1.0])
def test_several_classes_are_one_against_the_rest_where_the_method_says_so(name, dims, progress):
    """Each term is the mean over classes of the term that the class has alone."""
    batch = make_batch(dims, classes=3)
    logits = torch.randn((4, 3, *[SIDE] * dims), generator=torch.Generator().manual_seed(3))

    def terms(table: torch.Tensor, label: torch.Tensor) -> dict[str, float]:
        given = replace(
            batch,
            labeled=Labeled(batch.labeled.image, label),
            generator=torch.Generator().manual_seed(1),
        )
        output = build_with(name, lambda: table_network(table)).step(given, progress)
        return {key: term.value.item() for key, term in output.terms.items()}

    label = batch.labeled.label
    whole = terms(logits, label)
    alone = [
        terms(logits[:, k : k + 1], torch.where(label == IGNORE, IGNORE, (label == k).long()))
        for k in range(3)
    ]
    for key, value in whole.items():
        assert value == pytest.approx(sum(term[key] for term in alone) / 3, abs=1e-5), key


@every_method
@both_dims
@both_tasks
def test_label_that_is_ignored_everywhere_costs_nothing(name, dims, classes):
    batch = make_batch(dims, classes=classes)
    blank = Labeled(batch.labeled.image, torch.full_like(batch.labeled.label, IGNORE))
    method = build(name, dims, classes=classes)
    output = method.step(replace(batch, labeled=blank), 1.0)
    assert output.terms["supervised"].value.item() == pytest.approx(0, abs=1e-6)
