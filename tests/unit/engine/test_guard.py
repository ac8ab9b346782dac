"""`train.guard=pause` stops learning from pseudo-labels while they are out of range."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import test_trainer
import torch
from test_trainer import Ones, Recorder

from segpl.engine.checkpoint import read_checkpoint
from segpl.engine.trainer import Trainer, TrainSettings
from segpl.errors import UnknownNameError
from segpl.types import Batch, StepOutput, Term

LOST = range(4, 12)  # steps whose pseudo-labels have no foreground


class Losing(Recorder):
    """Pseudo-labels lose the foreground for a while; only their term moves the weight up."""

    def objective(self, batch: Batch, pseudo: object, progress: float) -> StepOutput:
        super().objective(batch, pseudo, progress)
        level = self.network(batch.labeled.image).logits.mean()
        share = 0.0 if round(progress * 20) in LOST else 0.1
        return StepOutput(
            {"supervised": Term(level**2), "pseudo": Term(-3 * level, 2.0)},
            {"pseudo_foreground": torch.tensor(share)},
        )


def trainer_in(folder: Path, guard: str, *, dies_at: int | None = None, every: int = 5) -> Trainer:
    """Validates as well, so that the checkpoint stores both facts."""
    settings = {"guard": guard, "checkpoint_every": every, "validate": lambda step: step / 20}
    return test_trainer.trainer_in(folder, Losing(), sampler=Ones(dies_at), **settings)


def weights_in_the_log(trainer: Trainer) -> list[float]:
    with trainer.folder.log.open(newline="", encoding="utf-8") as handle:
        return [float(row["pseudo.weight"]) for row in csv.DictReader(handle)]


def test_pseudo_term_has_weight_0_during_the_pause(tmp_path):
    """The fifth line without foreground is line 9; the first line back in range is line 13."""
    trainer = trainer_in(tmp_path, "pause")
    trainer.run()
    assert weights_in_the_log(trainer) == [2.0] * 9 + [0.0] * 4 + [2.0] * 7
    assert ["step 9" in words for words in trainer.observer.warnings] == [True, False]
    assert "step 13: the pseudo-labels are back in range" in trainer.observer.warnings[1]


def test_gradient_of_a_paused_step_comes_from_the_other_terms(tmp_path):
    trainer = trainer_in(tmp_path, "pause", dies_at=10)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    method = trainer.method
    assert method.weight.grad.item() == pytest.approx(2 * method.before[9], rel=1e-4)


def test_guard_warn_keeps_the_weight_and_stores_no_facts(tmp_path):
    trainer = trainer_in(tmp_path, "warn")
    trainer.run()
    assert set(weights_in_the_log(trainer)) == {2.0}
    assert len(trainer.observer.warnings) == 1
    assert "guard" not in read_checkpoint(trainer.folder.last).facts


@pytest.mark.parametrize("stop", [8, 11, 14], ids=["counting", "paused", "after the pause"])
@pytest.mark.parametrize("every", [1, 5])
def test_resumed_run_pauses_at_the_same_steps(tmp_path, stop, every):
    whole = trainer_in(tmp_path / "whole", "pause", every=every)
    whole.run()
    with pytest.raises(KeyboardInterrupt):
        trainer_in(tmp_path / "cut", "pause", dies_at=stop, every=every).run()
    cut = trainer_in(tmp_path / "cut", "pause", every=every)
    cut.resume()
    assert cut.step == stop // every * every
    cut.run()
    assert cut.folder.log.read_text() == whole.folder.log.read_text()
    assert torch.equal(cut.method.weight, whole.method.weight)
    assert cut.facts == whole.facts
    assert cut.facts["best_step"] == 20


def test_unknown_guard_suggests_the_nearest_one():
    with pytest.raises(
        UnknownNameError, match=r"no train.guard named 'paus'. Did you mean 'pause'"
    ):
        TrainSettings(guard="paus")
