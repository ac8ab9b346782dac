"""Methods, networks and batches small enough for a test."""

from __future__ import annotations

import resource
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from segpl.data.augment import AugmentSettings
from segpl.data.cache import Volume
from segpl.data.phantom import PhantomSettings, vessel_phantom
from segpl.data.plan import Normalization, Plan
from segpl.data.sampler import Sampler
from segpl.data.stored import StoredArray
from segpl.data.summary import Calibration
from segpl.methods.base import METHODS, Method
from segpl.networks.build import build_network
from segpl.networks.network import Network, NetworkSettings, NetworkShape
from segpl.predict import predictor
from segpl.predict.familiarity import ScanJudge
from segpl.predict.inference import Inference
from segpl.predict.inputs import Job
from segpl.predict.samples import Predict
from segpl.types import IGNORE, Batch, Labeled, StepOutput, Unlabeled
from segpl.views.intensity import DRAWING, INTENSITY

SIDE = 16
SIDES = {2: SIDE, 3: 8}  # by number of axes
PICTURES = Plan(
    dims=2,
    channels=("gray",),
    classes={"background": 0, "vessel": 1},
    ignore=None,
    orientation=None,
    spacing=(1.0, 1.0),
    normalization=(Normalization(),),
    patch=(4, 4),
    strides=(),
    width=4,
    batch=1,
    reasons={},
)
ORGAN_PLAN = Plan(
    dims=3,
    channels=("CT",),
    classes={"background": 0, "organ": 4},
    ignore=None,
    orientation="RAS",
    spacing=(1.0, 1.0, 1.0),
    normalization=(Normalization("ct", low=0, high=100, mean=50, std=10),),
    patch=(8, 8, 8),
    strides=(),
    width=4,
    batch=1,
    reasons={},
)
WIDTH = 4


def predict_jobs(
    jobs: Sequence[Job],
    network: Predict,
    plan: Plan,
    out: Path,
    *,
    probabilities: bool = False,
    overlap: float = 0.5,
    samplers: Sequence[Any] = (),
    largest: Sequence[str] = (),
    judge: ScanJudge | None = None,
    calibration: Calibration | None = None,
    **options: Any,
) -> list[Path]:
    """Predict files with any function as the network, on the CPU."""
    device = torch.device("cpu")
    infer = Inference(
        network,
        plan,
        tuple(samplers),
        device,
        overlap,
        judge,
        tuple(largest),
        probabilities,
        calibration=calibration or Calibration(),
    )
    return predictor.predict_jobs(jobs, infer, out, **options)


def plain_crops(**changes: float) -> AugmentSettings:
    """Augmentation that is off except for `changes`."""
    return AugmentSettings(**{"affine": 0.0, "scanner": 0.0, "mirror": 0.0, **changes})


def stored_volume(volume: Volume, folder: Path) -> Volume:
    """The same volume, on disk."""

    def store(part: str, array: np.ndarray | None) -> StoredArray | None:
        if array is None:
            return None
        path = folder / f"{volume.name}.{part}.npy"
        np.save(path, np.ascontiguousarray(array))
        return StoredArray.find(volume.name, path)

    parts = ("image", "label", "foreground")
    return replace(volume, **{part: store(part, getattr(volume, part)) for part in parts})


BATCH_NORM = NetworkSettings("UNet", options={"channels": [4, 8], "strides": [2], "norm": "batch"})


def shape_for(
    dims: int,
    *,
    classes: int = 2,
    channels: int = 1,
    patch: tuple[int, ...] = (),
    strides: tuple[tuple[int, ...], ...] = (),
) -> NetworkShape:
    return NetworkShape(
        dims=dims,
        channels=channels,
        outputs=1 if classes == 2 else classes,
        width=WIDTH,
        patch=patch or (SIDES[dims],) * dims,
        strides=strides or ((2,) * dims,),
    )


def build(
    name: str,
    dims: int,
    *,
    classes: int = 2,
    seed: int = 0,
    network: NetworkSettings | None = None,
    patch: tuple[int, ...] = (),
    strides: tuple[tuple[int, ...], ...] = (),
    settings: dict[str, Any] | None = None,
) -> Method:
    shape = shape_for(dims, classes=classes, patch=patch, strides=strides)
    chosen = network or NetworkSettings()
    return build_with(name, lambda: build_network(chosen, shape), seed=seed, settings=settings)


def build_with(
    name: str,
    network: Callable[[], Network],
    *,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
) -> Method:
    kind: Any = METHODS.get(name)
    with torch.random.fork_rng(devices=()):
        torch.default_generator.manual_seed(seed)
        method: Method = kind(network, kind.Settings(**settings or {}))
    return method


def make_batch(
    dims: int,
    *,
    classes: int = 2,
    images: int = 2,
    unlabeled: bool = True,
    patch: tuple[int, ...] = (),
    seed: int = 0,
) -> Batch:
    """Noise with bright boxes; every class appears in every image, and one edge is ignored."""
    generator = torch.Generator().manual_seed(seed)
    sides = patch or (SIDES[dims],) * dims
    label = torch.zeros((images, *sides), dtype=torch.int64)
    for index in range(images):
        for number in range(1, classes):
            box = tuple(slice((index + number) % 2, side - 2 * number) for side in sides[:-1])
            label[(index, *box)] = number
    label[..., 0] = IGNORE
    noise = torch.randn((2, images, 1, *sides), generator=generator)
    image = label.clamp(min=0).unsqueeze(1) + 0.5 * noise[0]
    others = label.flip(1).clamp(min=0).unsqueeze(1) + 0.5 * noise[1]
    return Batch(
        Labeled(image, label),
        Unlabeled(others) if unlabeled else None,
        torch.Generator().manual_seed(seed + 1),
    )


