from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from segpl.engine.checkpoint import read_checkpoint
from segpl.engine.folder import RunFolder
from segpl.engine.trainer import Trainer, TrainSettings, with_layout
from segpl.errors import DivergedError
from segpl.methods.base import Method
from segpl.networks.fused import CHANNELS_LAST
from segpl.networks.network import Network
from segpl.types import Batch, Labeled, PseudoLabels, StepOutput, Term, Unlabeled

START = 1.0  # initial value of the only weight


class Slope(nn.Module):
    """One weight that multiplies the image."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 1, bias=False)
        nn.init.constant_(self.layer.weight, START)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.layer(image), image, image


def descend(level: Tensor) -> StepOutput:
    """A constant gradient of 1, so that Adam moves the weight by the learning rate."""
    return StepOutput({"supervised": Term(level)})


def curve(level: Tensor) -> StepOutput:
    """A changing gradient, so that the update depends on the state of Adam."""
    return StepOutput({"supervised": Term(level**2)})


def collapse(level: Tensor) -> StepOutput:
    return StepOutput(
        {"supervised": Term(level), "pseudo": Term(level, 0.1)},
        {"pseudo_foreground": torch.tensor(0.0)},
    )


class Recorder(Method):
    """Records what the trainer does to it; its objective is `terms` of the mean logit."""

    name = "recorder"
    summary = "for tests"

    def __init__(self, terms: Callable[[Tensor], StepOutput] = descend) -> None:
        super().__init__(
            lambda: Network(Slope(), dims=2, outputs=1, features=1, trunk=1), self.Settings()
        )
        self.terms = terms
        self.progress: list[float] = []
        self.draws: list[float] = []
        self.autocast: list[bool] = []
        self.before: list[float] = []
        self.after: list[float] = []
        self.counts: list[int] = []

    @property
    def weight(self) -> nn.Parameter:
        return self.network.body.layer.weight

    def objective(self, batch: Batch, pseudo: object, progress: float) -> StepOutput:
        self.progress.append(progress)
        self.draws.append(torch.rand(()).item())
        self.autocast.append(torch.is_autocast_enabled("cpu"))
        self.before.append(self.weight.item())
        return self.terms(self.network(batch.labeled.image).logits.mean())

    def after_update(self, steps: int) -> None:
        self.counts.append(steps)
        self.after.append(self.weight.item())


class Broken(Recorder):
    """Its weight becomes infinite after `steps`, while the term of that step is still finite."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def after_update(self, steps: int) -> None:
        super().after_update(steps)
        if len(self.after) == self.steps:
            nn.init.constant_(self.weight, float("inf"))


class Ones:
    """A sampler whose images make the mean logit equal to the weight."""

    device = torch.device("cpu")
    hidden = ()
    is_resident = True

    def __init__(self, dies_at: int | None = None) -> None:
        self.asked: list[int] = []
        self.dies_at = dies_at

    def batch(self, step: int) -> Batch:
        if step == self.dies_at:
            raise KeyboardInterrupt
        self.asked.append(step)
        image = torch.ones(1, 1, 4, 4)
        label = torch.ones(1, 4, 4, dtype=torch.int64)
        generator = torch.Generator().manual_seed(step)
        return Batch(Labeled(image, label), Unlabeled(image), generator)


class Listener:
    def __init__(self) -> None:
        self.rows: dict[int, dict[str, float]] = {}
        self.steps: list[int] = []
        self.warnings: list[str] = []

    def on_log(self, step, row) -> None:
        self.rows[step] = dict(row)

    def on_step(self, step) -> None:
        self.steps.append(step)

    def on_warning(self, message) -> None:
        self.warnings.append(message)


def trainer_in(folder: Path, method=None, *, sampler=None, validate=None, **settings) -> Trainer:
    folder.mkdir(exist_ok=True)
    chosen = {"steps": 20, "lr": 0.01, "log_every": 1, "checkpoint_every": 10, "compile": "off"}
    return Trainer(
        method or Recorder(),
        sampler or Ones(),
        TrainSettings(**{**chosen, "precision": "float32", **settings}),
        RunFolder(folder),
        Listener(),
        validate,
        foreground={"organ": 0.1},
    )


