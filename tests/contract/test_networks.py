"""What every network promises to a method, and what every method accepts as a network."""

from __future__ import annotations

import inspect

import pytest
import torch
from marks import build_case
from tiny import SIDE, SIDES, make_batch, moved, shape_for, total_of, trainable

from segpl.errors import InputError, UnknownNameError
from segpl.methods.base import METHODS
from segpl.networks.build import build_network
from segpl.networks.monai import MONAI_OPTIONS
from segpl.networks.network import Network, NetworkSettings

NETWORKS = {
    "unet": NetworkSettings(),
    "unet without residual blocks": NetworkSettings(residual=False),
    # five levels shrink a side of 16 to one voxel, which instance normalization rejects
    "BasicUNet": NetworkSettings("BasicUNet", options={"features": [4] * 6, "norm": "batch"}),
    "DynUNet": NetworkSettings("DynUNet"),
    "UNet": NetworkSettings("UNet"),
    "SegResNet": NetworkSettings("SegResNet", options={"init_filters": 8}),
}
IN_3D = ("unet", "UNet")  # ours and one of MONAI's
CASES = [(name, 2) for name in NETWORKS] + [(name, 3) for name in IN_3D]
every_method = pytest.mark.parametrize("name", METHODS.names)
every_network = pytest.mark.parametrize(("name", "dims"), CASES)


def make(settings: NetworkSettings, dims: int, **shape: object) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_network(settings, shape_for(dims, **{"strides": ((2,) * dims,) * 2, **shape}))


@every_network
def test_network_returns_logits_features_and_trunk(name, dims):
    network = make(NETWORKS[name], dims, classes=3)
    output = network(make_batch(dims).labeled.image)
    assert output.logits.shape == (2, 3, *[SIDES[dims]] * dims)
    assert output.logits.dtype == torch.float32
    for values, width in ((output.features, network.features), (output.trunk, network.trunk)):
        assert values.dim() == dims + 2
        assert values.shape[:2] == (2, width)


@every_network
def test_logits_are_computed_from_the_features(name, dims):
    output = make(NETWORKS[name], dims)(make_batch(dims).labeled.image)
    assert moved(output.logits.square().sum(), [output.features])


@every_network
def test_two_forward_passes_before_one_backward_keep_their_own_features(name, dims):
    """The hook that stores the features must not return those of another pass."""
    network = make(NETWORKS[name], dims).eval()
    image = make_batch(dims).labeled.image
    first, second = network(image[:1]), network(image[1:])
    assert not torch.equal(first.features, second.features)
    again = network(image[:1]).features
    torch.testing.assert_close(first.features, again, rtol=1e-4, atol=1e-4)


@every_network
def test_every_input_channel_influences_the_logits(name, dims):
    network = make(NETWORKS[name], dims, channels=3).eval()
    image = torch.randn((1, 3, *[SIDES[dims]] * dims), generator=torch.Generator().manual_seed(0))
    image.requires_grad_()
    (gradient,) = torch.autograd.grad(network(image).logits.sum(), [image])
    assert (gradient.abs().flatten(2).sum(2) > 0).all()


@pytest.mark.parametrize("name", ["unet", "DynUNet"])
def test_stride_of_one_keeps_a_thin_axis(name):
    network = make(NetworkSettings(name), 3, patch=(16, 16, 3), strides=((2, 2, 1), (2, 2, 1)))
    image = torch.randn((1, 1, 16, 16, 3), generator=torch.Generator().manual_seed(0))
    assert network(image).logits.shape == (1, 1, 16, 16, 3)


def test_width_comes_from_the_plan_unless_the_settings_give_one():
    assert make(NetworkSettings(), 2).features == 4
    assert make(NetworkSettings(width=6), 2).features == 6


def test_compiled_body_is_used_only_in_training():
    """Prediction has other input shapes, and each would be compiled again."""
    network = make(NetworkSettings(), 2)
    calls: list[str] = []
    network.body.register_forward_pre_hook(lambda *_: calls.append("called as a module"))
    image = make_batch(2).labeled.image
    network.eval()(image)
    assert not calls
    network.train()(image)
    assert calls


