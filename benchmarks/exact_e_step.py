"""Time of the exact E-step as a fraction of a training step, on a GPU if there is one.

python benchmarks/exact_e_step.py --patch 96 96 96 --labeled 2 --unlabeled 4
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

import torch

from segpl.engine.device import autocast, compile_in_place, memory_format
from segpl.engine.step import optimizer_for, take_step
from segpl.experiments.bench.counts import seconds_per_step
from segpl.methods.bpl import BPL
from segpl.methods.latent_threshold import ThresholdSettings
from segpl.networks.build import build_network
from segpl.networks.network import NetworkSettings, NetworkShape
from segpl.types import Batch, Labeled, Unlabeled

ROUNDS = 5


def seconds_of(call: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Median over rounds of the mean time of a call, after a warm-up."""
    seconds_per_step(call, device, repeats)
    return statistics.median(seconds_per_step(call, device, repeats) for _ in range(ROUNDS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patch", nargs="+", type=int, default=[32, 32, 32])
    parser.add_argument("--labeled", type=int, default=2)
    parser.add_argument("--unlabeled", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    dims = len(args.patch)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    shape = NetworkShape(dims, 1, 1, args.width, tuple(args.patch), ((2,) * dims,) * 4)
    settings = BPL.Settings(threshold=ThresholdSettings(e_step="exact"), ramp_begin=0, ramp_end=0)
    method = BPL(lambda: build_network(NetworkSettings(), shape), settings)
    layout = memory_format(device, dims)
    method.to(device).to(memory_format=layout).train()
    if args.compile:
        compile_in_place(method.network.body)
    optimizer = optimizer_for(method, 0.01)
    image = torch.randn((args.labeled + args.unlabeled, 1, *args.patch), device=device)
    image = image.to(memory_format=layout)
    label = (image[: args.labeled, 0] > 1).long()
    generator = torch.Generator(device)
    batch = Batch(
        Labeled(image[: args.labeled], label), Unlabeled(image[args.labeled :]), generator
    )
    context = autocast(device, "auto")

    def step() -> None:
        take_step(method, optimizer, batch, 1.0, context, taken=0)

    with torch.no_grad(), context:
        logits = method.network(image).logits.float()[args.labeled :]
    probability, inside = logits.sigmoid(), torch.ones_like(logits)

    def infer() -> None:
        method.latent.exact(probability, inside)

    def label_all() -> None:
        method.latent(logits, inside, image[args.labeled :], generator)

    whole = seconds_of(step, args.repeats, device)
    kind = f"{'x'.join(map(str, args.patch))}, {args.labeled} + {args.unlabeled} crops, {device}"
    print(f"{kind}: step {1e3 * whole:.2f} ms")
    for name, call in (("posterior", infer), ("with labels, free energy and log", label_all)):
        part = seconds_of(call, args.repeats, device)
        print(f"exact E-step, {name}: {1e3 * part:.3f} ms, {100 * part / whole:.1f} % of the step")


if __name__ == "__main__":
    main()
