"""What every method promises about its E-step, its terms and its monitors."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace

import pytest
import torch
from marks import build_case, every_method, every_task, every_user_of_unlabeled, first_step
from method_case import ADVICE, case_of, path_for_tests, source_of
from tiny import SIDE, SIDES, build_with, make_batch, table_network, total_of, trainable
from torch import Tensor

from segpl.errors import InputError
from segpl.methods.base import METHODS, Method
from segpl.types import IGNORE, Batch, Labeled, Unlabeled


def logits_for(classes: int) -> Tensor:
    """Answers to two labeled and two unlabeled images."""
    outputs = 1 if classes == 2 else classes
    return torch.randn((4, outputs, SIDE, SIDE), generator=torch.Generator().manual_seed(3))


def step_of_table(
    name: str, logits: Tensor, batch: Batch, progress: float = 1.0, **settings: object
):
    """A step of a method whose networks return logits from a table."""
    method = build_with(name, lambda: table_network(logits), settings=settings)
    return method.step(replace(batch, generator=torch.Generator().manual_seed(0)), progress)


@every_method
def test_method_has_a_test_file(name):
    path = path_for_tests(name)
    assert path.is_file(), ADVICE.format(
        name=name, path=f"tests/methods/{path.name}", source=f"src/segpl/{source_of(name)}"
    )


@every_method
def test_method_describes_itself(name):
    kind = METHODS.get(name)
    assert kind.name == name
    assert kind.summary
    assert "\n" not in kind.summary
    assert hasattr(kind, "use"), f"say when to use {name}: set `use` in its class"
    assert re.search(r"\[[A-Z]\w+\d{4}", kind.__doc__ or ""), (
        "cite a work of docs/bibliography.md, as [Author2024]"
    )
    assert 0 < len(kind.use) <= 76, "say in at most 76 characters when to use it"
    assert "$$" in (kind.__doc__ or ""), "state the objective as a formula"


@every_method
def test_every_e_step_and_m_step_have_one_signature(name):
    kind = METHODS.get(name)
    assert kind.step is Method.step
    for step in ("label", "objective"):
        ours, theirs = (inspect.signature(getattr(owner, step)) for owner in (kind, Method))
        assert ours == theirs, step


@every_method
@every_task
def test_every_term_is_a_finite_scalar(name, dims, classes):
    terms = first_step(name, dims, classes).output.terms
    assert "supervised" in terms
    for key, term in terms.items():
        assert term.value.shape == (), key
        assert term.value.isfinite(), key
        assert 0 <= term.weight < float("inf"), key


@every_method
@every_task
def test_every_term_moves_some_weight(name, dims, classes):
    """A loss that reaches no parameter is a bug that training curves do not show."""
    step = first_step(name, dims, classes)
    for key in step.output.terms:
        assert step.moves(key), f"{key} has zero gradient"


@every_method
@every_task
def test_every_weight_is_moved_by_some_term(name, dims, classes):
    step = first_step(name, dims, classes)
    frozen = {id(p) for n in step.method.networks() if n.is_frozen for p in n.parameters()}
    for key, parameter in step.method.named_parameters():
        if id(parameter) in frozen:
            assert not parameter.requires_grad, f"{key} belongs to a teacher, and is trained"
            continue
        moved = [found[key] for found in step.gradients.values() if key in found]
        assert moved, f"{key} is never trained"
        # other parts may have had nothing to learn from, but the network always has
        if key.startswith("network."):
            assert any(moved), f"{key} has zero gradient"


@every_method
@every_task
def test_supervised_term_moves_the_network(name, dims, classes):
    assert first_step(name, dims, classes).moves("supervised", "network.")


@every_method
@every_task
def test_monitors_are_finite_scalars_without_gradient(name, dims, classes):
    monitors = first_step(name, dims, classes).output.monitors
    assert "labeled_foreground" in monitors
    for key, value in monitors.items():
        assert value.shape == (), key
        assert value.isfinite(), key
        assert not value.requires_grad, f"{key} would keep the graph of every step alive"


@every_method
def test_labeled_foreground_excludes_ignored_voxels(name):
    step = first_step(name, 3, 2)
    known = step.batch.labeled.label[step.batch.labeled.label != IGNORE]
    expected = (known == 1).float().mean().item()
    assert step.output.monitors["labeled_foreground"].item() == pytest.approx(expected)


@every_user_of_unlabeled
def test_batch_without_unlabeled_images_is_rejected(name):
    with pytest.raises(InputError, match=f"method '{name}' needs unlabeled images"):
        build_case(name, 2).step(make_batch(2, unlabeled=False), 1.0)


@every_user_of_unlabeled
@every_task
def test_supervised_term_sees_only_labeled_images(name, dims, classes):
    """Instance normalization separates images, so any leak is a mix-up of the batch's halves."""
    assert first_step(name, dims, classes).sees("supervised") == {"labeled"}


