"""Agreement of networks on unlabeled cases; numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tiny import PICTURES, build_with
from torch import Tensor, nn

from segpl.data.plan import Plan
from segpl.data.sampler import Resident
from segpl.engine.folder import RunFolder
from segpl.errors import InputError
from segpl.evaluate.agreement import (
    ClassAgreement,
    NetworkAgreement,
    agreement_summary,
    read_agreement,
)
from segpl.methods.base import Method
from segpl.networks.network import Network
from segpl.report.run_record import current_agreement
from segpl.validate import agreement
from segpl.validate.agreement import (
    count_windows,
    measure_agreement,
    network_agreement,
)

CPU = torch.device("cpu")
THREE = replace(PICTURES, classes={"background": 0, "a": 1, "b": 2})


class Shifted(nn.Module):
    """Logits are the image minus a shift; counts the windows it sees."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(outputs))
        self.windows = 0
        self.saw_training = False

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.windows += len(image)
        self.saw_training |= self.training
        return image[:, : len(self.shift)] - self.shift[:, None, None], image, image


@dataclass(frozen=True)
class Model:
    method: Method
    plan: Plan = PICTURES
    device: torch.device = CPU


def model(name: str, *shifts: float, plan: Plan = PICTURES, **settings: object) -> Model:
    """A method whose networks have these shifts."""
    method = build_with(
        name,
        lambda: Network(
            Shifted(plan.outputs), dims=2, outputs=plan.outputs, features=plan.outputs, trunk=1
        ),
        settings=settings,
    )
    for network, shift in zip(method.named_networks().values(), shifts, strict=True):
        nn.init.constant_(network.body.shift, shift)
    return Model(method.train(), plan)


def scan(*rows: list[float]) -> Resident:
    """(1, 4, 4): rows of logits, the rest far from foreground."""
    image = np.full((1, 4, 4), -9.0, np.float32)
    for index, row in enumerate(rows):
        image[0, index] = row
    return Resident(image, None, None)


def test_agreement_is_the_mean_over_cases_with_the_lowest():
    volumes = {"u0": scan([2, 2, 0.5, 0.5]), "u1": scan([2, 2, 2, 2])}
    found = measure_agreement(volumes, model("mean-teacher", 0.0, 1.0), limit=10)
    assert found.classes["vessel"].agreement == pytest.approx((2 / 3 + 1) / 2)
    assert found.classes["vessel"].lowest == pytest.approx(2 / 3)


def test_pairs_of_empty_masks_do_not_count():
    """Otherwise a collapsed run would agree perfectly."""
    volumes = {"u0": scan(), "u1": scan([2, 2, 0.5, 0.5])}
    known = measure_agreement(volumes, model("mean-teacher", 0.0, 1.0), limit=10).classes["vessel"]
    assert known.agreement == pytest.approx(2 / 3)
    assert known.found == 1
    alone = measure_agreement({"u0": scan()}, model("mean-teacher", 0.0, 1.0), limit=10)
    assert alone.classes["vessel"] == ClassAgreement(0, None, None, None)


def test_three_networks_are_compared_in_pairs():
    """4, 2 and 2 voxels: 2 * 2 / 6 twice, and 1."""
    members = model("ensemble", 0.0, 1.0, 1.0, members=3)
    found = measure_agreement({"u0": scan([2, 2, 0.5, 0.5])}, members, limit=10)
    assert found.classes["vessel"].agreement == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


@pytest.mark.parametrize(("by", "logits"), [("student", (2, 2, 0.5)), ("teacher", (1, 1))])
def test_confidence_is_that_of_the_predicting_network(by, logits):
    """The third voxel is foreground for the student only."""
    asked = model("mean-teacher", 0.0, 1.0, predict_by=by)
    found = measure_agreement({"u0": scan([2, 2, 0.5, -9])}, asked, limit=10)
    expected = np.mean([1 / (1 + math.exp(-logit)) for logit in logits])
    assert found.classes["vessel"].confidence == pytest.approx(expected)


def test_confidence_of_an_ensemble_is_that_of_its_mean():
    """Probabilities of 0.88 and 0.5 are foreground by a mean of 0.69."""
    members = model("ensemble", 0.0, 2.0, members=2)
    found = measure_agreement({"u0": scan([2, 2, 2, 2])}, members, limit=10)
    mean = (1 / (1 + math.exp(-2)) + 0.5) / 2
    assert found.classes["vessel"].confidence == pytest.approx(mean)