def test_unknown_network_is_rejected_with_a_suggestion():
    with pytest.raises(
        UnknownNameError, match=r"no network named 'SegResNit'\. Did you mean 'SegR"
    ):
        make(NetworkSettings("SegResNit"), 3)


def test_network_that_returns_no_segmentation_is_rejected():
    settings = NetworkSettings("SegResNet", options={"use_conv_final": False})
    with pytest.raises(InputError, match="SegResNet is not a segmentation network"):
        make(settings, 2)


def test_unknown_option_is_rejected_with_a_suggestion():
    settings = NetworkSettings("DynUNet", options={"filter": [4, 8, 16]})
    with pytest.raises(InputError, match=r"DynUNet has no option 'filter'.*mean 'filters'"):
        make(settings, 2)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("FlexibleUNet", "pretrained", True),
        ("AHNet", "pretrained", True),
        ("SegResNetDS", "preprocess", "os.system"),
        ("SegResNet", "pretrained_url", "http://127.0.0.1/"),
        ("SegResNet", "act", "http://127.0.0.1/"),
        ("SegResNet", "act", "../weights.pt"),
        ("SegResNet", "init_filters", 10**9),
        ("BasicUNet", "features", [4, 4, 4, 4, 4, 10**9]),
        ("HighResNet", "layer_params", [{"name": "/etc/passwd"}]),
    ],
)
def test_an_option_that_does_not_shape_the_network_is_rejected_by_name(name, option, value):
    with pytest.raises(InputError, match=option):
        make(NetworkSettings(name, options={option: value}), 2)


def test_networks_that_can_load_weights_are_not_offered():
    """Their constructors download from an address, or read a file."""
    for name in ("HoVerNet", "TorchVisionFCModel", "Transchex", "DenseNet121", "MILModel"):
        with pytest.raises(UnknownNameError, match=f"no network named '{name}'"):
            make(NetworkSettings(name, options={"pretrained_url": "http://127.0.0.1/"}), 2)


def test_every_option_is_an_argument_of_its_network():
    from monai.networks import nets

    for name, options in MONAI_OPTIONS.items():
        assert set(options.split()) <= set(inspect.signature(getattr(nets, name)).parameters), name


def test_patch_that_a_network_cannot_process_is_rejected_with_the_reason():
    with pytest.raises(InputError, match=r"BasicUNet cannot process a patch of \(8, 8\)"):
        make(NetworkSettings("BasicUNet", options={"features": [4] * 6}), 2, patch=(8, 8))


def test_missing_argument_of_a_network_is_reported_with_its_section():
    with pytest.raises(InputError, match=r"cannot be built with.*\[network\.options\]"):
        make(NetworkSettings("FlexibleUNet"), 2)


def test_options_are_rejected_for_our_unet():
    with pytest.raises(
        InputError, match=r"network\.options \['depth'\] are only for MONAI networks"
    ):
        make(NetworkSettings(options={"depth": 3}), 2)


@every_method
def test_every_method_trains_a_network_with_coarse_features(name):
    """MONAI's UNet upsamples in its last layer: its features are coarser than the image."""
    method = build_case(name, 2, network=NETWORKS["UNet"])
    output = method.step(make_batch(2), 1.0)
    for key, term in output.terms.items():
        assert term.value.isfinite(), key
        assert moved(term.value, trainable(method)), f"{key} has zero gradient"
    assert method.eval().predict(make_batch(2).labeled.image).shape[2:] == (SIDE, SIDE)


@every_method
def test_every_method_trains_on_a_thin_patch(name):
    patch, strides = (16, 16, 3), ((2, 2, 1), (2, 2, 1))
    method = build_case(name, 3, patch=patch, strides=strides)
    output = method.step(make_batch(3, patch=patch), 1.0)
    total_of(output).backward()
    assert all(term.value.isfinite() for term in output.terms.values())
    assert method.eval().predict(torch.zeros((1, 1, *patch))).shape[2:] == patch