@every_user_of_unlabeled
@every_task
def test_other_terms_see_unlabeled_images_and_labeled_ones_only_if_declared(name, dims, classes):
    step = first_step(name, dims, classes)
    others = step.output.terms.keys() - {"supervised"}
    assert others
    assert step.case.terms_on_labeled <= others
    for key in others - step.case.terms_without_network:
        assert "unlabeled" in step.sees(key), f"{key} does not see the unlabeled images"
        sees_labeled = "labeled" in step.sees(key)
        assert sees_labeled == (key in step.case.terms_on_labeled), (
            f"{key} {'sees' if sees_labeled else 'does not see'} labeled images: "
            "state it in MethodCase.terms_on_labeled"
        )


@every_method
@every_task
def test_terms_without_network_train_no_network(name, dims, classes):
    step = first_step(name, dims, classes)
    networks = {id(p) for network in step.method.networks() for p in network.parameters()}
    owned = {key for key, p in step.method.named_parameters() if id(p) in networks}
    for key in step.case.terms_without_network & step.output.terms.keys():
        assert not step.moves(key) & owned, f"{key} trains a network"
        assert step.moves(key) - owned, f"{key} has zero gradient"


@every_method
def test_every_image_is_compared_with_its_own_label(name):
    batch = make_batch(2)
    image = batch.labeled.image.requires_grad_()
    label = batch.labeled.label.clone()
    label[1] = IGNORE
    method = build_case(name, 2, settings={"loss": "cross-entropy"})
    terms = method.step(replace(batch, labeled=Labeled(image, label)), 1.0).terms
    (gradient,) = torch.autograd.grad(terms["supervised"].value, [image])
    assert gradient[0].abs().sum() > 0
    assert gradient[1].abs().sum() == 0


@every_method
def test_label_that_is_ignored_everywhere_costs_nothing(name):
    batch = make_batch(2, classes=3)
    blank = Labeled(batch.labeled.image, torch.full_like(batch.labeled.label, IGNORE))
    output = build_case(name, 2, classes=3).step(replace(batch, labeled=blank), 1.0)
    assert output.terms["supervised"].value.item() == pytest.approx(0, abs=1e-6)


@every_method
@pytest.mark.parametrize("classes", [2, 3])
def test_predictions_at_ignored_voxels_change_nothing(name, classes):
    batch, logits = make_batch(2, classes=classes), logits_for(classes)
    ignored = (batch.labeled.label == IGNORE).unsqueeze(1)
    other = logits.clone()
    other[:2] = torch.where(ignored, -5 * logits[:2], logits[:2])
    steps = [
        step_of_table(name, table, batch, **case_of(name).unmixed) for table in (logits, other)
    ]
    assert not torch.equal(logits, other)
    assert torch.equal(*(step.terms["supervised"].value for step in steps))


@every_user_of_unlabeled
@pytest.mark.parametrize("classes", [2, 3])
def test_predictions_in_padding_change_nothing(name, classes):
    batch, logits = make_batch(2, classes=classes), logits_for(classes)
    inside = torch.zeros((2, SIDE, SIDE), dtype=torch.bool)
    inside[0, 2:-2] = inside[1, 4:] = True  # a method that mixes crops must mix their padding
    # labeled crops, too: a teacher that sees only unlabeled ones gets the first rows of the table
    label = torch.where(inside, batch.labeled.label, IGNORE)
    labeled = Labeled(batch.labeled.image, label)
    batch = replace(batch, labeled=labeled, unlabeled=Unlabeled(batch.unlabeled.image, inside))
    other = torch.where(inside.repeat(2, 1, 1).unsqueeze(1), logits, -5 * logits)
    steps = [
        step_of_table(name, table, batch, **case_of(name).unmixed) for table in (logits, other)
    ]
    assert not torch.equal(logits, other)
    advice = "depends on predictions in padding: give these voxels the weight 0, see `mask_padding`"
    for key in steps[0].terms:
        assert torch.equal(*(step.terms[key].value for step in steps)), f"{key} {advice}"
    for key in steps[0].monitors:
        assert torch.equal(*(step.monitors[key] for step in steps)), f"{key} {advice}"


