from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from method_case import MethodCase
from mutations import Mutation
from tiny import build, build_with, make_batch, moved, table_network, trainable
from torch import Tensor, nn

from segpl.errors import InputError
from segpl.losses import targets_of
from segpl.methods.cct import CCT
from segpl.networks.network import NetworkSettings
from segpl.types import NetOutput, Unlabeled
from segpl.views.features import PERTURBATIONS

CASE = MethodCase(
    curve={
        "supervised": [0.651804, 0.619317],
        "pseudo": [0.030127, 0.026381],
    },
)  # an object is a voxel of any class but background
ALL = ",".join(PERTURBATIONS)


class Fixed(nn.Module):
    """A decoder that returns fixed logits."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, trunk: Tensor, sides: torch.Size) -> Tensor:
        return self.logits


class Spy(nn.Module):
    """A decoder that records its input."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, trunk: Tensor, sides: torch.Size) -> Tensor:
        self.seen.append(trunk)
        return self.weight * trunk.mean(1, keepdim=True)


def table(outputs: int = 1) -> Tensor:
    return torch.randn((4, outputs, 16, 16), generator=torch.Generator().manual_seed(5))


def tabled(decoders: str, *, features: Tensor | None = None, **settings: Any) -> CCT:
    """A method whose main decoder returns logits from a table."""
    method = build_with(
        "cct",
        lambda: table_network(table(), features),
        settings={"decoders": decoders, **settings},
    )
    assert isinstance(method, CCT)
    return method


def test_defaults_have_the_scale_of_the_authors_code():
    """By hand: a weight of 30, and a mean over 21 classes, two of which differ."""
    settings = CCT.Settings()
    assert settings.alpha == pytest.approx(30 * 2 / 21, rel=0.1)
    assert settings.ramp_end == 0.1


@pytest.mark.parametrize("classes", [2, 3])
def test_equal_mistakes_have_gradients_of_one_order_of_magnitude(classes):
    """All decoders are undecided about voxels whose label, given or inferred, is certain."""
    outputs, batch = 1 if classes == 2 else classes, make_batch(2, classes=classes)
    labels, _ = targets_of(batch.labeled.label, outputs)
    logits = torch.cat([torch.zeros_like(labels), 40 * labels - 20])  # labeled, then unlabeled
    method = build_with("cct", lambda: table_network(logits), settings={"decoders": "noise"})
    answer = torch.zeros_like(labels).requires_grad_()
    method.branches = nn.ModuleList([Fixed(answer)])
    terms = method.step(batch, 1.0).terms
    given, pseudo = terms["supervised"], terms["pseudo"]
    (labeled,) = torch.autograd.grad(given.weight * given.value, method.network.body.logits)
    (unlabeled,) = torch.autograd.grad(pseudo.weight * pseudo.value, answer)
    assert 0.1 < unlabeled.norm() / labeled.norm() < 10


def test_pseudo_term_is_the_mean_squared_error_of_the_decoders_by_hand():
    """The main decoder says 0.5 everywhere; the others 0.25 and 0.9: (0.0625 + 0.16) / 2."""
    method = build_with(
        "cct",
        lambda: table_network(torch.zeros(4, 1, 16, 16)),
        settings={"decoders": "noise,objects"},
    )
    answers = [torch.full((2, 1, 16, 16), math.log(p / (1 - p))) for p in (0.25, 0.9)]
    method.branches = nn.ModuleList(Fixed(answer) for answer in answers)
    term = method.step(make_batch(2), 1.0).terms["pseudo"].value
    assert term.item() == pytest.approx(0.11125)


