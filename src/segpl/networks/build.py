"""Build a network from its settings."""

from __future__ import annotations

from segpl.errors import InputError
from segpl.networks.monai import MonaiBody, check_options
from segpl.networks.network import Network, NetworkSettings, NetworkShape
from segpl.networks.unet import UNet

# settings of our U-Net, and the advice for a MONAI network
MONAI_ADVICE = {
    "dropout": "Set MONAI's own argument under [network.options], for example dropout_prob for "
    "SegResNet.",
    "residual": "Set MONAI's own argument under [network.options], for example res_block for "
    "DynUNet.",
}


def check_network(settings: NetworkSettings) -> None:
    """Raise if no network has this name and these settings."""
    if settings.name == "unet":
        if settings.options:
            raise InputError(
                f"network.options {sorted(settings.options)} are only for MONAI networks. "
                "Configure 'unet' with network.width, network.dropout and network.residual."
            )
        return
    check_options(settings.name, settings.options)
    for name, advice in MONAI_ADVICE.items():
        value = getattr(settings, name)
        if value != getattr(NetworkSettings(), name):
            raise InputError(
                f"network.{name} is {value}, but the network is '{settings.name}' and the setting "
                f"is only for 'unet'. {advice}"
            )


def build_network(settings: NetworkSettings, shape: NetworkShape) -> Network:
    check_network(settings)
    dims, outputs, width = shape.dims, shape.outputs, settings.width or shape.width
    if settings.name != "unet":
        body = MonaiBody(settings.name, settings.options, shape, width)
        return Network(
            body, dims=dims, outputs=outputs, features=body.features, trunk=body.features
        )
    unet = UNet(
        dims=dims,
        channels=shape.channels,
        outputs=outputs,
        width=width,
        strides=shape.strides,
        kernels=shape.kernels,
        dropout=settings.dropout,
        residual=settings.residual,
    )
    return Network(
        unet,
        dims=dims,
        outputs=outputs,
        features=width,
        trunk=unet.trunk,
        kernel=shape.kernels[0] if shape.kernels else (),
    )
