from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import build, build_with, make_batch, moved, table_network, total_of, trainable
from torch import Tensor, nn

from segpl.errors import InputError
from segpl.losses import LOSSES
from segpl.methods.base import Method
from segpl.networks.network import Network, NetworkSettings
from segpl.types import Batch, Unlabeled
from segpl.views.randaugment import ViewRecipe, draw_recipe, strong_view

STILL = {"geometry": False, "loss": "cross-entropy"}


class Echo(nn.Module):
    """A body that answers with the brightness of the image, and remembers what it was shown."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(factor))
        self.shown: list[Tensor] = []
        self.modes: list[tuple[bool, bool]] = []

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.shown.append(image.detach())
        self.modes.append((self.training, torch.is_grad_enabled()))
        logits = self.factor * image
        return logits, image, image


def echoing(factor: float = 50.0, **settings: object) -> Method:
    def network() -> Network:
        return Network(Echo(factor), dims=2, outputs=1, features=1, trunk=1)

    return build_with("fixmatch", network, settings=settings)


def blocks(images: int = 8, side: int = 16) -> Unlabeled:
    """Bright boxes on dark ground, off the middle, all the same: 1 and -1."""
    image = -torch.ones(images, 1, side, side)
    image[..., 2:9, 4:12] = 1
    return Unlabeled(image)


def batch_of(unlabeled: Unlabeled, seed: int = 0) -> Batch:
    return replace(
        make_batch(2), unlabeled=unlabeled, generator=torch.Generator().manual_seed(seed)
    )


def answering(logits: Tensor, **settings: object) -> Method:
    """Row by row: to the two weak views, then to two labeled and two strong ones."""
    table = torch.cat([logits, logits.flip(-1).roll(3, -1)])
    return build_with("fixmatch", lambda: table_network(table), settings=settings)


def randn(*shape: int, scale: float = 3.0) -> Tensor:
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(5))


def recipes_for(batch: Batch, **options: object) -> list[ViewRecipe]:
    rng = batch.choices("strong view")
    image = batch.unlabeled.image
    asked = {"operations": 2, "magnitude": 1.0, "geometry": True, **options}
    return [draw_recipe(image.shape[2:], rng, **asked) for _ in image]


def test_pseudo_term_is_the_cross_entropy_of_certain_voxels_divided_by_all():
    """By hand, as in the source: an uncertain voxel adds 0 and still counts below the line."""
    weak = randn(2, 1, 16, 16)
    method = answering(weak, confidence=0.9, **STILL)
    term = method.step(make_batch(2), 1.0).terms["pseudo"].value

    probability = weak.sigmoid()
    certain = (probability >= 0.9) | (probability <= 0.1)
    strong = method.network.body.logits[2:].detach()
    target = (probability > 0.5).float()
    entropy = -target * strong.sigmoid().log() - (1 - target) * (-strong).sigmoid().log()
    assert 0.2 < certain.float().mean() < 0.8
    assert term.item() == pytest.approx((entropy * certain).mean().item(), rel=1e-5)


def test_gradient_reaches_the_strong_view_alone():
    """The weak view's answer is a label: rows 0 and 1 of the table are asked without a gradient."""
    method = answering(randn(2, 1, 16, 16), **STILL)
    term = method.step(make_batch(2), 1.0).terms["pseudo"].value
    (gradient,) = torch.autograd.grad(term, [method.network.body.logits])
    assert not gradient[:2].any()
    assert gradient[2:].any()


