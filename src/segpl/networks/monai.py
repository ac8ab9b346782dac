"""Networks from MONAI, with access to the input of their last layer."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from segpl.errors import InputError, did_you_mean, unknown
from segpl.networks.network import NetworkShape

# MONAI's segmentation networks, and the arguments that define their architecture. A run folder may
# come from somebody else: no argument may load weights, open a connection or name a file.
MONAI_OPTIONS = {
    "AHNet": "layers psp_block_num upsample_mode",
    "AttentionUnet": "channels strides kernel_size up_kernel_size dropout",
    "BasicUNet": "features act norm bias dropout upsample",
    "BasicUNetPlusPlus": "features deep_supervision act norm bias dropout upsample",
    "DynUNet": "kernel_size strides upsample_kernel_size filters dropout norm_name act_name "
    "deep_supervision deep_supr_num res_block trans_bias",
    "FlexibleUNet": "backbone decoder_channels norm act dropout decoder_bias upsample pre_conv "
    "interp_mode is_pad",
    "HighResNet": "norm_type acti_type dropout_prob bias layer_params channel_matching",
    "MedNeXt": "init_filters encoder_expansion_ratio decoder_expansion_ratio "
    "bottleneck_expansion_ratio kernel_size deep_supervision use_residual_connection blocks_down "
    "blocks_bottleneck blocks_up norm_type global_resp_norm",
    "SegResNet": "init_filters dropout_prob act norm num_groups use_conv_final blocks_down "
    "blocks_up upsample_mode",
    "SegResNetDS": "init_filters act norm blocks_down blocks_up dsdepth upsample_mode resolution",
    "SwinUNETR": "patch_size depths num_heads window_size qkv_bias mlp_ratio feature_size "
    "norm_name drop_rate attn_drop_rate dropout_path_rate normalize patch_norm use_checkpoint "
    "downsample use_v2",
    "UNETR": "img_size feature_size hidden_size mlp_dim num_heads proj_type norm_name conv_block "
    "res_block dropout_rate qkv_bias",
    "UNet": "channels strides kernel_size up_kernel_size num_res_units act norm dropout bias "
    "adn_ordering",
    "VNet": "act dropout_prob dropout_prob_down dropout_prob_up dropout_dim bias",
}
MOST_OPTION = 4096  # largest number of an option
OPTION_WORD = re.compile(r"[A-Za-z0-9_-]{1,40}")  # neither a path nor a URL


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Reject networks and options that are not in `MONAI_OPTIONS`, and unsafe values."""
    if name not in MONAI_OPTIONS:
        raise unknown("network", name, [*MONAI_OPTIONS, "unet"])
    known = MONAI_OPTIONS[name].split()
    for option, value in options.items():
        if option not in known:
            raise InputError(
                f"{name} has no option '{option}'; only architecture arguments are "
                f"accepted. {did_you_mean(option, known)}"
            )
        if not _is_shape(value):
            raise InputError(
                f"network.options.{option} is {value!r}, but only words and numbers up to "
                f"{MOST_OPTION} are accepted."
            )


def _is_shape(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(OPTION_WORD.fullmatch(key) and _is_shape(entry) for key, entry in value.items())
    if isinstance(value, list | tuple):
        return len(value) <= MOST_OPTION and all(map(_is_shape, value))
    if isinstance(value, str):
        return OPTION_WORD.fullmatch(value) is not None
    return isinstance(value, int | float) and abs(value) <= MOST_OPTION


def arguments_for(kind: type[nn.Module], shape: NetworkShape, width: int) -> dict[str, Any]:
    """Translate the plan into the argument names of a MONAI constructor."""
    widths = [width * 2**level for level in range(len(shape.strides) + 1)]
    offered = {
        "spatial_dims": shape.dims,
        "in_channels": shape.channels,
        "out_channels": shape.outputs,
        "img_size": shape.patch,
        "channels": widths,
        "filters": widths,
        "strides": [list(row) for row in shape.strides],
        "kernel_size": list(shape.kernels) or [(3,) * shape.dims] * (len(shape.strides) + 1),
        "upsample_kernel_size": [list(row) for row in shape.strides],
    }
    parameters = inspect.signature(kind).parameters
    if "filters" in parameters:  # DynUNet counts the stem as a stride
        offered["strides"] = [[1] * shape.dims, *(list(row) for row in shape.strides)]
    needed = {"spatial_dims", "in_channels", "out_channels"}
    return {
        name: value
        for name, value in offered.items()
        if name in parameters
        and (name in needed or parameters[name].default is inspect.Parameter.empty)
    }


def as_sentence(error: Exception) -> str:
    return f"{str(error).strip().rstrip('.')}."


def missing_package(name: str, error: ImportError) -> InputError:
    return InputError(
        f"MONAI's {name} needs a package that is not installed: {str(error).splitlines()[0]} "
        "Install it with pip or choose another network."
    )


class MonaiBody(nn.Module):
    def __init__(self, name: str, options: dict[str, Any], shape: NetworkShape, width: int) -> None:
        super().__init__()
        from monai.networks import nets

        kind = getattr(nets, name)
        arguments = arguments_for(kind, shape, width) | options
        try:
            self.network = kind(**arguments)
        except ImportError as error:
            raise missing_package(name, error) from error
        except (TypeError, ValueError, KeyError, IndexError, RuntimeError, AssertionError) as error:
            raise InputError(
                f"MONAI's {name} cannot be built with {arguments}: {as_sentence(error)} "
                "Set the missing arguments under [network.options] in the config."
            ) from error
        self.last, self.features = self._find_last(name, shape)
        self._seen: list[Tensor] = []
        self.get_submodule(self.last).register_forward_pre_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._seen.append(inputs[0])

    def _find_last(self, name: str, shape: NetworkShape) -> tuple[str, int]:
        """Find the last layer that runs and its number of input channels."""
        order: list[tuple[str, int]] = []
        hooks = []
        for path, module in self.named_modules():
            weight = getattr(module, "weight", None)
            if isinstance(weight, Tensor) and weight.dim() == shape.dims + 2:

                def note(_: nn.Module, inputs: tuple[Tensor, ...], path: str = path) -> None:
                    order.append((path, inputs[0].shape[1]))

                hooks.append(module.register_forward_pre_hook(note))
        was_training = self.training
        try:
            with torch.no_grad():
                self.eval()
                output = self._logits(self.network(torch.zeros(1, shape.channels, *shape.patch)))
        except ImportError as error:
            raise missing_package(name, error) from error
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise InputError(
                f"MONAI's {name} cannot process a patch of {shape.patch}: {as_sentence(error)} "
                "Change the patch in plan.json or choose another network."
            ) from error
        finally:
            self.train(was_training)
            for hook in hooks:
                hook.remove()
        if tuple(output.shape) != (1, shape.outputs, *shape.patch) or not order:
            raise InputError(
                f"MONAI's {name} is not a segmentation network: for a patch of {shape.patch} it "
                f"returns {tuple(output.shape)} instead of {(1, shape.outputs, *shape.patch)}. "
                "Choose another network."
            )
        return order[-1]

    @staticmethod
    def _logits(output: Any) -> Tensor:
        # networks with deep supervision return the full resolution first
        first: Tensor = output[0] if isinstance(output, list | tuple) else output
        return first

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits, and the input of the last layer both as features and as trunk."""
        self._seen.clear()
        logits = self._logits(self.network(image))
        features = self._seen.pop()
        return logits, features, features
