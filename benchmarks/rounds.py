"""Compare longer training, averaging, self-training and other pseudo-labels with the default.

python benchmarks/rounds.py --data DATASETS/Task04_Hippocampus --labeled 8 --seeds 1 2 3

All scores are Dice on validation cases, on the grid of the plan unless named otherwise. The test
cases of `default.toml` are left out. The seed draws the labeled cases, weights and crops; the
validation cases stay.
"""

from __future__ import annotations

import argparse
import math
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.sgd import sgd

from segpl.assembly import build_method, open_dataset, prepare_inputs
from segpl.data.augment import transform
from segpl.data.cache import Volume, load_volumes
from segpl.data.case import Case
from segpl.data.masks import class_index, largest_component
from segpl.data.plan import Plan
from segpl.data.prepare import class_indices, restore
from segpl.data.readers import read_label_on
from segpl.data.sampler import Sampler, place_volumes
from segpl.data.split import make_split
from segpl.display import TrainingDisplay
from segpl.engine.adam import Adam
from segpl.engine.device import choose_device, free_memory
from segpl.engine.folder import RunFolder
from segpl.engine.trainer import Trainer
from segpl.evaluate.validation import dice_by_class
from segpl.losses import cross_entropy, targets_of, voxelwise_entropy
from segpl.methods.base import Method, forward_together, mask_padding
from segpl.methods.bpl_mix import BPLMix
from segpl.methods.strong_view import make_strong_view
from segpl.predict.window import predict_windows
from segpl.settings import Config, resolve, with_overrides
from segpl.types import Batch, LabelSets, PseudoLabels, StepOutput, Unlabeled
from segpl.validate.postprocessing import label_components
from segpl.views.mixing import TrainingCrops

Maps = dict[str, Tensor]  # case -> (K, *S)
BINS = torch.tensor([0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99])  # lower limits of confidence, but 0
TARGET = 0.9  # precision of the voxels that `selected` keeps
SGD_RATES = (0.01, 0.03)
THRESHOLDS = [round(0.05 * number, 2) for number in range(2, 19)]  # for `decision`


class LargestComponents(BPLMix):
    """`bpl-mix` whose pseudo-labels keep only the largest component of some classes in a crop."""

    single: Sequence[int]  # channels of these classes

    def label(self, batch: Batch, progress: float) -> LabelSets:
        (made,) = super().label(batch, progress)
        target = made.target.cpu().numpy() > 0.5  # (U, K, *S)
        for crop in target:
            for channel in self.single:
                others = crop[channel] & ~largest_component(crop[channel])
                crop[channel] &= ~others
                if len(crop) > 1:
                    crop[0] |= others
        return (replace(made, target=torch.from_numpy(target).to(made.target)),)


class SoftTargets(BPLMix):
    """`bpl-mix` that learns the teacher's probabilities instead of pseudo-labels."""

    def label(self, batch: Batch, progress: float) -> LabelSets:
        unlabeled = self.unlabeled(batch)
        with torch.no_grad():
            target = self.teacher(unlabeled.image).logits.sigmoid()  # (U, K, *S)
        return (PseudoLabels(target, mask_padding(unlabeled, torch.ones_like(target))),)

    def objective(self, batch: Batch, pseudo: LabelSets, progress: float) -> StepOutput:
        labeled, outputs = batch.labeled, self.network.outputs
        view, moved, _ = make_strong_view(self.unlabeled(batch), pseudo[0], batch, self.settings)
        mixed = self.mix(
            TrainingCrops(labeled.image, *targets_of(labeled.label, outputs)),
            TrainingCrops(view, moved.target, moved.weight),
            batch.choices("mixing"),
        )
        on_labeled, on_mixed = forward_together(self.network, labeled.image, mixed.image)
        # predicting a soft target does not minimize the soft Dice loss
        loss = cross_entropy(on_mixed.logits, mixed.target, mixed.weight)
        return self.semi_supervised(batch, on_labeled, pseudo[0], loss, progress)


class GivenTargets(BPLMix):
    """`bpl-mix` whose E-step reads targets and weights that were made beforehand."""

    made: Sequence[Tensor]  # (K + 1, *S) for each unlabeled case: targets, then the weight
    sampler: Sampler
    taken: int

    def label(self, batch: Batch, progress: float) -> LabelSets:
        draws = self.sampler.draw(self.taken)
        crops = self.sampler.cut(
            [self.made[crop.volume] for crop in draws.unlabeled], draws.unlabeled
        )
        inside = self.sampler.inside(draws)
        maps, inside = transform(crops, inside, draws.unlabeled_geometry, self.sampler.classes)
        target, weight = maps[:, :-1], maps[:, -1:].expand_as(maps[:, :-1])
        return (PseudoLabels(target, mask_padding(Unlabeled(crops, inside), weight)),)

    def after_update(self, steps: int) -> None:
        self.taken = steps
        super().after_update(steps)


