"""Logits of coarser grids: where the U-Net gives them, and where it must not."""

from __future__ import annotations

import pytest
import torch
from tiny import moved, shape_for

from segpl.engine.checkpoint import load_weights, read_checkpoint, save_checkpoint
from segpl.errors import InputError
from segpl.methods.base import as_in_prediction
from segpl.methods.teacher import teacher_of
from segpl.networks.build import build_network
from segpl.networks.network import Network, NetworkSettings
from segpl.networks.unet import UNet

both_dims = pytest.mark.parametrize("dims", [2, 3])


def make(
    dims: int = 2,
    deep: int = 2,
    *,
    levels: int = 3,
    strides: tuple[tuple[int, ...], ...] = (),
    patch: tuple[int, ...] = (),
    **settings: object,
) -> Network:
    shape = shape_for(dims, classes=3, patch=patch, strides=strides or ((2,) * dims,) * levels)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_network(NetworkSettings(deep=deep, **settings), shape)


def noise(*sides: int) -> torch.Tensor:
    return torch.randn((2, 1, *sides), generator=torch.Generator().manual_seed(0))


@both_dims
def test_each_level_answers_on_a_grid_of_half_the_side(dims):
    coarse = make(dims)(noise(*[16] * dims)).coarse
    assert [tuple(logits.shape) for logits in coarse] == [
        (2, 3, *[8] * dims),
        (2, 3, *[4] * dims),
    ]


def test_grids_follow_unequal_strides():
    strides = ((1, 2, 2), (1, 2, 2), (2, 2, 2))
    network = make(3, strides=strides, patch=(4, 16, 16))
    coarse = network(noise(4, 16, 16)).coarse
    assert [tuple(logits.shape[2:]) for logits in coarse] == [(4, 8, 8), (4, 4, 4)]


@pytest.mark.parametrize(("levels", "there"), [(0, 0), (1, 0), (2, 1), (3, 2)])
def test_of_more_levels_than_there_are_all_are_used(levels, there):
    """A plan may halve a thin crop once; the deepest block is no level of the decoder."""
    strides = [(2, 2)] * levels
    unet = UNet(dims=2, channels=1, outputs=3, width=4, strides=strides, deep=9)
    _, _, _, *coarse = unet(noise(16, 16))
    assert len(coarse) == len(unet.sides) == there


@both_dims
def test_coarser_logits_are_computed_in_training_only(dims):
    network, image = make(dims), noise(*[16] * dims)
    ran: list[object] = []
    for side in network.body.sides:
        side.register_forward_hook(lambda *_: ran.append(1))
    assert network.eval()(image).coarse == ()
    assert as_in_prediction(network.train(), image).shape[1] == 3
    assert teacher_of(network)(image).coarse == ()
    assert not ran
    assert len(network(image).coarse) == len(ran) == 2


def test_finer_levels_come_first_also_where_all_are_equally_wide():
    coarse = make(max_width=4)(noise(16, 16)).coarse
    assert [logits.shape[2] for logits in coarse] == [8, 4]


@both_dims
@pytest.mark.parametrize("level", [0, 1])
def test_a_level_answers_through_a_layer_of_its_own_and_not_from_finer_ones(dims, level):
    network = make(dims)
    logits = network(noise(*[16] * dims)).coarse[level].square().sum()
    body = network.body
    assert moved(logits, list(body.sides[level].parameters()))
    assert moved(logits, list(body.stem.parameters()))
    assert not moved(logits, list(body.sides[1 - level].parameters()))
    assert not moved(logits, list(body.last.parameters()))
    finer = [p for merge in body.merge[2 - level :] for p in merge.parameters()]
    assert not moved(logits, finer)


@both_dims
def test_the_answer_itself_is_the_same_with_and_without_coarser_levels(dims):
    image = noise(*[16] * dims)
    plain, deep = make(dims, 0)(image), make(dims, 2)(image)
    assert plain.coarse == ()
    for key in ("logits", "features", "trunk"):
        assert torch.equal(getattr(plain, key), getattr(deep, key)), key


def test_coarser_logits_are_float32_under_bfloat16():
    with torch.autocast("cpu", torch.bfloat16):
        coarse = make()(noise(16, 16)).coarse
    assert [logits.dtype for logits in coarse] == [torch.float32] * 2
    assert all(logits.isfinite().all() for logits in coarse)


def test_part_of_the_images_keeps_its_own_coarser_logits():
    output = make()(noise(16, 16))
    second = output.images(slice(1, None))
    assert [tuple(logits.shape) for logits in second.coarse] == [(1, 3, 8, 8), (1, 3, 4, 4)]
    for whole, part in zip(output.coarse, second.coarse, strict=True):
        assert torch.equal(whole[1:], part)


def test_compiled_body_is_one_graph_that_gives_the_same():
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    network, image = make(residual=True), noise(16, 16)
    expected = network(image)
    network.body.compile(dynamic=False, backend=keep, fullgraph=True)
    found = network(image)
    assert len(graphs) == 1
    assert torch.allclose(found.logits, expected.logits, atol=1e-5)
    for ours, theirs in zip(found.coarse, expected.coarse, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-5)


def test_side_layers_are_in_the_checkpoint(tmp_path):
    network, other = make(), make()
    with torch.no_grad():
        for parameter in network.body.sides.parameters():
            parameter.add_(1)
    path = tmp_path / "last.safetensors"
    optimizer = torch.optim.Adam(network.parameters())
    save_checkpoint(path, step=1, module=network, optimizer=optimizer, facts={})
    load_weights(other, read_checkpoint(path), path)
    for ours, theirs in zip(network.body.sides, other.body.sides, strict=True):
        assert torch.equal(ours.weight, theirs.weight)
    with pytest.raises(InputError, match=r"is of another network: 4 weights differ.*sides"):
        load_weights(make(deep=0), read_checkpoint(path), path)


def test_fewer_levels_than_none_are_refused():
    with pytest.raises(InputError, match=r"network\.deep is -1.*Use 0 for none"):
        NetworkSettings(deep=-1)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"deep": 2}, r"network\.deep is 2: it is for 'unet'.*'DynUNet'\. Leave it at 0"),
        (
            {"residual": False},
            r"network\.residual is False: it is for 'unet'.*res_block for DynUNet",
        ),
    ],
)
def test_settings_of_the_unet_are_refused_for_other_networks(setting, words):
    with pytest.raises(InputError, match=words):
        build_network(NetworkSettings("DynUNet", **setting), shape_for(2))
