"""Networks from MONAI, with access to the input of their last layer."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from segpl.errors import InputError, did_you_mean, unknown
from segpl.networks.network import NetworkShape


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
        except (RuntimeError, ValueError, TypeError) as error:
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