class SoftGivenTargets(GivenTargets, SoftTargets):
    """The targets of `GivenTargets` with the loss of `SoftTargets`."""


class Momentum(Adam):
    """SGD with the momentum and weight decay of nnU-Net [Isensee2021]."""

    @torch.no_grad()
    def step(self) -> None:
        changed = [index for index, weight in enumerate(self.weights) if weight.grad is not None]
        for index in changed:
            self.state.setdefault(index, {"momentum": torch.zeros_like(self.weights[index])})
        sgd(
            [self.weights[index] for index in changed],
            [grad for weight in self.weights if (grad := weight.grad) is not None],
            [self.state[index]["momentum"] for index in changed],
            weight_decay=3e-5,
            momentum=0.99,
            lr=self.lr,
            dampening=0,
            nesterov=True,
            maximize=False,
        )


@dataclass(frozen=True)
class Study:
    config: Config
    plan: Plan
    volumes: Mapping[str, Volume]
    labeled: Sequence[str]
    unlabeled: Sequence[str]
    validation: Mapping[str, Case]
    device: torch.device

    def train(
        self,
        labeled: Sequence[Volume],
        method: str = "bpl-mix",
        *,
        steps: int = 0,
        batch: int = 0,
        member: int = 0,
        kind: type[BPLMix] = BPLMix,
        made: Sequence[Tensor] = (),
        sgd_rate: float = 0.0,
    ) -> Method:
        """A trained method; `made` are the targets of the unlabeled cases, if not the teacher's.

        Members differ in weights and crops. `kind` is the variant of `bpl-mix`. `sgd_rate` replaces
        Adam by SGD.
        """
        known = self.config.train
        settings = replace(
            known,
            steps=steps or known.steps,
            batch=batch or known.batch,
            seed=known.seed + 1000 * member,
            lr=sgd_rate or known.lr,
        )
        config = replace(self.config, train=settings)
        if method != config.method:
            other = resolve({"method": {"name": method}})
            config = replace(config, method=method, settings=other.settings)
        model = build_method(config, self.plan)
        unlabeled = [replace(self.volumes[n], label=None, foreground=None) for n in self.unlabeled]
        placed = place_volumes([*labeled, *unlabeled], self.device, free_memory(self.device))
        crops = config.train.batch or self.plan.batch
        sampler = Sampler(
            labeled=placed[: len(labeled)],
            unlabeled=placed[len(labeled) :],
            patch=self.plan.patch,
            classes=len(self.plan.classes),
            labeled_crops=crops,
            unlabeled_crops=crops * config.train.ratio if model.needs_unlabeled else 0,
            foreground=config.train.foreground,
            augment=config.augment,
            seed=config.train.seed,
            device=self.device,
            mirror_axes=self.plan.mirror_axes,
            spacing=self.plan.spacing,
        )
        if kind is not BPLMix:
            model.__class__ = kind
            model.single, model.made, model.sampler, model.taken = self.single, made, sampler, 0
            # the other kinds infer no threshold
            model.latent.requires_grad_(kind is LargestComponents)
        with tempfile.TemporaryDirectory() as folder:
            display = TrainingDisplay(method, config.train.steps)
            trainer = Trainer(model, sampler, config.train, RunFolder(Path(folder)), display)
            if sgd_rate:
                trainer.optimizer = Momentum(trainer.optimizer.weights, sgd_rate)
            trainer.run()
        return model.eval()

    @property
    def single(self) -> list[int]:
        """The channels of the classes that have a single component in every given label."""
        components = label_components(
            self.given(), self.plan, {name: name for name in self.labeled}
        )
        first = 1 if self.plan.outputs > 1 else 0  # channel of the first foreground class
        return [n for n, found in enumerate(components.values(), start=first) if found.is_single]

    def given(self, but: Sequence[str] = ()) -> list[Volume]:
        return [self.volumes[name] for name in self.labeled if name not in but]

    @torch.no_grad()
    def predict(self, models: Sequence[Method], cases: Sequence[str], *, views: bool) -> Maps:
        """Mean probabilities of the models, over mirrored views if there are any."""
        axes = self.plan.mirror_axes if views else ()
        flips = [one for count in range(len(axes) + 1) for one in combinations(axes, count)]

        def mean(image: Tensor) -> Tensor:
            found = [
                predict_windows(image.flip(sides), model.predict, self.plan).flip(sides)
                for model in models
                for sides in ([1 + axis for axis in one] for one in flips)
            ]
            return torch.stack(found).mean(0)

        images = {name: np.array(self.volumes[name].image) for name in cases}
        return {
            name: mean(torch.from_numpy(image).to(self.device)) for name, image in images.items()
        }

    def largest(self, maps: Maps) -> Maps:
        """`maps` without all but the largest component of classes with a single one."""
        found = {name: one_hot(one) for name, one in maps.items()}
        for one in found.values():
            for channel in self.single:
                kept = torch.from_numpy(largest_component(one[channel].cpu().numpy() > 0))
                one[channel] *= kept.to(one)
        return found

    def mean_dice(self, maps: Maps) -> float:
        """Mean Dice of the foreground classes and cases of `maps`."""
        scores = [
            list(dice_by_class(found.cpu().numpy(), self.label(name), self.plan).values())
            for name, found in maps.items()
        ]
        return float(np.mean(scores))

    def label(self, name: str) -> NDArray[Any]:
        return np.asarray(self.volumes[name].label)

    def dice_on_files(self, maps: Maps) -> float:
        """Mean Dice on the grids of the files, which are the same for every plan."""
        scores = []
        for name, found in maps.items():
            grid = self.volumes[name].grid
            assert grid is not None
            array = read_label_on(grid, self.validation[name]).array
            truth = class_indices(array, self.plan.classes, self.plan.ignore)
            restored = restore(found.cpu().numpy(), grid, self.plan)
            scores.append([*dice_by_class(restored, truth, self.plan).values()])
        return float(np.mean(scores))


