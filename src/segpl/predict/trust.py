"""How sure a training is in the end, where no validation case can tell how right it is.

    trust.json   {"weights": ..., "cases": [...], "classes": {"liver": {"agreement": ...}}, ...}

Networks of one method look at unlabeled cases: how far do they agree, and how sure is what they
predict? It is cheap and needs no label, and says nothing about accuracy.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import combinations
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segpl.data.plan import Plan
from segpl.data.sampler import Resident
from segpl.engine.run import RunFolder
from segpl.errors import InputError, MissingFileError
from segpl.evaluate.metrics import dice
from segpl.files import read_json, write_json
from segpl.methods.base import Method
from segpl.networks.network import Network
from segpl.predict.samples import Predict
from segpl.predict.window import predict_windows
from segpl.report.runs import read_log
from segpl.types import NetOutput

PASSES = 15  # windows of a network for each case that is asked for: seconds, not minutes
NOTE = "This is no accuracy: networks can agree, be sure, and be wrong."
Labels = NDArray[np.intp]  # (*S) of class indices


class Model(Protocol):
    """A run, as far as it matters here."""

    @property
    def method(self) -> Method: ...
    @property
    def plan(self) -> Plan: ...
    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True, slots=True)
class ClassTrust:
    """What is known of one class over the cases that were looked at."""

    found: int  # cases in which the prediction has it
    agreement: float | None  # mean Dice between networks, over cases in which one of them has it
    lowest: float | None  # of these cases
    confidence: float | None  # mean probability of the voxels that are predicted as this class


@dataclass(frozen=True, slots=True)
class Trust:
    """How far the networks of a method agree on unlabeled cases, and how sure they are."""

    cases: tuple[str, ...]  # that were looked at
    too_large: int  # cases that would have taken too long
    networks: tuple[str, ...]  # their names; a single one agrees with nobody
    classes: dict[str, ClassTrust]  # all but the background
    threshold: float | None = None  # of the pseudo-labels, in the end of the training
    threshold_std: float | None = None  # None: there is none, or it is fixed


def trust_in(folder: RunFolder, volumes: Mapping[str, Resident], model: Model, *, most: int) -> str:
    """Look at up to `most` unlabeled `volumes`, keep what was seen, and say it in words.

    A run whose weights are those that `trust.json` speaks of is not looked at again.
    """
    weights = folder.weights("last")
    with suppress(InputError, MissingFileError):  # missing or of no use: written anew
        known = kept_answers(folder)
        if (known.get("weights"), known.get("asked")) == (weights, most) and "words" in known:
            return str(known["words"])
    trust = look_at_unlabeled(volumes, model, most=most)
    log = read_log(folder.training.log)
    spread = log.get("threshold_std", [0.0])[-1]
    if spread > 0:
        trust = replace(trust, threshold=log["threshold"][-1], threshold_std=spread)
    said = trust_words(trust)
    kept = {"weights": weights, "asked": most, **asdict(trust), "words": said}
    write_json(folder.trust, kept)
    return said


def read_trust(folder: RunFolder) -> Trust | None:
    """What a run has kept; None without the file. Of other weights than the last it is refused."""
    if not folder.trust.exists():
        return None
    known = kept_answers(folder)
    if folder.training.last.exists() and known.get("weights") != folder.weights("last"):
        raise InputError(
            f"{folder.trust.name} speaks of other weights than the last checkpoint. `segpl train "
            f"--out {folder.path} --resume` looks again."
        )
    return Trust(
        tuple(known["cases"]),
        known["too_large"],
        tuple(known["networks"]),
        {name: ClassTrust(**content) for name, content in known["classes"].items()},
        known["threshold"],
        known["threshold_std"],
    )


def kept_answers(folder: RunFolder) -> dict[str, Any]:
    """What `trust.json` holds, of the shape in which `trust_in` writes it."""
    try:
        known = read_json(folder.trust)
        wrong = misshapen(known)
    except InputError:
        known, wrong = None, "no JSON"
    if not wrong:
        return dict(known)
    raise InputError(
        f"{folder.trust} holds {wrong}: it was cut or edited. `segpl train --out {folder.path} "
        "--resume` writes it anew; or delete it."
    )


def misshapen(known: object) -> str:
    """What of this could not be a `Trust`; nothing where all of it can."""
    if not isinstance(known, dict):
        return "no table"
    shapes: dict[str, Callable[[Any], bool]] = {
        "cases": are_texts,
        "too_large": is_count,
        "networks": are_texts,
        "classes": lambda value: isinstance(value, dict) and all(map(is_class, value.values())),
        "threshold": is_known_number,
        "threshold_std": is_known_number,
    }
    absent = [name for name in shapes if name not in known]
    if absent:
        return f"no '{absent[0]}'"
    wrong = [name for name, fits in shapes.items() if not fits(known[name])]
    return f"a '{wrong[0]}' that is {known[wrong[0]]!r:.40}" if wrong else ""


def are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_known_number(value: object) -> bool:
    """A number, or None for one that is not known."""
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def is_class(value: object) -> bool:
    names = [one.name for one in fields(ClassTrust)]
    return (
        isinstance(value, dict)
        and sorted(value) == sorted(names)
        and is_count(value["found"])
        and all(is_known_number(value[name]) for name in names)
    )


def look_at_unlabeled(volumes: Mapping[str, Resident], model: Model, *, most: int) -> Trust:
    """Ask all networks of a method about up to `most` of the unlabeled `volumes`.

    Cases are taken evenly from the list, and passed over where their windows, times the networks,
    would exceed what `most` cases may take.
    """
    method, plan = model.method, model.plan
    networks = method.named_networks()
    leading = [n for n, one in networks.items() if any(one is p for p in method.predictors())]
    chosen = affordable(volumes, plan, len(networks), most)
    scores: dict[str, list[Opinion]] = {name: [] for name in list(plan.classes)[1:]}
    was_training = method.training
    method.eval()
    try:
        for name in chosen:
            image = on_device(volumes[name], model.device)
            labels, answer = {}, torch.zeros(())
            for title, network in networks.items():
                # side by side: seams do not matter where nobody keeps the masks
                own = predict_windows(image, probabilities(network), plan, overlap=0)
                labels[title] = labels_of(own, plan)
                if title in leading:
                    answer = answer + own.cpu() / len(leading)  # (K, *S)
            for index, found in enumerate(scores.values(), start=1):
                found.append(opinion(answer, list(labels.values()), index, plan))
    finally:
        method.train(was_training)
    asked = min(most, len(volumes))
    return Trust(
        tuple(chosen),
        asked - len(chosen),
        tuple(networks),
        {name: summarized(found) for name, found in scores.items()},
    )


def affordable(volumes: Mapping[str, Resident], plan: Plan, networks: int, most: int) -> list[str]:
    """Names of up to `most` volumes, evenly from the list, as far as the passes go."""
    count = min(most, len(volumes))
    names = [list(volumes)[index * len(volumes) // count] for index in range(count)]
    left, chosen = PASSES * most, []
    for name in names:
        passes = networks * windows_of(volumes[name].shape, plan.patch)
        if passes <= left:
            left -= passes
            chosen.append(name)
    return chosen


def windows_of(shape: Sequence[int], patch: Sequence[int]) -> int:
    """How many windows, side by side, cover a volume."""
    return math.prod(math.ceil(size / side) for size, side in zip(shape, patch, strict=True))


def on_device(volume: Resident, device: torch.device) -> Tensor:
    image = volume.image
    return (image if isinstance(image, Tensor) else torch.from_numpy(np.array(image))).to(device)


def probabilities(network: Network) -> Predict:
    def predict(windows: Tensor) -> Tensor:
        output: NetOutput = network(windows)
        return output.logits.sigmoid()

    return predict


def labels_of(answer: Tensor, plan: Plan) -> Labels:
    """Class indices (*S) of probabilities (K, *S)."""
    found = (answer[0] > 0.5).long() if plan.outputs == 1 else answer.argmax(0)
    labels: Labels = found.cpu().numpy()
    return labels


@dataclass(frozen=True, slots=True)
class Opinion:
    """Of one class in one case; None where there is nothing to speak of."""

    agreement: float | None
    confidence: float | None


def opinion(answer: Tensor, labels: Sequence[Labels], index: int, plan: Plan) -> Opinion:
    """How far `labels` of several networks agree, and how sure the prediction `answer` is.

    Two networks that both find nothing agree on nothing: they are no reason for trust.
    """
    masks = [one == index for one in labels]
    pairs = [(one, other) for one, other in combinations(masks, 2) if one.any() or other.any()]
    agreement = statistics.fmean(dice(*pair) for pair in pairs) if pairs else None
    predicted = labels_of(answer, plan) == index
    if not predicted.any():
        return Opinion(agreement, None)
    channel = answer[0 if plan.outputs == 1 else index].numpy()  # (*S)
    return Opinion(agreement, float(channel[predicted].mean()))


def summarized(found: Sequence[Opinion]) -> ClassTrust:
    agreements = [one.agreement for one in found if one.agreement is not None]
    confidences = [one.confidence for one in found if one.confidence is not None]
    return ClassTrust(
        len(confidences),
        statistics.fmean(agreements) if agreements else None,
        min(agreements, default=None),
        statistics.fmean(confidences) if confidences else None,
    )


def trust_words(trust: Trust) -> str:
    """In sentences: how far networks agree, how sure they are, and what that does not mean."""
    if not trust.cases:
        return (
            f"How sure it is on unlabeled cases was not asked: {trust.too_large} of them would "
            "take too long. A higher train.trust gives it more time."
        )
    classes = trust.classes
    sentences = [
        agreement_words(trust.networks, classes),
        listed(
            "a voxel called {name} has a probability of {value:.2f} on average",
            {name: known.confidence for name, known in classes.items()},
        ),
        *(
            f"{name} was found in {known.found or 'none'} of them"
            for name, known in classes.items()
            if known.found < len(trust.cases)
        ),
    ]
    threshold = ""
    if trust.threshold is not None:
        threshold = (
            f" The threshold of the pseudo-labels ended at {trust.threshold:.2f}, with a spread of "
            f"{trust.threshold_std:.2f}."
        )
    looked = f"On {len(trust.cases)} unlabeled case{'s' if len(trust.cases) > 1 else ''}: "
    return looked + "; ".join(filter(None, sentences)) + "." + threshold + f" {NOTE}"


def agreement_words(networks: Sequence[str], classes: Mapping[str, ClassTrust]) -> str:
    if len(networks) == 1:
        return ""
    who = " and ".join(networks) if len(networks) == 2 else f"the {len(networks)} networks"
    return listed(
        who + " agree on {name} with a Dice of {value:.2f}",
        {name: known.agreement for name, known in classes.items()},
    )


def listed(sentence: str, values: Mapping[str, float | None]) -> str:
    """`sentence` about a class; about several, the lowest one and the mean."""
    known = {name: value for name, value in values.items() if value is not None}
    if not known:
        return ""
    least = min(known, key=lambda name: known[name])
    said = sentence.format(name=least, value=known[least])
    if len(known) == 1:
        return said
    mean = statistics.fmean(known.values())
    return f"{said} (the lowest of {len(known)} classes; their mean is {mean:.2f})"
