"""Scores and predictions in a run folder, as far as they belong to its weights."""

from __future__ import annotations

from dataclasses import replace

from segpl.data.layouts.base import image_files
from segpl.data.manifest import Manifest, PredictedCase, read_manifest
from segpl.data.split import Split
from segpl.engine.folder import RunFolder
from segpl.errors import InputError, count_noun, name_some
from segpl.evaluate.scores import Score, read_scores

MASK_FOLDERS = ("predictions", "samples")
SCORE_FILES = ("scores.csv", "predictions/scores.csv")
OUTDATED_AFTER = 60.0  # seconds; copying a folder may change the order of its files
RENEW = "Score again with `segpl report --fill` or `segpl evaluate`."


def current_predictions(folder: RunFolder) -> dict[str, PredictedCase]:
    """Predictions by the weights of the run; those in `predictions` come before `samples`."""
    found: dict[str, PredictedCase] = {}
    for name in MASK_FOLDERS:
        manifest = read_manifest(folder.path / name)
        if manifest is not None:
            require_own_weights(folder, manifest, name)
            files = {
                case: replace(one, summary=one.summary and manifest.calibration.apply(one.summary))
                for case, one in manifest.files.items()
                if not one.outdated
            }
            found = {**files, **found}
    return found


def current_scores(folder: RunFolder, split: Split | None) -> tuple[list[Score], list[str]]:
    """Scores of cases that were not labeled in training, and what to know about them.

    If two files score a case, the newer one counts.
    """
    found = [path for name in SCORE_FILES if (path := folder.path / name).is_file()]
    if not found:
        raise InputError(
            "no case was held out for testing. Train with --test N, or score other labeled scans "
            f"with `segpl predict {folder.path} SCANS --out {folder.path}/predictions` and `segpl "
            f"evaluate {folder.path}/predictions LABELS`."
            if split is not None and not split.test
            else f"there is no {SCORE_FILES[0]}. Write it with `segpl report --fill`, or with "
            "`segpl predict` and `segpl evaluate`."
        )
    if (manifest := read_manifest(folder.path / "predictions")) is not None:
        require_own_weights(folder, manifest, "predictions")
    values: dict[tuple[str, str, str], Score] = {}
    for path in sorted(found, key=lambda path: path.stat().st_mtime):
        values |= {(s.case, s.class_name, s.metric): s for s in read_scores(path)}
    if not values:
        raise InputError(f"{found[0]} has no rows.")
    labeled = set(split.labeled) if split else set()
    scores = [score for score in values.values() if score.case not in labeled]
    if not scores:
        raise InputError(
            "every scored case was labeled in training, so the scores do not measure performance "
            "on new scans."
        )
    notes = []
    if seen := {score.case for score in values.values()} & labeled:
        notes.append(
            f"scores of {count_noun(len(seen), 'case')} labeled in training are left out: "
            f"{name_some(sorted(seen), 3)}."
        )
    latest = max(path.stat().st_mtime for path in found) + OUTDATED_AFTER
    files = [folder.last] if folder.last.exists() else []
    files += image_files(folder.path / "predictions")
    if newer := [path for path in files if path.stat().st_mtime > latest]:
        name = newer[0].relative_to(folder.path).as_posix()
        notes.append(f"scores may be outdated: {name} is newer. {RENEW}")
    return scores, notes


def require_own_weights(folder: RunFolder, manifest: Manifest, name: str) -> None:
    """Raise if the masks are of other weights than those of the run, or of its first fold."""
    checkpoints = sorted(folder.path.glob("**/checkpoints/*.safetensors"))
    if manifest.run is None or not checkpoints:
        return  # written by hand, or nothing to compare with
    first, *_ = manifest.run.split(" + ")  # the others are averaged with it
    for path in checkpoints:
        weights = RunFolder(path.parent.parent).weights_hash(path.stem)
        if f"#{path.stem}@{weights}" in first:
            return
    raise InputError(
        f"the masks in {name} were predicted with other weights than those of the run. Predict and "
        "score again with `segpl report --fill`."
    )