def test_certain_background_counts_as_certain_foreground_does():
    logits = torch.tensor([6.0, -6.0, 0.3, -0.3]).expand(2, 1, 16, 4).repeat(1, 1, 1, 4)
    (pseudo,) = answering(logits, **STILL).step(make_batch(2), 1.0).pseudo
    assert torch.equal(pseudo.target[0, 0, 0, :4], torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert torch.equal(pseudo.weight[0, 0, 0, :4], torch.tensor([1.0, 1.0, 0.0, 0.0]))


def test_voxel_exactly_as_certain_as_asked_counts():
    method = answering(torch.zeros(2, 1, 16, 16), confidence=0.5, **STILL)
    assert method.step(make_batch(2), 1.0).monitors["kept"] == 1


def test_kept_is_the_share_of_certain_voxels():
    logits = torch.zeros(2, 1, 16, 16)
    logits[0, :, :4] = 9
    monitors = answering(logits, **STILL).step(make_batch(2), 1.0).monitors
    assert monitors["kept"].item() == pytest.approx(1 / 8)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_strong_answer_at_an_uncertain_voxel_changes_nothing(loss):
    weak = randn(2, 1, 16, 16)
    certain = (weak.sigmoid() - 0.5).abs() >= 0.45
    values = []
    for other in (randn(2, 1, 16, 16), torch.where(certain, randn(2, 1, 16, 16), -7.0)):
        table = torch.cat([weak, other])
        method = build_with(
            "fixmatch",
            lambda table=table: table_network(table),
            settings={"loss": loss, "geometry": False},
        )
        values.append(method.step(make_batch(2), 1.0).terms["pseudo"].value)
    assert values[0] > 0
    assert torch.equal(*values)


@pytest.mark.parametrize("loss", list(LOSSES))
def test_nothing_certain_teaches_nothing(loss):
    method = answering(randn(2, 1, 16, 16, scale=0.1), geometry=False, loss=loss)
    output = method.step(make_batch(2), 1.0)
    assert output.monitors["kept"] == 0
    assert output.terms["pseudo"].value == 0
    assert not moved(output.terms["pseudo"].value, trainable(method))


def test_weak_view_is_the_image_with_noise():
    method = echoing(noise=0.2)
    batch = batch_of(blocks(images=16))
    method.step(batch, 1.0)
    change = method.network.body.shown[0] - batch.unlabeled.image
    assert change.std().item() == pytest.approx(0.2, rel=0.05)


def test_labels_are_those_of_the_weak_view():
    """A network that answers by brightness labels bright voxels, whatever the strong view is."""
    method = echoing(geometry=False, magnitude=1.0, operations=6)
    batch = batch_of(blocks())
    (pseudo,) = method.step(batch, 1.0).pseudo
    weak, strong = method.network.body.shown
    assert torch.equal(pseudo.target, (weak > 0).float())
    assert not torch.equal(pseudo.target, (strong[2:] > 0).float())


def test_labeled_images_are_seen_as_they_are_and_unlabeled_ones_strongly_changed():
    method = echoing()
    batch = batch_of(blocks())
    method.step(batch, 1.0)
    both = method.network.body.shown[1]
    assert torch.equal(both[:2], batch.labeled.image)
    assert (both[2:] - batch.unlabeled.image).abs().mean() > 0.1


def test_strong_view_is_made_of_the_image_by_the_drawn_recipes():
    """Three draws of noise, as in a step: for the weak view, and wherever a recipe asks."""
    method = echoing(noise=0.0, operations=3)
    batch = batch_of(blocks())
    method.step(batch, 1.0)
    image, generator = batch.unlabeled.image, torch.Generator().manual_seed(0)
    torch.randn(image.shape, generator=generator)
    expected, _ = strong_view(image, image, recipes_for(batch, operations=3), generator)
    assert torch.equal(method.network.body.shown[1][2:], expected)


def test_images_of_a_batch_are_changed_each_in_its_own_way():
    method = echoing(operations=3)
    method.step(batch_of(blocks(images=4)), 1.0)
    strong = method.network.body.shown[1][2:]
    assert all(not torch.equal(strong[0], other) for other in strong[1:])


def test_another_batch_is_changed_in_another_way():
    method = echoing(noise=0.0)
    for seed in (0, 0, 1):
        method.step(batch_of(blocks(), seed), 1.0)
    first, same, other = method.network.body.shown[1::2]
    assert torch.equal(first, same)
    assert not torch.equal(first, other)


def test_labels_move_with_the_strong_view():
    """Boxes stay boxes: where the moved label says foreground, the moved image is bright."""
    method = echoing(noise=0.0)
    batch = batch_of(blocks(images=16))
    (pseudo,) = method.step(batch, 1.0).pseudo
    bright = method.network.body.shown[1][2:] > 0
    agrees = ((bright == (pseudo.target > 0)) * pseudo.weight).sum() / pseudo.weight.sum()
    stays = (pseudo.target == (batch.unlabeled.image > 0)).flatten(1).all(1)
    assert agrees > 0.95
    assert 4 < stays.sum() < 12


def test_without_geometry_every_voxel_keeps_its_place():
    method = echoing(noise=0.0, geometry=False)
    batch = batch_of(blocks(images=16))
    output = method.step(batch, 1.0)
    assert torch.equal(output.pseudo[0].target, (batch.unlabeled.image > 0).float())
    assert output.pseudo[0].weight.all()


def test_what_a_motion_brings_in_from_beyond_the_crop_does_not_count():
    """It is no uncertain voxel either: of the voxels that are there, all are certain."""
    method = echoing(noise=0.0)
    batch = batch_of(blocks())
    output = method.step(batch, 1.0)
    image = batch.unlabeled.image
    _, there = strong_view(image, torch.ones_like(image), recipes_for(batch), batch.generator)
    assert 0 < there.mean() < 1
    assert torch.equal(output.pseudo[0].weight, there)
    assert output.monitors["kept"] == 1


def test_filling_around_a_scan_never_counts_and_stays_where_it_is():
    """The network is certain of the filling, too; a motion may bring it into the scan."""
    method = echoing(noise=0.0)
    inside = torch.zeros(8, 16, 16, dtype=torch.bool)
    inside[:, 3:12] = True
    image = torch.where(inside.unsqueeze(1), blocks().image, 5.0)
    batch = batch_of(Unlabeled(image, inside))
    output = method.step(batch, 1.0)
    mask = inside.unsqueeze(1).float()
    _, there = strong_view(image, mask, recipes_for(batch), batch.generator)
    assert not torch.equal(there, mask)
    assert torch.equal(output.pseudo[0].weight, there * mask)
    assert method.network.body.shown[1][2:][mask == 0].eq(5).all()
    assert output.monitors["kept"] == 1


def test_weak_view_is_labeled_in_evaluation_mode_without_a_gradient():
    method = echoing()
    method.step(batch_of(blocks()), 1.0)
    assert method.network.body.modes == [(False, False), (True, True)]
    assert all(module.training for module in method.modules())


def test_one_pass_alone_moves_the_statistics_of_a_batch_normalization():
    method = build("fixmatch", 2, network=NetworkSettings(norm="batch"))
    method.step(make_batch(2), 1.0)
    counts = [m.num_batches_tracked for m in method.modules() if isinstance(m, nn.BatchNorm2d)]
    assert counts
    assert all(count == 1 for count in counts)


def test_both_passes_are_those_of_the_compiled_network():
    """A body is compiled in place, and only a call of the body itself is the compiled one."""
    method = echoing()
    calls = []
    method.network.body.register_forward_hook(lambda *_: calls.append(1))
    method.step(batch_of(blocks()), 1.0)
    assert len(calls) == 2


def test_several_classes_with_masks_of_their_own_are_one_against_the_rest():
    logits = randn(2, 3, 16, 16) + torch.tensor([3.0, 0.0, -2.0]).view(1, 3, 1, 1)
    table = torch.cat([logits, randn(2, 3, 16, 16).flip(-1)])

    def pseudo(rows: Tensor) -> tuple[float, float]:
        method = build_with("fixmatch", lambda: table_network(rows))
        output = method.step(make_batch(2), 1.0)
        return output.terms["pseudo"].value.item(), output.monitors["kept"].item()

    alone = [pseudo(table[:, k : k + 1]) for k in range(3)]
    value, kept = pseudo(table)
    assert len({share for _, share in alone}) == 3
    assert value == pytest.approx(sum(term for term, _ in alone) / 3, rel=1e-5)
    assert kept == pytest.approx(sum(share for _, share in alone) / 3, rel=1e-5)


@pytest.mark.parametrize(
    ("progress", "weight"), [(0.0, 0.0), (0.2, 0.0), (0.4, 0.25), (0.6, 0.5), (1.0, 0.5)]
)
def test_weight_of_the_unlabeled_images_rises_in_a_straight_line(progress, weight):
    settings = {"alpha": 0.5, "ramp_begin": 0.2, "ramp_end": 0.6}
    terms = build("fixmatch", 2, settings=settings).step(make_batch(2), progress).terms
    assert terms["pseudo"].weight == pytest.approx(weight)
    assert terms["supervised"].weight == 1


def test_weight_of_the_unlabeled_images_is_one_from_the_first_step():
    assert build("fixmatch", 2).step(make_batch(2), 0.0).terms["pseudo"].weight == 1


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("patch", [(16, 16, 4), (8, 16, 16), (16, 4, 4)])
def test_patches_of_unequal_sides_are_trained_on(dims, patch):
    sides = patch[:dims]
    strides = (tuple(2 if side > 4 else 1 for side in sides),)
    method = build(
        "fixmatch",
        dims,
        patch=sides,
        strides=strides,
        settings={"confidence": 0.5, "operations": 6},
    )
    output = method.step(make_batch(dims, patch=sides), 1.0)
    assert total_of(output).isfinite()
    assert moved(output.terms["pseudo"].value, trainable(method))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("confidence", 0.4),
        ("confidence", 1.1),
        ("confidence", float("nan")),
        ("magnitude", 1.5),
        ("noise", -0.1),
        ("operations", 0),
        ("alpha", -1.0),
    ],
)
def test_setting_that_means_nothing_is_refused_by_name(setting, value):
    with pytest.raises(InputError, match=rf"method\.{setting} is .*: it must be"):
        build("fixmatch", 2, settings={setting: value})


def test_ramp_that_ends_before_it_begins_is_refused():
    with pytest.raises(InputError, match=r"rises from the one to the other"):
        build("fixmatch", 2, settings={"ramp_begin": 0.5})