@every_user_of_unlabeled
@every_task
def test_pseudo_labels_carry_no_gradient_and_lie_between_0_and_1(name, dims, classes):
    """A method that learns from its own labels returns them: they are monitored."""
    step = first_step(name, dims, classes)
    output = step.output
    assert bool(output.pseudo) == ("pseudo" in output.terms)
    assert bool(output.pseudo) == ("pseudo_foreground" in output.monitors)
    for pseudo in output.pseudo:
        assert pseudo.target.shape[1:] == (step.method.network.outputs, *[SIDES[dims]] * dims)
        for values in (pseudo.target, pseudo.weight):
            assert not values.requires_grad
            assert 0 <= values.min() <= values.max() <= 1
        assert pseudo.outputs == (), "the trainer would keep the activations of every step"


@every_user_of_unlabeled
@every_task
def test_pseudo_foreground_is_monitored_per_class_if_there_are_several(name, dims, classes):
    output = first_step(name, dims, classes).output
    found = {key: v.item() for key, v in output.monitors.items() if "pseudo_foreground_" in key}
    expected = {
        f"pseudo_foreground_{k}": sum(
            float((one.target * one.weight)[:, k].sum() / one.weight.amax(1).sum().clamp(min=1))
            for one in output.pseudo
        )
        / len(output.pseudo)
        for k in range(1, classes)
        if classes > 2 and output.pseudo
    }
    assert found == pytest.approx(expected)


@every_user_of_unlabeled
def test_weight_of_unlabeled_images_follows_alpha(name):
    """One term or more has alpha as its weight, up to a factor; the others are constant."""
    method = build_case(name, 2)
    weights = {}
    for progress in (0.04, 0.4, 1.0):
        terms = method.step(make_batch(2), progress).terms
        weights[progress] = {key: term.weight for key, term in terms.items()}
    alpha = {progress: method.settings.alpha_at(progress) for progress in weights}
    assert alpha[1.0] == method.settings.alpha
    follows = set()
    for key, full in weights[1.0].items():
        ratios = [weights[p][key] / full for p in weights]
        if ratios == pytest.approx([alpha[p] / alpha[1.0] for p in weights]):
            follows.add(key)
        else:
            assert ratios == [1, 1, 1], key
    if min(alpha.values()) < alpha[1.0]:
        assert follows
        assert "supervised" not in follows


@every_method
def test_terms_and_monitors_keep_their_names_during_training(name):
    """The columns of a log are fixed by its first line."""
    method = build_case(name, 2)
    outputs = [method.step(make_batch(2), progress) for progress in (0.0, 0.3, 1.0)]
    assert len({(tuple(output.terms), tuple(output.monitors)) for output in outputs}) == 1


@every_method
def test_networks_of_a_method_share_no_weight(name):
    """A teacher or twin that is the student itself always agrees with it."""
    networks = build_case(name, 2).networks()
    places = [p.data_ptr() for network in networks for p in network.parameters()]
    assert len(places) == len(set(places))


@every_method
def test_predictors_are_networks_of_the_method(name):
    method = build_case(name, 2)
    networks = {id(network) for network in method.networks()}
    assert {id(network) for network in method.predictors()} <= networks


@every_method
def test_only_after_update_moves_a_teacher_and_by_less_than_its_student(name):
    method = build_case(name, 2)
    for teacher in [network for network in method.networks() if network.is_frozen]:
        before = {key: value.clone() for key, value in teacher.state_dict().items()}
        total_of(method.step(make_batch(2), 1.0)).backward()
        assert all(torch.equal(v, before[k]) for k, v in teacher.state_dict().items())
        with torch.no_grad():
            for parameter in trainable(method):
                parameter.add_(0.1)
        method.after_update(100)
        moves = [(v - before[k]).max() for k, v in teacher.named_parameters()]
        assert all(0 < move < 0.1 for move in moves)


@every_method
def test_teacher_stays_in_evaluation_mode(name):
    method = build_case(name, 2).train(False).train(True)
    for network in method.networks():
        assert all(module.training != network.is_frozen for module in network.modules())
        assert network.is_in_training


@pytest.mark.parametrize("name", [name for name in METHODS.names if case_of(name).one_vs_rest])
@pytest.mark.parametrize("progress", [0.0, 1.0])
def test_classes_are_one_vs_rest_problems_if_declared(name, progress):
    """Each term is the mean over classes of the term of that class alone."""
    batch, logits = make_batch(2, classes=3), logits_for(3)
    label = batch.labeled.label

    def terms(table: Tensor, label: Tensor) -> dict[str, float]:
        given = replace(batch, labeled=Labeled(batch.labeled.image, label))
        found = step_of_table(name, table, given, progress).terms
        return {key: term.value.item() for key, term in found.items()}

    alone = [
        terms(logits[:, k : k + 1], torch.where(label == IGNORE, IGNORE, (label == k).long()))
        for k in range(3)
    ]
    for key, value in terms(logits, label).items():
        assert value == pytest.approx(sum(term[key] for term in alone) / 3, abs=1e-5), key