def trained(folder: Path, method=None, **settings) -> Trainer:
    trainer = trainer_in(folder, method, **settings)
    trainer.run()
    return trainer


def resumed_at_ten(folder: Path, terms=descend, **settings) -> Trainer:
    """A run interrupted at step 15 and resumed from its checkpoint of step 10."""
    with pytest.raises(KeyboardInterrupt):
        trainer_in(folder, Recorder(terms), sampler=Ones(dies_at=15), **settings).run()
    torch.rand(7)  # a new process has another random state
    trainer = trainer_in(folder, Recorder(terms), **settings)
    trainer.resume()
    trainer.run()
    return trainer


def logged(trainer: Trainer) -> list[dict[str, float]]:
    with trainer.folder.log.open(newline="", encoding="utf-8") as handle:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(handle)]


def test_progress_is_the_fraction_of_finished_steps(tmp_path):
    assert trained(tmp_path, steps=4).method.progress == [0, 0.25, 0.5, 0.75]


def test_observer_sees_every_step(tmp_path):
    assert trained(tmp_path, steps=4, log_every=2).observer.steps == [1, 2, 3, 4]


def test_learning_rate_decays_by_the_given_power(tmp_path):
    method = trained(tmp_path, steps=5, lr=0.1, lr_decay=2.0).method
    moves = [b - a for b, a in zip(method.before, method.after, strict=True)]
    wanted = [0.1 * (1 - step / 5) ** 2 for step in range(5)]
    assert moves == pytest.approx(wanted, abs=1e-5)


def test_log_shows_the_learning_rate_of_its_last_step(tmp_path):
    trainer = trained(tmp_path, steps=4, lr=0.1, lr_decay=1.0, log_every=2)
    assert [row["lr"] for row in logged(trainer)] == pytest.approx([0.075, 0.025])


@pytest.mark.parametrize("has_amx", [False, True])
def test_bfloat16_on_request_is_used_and_warned_about_where_it_is_emulated(
    tmp_path, monkeypatch, has_amx
):
    monkeypatch.setattr("segpl.engine.device.has_amx", lambda: has_amx)
    trainer = trained(tmp_path, steps=3, precision="bfloat16")
    assert trainer.method.autocast == [True] * 3
    words = ["train.precision=float32" in warning for warning in trainer.observer.warnings]
    assert words == ([] if has_amx else [True])
    record = trainer.folder.environment
    assert record.exists() != has_amx
    assert has_amx or "train.precision=float32" in record.read_text()


def test_step_runs_in_bfloat16_on_a_cpu_with_amx(tmp_path, monkeypatch):
    monkeypatch.setattr("segpl.engine.device.has_amx", lambda: True)
    assert trained(tmp_path, steps=3, precision="auto").method.autocast == [True] * 3


def test_update_runs_outside_autocast(tmp_path):
    inside = []

    class Teacher(Recorder):
        def after_update(self, steps: int) -> None:
            inside.append(torch.is_autocast_enabled("cpu"))

    trained(tmp_path, Teacher(), steps=2, precision="bfloat16")
    assert inside == [False, False]


def test_observer_gets_the_collapse_warning(tmp_path):
    trainer = trained(tmp_path, Recorder(collapse), steps=60, log_every=10)
    assert len(trainer.observer.warnings) == 1
    assert "step 60: the pseudo-labels have collapsed" in trainer.observer.warnings[0]


def test_after_update_gets_the_step_count_even_after_a_resume(tmp_path):
    assert trained(tmp_path / "whole", steps=3).method.counts == [1, 2, 3]
    assert resumed_at_ten(tmp_path / "cut").method.counts[0] == 11


def test_global_random_numbers_depend_only_on_seed_and_step(tmp_path):
    whole = trained(tmp_path / "whole").method.draws
    assert resumed_at_ten(tmp_path / "cut").method.draws == whole[10:]