def test_a_single_network_has_only_a_confidence():
    known = measure_agreement({"u0": scan([2, 2, 2, 2])}, model("segpl", 0.0), limit=10)
    assert known.classes["vessel"] == ClassAgreement(
        1, None, None, pytest.approx(1 / (1 + math.exp(-2)))
    )


def test_classes_are_measured_separately():
    image = np.zeros((3, 4, 4), np.float32)
    image[0] = 1.0
    image[1, 0], image[2, 1, :2] = 3.0, 2.0
    asked = model("segpl", 0.0, plan=THREE)
    found = measure_agreement({"u0": Resident(image, None, None)}, asked, limit=10)
    assert found.classes["a"].confidence == pytest.approx(1 / (1 + math.exp(-3)))
    assert found.classes["b"].confidence == pytest.approx(1 / (1 + math.exp(-2)))


def test_volumes_may_be_on_the_device():
    here = Resident(torch.from_numpy(scan([2, 2, 0.5, 0.5]).image), None, None)
    found = measure_agreement({"u0": here}, model("mean-teacher", 0.0, 1.0), limit=10)
    assert found.classes["vessel"].agreement == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("shape", "patch"), [((4, 4), 4), ((6, 4), 4), ((9, 4), 4), ((30, 17), 8), ((3, 40), 5)]
)
def test_window_count_matches_the_prediction(shape, patch):
    plan = replace(PICTURES, patch=(patch, patch))
    asked = model("segpl", 0.0, plan=plan)
    volume = Resident(np.zeros((1, *shape), np.float32), None, None)
    measure_agreement({"u0": volume}, asked, limit=10)
    assert asked.method.network.body.windows == count_windows(shape, plan.patch)


def test_cases_are_limited_and_evenly_spaced():
    volumes = {f"u{number}": scan() for number in range(9)}
    found = measure_agreement(volumes, model("segpl", 0.0), limit=3)
    assert found.cases == ("u0", "u3", "u6")


def test_cases_beyond_the_budget_are_skipped_and_counted(monkeypatch):
    """A small case has 1 window, the large one 64; the budget for three cases is 45."""
    large = Resident(np.zeros((1, 31, 31), np.float32), None, None)
    volumes = {"u0": scan([2, 2, 2, 2]), "u1": large, "u2": scan([2, 2, 2, 2])}
    found = measure_agreement(volumes, model("segpl", 0.0), limit=3)
    assert found.cases == ("u0", "u2")
    assert found.too_large == 1
    monkeypatch.setattr(agreement, "PASSES", 40)
    assert measure_agreement(volumes, model("segpl", 0.0), limit=3).too_large == 0


def test_every_network_counts_toward_the_budget():
    """Two cases of 28 windows, budget 30: one network can predict one case, two networks none."""
    volumes = {f"u{n}": Resident(np.zeros((1, 25, 13), np.float32), None, None) for n in range(2)}
    assert count_windows((25, 13), (4, 4)) == 28
    assert measure_agreement(volumes, model("segpl", 0.0), limit=2).too_large == 1
    assert measure_agreement(volumes, model("cps", 0.0, 0.0), limit=2).too_large == 2


def test_networks_predict_in_evaluation_mode_and_return_to_training():
    asked = model("mean-teacher", 0.0, 1.0)
    measure_agreement({"u0": scan([2, 2, 2, 2])}, asked, limit=10)
    assert not asked.method.network.body.saw_training
    assert asked.method.training
    assert asked.method.network.training