@cache
def vessel_crop(dims: int, seed: int) -> tuple[Tensor, Tensor]:
    """The crop of a generated scan with the most vessels, normalized, and its label."""
    settings = PhantomSettings(shape=(2 * SIDE,) * dims, root_radius=(3.0, 4.0))
    image, vessel = vessel_phantom(seed, settings)
    windows = np.lib.stride_tricks.sliding_window_view(vessel, (SIDE,) * dims)
    density = windows.sum(tuple(range(dims, 2 * dims)))
    start = np.unravel_index(density.argmax(), density.shape)
    box = tuple(slice(int(first), int(first) + SIDE) for first in start)
    scan = torch.from_numpy(image[box].copy())
    return (scan - scan.mean()) / scan.std(), torch.from_numpy(vessel[box].copy()).long()


def phantom_batch(dims: int, *, classes: int = 2, seed: int = 0) -> Batch:
    """One labeled and two unlabeled crops of generated scans; a third class is dark lung."""
    crops = [vessel_crop(dims, seed + index) for index in range(3)]
    scan, label = crops[0]
    if classes == 3:
        label = torch.where((label == 0) & (scan < scan.median()), 2, label)
    return Batch(
        Labeled(scan[None, None], label[None]),
        Unlabeled(torch.stack([other[None] for other, _ in crops[1:]])),
        torch.Generator().manual_seed(seed),
    )


def total_of(output: StepOutput) -> Tensor:
    return torch.stack([term.weight * term.value for term in output.terms.values()]).sum()


def trainable(module: nn.Module) -> list[Tensor]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def moved(value: Tensor, inputs: list[Tensor]) -> bool:
    """Whether `value` has a gradient other than 0 with respect to any of `inputs`."""
    gradients = torch.autograd.grad(value, inputs, retain_graph=True, allow_unused=True)
    return any(g is not None and bool(g.abs().sum() > 0) for g in gradients)


class Table(nn.Module):
    """A network body that returns fixed logits, chosen by a test."""

    def __init__(self, logits: Tensor, features: Tensor | None = None) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits)  # (B, K, *S)
        self.given = torch.ones_like(logits[:, :1]) if features is None else features

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        count = image.shape[0]
        return self.logits[:count], self.given[:count], self.given[:count]


def table_network(logits: Tensor, features: Tensor | None = None) -> Network:
    body = Table(logits, features)
    channels = body.given.shape[1]
    return Network(
        body, dims=logits.dim() - 2, outputs=logits.shape[1], features=channels, trunk=channels
    )


class Slope(nn.Module):
    """A network body whose logits are a multiple of the image; it records inputs and modes."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.ones(()))
        self.dropout = nn.Dropout(0.5)
        self.norm = nn.BatchNorm2d(1, affine=False)
        self.seen: list[Tensor] = []
        self.modes: list[tuple[bool, bool]] = []  # of dropout and normalization

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.seen.append(image.detach())
        self.modes.append((self.dropout.training, self.norm.training))
        return self.slope * image, image, image


def slope_method(
    name: str, student: float = 1.0, teacher: float = 1.0, **settings: object
) -> Method:
    """A method whose student and teacher return multiples of the image."""
    method = build_with(
        name, lambda: Network(Slope(), dims=2, outputs=1, features=1, trunk=1), settings=settings
    )
    nn.init.constant_(method.network.body.slope, student)
    nn.init.constant_(method.teacher.body.slope, teacher)
    return method


def count_work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Numbers of crops that are cut, interpolated and changed in intensity from now on."""
    counts: Counter[str] = Counter()

    def counted(name: str, function: Any, size: Callable[..., int] = lambda *_: 1) -> Any:
        def wrapped(*args: Any, **options: Any) -> Any:
            counts[name] += size(*args)
            return function(*args, **options)

        return wrapped

    monkeypatch.setattr(Sampler, "covered_slices", counted("cut", Sampler.covered_slices))
    sample = counted("sample", F.grid_sample, lambda values, _: len(values))
    monkeypatch.setattr(F, "grid_sample", sample)
    for name in INTENSITY.keys() - set(DRAWING):
        monkeypatch.setitem(INTENSITY, name, counted("change", INTENSITY[name]))
    return counts


class Untouchable:
    """A label that must not be read: any access fails the test."""

    def __getattribute__(self, name: str) -> object:
        raise AssertionError(f"'{name}' of hidden data was read")

    def __getitem__(self, key: object) -> object:
        raise AssertionError("hidden data was read")

    def __len__(self) -> int:
        raise AssertionError("the length of hidden data was read")


@contextmanager
def no_file_larger_than(size: int) -> Iterator[None]:
    """Make the system cut writes short, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def without_onednn() -> Iterator[None]:
    """Compute with torch's own kernels.

    On CPUs without bfloat16, its gradients in oneDNN sometimes contain uninitialized memory.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")
        with torch.backends.mkldnn.flags(enabled=False):
            yield
