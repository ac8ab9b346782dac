"""Networks by name."""

from __future__ import annotations

from segpl.errors import InputError, unknown
from segpl.networks.monai import MonaiBody
from segpl.networks.network import Network, NetworkSettings, NetworkShape
from segpl.networks.unet import NORMS, UNet

# settings of the U-Net, and what to do for a network of MONAI
INSTEAD = {
    "dropout": "Give MONAI's own argument under [network.options], such as dropout_prob for "
    "SegResNet.",
    "residual": "Give MONAI's own argument under [network.options], such as res_block for DynUNet.",
}


def build_network(settings: NetworkSettings, shape: NetworkShape) -> Network:
    width = min(settings.width or shape.width, settings.max_width)
    if settings.norm not in NORMS:
        raise unknown("norm", settings.norm, NORMS)
    if settings.name != "unet":
        for own, instead in INSTEAD.items():
            value = getattr(settings, own)
            if value != getattr(NetworkSettings(), own):
                raise InputError(
                    f"network.{own} is {value}: it is for 'unet', and the network is "
                    f"'{settings.name}'. {instead}"
                )
        body = MonaiBody(settings.name, settings.options, shape, width)
        return Network(
            body,
            dims=shape.dims,
            outputs=shape.outputs,
            features=body.features,
            trunk=body.features,
        )
    if settings.options:
        raise InputError(
            f"network.options {sorted(settings.options)} are for MONAI networks; 'unet' has "
            "network.width, network.max_width, network.norm, network.dropout and "
            "network.residual."
        )
    unet = UNet(
        dims=shape.dims,
        channels=shape.channels,
        outputs=shape.outputs,
        width=width,
        strides=shape.strides,
        kernels=shape.kernels,
        max_width=settings.max_width,
        norm=settings.norm,
        dropout=settings.dropout,
        residual=settings.residual,
    )
    return Network(
        unet,
        dims=shape.dims,
        outputs=shape.outputs,
        features=width,
        trunk=unet.trunk,
        kernel=shape.kernels[0] if shape.kernels else (),
    )
