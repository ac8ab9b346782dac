from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import build, build_with, make_batch, moved, table_network, trainable
from torch import Tensor, nn

from segpl.errors import InputError
from segpl.methods.cct import CCT
from segpl.networks.network import NetworkSettings
from segpl.types import NetOutput, Unlabeled
from segpl.views.features import PERTURBATIONS

both_dims = pytest.mark.parametrize("dims", [2, 3])
both_tasks = pytest.mark.parametrize("classes", [2, 3])
ALL = ",".join(PERTURBATIONS)


class Fixed(nn.Module):
    """A decoder that answers what a test has decided."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, trunk: Tensor, sides: torch.Size) -> Tensor:
        return self.logits


class Spy(nn.Module):
    """A decoder that keeps what it was shown."""

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
    """A method whose main decoder answers from the table."""
    method = build_with(
        "cct",
        lambda: table_network(table(), features),
        settings={"decoders": decoders, **settings},
    )
    assert isinstance(method, CCT)
    return method


@pytest.mark.parametrize(
    ("progress", "share"), [(0.0, math.exp(-5)), (0.1, math.exp(-1.25)), (0.2, 1.0), (1.0, 1.0)]
)
def test_weight_of_the_auxiliary_decoders_rises_to_alpha(progress, share):
    method = build("cct", 2, settings={"alpha": 4.0, "ramp_end": 0.2})
    terms = method.step(make_batch(2), progress).terms
    assert terms["pseudo"].weight == pytest.approx(4.0 * share)
    assert terms["supervised"].weight == 1


def test_defaults_are_those_of_the_authors_code():
    settings = CCT.Settings()
    assert (settings.alpha, settings.ramp_end) == (30, 0.1)


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


@both_tasks
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


def test_labels_are_the_probabilities_of_the_main_decoder():
    output = tabled("noise").step(make_batch(2), 1.0)
    assert torch.equal(output.pseudo[0].target, table()[2:].sigmoid())
    assert not output.pseudo[0].target.requires_grad


def test_target_sends_no_gradient_to_the_main_decoder():
    method = tabled(ALL)
    term = method.step(make_batch(2), 1.0).terms["pseudo"].value
    assert not moved(term, [method.network.body.logits])
    assert moved(term, trainable(method.branches))


@both_dims
@both_tasks
def test_pseudo_term_moves_the_shared_trunk_but_not_the_main_decoders_last_block(dims, classes):
    method = build("cct", dims, classes=classes, settings={"decoders": ALL})
    term = method.step(make_batch(dims, classes=classes), 1.0).terms["pseudo"].value
    body = method.network.body
    assert not moved(term, [*body.merge[-1].parameters(), *body.last.parameters()])
    for shared in (body.stem, *body.down, *body.up, *body.merge[:-1]):
        assert moved(term, trainable(shared))


@both_dims
def test_each_kind_of_decoder_alone_moves_the_shared_trunk(dims):
    for kind in PERTURBATIONS:
        method = build("cct", dims, settings={"decoders": kind})
        term = method.step(make_batch(dims), 1.0).terms["pseudo"].value
        assert moved(term, trainable(method.network.body.stem)), kind


@both_dims
def test_pseudo_term_moves_every_auxiliary_decoder(dims):
    method = build("cct", dims, settings={"decoders": ALL})
    term = method.step(make_batch(dims), 1.0).terms["pseudo"].value
    for kind, branch in zip(PERTURBATIONS, method.branches, strict=True):
        assert moved(term, trainable(branch)), kind


@both_dims
def test_supervised_term_moves_no_auxiliary_decoder(dims):
    method = build("cct", dims)
    term = method.step(make_batch(dims), 1.0).terms["supervised"].value
    assert not moved(term, trainable(method.branches))
    assert moved(term, trainable(method.network.body.merge[-1]))


@both_dims
def test_auxiliary_decoders_share_no_weight_and_begin_differently(dims):
    method = build("cct", dims, settings={"decoders": "noise,noise,objects"})
    places = [p.data_ptr() for p in method.parameters()]
    assert len(places) == len(set(places))
    starts = [branch.block[0].weight for branch in method.branches]
    starts.append(method.network.body.merge[-1][0].weight)
    for index, start in enumerate(starts):
        assert all(not torch.equal(start, other) for other in starts[index + 1 :])


def test_each_decoder_sees_the_view_that_it_is_named_for():
    """What the main decoder calls an object is 0 for `objects` and all there is for `contexts`."""
    features = torch.randn((4, 3, 16, 16), generator=torch.Generator().manual_seed(2))
    method = tabled("objects, contexts", features=features)
    method.branches = nn.ModuleList([Spy(), Spy()])
    method.step(make_batch(2), 1.0)
    found = (table()[2:] > 0).expand(-1, 3, -1, -1)
    without_objects, without_contexts = (branch.seen[0] for branch in method.branches)
    assert torch.equal(without_objects, features[2:].masked_fill(found, 0))
    assert torch.equal(without_contexts, features[2:].masked_fill(~found, 0))


def test_decoders_of_one_kind_see_different_views():
    features = torch.randn((4, 3, 16, 16), generator=torch.Generator().manual_seed(2))
    method = tabled("noise,noise", features=features)
    method.branches = nn.ModuleList([Spy(), Spy()])
    method.step(make_batch(2), 1.0)
    first, second = (branch.seen[0] for branch in method.branches)
    assert not torch.equal(first, second)


def test_what_lies_beyond_the_scan_is_no_object():
    method = tabled("contexts")
    method.branches = nn.ModuleList([Spy()])
    batch = make_batch(2)
    inside = torch.zeros((2, 16, 16), dtype=torch.bool)
    inside[:, 5:] = True
    scans = Unlabeled(batch.unlabeled.image, inside)
    method.step(replace(batch, unlabeled=scans), 1.0)
    kept = method.branches[0].seen[0][:, 0] != 0
    assert torch.equal(kept, (table()[2:, 0] > 0) & inside)


@both_dims
def test_auxiliary_decoders_do_not_predict(dims):
    method, image = build("cct", dims).eval(), make_batch(dims).labeled.image
    with torch.no_grad():
        before = method.predict(image)
        for parameter in method.branches.parameters():
            parameter.add_(1)
        output: NetOutput = method.network(image)
        assert torch.equal(method.predict(image), before)
        assert torch.equal(output.logits.sigmoid(), before)


def test_views_are_drawn_from_the_generator_of_the_batch():
    method, values = build("cct", 2), []
    for seed in (1, 1, 2):
        batch = make_batch(2)
        batch.generator.manual_seed(seed)
        values.append(method.step(batch, 1.0).terms["pseudo"].value)
    assert torch.equal(values[0], values[1])
    assert not torch.equal(values[0], values[2])


def test_trunk_coarser_than_the_image_is_taken():
    """MONAI's UNet keeps its last features at half the resolution."""
    network = NetworkSettings("UNet")
    method, batch = build("cct", 2, network=network, settings={"decoders": ALL}), make_batch(2)
    output: NetOutput = method.network(batch.unlabeled.image)
    assert output.trunk.shape[2:] < output.logits.shape[2:]
    term = method.step(batch, 1.0).terms["pseudo"].value
    for branch in method.branches:
        assert moved(term, trainable(branch))


def test_a_kind_named_twice_gives_two_decoders():
    method = build("cct", 2, settings={"decoders": "noise, noise ,cutouts"})
    assert len(method.branches) == 3


def test_unknown_kind_of_decoder_is_refused_with_the_nearest():
    with pytest.raises(KeyError, match=r"in method\.decoders named 'nose'\. Did you mean 'noise'"):
        build("cct", 2, settings={"decoders": "dropout,nose"})


@pytest.mark.parametrize("decoders", ["", " , "])
def test_method_without_auxiliary_decoders_is_refused(decoders):
    with pytest.raises(InputError, match=r"method\.decoders names no auxiliary decoder"):
        build("cct", 2, settings={"decoders": decoders})


@pytest.mark.parametrize("setting", ["alpha", "ramp_end"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_weight_and_ramp_that_mean_nothing_are_refused(setting, value):
    with pytest.raises(InputError, match=f"method.{setting} is"):
        build("cct", 2, settings={setting: value})
