"""Measure how well the networks of a run agree on unlabeled cases, at the end of training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.data.masks import class_index
from segpl.data.plan import Plan
from segpl.data.sampler import Resident
from segpl.engine.folder import RunFolder
from segpl.engine.log import read_log
from segpl.errors import InputError, MissingFileError
from segpl.evaluate.agreement import ClassAgreement, NetworkAgreement, read_agreement
from segpl.evaluate.metrics import dice
from segpl.predict.samples import network_probability
from segpl.predict.sampling_choice import TrainedRun
from segpl.predict.window import predict_windows
from segpl.records import write_json

PASSES = 15  # windows per requested case, over all networks: seconds, not minutes


def network_agreement(
    folder: RunFolder, volumes: Mapping[str, Resident], run: TrainedRun, *, limit: int
) -> NetworkAgreement:
    """Agreement on up to `limit` unlabeled `volumes`, saved as `agreement.json`.

    An existing record of the same weights and limit is returned as it is.
    """
    weights = folder.weights_hash("last")
    with suppress(InputError, MissingFileError):
        record = read_agreement(folder.agreement)
        if (record.weights, record.limit) == (weights, limit):
            return record
    record = replace(measure_agreement(volumes, run, limit=limit), weights=weights)
    log = read_log(folder.log)
    if (std := log.get("threshold_std", [0.0])[-1]) > 0:  # learned
        record = replace(record, threshold=log["threshold"][-1], threshold_std=std)
    write_json(folder.agreement, asdict(record))
    return record


def measure_agreement(
    volumes: Mapping[str, Resident], run: TrainedRun, *, limit: int
) -> NetworkAgreement:
    """Predict up to `limit` volumes with every network, and compare the masks."""
    method, plan = run.method, run.plan
    networks = method.named_networks()
    cases = select_cases(volumes, plan, len(networks), limit)
    found: dict[str, list[CaseAgreement]] = {name: [] for name in list(plan.classes)[1:]}
    was_training = method.training
    method.eval()
    try:
        for case in cases:
            prediction, labels = predict_with_each(on_device(volumes[case], run.device), run)
            for index, name in enumerate(found, start=1):
                found[name].append(case_agreement(prediction, labels, index))
    finally:
        method.train(was_training)
    return NetworkAgreement(
        limit=limit,
        cases=tuple(cases),
        too_large=min(limit, len(volumes)) - len(cases),
        networks=tuple(networks),
        classes={name: over_cases(each) for name, each in found.items()},
    )


def select_cases(
    volumes: Mapping[str, Resident], plan: Plan, networks: int, limit: int
) -> list[str]:
    """Up to `limit` names, evenly spaced in the list, skipping volumes that exceed the budget."""
    count = min(limit, len(volumes))
    names = [list(volumes)[index * len(volumes) // count] for index in range(count)]
    budget, chosen = PASSES * limit, []
    for name in names:
        passes = networks * count_windows(volumes[name].shape, plan.patch)
        if passes <= budget:
            budget -= passes
            chosen.append(name)
    return chosen


def count_windows(shape: Sequence[int], patch: Sequence[int]) -> int:
    """Number of windows without overlap that cover a volume."""
    return math.prod(math.ceil(size / side) for size, side in zip(shape, patch, strict=True))


def on_device(volume: Resident, device: torch.device) -> Tensor:
    image = volume.image
    return (image if isinstance(image, Tensor) else torch.from_numpy(np.array(image))).to(device)


def predict_with_each(
    image: Tensor, run: TrainedRun
) -> tuple[NDArray[np.float32], list[NDArray[np.intp]]]:
    """Probabilities (K, *S) of the prediction, and class indices (*S) of every network."""
    predictors = run.method.predictors()
    labels, members = [], []
    for network in run.method.named_networks().values():
        # no overlap: these masks are not kept, so seams do not matter
        own = (
            predict_windows(image, network_probability(network), run.plan, overlap=0).cpu().numpy()
        )
        labels.append(class_index(own))
        if any(network is one for one in predictors):
            members.append(own)
    return np.mean(members, axis=0), labels


@dataclass(frozen=True, slots=True)
class CaseAgreement:
    """One class in one case; None if the class was not found."""

    agreement: float | None
    confidence: float | None


def case_agreement(
    prediction: NDArray[np.float32], labels: Sequence[NDArray[np.intp]], index: int
) -> CaseAgreement:
    """Mean Dice over pairs of networks, and mean probability of the voxels of class `index`.

    A pair in which neither network finds the class does not count: a collapsed run would
    otherwise agree perfectly.
    """
    masks = [label == index for label in labels]
    pairs = [(one, other) for one, other in combinations(masks, 2) if one.any() or other.any()]
    predicted = class_index(prediction) == index
    channel = prediction[0 if len(prediction) == 1 else index]
    return CaseAgreement(
        statistics.fmean(dice(*pair) for pair in pairs) if pairs else None,
        float(channel[predicted].mean()) if predicted.any() else None,
    )


def over_cases(cases: Sequence[CaseAgreement]) -> ClassAgreement:
    agreements = [case.agreement for case in cases if case.agreement is not None]
    confidences = [case.confidence for case in cases if case.confidence is not None]
    return ClassAgreement(
        found=len(confidences),
        agreement=statistics.fmean(agreements) if agreements else None,
        lowest=min(agreements, default=None),
        confidence=statistics.fmean(confidences) if confidences else None,
    )
