"""Blocks of the U-Net on a GPU: bfloat16, channels-last, and few passes over memory.

A convolution, its normalization, the residual and the activation are one differentiable function.
The pure PyTorch blocks in `unet.py` are the reference.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from traceback import walk_tb
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

PRECISION = torch.bfloat16
VARIANCE_EPSILON = 1e-5  # torch's default
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by axes of a batch
ALIGNMENT = 8  # channels; tensor cores read 16 bytes at a time
MAX_PRODUCT = 2**14  # weights of a transposed convolution with a Triton kernel
MAX_ELEMENTS = 2**31  # per image: the Triton kernels index it with 32 bits
REASON = 200  # characters shown of an error message


def can_fuse(body: nn.Module, device: torch.device) -> bool:
    """Whether this network can use the Triton kernels on the device."""
    return (
        device.type == "cuda"
        and bool(getattr(body, "can_fuse", False))
        and torch.version.hip is None
        and find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def predict_or_fall_back(body: nn.Module, image: Tensor) -> Any:
    """Run a network for prediction; if its Triton kernels fail, stop using them."""
    try:
        return body.forward(image)
    except Exception as error:
        if not (getattr(body, "is_fused", False) and is_compiler_error(error)):
            raise
        body.is_fused = False  # type: ignore[assignment]  # a flag of the U-Net
        warnings.warn(
            f"the kernels of the network could not be compiled, so prediction is slower "
            f"({brief_message(error)}).",
            stacklevel=2,
        )
    return body.forward(image)


def is_compiler_error(error: Exception) -> bool:
    """Whether the compiler failed, judged by module name: importing it takes a second.

    Without a C compiler, with a full disk or a broken installation, Triton raises plain errors.
    """
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        return True
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    modules = [type(error).__module__, *(str(one.f_globals.get("__name__")) for one in frames)]
    is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    names = ("triton.", "segpl.networks.kernels.")
    return not is_memory and any(f"{module}.".startswith(names) for module in modules)


def brief_message(error: Exception) -> str:
    first, _, _ = str(error).partition("\n\n")  # the rest is advice for developers
    return " ".join(first.split())[:REASON] or type(error).__name__


def is_in_precision(image: Tensor) -> bool:
    """Whether autocast uses the precision of the Triton kernels."""
    return (
        image.is_cuda
        and torch.is_autocast_enabled("cuda")
        and torch.get_autocast_dtype("cuda") == PRECISION
    )


def align(image: Tensor) -> Tensor:
    """The image (B, C, *S) for the Triton kernels: bfloat16, channels-last, padded channels."""
    batch, channels, *sides = image.shape
    shape = (batch, channels + -channels % ALIGNMENT, *sides)
    layout = CHANNELS_LAST[image.dim()]
    aligned = torch.empty(shape, dtype=PRECISION, device=image.device, memory_format=layout).zero_()
    aligned[:, :channels] = image
    return aligned


def project(
    features: Tensor, layer: nn.Conv2d | nn.Conv3d, side: int
) -> tuple[Tensor, Tensor | None]:
    """Logits (B, K, *S) of a 1x1(x1) convolution, and pooled features, both in float32.

    The features are averaged over `side` cells per axis; 1: None.
    """
    features = features.contiguous(memory_format=CHANNELS_LAST[features.dim()])
    logits, pooled = _Project.apply(features, layer.weight, layer.bias, side)  # type: ignore[no-untyped-call]  # untyped in torch
    return logits, pooled


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, side: int
    ) -> tuple[Tensor, Tensor | None]:
        from segpl.networks.kernels.projection import project_and_pool

        ctx.save_for_backward(features, weight)
        ctx.side = side
        return project_and_pool(features, weight.flatten(1), bias, side)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, pooled: Tensor | None) -> Any:
        from segpl.networks.kernels.projection import project_gradients

        features, weight = ctx.saved_tensors
        flat = weight.flatten(1)
        to_features, to_weight, to_bias = project_gradients(
            gradient, pooled, features, flat, ctx.side
        )
        return to_features, to_weight.reshape(weight.shape), to_bias, None


def upsample_and_concatenate(features: Tensor, layer: Any, skip: Tensor) -> Tensor:
    """Upsampled features and the skip connection; the sides of the `layer` equal its stride."""
    channels, outputs, *stride = layer.weight.shape
    columns = math.prod(stride) * outputs
    # powers of 2, and a product that fits into registers
    if channels & (channels - 1) or columns & (columns - 1) or channels * columns > MAX_PRODUCT:
        return torch.cat([layer(features), skip], 1)
    layout = CHANNELS_LAST[features.dim()]
    known = (one.contiguous(memory_format=layout) for one in (features, skip))
    merged: Tensor = _Upsample.apply(*known, layer.weight, layer.bias)  # type: ignore[no-untyped-call]  # untyped in torch
    return merged


class _Upsample(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor, skip: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from segpl.networks.kernels.upsampling import upsample_and_join

        ctx.save_for_backward(features, weight)
        return upsample_and_join(features, weight, bias, skip)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        from segpl.networks.kernels.upsampling import upsample_gradients

        features, weight = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=CHANNELS_LAST[gradient.dim()])
        to_features, to_weight, to_bias = upsample_gradients(gradient, features, weight)
        return to_features, gradient[:, weight.shape[1] :], to_weight, to_bias


def convolve_and_normalize(
    features: Tensor,
    weight: Tensor,
    norm: nn.Module,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    slope: float,
    residual: Tensor | None = None,
) -> Tensor:
    r"""$\phi(N(W x) + r)$ with $\phi$ a leaky ReLU and $N$ an instance normalization.

    Features (B, C, *S) come from `align` or another block; the weight is (F, I, *K), and I is C
    before alignment. $\phi$ has the given slope for negative values; 1: no activation.
    """
    features = features.contiguous(memory_format=CHANNELS_LAST[features.dim()])
    result: Tensor = _ConvolveAndNormalize.apply(  # type: ignore[no-untyped-call]  # untyped in torch
        features, weight, norm.weight, norm.bias, residual, tuple(stride), tuple(padding), slope
    )
    return result


class _ConvolveAndNormalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        scale: Tensor,
        shift: Tensor,
        residual: Tensor | None,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        slope: float,
    ) -> Tensor:
        from segpl.networks.kernels.normalization import instance_moments, normalize

        own = _prepare_weight(weight, features.shape[1])
        values = _convolve(features, own, stride, padding)
        statistics = instance_moments(values, VARIANCE_EPSILON)
        output = normalize(values, statistics, scale, shift, residual, slope)
        kept = None if residual is None else output
        ctx.save_for_backward(features, own, values, statistics, scale, shift, kept)
        ctx.stride, ctx.padding, ctx.slope, ctx.channels = stride, padding, slope, weight.shape[1]
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        from segpl.networks.kernels.normalization import normalize_gradients

        features, weight, values, statistics, scale, shift, output = ctx.saved_tensors
        gradient = gradient.contiguous(memory_format=CHANNELS_LAST[gradient.dim()])
        to_values, to_scale, to_shift, to_residual = normalize_gradients(
            gradient, values, output, statistics, scale, shift, ctx.slope
        )
        to_features, to_weight = _convolve_gradients(
            to_values,
            features,
            weight,
            ctx.stride,
            ctx.padding,
            needs_input=ctx.needs_input_grad[0],
        )
        to_weight = to_weight[:, : ctx.channels].float()
        return to_features, to_weight, to_scale, to_shift, to_residual, None, None, None


def _prepare_weight(weight: Tensor, channels: int) -> Tensor:
    """The weight in the precision and layout of the features, zero for padded channels."""
    if weight.shape[1] == channels:
        return weight.to(PRECISION)
    padded = weight.new_zeros((weight.shape[0], channels, *weight.shape[2:]), dtype=PRECISION)
    padded[:, : weight.shape[1]] = weight
    return padded.contiguous(memory_format=CHANNELS_LAST[weight.dim()])


def _convolve(
    features: Tensor, weight: Tensor, stride: tuple[int, ...], padding: tuple[int, ...]
) -> Tensor:
    if _is_pointwise(weight, stride):
        return _from_rows(_to_rows(features) @ weight.flatten(1).t(), features)
    if _has_own_kernel(features, weight, stride) and _is_narrow(weight):
        from segpl.networks.kernels.convolution import convolve_narrow

        return convolve_narrow(features, weight)
    convolution = F.conv2d if features.dim() == 4 else F.conv3d
    values = convolution(features, weight, None, stride, padding)
    return values.contiguous(memory_format=CHANNELS_LAST[features.dim()])


def _convolve_gradients(
    gradient: Tensor,
    features: Tensor,
    weight: Tensor,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    *,
    needs_input: bool,
) -> tuple[Tensor | None, Tensor]:
    """Gradients of the features, if needed, and of the weight."""
    to_features = to_weight = None
    if _is_pointwise(weight, stride):
        flat = _to_rows(gradient)
        to_weight = (flat.t() @ _to_rows(features)).view(weight.shape)
        return _from_rows(flat @ weight.flatten(1), features) if needs_input else None, to_weight
    if _has_own_kernel(features, weight, stride):
        from segpl.networks.kernels.convolution import input_gradient, weight_gradient

        to_weight = weight_gradient(features, gradient, weight.shape[2:])
        if needs_input and _is_narrow(weight):
            to_features = input_gradient(gradient, weight)
    wanted = [needs_input and to_features is None, to_weight is None, False]
    if any(wanted):
        dims = features.dim() - 2
        found = torch.ops.aten.convolution_backward(
            gradient,
            features,
            weight,
            None,
            stride,
            padding,
            [1] * dims,
            False,
            [0] * dims,
            1,
            wanted,
        )
        to_features = found[0] if wanted[0] else to_features
        to_weight = found[1] if wanted[1] else to_weight
    assert to_weight is not None
    return to_features, to_weight


def _has_own_kernel(features: Tensor, weight: Tensor, stride: tuple[int, ...]) -> bool:
    """Whether the Triton kernels support this convolution; they compute its gradients fastest."""
    from segpl.networks.kernels.convolution import CHANNELS

    outputs, channels, *sides = weight.shape
    return (
        len(sides) == 3
        and max(stride) == 1
        and sides[0] in (1, 3)
        and channels in CHANNELS
        and outputs in CHANNELS
        and features[0].numel() * max(outputs, channels) // channels < MAX_ELEMENTS
    )


def _is_narrow(weight: Tensor) -> bool:
    """Whether the Triton kernel also computes the convolution itself faster than cuDNN."""
    return min(weight.shape[:2]) <= 16


def _is_pointwise(weight: Tensor, stride: tuple[int, ...]) -> bool:
    """Whether the convolution is a matrix product, which uses tensor cores for any width."""
    return math.prod(weight.shape[2:]) == 1 and max(stride) == 1


def _to_rows(features: Tensor) -> Tensor:
    """(B, C, *S), channels-last, as (voxels, C) without a copy."""
    return features.movedim(1, -1).flatten(0, -2)


def _from_rows(rows: Tensor, like: Tensor) -> Tensor:
    """Rows (voxels, F) as (B, F, *S), channels-last, with B and S of `like`."""
    return rows.view(like.shape[0], *like.shape[2:], rows.shape[1]).movedim(-1, 1)