def test_resume_repeats_the_uninterrupted_run(tmp_path):
    whole = trained(tmp_path / "whole", Recorder(curve), lr=0.1)
    cut = resumed_at_ten(tmp_path / "cut", curve, lr=0.1)
    assert cut.sampler.asked == list(range(10, 20))
    assert cut.folder.log.read_text() == whole.folder.log.read_text()
    assert torch.equal(cut.method.weight, whole.method.weight)


@pytest.mark.parametrize(("choice", "times"), [("on", 1), ("off", 0), ("auto", 0)])
def test_network_is_compiled_on_request(tmp_path, monkeypatch, choice, times):
    compiled: list[nn.Module] = []
    monkeypatch.setattr("segpl.engine.acceleration.compile_in_place", compiled.append)
    trainer = trained(tmp_path, steps=2, compile=choice)
    assert compiled == [trainer.method.network.body] * times


def test_after_update_runs_once_after_each_update(tmp_path):
    method = trained(tmp_path, steps=5).method
    assert len(method.after) == 5
    assert method.after[0] < method.before[0]
    assert method.after[:-1] == method.before[1:]


def test_total_is_the_weighted_sum_of_the_terms(tmp_path):
    def terms(level):
        return StepOutput({"supervised": Term(level, 0.5), "pseudo": Term(3 * level, 2.0)})

    row = logged(trained(tmp_path, Recorder(terms), steps=1))[0]
    assert (row["supervised"], row["pseudo"], row["total"]) == (1.0, 3.0, 6.5)
    assert (row["supervised.weight"], row["pseudo.weight"]) == (0.5, 2.0)


def test_gradients_do_not_accumulate(tmp_path):
    trainer = trained(tmp_path, steps=3)
    assert trainer.method.weight.grad.item() == pytest.approx(1.0)


def test_observer_gets_the_rows_of_the_log(tmp_path):
    trainer = trained(tmp_path, steps=5, log_every=2, checkpoint_every=2)
    rows = {int(row.pop("step")): row for row in logged(trainer)}
    assert list(rows) == [2, 4, 5]
    assert trainer.observer.rows == rows


def test_checkpoints_are_saved_at_the_interval_and_the_end(tmp_path, monkeypatch):
    saved = []
    keep = Trainer.save

    def save(self, path):
        keep(self, path)
        saved.append((path.name, read_checkpoint(path).step))

    monkeypatch.setattr(Trainer, "save", save)
    trained(tmp_path, steps=25)
    assert saved == [("last.safetensors", step) for step in (10, 20, 25)]


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, [2, 4, 5]), (math.inf, [5])])
def test_checkpoints_are_saved_by_time_without_an_interval(tmp_path, monkeypatch, seconds, steps):
    saved = []
    monkeypatch.setattr("segpl.engine.trainer.CHECKPOINT_SECONDS", seconds)
    monkeypatch.setattr(Trainer, "save", lambda self, path: saved.append(self.step))
    trained(tmp_path, steps=5, log_every=2, checkpoint_every=0)
    assert saved == steps


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"steps": 20}, list(range(2, 21, 2))),
        ({"steps": 20, "validate_every": 5}, [5, 10, 15, 20]),
        ({"steps": 12, "validate_every": 5}, [5, 10, 12]),
        ({"steps": 4, "log_every": 2}, [2, 4]),
        ({"steps": 50, "log_every": 2}, [*range(4, 50, 4), 50]),
    ],
    ids=[
        *("ten times by default", "at the interval", "also at the end"),
        *("at every log line", "in whole log lines"),
    ],
)
def test_validation_steps(tmp_path, settings, wanted):
    asked: list[int] = []

    def validate(step):
        asked.append(step)
        return 0.5

    trained(tmp_path, validate=validate, **settings)
    assert asked == wanted


