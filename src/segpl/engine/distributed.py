"""One training run in several processes, started by `torchrun`.

Cropping, augmentation, strong views and networks are split: each process computes its share of the
images and gathers the results of all. Every process draws all random numbers and computes the whole
loss, so averages over the batch need no changes. Images are not gathered: the networks of a
process read only its own. No other module uses `torch.distributed`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from segpl.errors import InputError, UserError, count_noun
from segpl.methods.base import Method
from segpl.resize import POOLED_SIDE, average_pool
from segpl.types import Batch, CropShares, Labeled, NetOutput, Unlabeled

WAITING_LIMIT = timedelta(days=1)  # for the others while the first process prepares or validates
STEP_LIMIT = timedelta(minutes=10)  # for an exchange within a step
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
OUTPUTS = tuple(field.name for field in fields(NetOutput))

Shared = TypeVar("Shared")
Call = Callable[[Tensor], tuple[Tensor, ...]]


class LostProcessError(UserError, RuntimeError):
    """Another process of the run has stopped."""


class Processes(CropShares):
    """The processes of one training run, as one of them sees them.

    The first one writes and shows everything. All must call the methods in the same order.
    """

    def __init__(self, rank: int = 0, count: int = 1) -> None:
        self.rank = rank
        self.count = count
        # every nth crop, so that all shares have labeled and unlabeled ones
        self.own = slice(rank, None, count)
        self.group: dist.ProcessGroup | None = None  # for tensors on the device

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def own_device(self, device: torch.device) -> torch.device:
        """The GPU of this process, or the CPU."""
        if self.count == 1 or device.type != "cuda":
            return device
        if device.index is not None:
            raise InputError(
                f"--device {device} names one GPU, but torchrun started {self.count} processes, "
                "which need one each. Use --device cuda."
            )
        wanted, found = int(os.environ["LOCAL_WORLD_SIZE"]), torch.cuda.device_count()
        if wanted > found:
            raise InputError(
                f"torchrun started {wanted} processes on a machine with "
                f"{count_noun(found, 'visible GPU')}, but each process needs its own. Use "
                f"`--nproc-per-node {found}`, or make more GPUs visible (CUDA_VISIBLE_DEVICES)."
            )
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
        return own

    def connect(self, device: torch.device) -> None:
        """Prepare the exchange of tensors on `device`, once all processes are ready for it."""
        if self.count == 1:
            return
        kinds = [""] * self.count
        with lost_processes():
            # waits for volumes longer than a group with the limit of a step
            dist.all_gather_object(kinds, device.type)
        if len(set(kinds)) > 1:
            ranks = ", ".join(str(rank) for rank, kind in enumerate(kinds) if kind == "cpu")
            raise InputError(
                f"some processes found no GPU (rank {ranks}), but the others did. Train only on "
                "machines with GPUs, or with --device cpu."
            )
        backend = "nccl" if device.type == "cuda" else "gloo"
        with lost_processes():
            self.group = dist.new_group(backend=backend, timeout=STEP_LIMIT)

    def leave(self) -> None:
        if self.count > 1:
            # wait for all: the first one may validate for longer than NCCL waits
            self.agree(0, paused=False)
            dist.destroy_process_group()

    def require_equal_shares(self, crops: int) -> None:
        """Raise unless a batch with this many labeled crops can be split equally."""
        if crops % self.count:
            fitting = self.count * (crops // self.count + 1)
            raise InputError(
                f"a batch of {count_noun(crops, 'labeled crop')} cannot be split equally over "
                f"{self.count} processes. Use --set train.batch={fitting}, or a number of "
                f"processes that divides {crops}."
            )

    def share(self, value: Shared | None = None) -> Shared:
        """The `value` of the first process."""
        values: list[Any] = [value]
        if self.count > 1:
            with lost_processes():
                dist.broadcast_object_list(values, src=0)
        shared: Shared = values[0]
        return shared

    def clock(self) -> float:
        """The time of the first process, so that all take the same number of measured steps."""
        return self.share(time.perf_counter())

    def agree(self, stop: int, *, paused: bool) -> tuple[int, bool]:
        """A stop signal that any process received, or 0; `paused` of the first process."""
        if self.count == 1:
            return stop, paused
        flags = torch.tensor([stop, int(paused and self.is_first)])
        with lost_processes():
            dist.all_reduce(flags, dist.ReduceOp.MAX)
        return int(flags[0]), bool(flags[1])

    def equalize(self, module: nn.Module) -> None:
        """Copy weights and buffers of the first process. Other CPUs may draw other weights."""
        if self.group is None:
            return
        for tensor in (*module.parameters(), *module.buffers()):
            values = tensor.detach().contiguous()
            with lost_processes():
                dist.broadcast(values, src=0, group=self.group)
            tensor.data.copy_(values)

    def gather(self, crops: Tensor) -> Tensor:
        if self.group is None:
            return crops
        own = crops.contiguous()  # strong views may have another memory layout in each process
        parts = [torch.empty_like(own) for _ in range(self.count)]
        with lost_processes():
            dist.all_gather(parts, own, group=self.group)
        return torch.stack(parts, 1).flatten(0, 1)

    def place(self, crops: Tensor) -> Tensor:
        if self.group is None:
            return crops
        whole = crops.new_full((self.count * len(crops), *crops.shape[1:]), torch.nan)
        whole[self.own] = crops
        return whole

    def gather_batch(self, batch: Batch) -> Batch:
        """The whole batch, given the crops of this process; images of the others are NaN."""
        if self.group is None:
            return batch
        labeled, unlabeled = batch.labeled, batch.unlabeled
        if unlabeled is not None:
            inside = None if unlabeled.inside is None else self.gather(unlabeled.inside)
            unlabeled = Unlabeled(self.place(unlabeled.image), inside)
        # as bytes: NCCL does not support int16, and int64 would be four times as large
        label = self.gather(labeled.label.contiguous().to(torch.int16).view(torch.uint8))
        labeled = Labeled(self.place(labeled.image), label.view(torch.int16).long())
        return replace(batch, labeled=labeled, unlabeled=unlabeled)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over the processes."""
        if self.group is None or not tensors:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        with lost_processes():
            dist.all_reduce(flat, group=self.group)
        flat /= self.count
        parts = torch.split(flat, [tensor.numel() for tensor in tensors])
        pairs = zip(parts, tensors, strict=True)
        torch._foreach_copy_(list(tensors), [part.view(own.shape) for part, own in pairs])

    @torch.no_grad()
    def average_gradients(self, method: Method) -> None:
        """Average gradients, and the running statistics of batch normalization."""
        if self.group is None:
            return
        gradients = [weight.grad for weight in method.parameters() if weight.grad is not None]
        norms = [m for m in method.modules() if isinstance(m, BATCH_NORMS) and m.training]
        statistics = (value for norm in norms for value in (norm.running_mean, norm.running_var))
        self.average([*gradients, *(value for value in statistics if value is not None)])

    @contextmanager
    def split(self, method: Method) -> Iterator[None]:
        """Inside the block, the networks of `method` run on shares of their images."""
        if self.group is None:
            yield
            return
        networks, shares = method.networks(), Shares(self, method.reads)
        for network in networks:
            network.shares = shares
        try:
            yield
        finally:
            for network in networks:
                network.shares = None