def normalized(maps: Tensor) -> Tensor:
    """Class probabilities (classes, *S) of the outputs (K, *S) of a network."""
    full = maps if len(maps) > 1 else torch.cat([1 - maps, maps])
    return full / full.sum(0)


def decide(maps: Maps, thresholds: Sequence[float]) -> Maps:
    """Scores (classes, *S) whose largest decides, given a threshold for each foreground class.

    The odds of a class are divided by those of its threshold, so 0.5 changes nothing.
    """
    odds = torch.tensor([1.0, *((1 - value) / value for value in thresholds)])
    return {
        name: normalized(found) * odds.to(found).view(-1, *[1] * (found.dim() - 1))
        for name, found in maps.items()
    }


def fit_thresholds(study: Study, maps: Maps) -> list[float]:
    """The threshold of each foreground class with the best Dice, fitted one after another."""
    best = [0.5] * (len(study.plan.classes) - 1)
    for k in range(len(best)):

        def quality(value: float, k: int = k) -> tuple[float, float]:
            found = study.mean_dice(decide(maps, [*best[:k], value, *best[k + 1 :]]))
            return found, -abs(value - 0.5)  # on ties, the closest to 0.5

        best[k] = max(THRESHOLDS, key=quality)
    return best


def one_hot(maps: Tensor) -> Tensor:
    index = torch.from_numpy(class_index(maps.cpu().numpy())).to(maps.device)
    classes = torch.arange(len(maps), device=maps.device) + (len(maps) == 1)
    return (index == classes.view(-1, *[1] * index.dim())).float()


def with_weight(target: Tensor, weight: Tensor | None = None) -> Tensor:
    weight = torch.ones_like(target[0]) if weight is None else weight
    return torch.cat([target, weight[None]])


def precision(hits: NDArray[Any], counts: NDArray[Any]) -> float:
    r"""Posterior mean precision, given the hits $h_i$ among $n_i$ voxels of each held-out scan.

    $$p(\mu, s \mid h) \propto \prod_i \mathrm{BetaBinomial}(h_i \mid n_i, s\mu, s(1 - \mu))$$

    with a uniform prior of $\mu$ and of $\log s$ on a grid. Voxels of a scan are not independent:
    $s$ is the number of voxels that a scan counts as.
    """
    kept = counts > 0
    h, n = (torch.tensor(part[kept], dtype=torch.float64) for part in (hits, counts))
    mu = torch.linspace(0.005, 0.995, 199, dtype=torch.float64).view(-1, 1, 1)
    s = torch.logspace(0, 3, 31, dtype=torch.float64).view(1, -1, 1)

    def log_beta(a: Tensor, b: Tensor) -> Tensor:
        return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)

    a, b = s * mu, s * (1 - mu)
    log = (log_beta(h + a, n - h + b) - log_beta(a, b)).sum(-1)  # (mu, s)
    weight = (log - log.max()).exp()
    return float((weight * mu[..., 0]).sum() / weight.sum())


