"""What every network promises to a method, and every method with every kind of network."""

from __future__ import annotations

import pytest
import torch
from marks import both_dims, both_tasks, every_method
from tiny import SIDE, build, make_batch, moved, shape_for, total_of, trainable

from segpl.errors import InputError, UnknownNameError
from segpl.networks.build import build_network
from segpl.networks.network import Network, NetworkSettings

NETWORKS = {
    "unet": NetworkSettings(),
    "unet with batch norm": NetworkSettings(norm="batch"),
    "unet without residual blocks": NetworkSettings(residual=False),
    # five levels at a side of 16 leave one voxel, which instance normalization refuses
    "BasicUNet": NetworkSettings("BasicUNet", options={"features": [4] * 6, "norm": "batch"}),
    "DynUNet": NetworkSettings("DynUNet"),
    "UNet": NetworkSettings("UNet"),
    "SegResNet": NetworkSettings("SegResNet", options={"init_filters": 8}),
}
every_network = pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS)


def make(settings: NetworkSettings, dims: int, **shape: object) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_network(settings, shape_for(dims, **shape))


@every_network
@both_dims
@both_tasks
def test_logits_lie_on_the_grid_of_the_image(settings, dims, classes):
    network = make(settings, dims, classes=classes)
    output = network(make_batch(dims).labeled.image)
    assert output.logits.shape == (2, network.outputs, *[SIDE] * dims)
    assert output.logits.dtype == torch.float32


@every_network
@both_dims
def test_features_have_the_promised_number_of_channels(settings, dims):
    network = make(settings, dims)
    output = network(make_batch(dims).labeled.image)
    assert output.features.dim() == dims + 2
    assert output.features.shape[:2] == (2, network.features)


@every_network
@both_dims
def test_logits_are_computed_from_the_features(settings, dims):
    output = make(settings, dims)(make_batch(dims).labeled.image)
    assert moved(output.logits.square().sum(), [output.features])


@every_network
@both_dims
def test_two_passes_before_one_backward_keep_their_own_features(settings, dims):
    """A hook that keeps the features must not hand out those of another pass."""
    network = make(settings, dims).eval()
    image = make_batch(dims).labeled.image
    first, second = network(image[:1]), network(image[1:])
    assert not torch.equal(first.features, second.features)
    assert torch.equal(first.features, network(image[:1]).features)


@every_network
@both_dims
def test_several_channels_are_read(settings, dims):
    network = make(settings, dims, channels=3).eval()
    image = torch.randn((1, 3, *[SIDE] * dims), generator=torch.Generator().manual_seed(0))
    image.requires_grad_()
    (gradient,) = torch.autograd.grad(network(image).logits.sum(), [image])
    assert (gradient.abs().flatten(2).sum(2) > 0).all()


@pytest.mark.parametrize("name", ["unet", "DynUNet"])
def test_thin_axis_is_kept_where_its_stride_is_one(name):
    network = make(NetworkSettings(name), 3, patch=(16, 16, 3), strides=((2, 2, 1), (2, 2, 1)))
    image = torch.randn((1, 1, 16, 16, 3), generator=torch.Generator().manual_seed(0))
    assert network(image).logits.shape == (1, 1, 16, 16, 3)


@both_dims
def test_unet_has_the_width_that_the_settings_ask_for(dims):
    assert make(NetworkSettings(), dims).features == 4
    assert make(NetworkSettings(width=6), dims).features == 6


@both_dims
def test_no_layer_is_wider_than_the_widest_allowed(dims):
    network = make(NetworkSettings(max_width=5), dims)
    widths = {p.shape[0] for n, p in network.named_parameters() if "down" in n and p.dim() > 1}
    assert widths == {5}


def test_compiled_body_is_used_in_training_only():
    """Prediction sees other shapes, and each would be compiled anew."""
    network = make(NetworkSettings(), 2)
    calls: list[str] = []
    network.body.register_forward_pre_hook(lambda *_: calls.append("called as a module"))
    image = make_batch(2).labeled.image
    network.eval()(image)
    assert not calls
    network.train()(image)
    assert calls


def test_unknown_network_is_refused_with_the_nearest():
    with pytest.raises(
        UnknownNameError, match=r"no network named 'SegResNit'\. Did you mean 'SegR"
    ):
        make(NetworkSettings("SegResNit"), 3)


def test_classifier_is_refused_as_no_segmentation_network():
    options = {"in_shape": [1, 16, 16], "classes": 2, "channels": [4, 8], "strides": [2, 2]}
    with pytest.raises(InputError, match="Classifier is no segmentation network"):
        make(NetworkSettings("Classifier", options=options), 2)


def test_unknown_option_is_refused_with_the_nearest():
    settings = NetworkSettings("DynUNet", options={"filter": [4, 8, 16]})
    with pytest.raises(InputError, match=r"DynUNet has no argument 'filter'.*mean 'filters'"):
        make(settings, 2)


def test_patch_that_a_network_cannot_take_is_refused_with_the_reason():
    with pytest.raises(InputError, match=r"BasicUNet cannot take a patch of \(8, 8\)"):
        make(NetworkSettings("BasicUNet", options={"features": [4] * 6}), 2, patch=(8, 8))


def test_network_that_lacks_an_argument_says_where_to_give_it():
    with pytest.raises(InputError, match=r"cannot be built with.*\[network\.options\]"):
        make(NetworkSettings("Classifier"), 2)


def test_options_are_refused_for_the_own_unet():
    with pytest.raises(InputError, match=r"network\.options \['depth'\] are for MONAI networks"):
        make(NetworkSettings(options={"depth": 3}), 2)


def test_unknown_norm_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"no norm named 'instanse'\. Did you mean 'inst"):
        make(NetworkSettings(norm="instanse"), 2)


@every_method
@every_network
@both_dims
def test_every_method_trains_every_network(name, settings, dims):
    method = build(name, dims, network=settings)
    output = method.step(make_batch(dims), 1.0)
    for key, term in output.terms.items():
        assert term.value.isfinite(), key
        assert moved(term.value, trainable(method)), f"{key} has zero gradient"
    total_of(output).backward()
    assert method.eval().predict(make_batch(dims).labeled.image).shape[2:] == (SIDE,) * dims


@every_method
@pytest.mark.parametrize("network", ["unet", "DynUNet"])
@pytest.mark.parametrize(
    ("patch", "strides"),
    [((16, 8), ((2, 1), (2, 2))), ((16, 16, 3), ((2, 2, 1), (2, 2, 1)))],
)
def test_every_method_trains_with_unequal_strides(name, network, patch, strides):
    settings = NetworkSettings(network)
    method = build(name, len(patch), network=settings, patch=patch, strides=strides)
    output = method.step(make_batch(len(patch), patch=patch), 1.0)
    total_of(output).backward()
    assert all(term.value.isfinite() for term in output.terms.values())
    assert method.eval().predict(torch.zeros((1, 1, *patch))).shape[2:] == patch
