"""Measures of each unlabeled scan: uncertainty, disagreement and features."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from segpl.assembly import training_cases
from segpl.data.cache import Volume, load_volumes
from segpl.data.case import Case
from segpl.data.masks import Mask, class_index
from segpl.display import bar
from segpl.errors import InputError
from segpl.predict.familiarity import network_features
from segpl.predict.inference import finite_array
from segpl.predict.samples import Maps, Predict, network_probability
from segpl.predict.window import predict_windows
from segpl.run import Run


@dataclass(frozen=True, slots=True)
class ScanMeasures:
    """Measures of one scan. A labeled scan has only features, and an empty `class_entropy`."""

    case: str
    entropy: float  # mean over all voxels, in nats
    # mean over the voxels predicted as each foreground class; None if the class is not predicted
    class_entropy: tuple[float | None, ...]
    disagreement: float | None  # see `boundary_disagreement`; None with a single network
    features: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ScanPool:
    """The scans to choose from, and the features of those that have a label."""

    classes: tuple[str, ...]  # of the foreground
    scans: tuple[ScanMeasures, ...]
    labeled: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Candidates:
    """The training cases of a run by whether they have a label now."""

    unlabeled: tuple[Case, ...]
    labeled: tuple[Case, ...]


class MeasureStore:
    """Storage of measures; this base class stores nothing."""

    # held while the network predicts a scan, so that others can use it in between
    network: AbstractContextManager[object] = nullcontext()

    def find(self, case: Case) -> ScanMeasures | None:
        """Earlier measures of a scan, if they are still valid."""
        return None

    def add(self, case: Case, found: ScanMeasures) -> None:
        """Store the measures of a scan."""

    def add_mask(self, volume: Volume, index: NDArray[np.intp]) -> None:
        """Store the class indices (*S) of a scan, predicted from windows without overlap."""

    def tell(self, done: int, total: int) -> None:
        """Called before an unlabeled scan is measured."""

    def check(self) -> None:
        """Called after each scan is loaded and before it is measured; raises to stop."""


def measure_pool(
    run: Run, candidates: Candidates, *, quiet: bool = False, store: MeasureStore | None = None
) -> ScanPool:
    """Predict every unlabeled scan once. Reads no labels."""
    store = store or MeasureStore()
    found: dict[str, ScanMeasures] = {}
    for case in (*candidates.unlabeled, *candidates.labeled):
        known = store.find(case)
        if known and (known.class_entropy or case in candidates.labeled):
            found[case.name] = known
    new, labeled = (
        [case for case in cases if case.name not in found]
        for cases in (candidates.unlabeled, candidates.labeled)
    )
    with bar("preprocessing", len(new) + len(labeled), quiet=quiet) as advance:

        def loaded() -> None:
            store.check()
            advance()

        volumes = load_volumes([*new, *labeled], run.plan, labeled=(), advance=loaded)
    networks = Networks.of(run) if new else Networks((), ())
    with bar("predicting", len(new), quiet=quiet) as advance:
        for place, (case, volume) in enumerate(zip(new, volumes, strict=False)):
            store.check()
            total = len(candidates.unlabeled)
            store.tell(total - len(new) + place, total)
            with store.network:
                found[case.name], index = measure_scan(volume, run, networks)
            store.add_mask(volume, index)
            store.add(case, found[case.name])
            advance()
    for case, volume in zip(labeled, volumes[len(new) :], strict=True):
        store.check()
        with store.network:
            features = features_of(volume, run)
        found[case.name] = ScanMeasures(case.name, 0.0, (), None, features)
        store.add(case, found[case.name])
    return ScanPool(
        tuple(run.plan.classes)[1:],
        tuple(found[case.name] for case in candidates.unlabeled),
        tuple(found[case.name].features for case in candidates.labeled),
    )


def find_candidates(run: Run) -> Candidates:
    """Labels that are newer than the run count; those hidden from it (`split.labeled`) do not."""
    split, dataset = run.split, run.open_dataset()
    training_cases(dataset, split)  # raises if cases are missing
    has_label = {case.name for case in dataset.labeled} - set(split.hidden)
    unlabeled = tuple(name for name in split.unlabeled if name not in has_label)
    if not unlabeled:
        done = " any more: all of them have a label now" if split.unlabeled else ""
        raise InputError(
            f"{run.path} has no unlabeled scans{done}. Add scans to {dataset.root} and train again."
        )
    # a fold validates on labeled cases that the other folds train on
    known = (*split.labeled, *(split.validation if run.config.split.folds else ()))
    labeled = (*known, *(name for name in split.unlabeled if name in has_label))
    return Candidates(tuple(map(dataset.case, unlabeled)), tuple(map(dataset.case, labeled)))


@dataclass(frozen=True, slots=True)
class Networks:
    """All networks of a run, and which of them make its prediction."""

    predict: tuple[Predict, ...]
    predictors: tuple[int, ...]

    @classmethod
    def of(cls, run: Run) -> Networks:
        """The folds of a cross-validation if there are any, otherwise teacher and student."""
        folds = replace(run, quiet=True).fold_runs()
        if folds:
            members = tuple(one.method.predict for one in (run, *folds))
            return cls(members, tuple(range(len(members))))
        networks, predictors = run.method.networks(), run.method.predictors()
        used = [any(network is one for one in predictors) for network in networks]
        return cls(tuple(map(network_probability, networks)), tuple(np.flatnonzero(used).tolist()))


def measure_scan(
    volume: Volume, run: Run, networks: Networks
) -> tuple[ScanMeasures, NDArray[np.intp]]:
    """The measures of a scan, and the class indices (*S) that were predicted for them."""
    image = torch.from_numpy(np.array(volume.image))
    # no overlap: seams hardly matter, and an opened scan is predicted again
    maps = [
        finite_array(predict_windows(image, predict, run.plan, overlap=0, device=run.device))
        for predict in networks.predict
    ]
    mean = np.mean([maps[index] for index in networks.predictors], axis=0)
    entropy, index = class_distribution_entropy(mean), class_index(mean)
    masks = [index == number for number in range(1, len(run.plan.classes))]
    measures = ScanMeasures(
        volume.name,
        float(entropy.mean()),
        tuple(float(entropy[mask].mean()) if mask.any() else None for mask in masks),
        boundary_disagreement([class_index(one) for one in maps]) if len(maps) > 1 else None,
        features_of(volume, run),
    )
    return measures, index


def features_of(volume: Volume, run: Run) -> tuple[float, ...]:
    image = torch.from_numpy(np.array(volume.image))
    return network_features(run.method.predictors()[0], image, run.plan)


def class_distribution_entropy(maps: Maps) -> NDArray[np.floating[Any]]:
    """Entropy (*S) of the distribution over classes, in nats, from the outputs (K, *S)."""
    from scipy.special import entr

    full = maps if len(maps) > 1 else np.concatenate([1 - maps, maps])
    total = np.maximum(full.sum(0), np.finfo(np.float32).tiny)
    entropy: NDArray[np.floating[Any]] = entr(full / total).sum(0)
    return entropy


def boundary_disagreement(labels: Sequence[NDArray[np.intp]]) -> float:
    """Fraction of boundary voxels with different classes, from class indices (*S) per network.

    The boundary is that of either network of a pair, so 0 means equal masks and 1 masks that do
    not overlap. The mean over all pairs; a pair that finds no foreground agrees.
    """
    fractions = []
    for one, other in combinations(labels, 2):
        boundary = inner_boundary(one) | inner_boundary(other)
        fractions.append(float((one != other)[boundary].mean()) if boundary.any() else 0.0)
    return float(np.mean(fractions))


def inner_boundary(label: NDArray[np.intp]) -> Mask:
    """Foreground voxels with a neighbor of another class along an axis."""
    found: Mask = np.zeros(label.shape, bool)
    for axis in range(label.ndim):
        moved, edges = np.moveaxis(label, axis, 0), np.moveaxis(found, axis, 0)
        differs = moved[1:] != moved[:-1]
        edges[1:] |= differs
        edges[:-1] |= differs
    return found & (label > 0)
