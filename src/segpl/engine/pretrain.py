"""Before the training proper: a network learns to fill in hidden blocks of all training scans."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from segpl.data.sampler import Sampler
from segpl.engine.checkpoint import (
    load_optimizer,
    load_weights,
    read_checkpoint,
    require_finite,
    save_checkpoint,
)
from segpl.engine.device import compile_in_place, memory_format, precision, should_compile
from segpl.engine.log import CsvLog
from segpl.engine.meter import Meter
from segpl.engine.trainer import Observer, TrainSettings
from segpl.methods.base import Method
from segpl.networks.network import Network
from segpl.networks.restorer import Restorer
from segpl.schedules import polynomial_decay
from segpl.types import StepOutput, Term
from segpl.views.masking import draw_hidden, hidden_error, without

SHARE = 0.6  # of the blocks of a crop that are hidden


class Pretrainer:
    r"""Masked reconstruction [He2022] by the network of a method, in place.

    $$\min_{\theta, \psi} L(\psi(\theta(x \odot (1 - h))), x; h)$$

    with $\theta$ the network up to its last layer, $\psi$ a 1x1(x1) layer that is then forgotten,
    $h$ the hidden voxels and $L$ their squared error. Crops are of labeled and unlabeled scans
    alike; no label is looked at, and neither is a validation or test case.

    In the end every other network of the method, a teacher too, has the weights that were learned.
    Last layers stay as they were drawn, each its own.

    Differs from the source: a convolutional network that sees hidden blocks as zeros, as in the
    code of [Wald2025], and a share of 0.6, not 0.75; blocks are an eighth of each side.
    """

    def __init__(
        self,
        method: Method,
        sampler: Sampler,
        settings: TrainSettings,
        log: Path,
        checkpoint: Path,
        observer: Observer,
    ) -> None:
        self.method = method
        self.sampler = sampler
        self.settings = settings
        self.log = CsvLog(log)
        self.checkpoint = checkpoint
        self.observer = observer
        self.device = sampler.device
        # as many as a step of training with unlabeled crops, whatever the method needs
        self.crops = sampler.labeled_crops * (1 + settings.ratio)
        self.layout = memory_format(self.device, method.network.dims)
        channels = int(sampler.labeled[0].image.shape[0])
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            self.restorer = Restorer(method.network, channels)
        self.method.to(self.device).to(memory_format=self.layout).train()  # type: ignore[call-overload]  # torch's stubs lack it
        self.restorer.to(self.device).to(memory_format=self.layout)  # type: ignore[call-overload]  # the same
        blank = torch.zeros((1, channels, *sampler.patch), device=self.device)
        self.learned = self.restorer.reached(blank)
        weights = dict(method.network.named_parameters())
        self.optimizer = torch.optim.Adam(
            [*(weights[name] for name in self.learned), *self.restorer.show.parameters()],
            lr=settings.lr,
            weight_decay=settings.weight_decay,
        )
        self.step = 0

    def resume(self) -> None:
        """Go on from the checkpoint, which may be that of the last step."""
        if self.checkpoint.exists():
            checkpoint = read_checkpoint(self.checkpoint)
            load_weights(self.restorer, checkpoint, self.checkpoint)
            load_optimizer(self.optimizer, checkpoint)
            self.step = checkpoint.step
        self.log.cut_after(self.step)

    def run(self) -> None:
        """Take the steps that are left, and hand out what was learned."""
        self.resume()
        settings, meter = self.settings, Meter()
        if self.step < settings.pretrain and should_compile(self.device, settings.compile):
            compile_in_place(self.method.network.body)
        spent, began = self.log.last("seconds"), time.perf_counter()
        while self.step < settings.pretrain:
            lr = settings.lr * polynomial_decay(
                self.step / settings.pretrain, power=settings.lr_decay
            )
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            loss = self.take_step()
            self.step += 1
            meter.add(StepOutput({"reconstruction": Term(loss)}), loss, self.step)
            self.observer.advanced(self.step)
            is_end = self.step == settings.pretrain
            if self.step % settings.log_every and not is_end:
                continue

            row = meter.row(lr)
            seconds = spent + time.perf_counter() - began
            self.log.add({"step": self.step, "loss": row["reconstruction"], "seconds": seconds})
            self.observer.logged(self.step, row)
            if is_end or self.step % settings.checkpoint_every == 0:
                self.save()
        others = [one for one in self.method.networks() if one is not self.method.network]
        hand_out(self.method.network, self.learned, others)

    def take_step(self) -> Tensor:
        crops, generator = self.sampler.scans(self.step, self.crops)
        # dropout inside the network draws from here
        torch.manual_seed(generator.initial_seed())
        image = crops.image.to(memory_format=self.layout)  # (B, C, *S)
        hidden = draw_hidden(len(image), image.shape[2:], SHARE, generator)  # (B, 1, *S)
        assert crops.inside is not None
        with precision(self.device, self.settings.precision):
            restored = self.restorer(without(image, hidden))  # (B, C, *S)
        loss = hidden_error(restored, image, hidden & crops.inside.unsqueeze(1))
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss.detach()

    def save(self) -> None:
        require_finite(self.restorer, f"step {self.step} of the pre-training")
        save_checkpoint(
            self.checkpoint,
            step=self.step,
            module=self.restorer,
            optimizer=self.optimizer,
            facts={},
        )


@torch.no_grad()
def hand_out(source: Network, names: Sequence[str], others: Iterable[Network]) -> None:
    """Give other networks these weights of `source`, and the statistics that it has collected."""
    buffers = [name for name, _ in source.named_buffers()]
    given = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    for network in others:
        own = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        for name in (*names, *buffers):
            own[name].copy_(given[name])
