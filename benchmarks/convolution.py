"""Time of a forward and backward pass of the U-Net with torch's 3D convolutions and with ours.

python benchmarks/convolution.py --crops 6 --side 32 --width 8

Ours run on ARM CPUs without SVE alone; elsewhere all three are torch's.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext

import torch

from segpl.networks.convolution import left_to_torch
from segpl.networks.unet import UNet

WAYS = {
    "torch, channels last": (left_to_torch, torch.channels_last_3d),
    "torch, channels first": (left_to_torch, torch.contiguous_format),
    "ours": (nullcontext, torch.channels_last_3d),  # as a training on a CPU has it
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--crops", type=int, default=6)
    parser.add_argument("--side", type=int, default=32, help="of a crop, in voxels (default 32)")
    parser.add_argument("--width", type=int, default=8)
    parser.add_argument("--residual", action="store_true", help="a residual encoder")
    parser.add_argument("--repeats", type=int, default=5, help="the quickest counts (default 5)")
    args = parser.parse_args()
    strides = [(2, 2, 2)] * 3
    network = UNet(
        dims=3, channels=1, outputs=1, width=args.width, strides=strides, residual=args.residual
    )
    crops = torch.randn(args.crops, 1, *[args.side] * 3)
    for name, (context, layout) in WAYS.items():
        network, crops = network.to(memory_format=layout), crops.to(memory_format=layout)
        seconds = []
        with context():
            for _ in range(args.repeats):
                began = time.perf_counter()
                network(crops)[0].square().mean().backward()
                seconds.append(time.perf_counter() - began)
        print(f"{name}: {1000 * min(seconds):.0f} ms")


if __name__ == "__main__":
    main()