@pytest.mark.parametrize("classes", [2, 3])
def test_pseudo_term_is_the_mean_over_channels_and_voxels_inside_the_scans(classes):
    outputs = 1 if classes == 2 else classes
    method = build_with(
        "cct", lambda: table_network(table(outputs)), settings={"decoders": "noise"}
    )
    answer = torch.randn((2, outputs, 16, 16), generator=torch.Generator().manual_seed(9))
    method.branches = nn.ModuleList([Fixed(answer)])
    inside = torch.zeros((2, 16, 16), dtype=torch.bool)
    inside[0, 4:9], inside[1, :, 2:] = True, True
    batch = make_batch(2, classes=classes)
    scans = Unlabeled(batch.unlabeled.image, inside)
    term = method.step(replace(batch, unlabeled=scans), 1.0).terms["pseudo"].value
    square = (answer.sigmoid() - table(outputs)[2:].sigmoid()).square()
    expected = square.movedim(1, -1)[inside].mean()
    assert term.item() == pytest.approx(expected.item(), rel=1e-5)


def test_target_sends_no_gradient_to_the_main_decoder():
    method = tabled(ALL)
    term = method.step(make_batch(2), 1.0).terms["pseudo"].value
    assert not moved(term, [method.network.body.logits])
    assert moved(term, trainable(method.branches))


def test_pseudo_term_moves_the_shared_trunk_but_not_the_last_block_of_the_main_decoder():
    method = build("cct", 2, classes=3, settings={"decoders": ALL})
    term = method.step(make_batch(2, classes=3), 1.0).terms["pseudo"].value
    body = method.network.body
    assert not moved(term, [*body.merge[-1].parameters(), *body.last.parameters()])
    for shared in (body.stem, *body.down, *body.up, *body.merge[:-1]):
        assert moved(term, trainable(shared))


def test_every_kind_of_decoder_moves_the_shared_trunk():
    for kind in PERTURBATIONS:
        method = build("cct", 2, settings={"decoders": kind})
        term = method.step(make_batch(2), 1.0).terms["pseudo"].value
        assert moved(term, trainable(method.network.body.stem)), kind


def test_supervised_term_moves_no_auxiliary_decoder():
    method = build("cct", 2)
    term = method.step(make_batch(2), 1.0).terms["supervised"].value
    assert not moved(term, trainable(method.branches))
    assert moved(term, trainable(method.network.body.merge[-1]))


def test_auxiliary_decoders_share_no_weight_and_start_differently():
    method = build("cct", 2, settings={"decoders": "noise,noise,objects"})
    places = [p.data_ptr() for p in method.parameters()]
    assert len(places) == len(set(places))
    starts = [branch.block[0].weight for branch in method.branches]
    starts.append(method.network.body.merge[-1][0].weight)
    for index, start in enumerate(starts):
        assert all(not torch.equal(start, other) for other in starts[index + 1 :])


def test_each_decoder_sees_its_own_perturbation():
    """`objects` hides what the main decoder calls foreground, `contexts` hides the rest."""
    features = torch.randn((4, 3, 16, 16), generator=torch.Generator().manual_seed(2))
    method = tabled("objects, contexts", features=features)
    method.branches = nn.ModuleList([Spy(), Spy()])
    method.step(make_batch(2), 1.0)
    found = (table()[2:] > 0).expand(-1, 3, -1, -1)
    without_objects, without_contexts = (branch.seen[0] for branch in method.branches)
    assert torch.equal(without_objects, features[2:].masked_fill(found, 0))
    assert torch.equal(without_contexts, features[2:].masked_fill(~found, 0))


def test_decoders_of_one_kind_see_different_perturbations():
    features = torch.randn((4, 3, 16, 16), generator=torch.Generator().manual_seed(2))
    method = tabled("noise,noise", features=features)
    method.branches = nn.ModuleList([Spy(), Spy()])
    method.step(make_batch(2), 1.0)
    first, second = (branch.seen[0] for branch in method.branches)
    assert not torch.equal(first, second)


def test_padding_contains_no_object():
    method = tabled("contexts")
    method.branches = nn.ModuleList([Spy()])
    batch = make_batch(2)
    inside = torch.zeros((2, 16, 16), dtype=torch.bool)
    inside[:, 5:] = True
    scans = Unlabeled(batch.unlabeled.image, inside)
    method.step(replace(batch, unlabeled=scans), 1.0)
    kept = method.branches[0].seen[0][:, 0] != 0
    assert torch.equal(kept, (table()[2:, 0] > 0) & inside)