class TestFile:
    @pytest.fixture
    def folder(self, tmp_path) -> RunFolder:
        folder = RunFolder(tmp_path)
        folder.checkpoint("last").parent.mkdir()
        folder.checkpoint("last").write_bytes(b"weights")
        folder.log.write_text("step,threshold,threshold_std\n2,0.5,0.3\n4,0.625,0.125\n")
        return folder

    def measure(self, folder: RunFolder, limit: int = 10) -> NetworkAgreement:
        volumes = {"u0": scan([2, 2, 0.5, 0.5])}
        return network_agreement(folder, volumes, model("mean-teacher", 0.0, 1.0), limit=limit)

    def test_record_is_read_as_it_was_written(self, folder):
        measured = self.measure(folder)
        assert measured.cases == ("u0",)
        assert measured.classes["vessel"].agreement == pytest.approx(2 / 3)
        assert measured == read_agreement(folder.agreement) == current_agreement(folder)

    def test_threshold_is_the_last_of_the_log(self, folder):
        record = self.measure(folder)
        assert (record.threshold, record.threshold_std) == (0.625, 0.125)

    @pytest.mark.parametrize("log", ["step,threshold,threshold_std\n2,0.5,0.0\n", "step\n2\n"])
    def test_fixed_threshold_is_not_recorded(self, folder, log):
        folder.log.write_text(log)
        assert self.measure(folder).threshold is None

    @pytest.mark.parametrize(
        "text", ["{}", "[]", '{"weights": ', '{"classes": {"vessel": {"found": "1"}}}']
    )
    def test_damaged_record_is_an_error_and_training_replaces_it(self, folder, text):
        measured = self.measure(folder)
        folder.agreement.write_text(text)
        with pytest.raises(
            InputError,
            match=r"agreement.json (is not valid JSON|cannot be used): .* --resume` writes it",
        ):
            current_agreement(folder)
        assert self.measure(folder) == measured == read_agreement(folder.agreement)

    def test_same_weights_are_not_measured_again(self, folder, monkeypatch):
        measured = self.measure(folder)
        monkeypatch.delattr(agreement, "measure_agreement")
        assert self.measure(folder) == measured

    def test_other_weights_are_measured_again(self, folder):
        before = self.measure(folder)
        folder.checkpoint("last").write_bytes(b"other weights")
        assert current_agreement(folder) is None
        assert self.measure(folder).weights != before.weights
        assert current_agreement(folder) is not None

    def test_another_limit_is_measured_again(self, folder):
        self.measure(folder, limit=1)
        assert self.measure(folder, limit=2).limit == 2


class TestSummary:
    def record(self, *names: str, **classes: ClassAgreement) -> NetworkAgreement:
        return NetworkAgreement(10, ("u0", "u1"), 0, names or ("network",), classes)

    def test_says_that_agreement_is_not_accuracy(self):
        liver = ClassAgreement(2, 0.93, 0.9, 0.95)
        assert agreement_summary(self.record("student", "teacher", liver=liver)) == (
            "On 2 unlabeled cases: student and teacher agree on liver with Dice 0.93; liver "
            "is predicted with a mean probability of 0.95. Agreement is not accuracy: "
            "networks can agree, be confident, and still be wrong."
        )

    def test_names_no_agreement_if_none_was_measured(self):
        lost = ClassAgreement(0, None, None, None)
        assert agreement_summary(self.record("student", "teacher", liver=lost)) == (
            "On 2 unlabeled cases: liver was found in none of them."
        )

    def test_single_network_has_confidence_but_no_agreement(self):
        liver = ClassAgreement(2, None, None, 0.95)
        assert agreement_summary(self.record(liver=liver)) == (
            "On 2 unlabeled cases: liver is predicted with a mean probability of 0.95. "
            "Confidence is not accuracy: a network can be confident and wrong."
        )

    def test_several_classes_show_the_lowest_and_the_mean(self):
        x, y = ClassAgreement(2, 0.9, 0.9, 0.9), ClassAgreement(2, 0.5, 0.5, 0.7)
        text = agreement_summary(self.record(*("a", "b", "c"), x=x, y=y))
        assert "the 3 networks agree on y with Dice 0.50 (lowest of 2 classes; mean 0.70)" in text

    @pytest.mark.parametrize(("found", "word"), [(0, "none"), (1, "1")])
    def test_class_that_is_missing_in_some_cases_is_named(self, found, word):
        text = agreement_summary(self.record(liver=ClassAgreement(found, None, None, None)))
        assert f"liver was found in {word} of them" in text

    def test_classes_that_are_missing_in_equally_many_cases_are_named_together(self):
        lost = ClassAgreement(0, None, None, None)
        text = agreement_summary(self.record(liver=lost, spleen=lost))
        assert text == "On 2 unlabeled cases: liver and spleen were found in none of them."

    def test_learned_threshold_is_shown(self):
        record = replace(self.record(), threshold=0.625, threshold_std=0.125)
        assert "threshold ended at 0.62 (standard deviation 0.12)" in agreement_summary(record)

    def test_nothing_was_measured_when_all_cases_are_too_large(self):
        text = agreement_summary(NetworkAgreement(10, (), 3, ("network",), {}))
        assert "was not measured: 3 of them would take too long" in text


def test_a_network_that_finds_what_the_other_does_not_disagrees():
    found = measure_agreement({"u0": scan([2, 2, 2, 2])}, model("cps", 0.0, 3.0), limit=10)
    assert found.classes["vessel"].agreement == 0
