"""Any network of MONAI, with a hand on the features before its last layer."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from segpl.errors import InputError, did_you_mean, unknown
from segpl.networks.network import NetworkShape


def arguments_for(kind: type[nn.Module], shape: NetworkShape, width: int) -> dict[str, Any]:
    """What MONAI's many constructors call the things that the plan has fixed."""
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


def sentence(error: Exception) -> str:
    return f"{str(error).strip().rstrip('.')}."


def missing_package(name: str, error: ImportError) -> InputError:
    return InputError(
        f"MONAI's {name} needs a package that is not installed: {str(error).splitlines()[0]} "
        "Install it with pip, or choose another network."
    )


class MonaiBody(nn.Module):
    def __init__(self, name: str, options: dict[str, Any], shape: NetworkShape, width: int) -> None:
        super().__init__()
        from monai.networks import nets

        kinds = {
            key: value
            for key, value in vars(nets).items()
            if isinstance(value, type) and issubclass(value, nn.Module)
        }
        if name not in kinds:
            raise unknown("network", name, [*kinds, "unet"])
        kind = kinds[name]
        known = list(inspect.signature(kind).parameters)
        for option in options:
            if option not in known:
                raise InputError(
                    f"{name} has no argument '{option}'. {did_you_mean(option, known)}"
                )
        arguments = arguments_for(kind, shape, width) | options
        try:
            self.network = kind(**arguments)
        except ImportError as error:
            raise missing_package(name, error) from error
        except (TypeError, ValueError, AssertionError, NotImplementedError) as error:
            raise InputError(
                f"MONAI's {name} cannot be built with {arguments}: {sentence(error)} "
                "Give what it lacks under [network.options] in the config."
            ) from error
        self.last, self.features = self._find_last(name, shape)
        self._seen: list[Tensor] = []
        self.get_submodule(self.last).register_forward_pre_hook(self._keep)

    def _keep(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._seen.append(inputs[0])

    def _find_last(self, name: str, shape: NetworkShape) -> tuple[str, int]:
        """The layer with weights that runs last, and the channels it reads."""
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
        except (RuntimeError, ValueError, TypeError) as error:
            raise InputError(
                f"MONAI's {name} cannot take a patch of {shape.patch}: {sentence(error)} "
                "Change the patch in plan.json or choose another network."
            ) from error
        finally:
            self.train(was_training)
            for hook in hooks:
                hook.remove()
        if tuple(output.shape) != (1, shape.outputs, *shape.patch) or not order:
            raise InputError(
                f"MONAI's {name} is no segmentation network: for a patch of {shape.patch} it gives "
                f"{tuple(output.shape)}, not {(1, shape.outputs, *shape.patch)}."
            )
        return order[-1]

    @staticmethod
    def _logits(output: Any) -> Tensor:
        # networks with deep supervision give the full resolution first
        first: Tensor = output[0] if isinstance(output, list | tuple) else output
        return first

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits, the features before the last layer, and again these: blocks are not known."""
        self._seen.clear()
        logits = self._logits(self.network(image))
        features = self._seen.pop()
        return logits, features, features