def test_auxiliary_decoders_do_not_predict():
    method, image = build("cct", 2).eval(), make_batch(2).labeled.image
    with torch.no_grad():
        before = method.predict(image)
        for parameter in method.branches.parameters():
            parameter.add_(1)
        output: NetOutput = method.network(image)
        assert torch.equal(method.predict(image), before)
        assert torch.equal(output.logits.sigmoid(), before)


def test_trunk_may_be_coarser_than_the_image():
    """MONAI's UNet keeps its last features at half the resolution."""
    network = NetworkSettings("UNet")
    method, batch = build("cct", 2, network=network, settings={"decoders": ALL}), make_batch(2)
    output: NetOutput = method.network(batch.unlabeled.image)
    assert output.trunk.shape[2:] < output.logits.shape[2:]
    term = method.step(batch, 1.0).terms["pseudo"].value
    for branch in method.branches:
        assert moved(term, trainable(branch))


def test_unknown_kind_of_decoder_is_rejected_with_a_suggestion():
    with pytest.raises(KeyError, match=r"in method\.decoders named 'nose'\. Did you mean 'noise'"):
        build("cct", 2, settings={"decoders": "dropout,nose"})


@pytest.mark.parametrize("decoders", ["", " , "])
def test_empty_list_of_decoders_is_rejected(decoders):
    with pytest.raises(InputError, match=r"method\.decoders names no auxiliary decoder"):
        build("cct", 2, settings={"decoders": decoders})


MUTATIONS = [
    Mutation(
        "lets the unlabeled images dominate",
        "alpha: float = 3.0",
        "alpha: float = 30.0",
        "test_equal_mistakes_have_gradients_of_one_order_of_magnitude",
        {"classes": 2},
    ),
    Mutation(
        "lets gradients into the target",
        "target = outputs[1].logits.detach().sigmoid()",
        "target = outputs[1].logits.sigmoid()",
        "test_target_sends_no_gradient_to_the_main_decoder",
    ),
    Mutation(
        "gives all auxiliary decoders the same weights",
        "nn.ModuleList(Branch(self.network) for _ in self.perturbations)",
        "nn.ModuleList([Branch(self.network)] * len(self.perturbations))",
        "test_auxiliary_decoders_share_no_weight_and_start_differently",
    ),
    Mutation(
        "does not perturb the features",
        "branch(perturb(trunk, visible, generator), pseudo",
        "branch(trunk, pseudo",
        "test_each_decoder_sees_its_own_perturbation",
    ),
    Mutation(
        "cuts the auxiliary decoders off the trunk",
        "self.disagreement(on_unlabeled.trunk, labels",
        "self.disagreement(on_unlabeled.trunk.detach(), labels",
        "test_every_kind_of_decoder_moves_the_shared_trunk",
    ),
    Mutation(
        "perturbs the labeled images",
        "self.disagreement(on_unlabeled.trunk, labels",
        "self.disagreement(on_labeled.trunk, labels",
        "test_other_terms_see_unlabeled_images_and_labeled_ones_only_if_declared",
    ),
    Mutation(
        "sees objects in padding",
        "visible = pseudo.target * pseudo.weight",
        "visible = pseudo.target",
        "test_padding_contains_no_object",
    ),
    Mutation(
        "adds up its decoders",
        "torch.stack(errors).mean()",
        "torch.stack(errors).sum()",
        "test_pseudo_term_is_the_mean_squared_error_of_the_decoders_by_hand",
    ),
    Mutation(
        "counts padding",
        "weight = mask_padding(unlabeled, torch.ones_like(target))",
        "weight = torch.ones_like(target)",
        "test_pseudo_term_is_the_mean_over_channels_and_voxels_inside_the_scans",
        {"classes": 2},
    ),
]
