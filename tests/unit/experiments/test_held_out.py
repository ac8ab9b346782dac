"""Post-processing of held-out cases in cross-validation."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from unittest.mock import Mock

from segpl.engine.folder import RunFolder
from segpl.evaluate.postprocessing_file import (
    CheckpointComponents,
    LabelComponents,
    PostProcessing,
)
from segpl.experiments import folds
from segpl.records import write_json


@dataclass
class HeldOut:
    validation: tuple[str, ...] = ("a",)
    test: tuple[str, ...] = ()


@dataclass
class FoldRun:
    folder: RunFolder
    split: HeldOut = field(default_factory=HeldOut)
    open_dataset: Mock = field(default_factory=Mock)


def test_held_out_cases_do_not_choose_their_own_post_processing(tmp_path: Path, monkeypatch):
    """Their scores overrule the labels for later predictions, but not for the estimate."""
    run = FoldRun(RunFolder(tmp_path))
    overruled = CheckpointComponents(9, "hash of the weights", (), {})
    decided = PostProcessing({"organ": LabelComponents(3, 3, 0)}, ("organ",), {"last": overruled})
    write_json(run.folder.postprocessing, asdict(decided))
    monkeypatch.setattr(RunFolder, "weights_hash", lambda folder, name: overruled.weights)
    predicted = Mock(return_value=[])
    monkeypatch.setattr(folds, "predict_again", predicted)
    monkeypatch.setattr(folds, "score_masks", Mock())
    folds.score_held_out(run)
    assert predicted.call_args.kwargs["largest"] == ("organ",)
    assert predicted.call_args.args[0].split == HeldOut(validation=(), test=("a",))