def test_best_checkpoint_is_the_first_with_the_highest_score(tmp_path):
    scores = {5: 0.2, 10: 0.7, 15: 0.7, 20: 0.4}
    trainer = trained(tmp_path, validate=scores.__getitem__, validate_every=5)
    best, last = (read_checkpoint(path) for path in (trainer.folder.best, trainer.folder.last))
    assert (best.step, last.step) == (10, 20)
    assert best.weights["network.body.layer.weight"].item() == trainer.method.after[9]
    assert last.facts == {"best_score": 0.7, "best_step": 10}


def test_score_of_0_can_be_the_best(tmp_path):
    trainer = trained(tmp_path, validate=lambda step: 0.0)
    assert read_checkpoint(trainer.folder.best).step == 2


def test_resumed_run_remembers_its_best_score(tmp_path):
    scores = {5: 0.7, 10: 0.2, 15: 0.3, 20: 0.4}
    trainer = resumed_at_ten(tmp_path, validate=scores.__getitem__, validate_every=5)
    assert read_checkpoint(trainer.folder.best).step == 5


def test_non_finite_weight_keeps_the_previous_checkpoint(tmp_path):
    trainer = trainer_in(tmp_path, Broken(20))
    with pytest.raises(
        DivergedError, match=r"step 20: weight 'network\.body\.layer\.weight' is no longer finite"
    ):
        trainer.run()
    assert read_checkpoint(trainer.folder.last).step == 10


def test_non_finite_weight_is_never_the_best_checkpoint(tmp_path):
    trainer = trainer_in(tmp_path, Broken(5), validate=lambda step: 1.0, validate_every=5)
    with pytest.raises(DivergedError, match="no checkpoint is saved"):
        trainer.run()
    assert not trainer.folder.best.exists()


def test_step_runs_without_autocast_in_float32(tmp_path):
    assert trained(tmp_path, steps=3).method.autocast == [False] * 3


def test_every_step_draws_different_numbers(tmp_path):
    draws = trained(tmp_path).method.draws
    assert len(set(draws)) == len(draws)


def test_another_seed_draws_different_numbers(tmp_path):
    first, second = (trained(tmp_path / str(seed), seed=seed).method.draws for seed in (0, 1))
    assert not set(first) & set(second)


def test_hidden_labels_are_those_of_the_step_that_labeled(tmp_path):
    class Watched(Ones):
        hidden = ("labels",)

        def hidden_labels(self, step: int) -> Tensor:
            return torch.full((1, 4, 4), step)  # class 1 in step 1 only

    def label(level: Tensor) -> StepOutput:
        ones = torch.ones(1, 1, 4, 4)
        return StepOutput({"supervised": Term(level)}, {}, (PseudoLabels(ones, ones),))

    rows = logged(trained(tmp_path, Recorder(label), sampler=Watched(), steps=3))
    assert [row["hidden_dice"] for row in rows] == [0, 1, 0]


def test_term_weights_scale_the_gradient(tmp_path):
    def terms(level):
        return StepOutput({"down": Term(level, 0.5), "up": Term(-level, 2.0)})

    assert trained(tmp_path, Recorder(terms)).method.weight.item() > START


def test_run_without_validation_has_no_best_checkpoint(tmp_path):
    assert not trained(tmp_path).folder.best.exists()


@pytest.mark.parametrize("dims", [2, 3])
def test_images_of_all_parts_change_their_layout_and_nothing_else(dims):
    layout = CHANNELS_LAST[dims + 2]
    image = torch.rand((2, 3, *[4] * dims), generator=torch.Generator().manual_seed(0))
    label = torch.ones((2, *[4] * dims), dtype=torch.int64)
    plain = Batch(Labeled(image, label), Unlabeled(image + 1, label.bool()), torch.Generator())
    batch = with_layout(plain, layout)
    for before, after in ((plain.labeled, batch.labeled), (plain.unlabeled, batch.unlabeled)):
        assert torch.equal(before.image, after.image)
        assert not before.image.is_contiguous(memory_format=layout)
        assert after.image.is_contiguous(memory_format=layout)
    assert batch.labeled.label is label
    assert batch.unlabeled.inside is plain.unlabeled.inside
    assert batch.generator is plain.generator