def precision_table(study: Study, held_out: Maps, *, above: bool) -> Tensor:
    """Precision (classes, bins) of held-out predictions in each bin of confidence, or above it."""
    classes, bins = len(study.plan.classes), len(BINS) + 1
    hits, counts = np.zeros((2, classes, bins, len(held_out)))
    for number, (name, maps) in enumerate(held_out.items()):
        confidence, index = normalized(maps).cpu().max(0)
        place, label = (
            torch.bucketize(confidence, BINS, right=True),
            torch.from_numpy(study.label(name)),
        )
        for k in range(classes):
            for bin_number in range(bins):
                chosen = (index == k) & (place >= bin_number if above else place == bin_number)
                counts[k, bin_number, number] = chosen.sum()
                hits[k, bin_number, number] = (chosen & (label == k)).sum()
    pairs = zip(hits.reshape(-1, len(held_out)), counts.reshape(-1, len(held_out)), strict=True)
    return torch.tensor([precision(*pair) for pair in pairs]).view(classes, bins)


def look_up(table: Tensor, maps: Tensor) -> Tensor:
    confidence, index = normalized(maps).max(0)
    place = torch.bucketize(confidence, BINS.to(maps.device), right=True)
    return table.to(maps.device)[index, place].float()


def run_study(study: Study, variants: Sequence[str], folds: int, longer: int) -> dict[str, float]:
    """Dice of each variant; those after `folds` need the networks of the folds."""
    scores: dict[str, float] = {}

    def record(title: str, dice: float) -> None:
        scores[title] = dice
        print(f"{title}: {dice:.4f}", flush=True)

    def score(name: str, models: Sequence[Method]) -> Maps:
        """Record the Dice of a single view and, if any, of mirrored views; returns the last."""
        maps = study.predict(models, list(study.validation), views=False)
        record(name, study.mean_dice(maps))
        if study.plan.mirror_axes:
            maps = study.predict(models, list(study.validation), views=True)
            record(f"{name}, mirrored views", study.mean_dice(maps))
        if study.single:
            record(f"{name}, largest component", study.mean_dice(study.largest(maps)))
        record(f"{name}, grid of the files", study.dice_on_files(maps))
        return maps

    if {"default", "members", "decision"} & set(variants):
        default = study.train(study.given())
        maps = score("default", [default])
        record("decision, upper bound", study.mean_dice(decide(maps, fit_thresholds(study, maps))))
    for name in (name for name in variants if name in KINDS):
        score(name, [study.train(study.given(), kind=KINDS[name])])
    for rate in SGD_RATES if "sgd" in variants else ():
        score(f"SGD, learning rate {rate:g}", [study.train(study.given(), sgd_rate=rate)])
    if "members" in variants:
        more = [study.train(study.given(), member=number) for number in (1, 2)]
        for number, model in enumerate(more, start=1):
            score(f"member {number}", [model])
        score("mean of 3 members", [default, *more])
    if "longer" in variants:
        score(f"{longer} steps", [study.train(study.given(), steps=longer)])
    if not set(variants) - set(WITHOUT_FOLDS):
        return scores
    models, held_out = [], {}
    for number in range(folds):
        part = study.labeled[number::folds]
        models.append(study.train(study.given(but=part)))
        held_out |= study.predict(models[-1:], part, views=True)
    score("mean of the folds", models)
    if "decision" in variants:
        thresholds = fit_thresholds(study, held_out)
        record("decision", study.mean_dice(decide(maps, thresholds)))
        print(f"thresholds: {thresholds}", flush=True)
    rounds = [name for name in variants if name in ("supervised", *MAKERS)]
    each = [study.predict([model], study.unlabeled, views=True) for model in models if rounds]
    made = {name: torch.stack([maps[name] for maps in each]) for name in study.unlabeled if rounds}
    for name in rounds:
        if name == "supervised":
            extra = [made_volume(study.volumes[case], maps.mean(0)) for case, maps in made.items()]
            given = study.given() * max(1, round(len(extra) / 2 / len(study.labeled)))
            crops = 3 * (study.config.train.batch or study.plan.batch)
            score(name, [study.train([*given, *extra], "supervised", batch=crops)])
            continue
        targets = MAKERS[name](study, held_out)
        labels = [targets(maps) for maps in made.values()]
        kind = SoftGivenTargets if name == "soft" else GivenTargets
        score(name, [study.train(study.given(), kind=kind, made=labels)])
    return scores