class Shares:
    """Runs networks on equal shares of the images, one in each process."""

    def __init__(self, processes: Processes, reads: Sequence[str]) -> None:
        self.processes = processes
        self.average = processes.average
        self.reads = reads

    def run(self, call: Call, image: Tensor) -> tuple[Tensor, ...]:
        """Outputs of `call` for all images. Those that the method never reads have no channels."""
        count = self.processes.count
        assert len(image) % count == 0, (
            "the number of images is not a multiple of the number of processes"
        )
        outputs = call(share_of(image, self.processes))
        if "pooled" in self.reads and len(outputs) < len(OUTPUTS):
            # pooled features are much smaller
            outputs = *outputs, average_pool(outputs[1], POOLED_SIDE)
        return tuple(
            _Gather.apply(output, self.processes)  # type: ignore[no-untyped-call]  # untyped in torch
            if name in self.reads
            else output.new_empty((len(image), 0))
            for name, output in zip(OUTPUTS, outputs, strict=False)
        )


def share_of(images: Tensor, processes: Processes) -> Tensor:
    """The images (B, C, *S) of this process, in the memory layout of the batch."""
    axis = channel_axis(images)
    own = images.movedim(1, axis)[processes.own]
    return own.contiguous().movedim(axis, 1)


def channel_axis(tensor: Tensor) -> int:
    """Position of the channels in memory: 1, or -1 if the layout is channels-last."""
    return 1 if tensor.is_contiguous() else -1


class _Gather(torch.autograd.Function):
    """Puts the shares of all processes together.

    All compute the same loss, and each sends back the gradient of its own share alone. The factor
    makes the mean over processes, which `average` computes, the gradient of the whole batch.
    """

    @staticmethod
    def forward(ctx: Any, share: Tensor, processes: Processes) -> Tensor:
        ctx.processes = processes
        # keep the memory layout: random numbers are drawn in the order of the memory
        axis = channel_axis(share)
        return processes.gather(share.movedim(1, axis)).movedim(axis, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return share_of(gradient, ctx.processes) * ctx.processes.count, None


ALONE = Processes()


def join_processes() -> Processes:
    """The processes that `torchrun` started together with this one."""
    if process_count() == 1:
        return ALONE
    dist.init_process_group("gloo", timeout=WAITING_LIMIT)
    return Processes(dist.get_rank(), dist.get_world_size())


def process_count() -> int:
    """Number of processes that `torchrun` started; 1 without it."""
    is_launched = dist.is_available() and dist.is_torchelastic_launched()
    return int(os.environ["WORLD_SIZE"]) if is_launched else 1


def is_first_process() -> bool:
    return process_count() == 1 or os.environ["RANK"] == "0"


def require_one_process(command: str) -> None:
    if process_count() > 1:
        raise InputError(
            f"`{command}` cannot run in several processes of torchrun; only `segpl train` without "
            "--folds can. Start it without torchrun."
        )


@contextmanager
def lost_processes() -> Iterator[None]:
    """Explain the errors of an exchange with processes that have stopped."""
    try:
        yield
    except torch.OutOfMemoryError:  # NCCL needs buffers
        raise
    except RuntimeError as error:
        # without the place in the source of torch, and advice for its developers
        cause = re.sub(r"^\[\S+\] ", "", str(error).splitlines()[0]).split(". ")[0]
        raise LostProcessError(
            "another process of this training run has stopped, so this one stops as well. The "
            "message of the other process says why. If a checkpoint was written, --resume "
            f"continues the run. ({cause})"
        ) from error