def made_volume(volume: Volume, maps: Tensor) -> Volume:
    label = class_index(maps.cpu().numpy()).astype(np.int8)
    return replace(volume, label=label, foreground=np.argwhere(label > 0).astype(np.int32))


# from the maps of all folds (N, K, *S) to targets and weight (K + 1, *S)
Targets = Callable[[Tensor], Tensor]


def hard(study: Study, held_out: Maps) -> Targets:
    return lambda maps: with_weight(one_hot(maps.mean(0)))


def soft(study: Study, held_out: Maps) -> Targets:
    return lambda maps: with_weight(maps.mean(0))


def selected(study: Study, held_out: Maps) -> Targets:
    """Weights of 1 from the confidence on at which a class reaches the target precision."""
    reached = precision_table(study, held_out, above=True) >= TARGET  # (classes, bins)
    keeps = reached.int().cummax(1).values.float()
    return lambda maps: with_weight(one_hot(maps.mean(0)), look_up(keeps, maps.mean(0)))


def weighted(study: Study, held_out: Maps) -> Targets:
    """The weight is the precision of the class and confidence of each voxel."""
    table = precision_table(study, held_out, above=False)
    return lambda maps: with_weight(one_hot(maps.mean(0)), look_up(table, maps.mean(0)))


def agreed(study: Study, held_out: Maps) -> Targets:
    """Weights of 1 where the folds agree, and 0 where they contradict each other."""

    def make(maps: Tensor) -> Tensor:
        mean = maps.mean(0)
        maps, mean = maps.clamp(0, 1), mean.clamp(0, 1)  # blended windows may round beyond
        information = voxelwise_entropy(mean) - voxelwise_entropy(maps).mean(0)  # (K, *S)
        return with_weight(one_hot(mean), 1 - information.amax(0).clamp(min=0) / math.log(2))

    return make


MAKERS = {maker.__name__: maker for maker in (hard, soft, selected, weighted, agreed)}
KINDS = {"largest": LargestComponents, "soft-teacher": SoftTargets}
WITHOUT_FOLDS = ("default", *KINDS, "sgd", "members", "longer")
VARIANTS = (*WITHOUT_FOLDS, "folds", "decision", "supervised", *MAKERS)


def make_study(args: argparse.Namespace, seed: int) -> Study:
    device = choose_device(args.device)
    train = {"steps": args.steps, "batch": 4, "lr": 0.0025, "seed": seed, "device": args.device}
    content = {
        "data": {"path": str(args.data), "plan": args.plan},
        "split": {"labeled": args.labeled, "test": args.test},
        "train": train,
        "network": {"width": 32, "residual": True},
    }
    config = resolve(with_overrides(content, args.set))
    plan = prepare_inputs(config, None).plan
    dataset = open_dataset(config)
    pool = sorted(make_split(dataset, replace(config.split, labeled=0)).labeled)
    random.Random(1000).shuffle(pool)
    validation, rest = pool[: args.validation], pool[args.validation :]
    random.Random(seed).shuffle(rest)
    labeled, unlabeled = rest[: args.labeled], rest[args.labeled :]
    scored = {name: dataset.case(name) for name in validation}
    cases = [*(dataset.case(name) for name in labeled), *scored.values()]
    cases += [dataset.case(name).without_label() for name in unlabeled]
    volumes = load_volumes(cases, plan, labeled={*labeled, *validation})
    named = {volume.name: volume for volume in volumes}
    return Study(config, plan, named, labeled, unlabeled, scored, device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--plan", default="")
    parser.add_argument("--labeled", type=int, required=True)
    parser.add_argument("--validation", type=int, default=40)
    parser.add_argument("--test", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--longer", type=int, default=8000)
    parser.add_argument("--folds", type=int, default=4)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--set", nargs="+", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS)
    args = parser.parse_args()
    rows = []
    for seed in args.seeds:
        print(f"Seed {seed}")
        rows.append(run_study(make_study(args, seed), args.variants, args.folds, args.longer))
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:32} {np.mean(values):.4f}  {' '.join(f'{value:.4f}' for value in values)}")


if __name__ == "__main__":
    main()
