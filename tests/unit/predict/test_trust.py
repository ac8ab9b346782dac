"""How far networks agree on unlabeled cases; numbers worked out by hand."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from tiny import PICTURES, build_with
from torch import Tensor, nn

from segpl.data.plan import Plan
from segpl.data.sampler import Resident
from segpl.engine.run import RunFolder
from segpl.errors import InputError
from segpl.methods.base import Method
from segpl.networks.network import Network
from segpl.predict import trust
from segpl.predict.trust import (
    ClassTrust,
    Trust,
    look_at_unlabeled,
    read_trust,
    trust_in,
    trust_words,
    windows_of,
)

CPU = torch.device("cpu")
SURE = {"found": 1, "agreement": 0.5, "lowest": 0.5, "confidence": 0.9}  # of a class
THREE = replace(PICTURES, classes={"background": 0, "a": 1, "b": 2})


class Shifted(nn.Module):
    """Logits are the image, less a number of its own; counts the windows that it saw."""

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
    """A method whose networks answer with the image, less a shift each."""
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


def test_agreement_is_the_dice_between_student_and_teacher():
    """The student finds 4 voxels, the teacher the 2 that are above 1: 2 * 2 / (4 + 2)."""
    found = look_at_unlabeled(
        {"u0": scan([2, 2, 0.5, 0.5])}, model("mean-teacher", 0.0, 1.0), most=10
    )
    assert found.networks == ("student", "teacher")
    assert found.classes["vessel"].agreement == pytest.approx(2 / 3)


def test_agreement_is_the_mean_over_cases_and_the_lowest_is_told():
    volumes = {"u0": scan([2, 2, 0.5, 0.5]), "u1": scan([2, 2, 2, 2])}
    found = look_at_unlabeled(volumes, model("mean-teacher", 0.0, 1.0), most=10)
    assert found.classes["vessel"].agreement == pytest.approx((2 / 3 + 1) / 2)
    assert found.classes["vessel"].lowest == pytest.approx(2 / 3)


def test_networks_that_both_find_nothing_agree_on_nothing():
    """A training that has collapsed to background would otherwise be the surest of all."""
    volumes = {"u0": scan(), "u1": scan([2, 2, 0.5, 0.5])}
    known = look_at_unlabeled(volumes, model("mean-teacher", 0.0, 1.0), most=10).classes["vessel"]
    assert known.agreement == pytest.approx(2 / 3)
    assert known.found == 1
    alone = look_at_unlabeled({"u0": scan()}, model("mean-teacher", 0.0, 1.0), most=10)
    assert alone.classes["vessel"] == ClassTrust(0, None, None, None)


def test_a_network_that_finds_what_the_other_does_not_disagrees():
    found = look_at_unlabeled({"u0": scan([2, 2, 2, 2])}, model("cps", 0.0, 3.0), most=10)
    assert found.classes["vessel"].agreement == 0


def test_three_networks_are_compared_in_pairs():
    """4, 2 and 2 voxels: 2 * 2 / 6 twice, and 1."""
    members = model("ensemble", 0.0, 1.0, 1.0, members=3)
    found = look_at_unlabeled({"u0": scan([2, 2, 0.5, 0.5])}, members, most=10)
    assert found.classes["vessel"].agreement == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)


@pytest.mark.parametrize(("by", "shift"), [("student", 0.0), ("teacher", 1.0)])
def test_confidence_is_that_of_the_network_that_predicts(by, shift):
    asked = model("mean-teacher", 0.0, 1.0, predict_by=by)
    found = look_at_unlabeled({"u0": scan([2, 2, 2, -9])}, asked, most=10)
    assert found.classes["vessel"].confidence == pytest.approx(1 / (1 + math.exp(shift - 2)))


def test_confidence_of_an_ensemble_is_that_of_the_mean_of_its_members():
    """Probabilities of 0.88 and 0.5 are foreground by a mean of 0.69."""
    members = model("ensemble", 0.0, 2.0, members=2)
    found = look_at_unlabeled({"u0": scan([2, 2, 2, 2])}, members, most=10)
    mean = (1 / (1 + math.exp(-2)) + 0.5) / 2
    assert found.classes["vessel"].confidence == pytest.approx(mean)


def test_a_single_network_has_a_confidence_and_agrees_with_nobody():
    known = look_at_unlabeled({"u0": scan([2, 2, 2, 2])}, model("segpl", 0.0), most=10)
    assert known.classes["vessel"] == ClassTrust(
        1, None, None, pytest.approx(1 / (1 + math.exp(-2)))
    )


def test_classes_are_told_apart():
    image = np.zeros((3, 4, 4), np.float32)
    image[0] = 1.0
    image[1, 0], image[2, 1, :2] = 3.0, 2.0
    asked = model("segpl", 0.0, plan=THREE)
    found = look_at_unlabeled({"u0": Resident(image, None, None)}, asked, most=10)
    assert found.classes["a"].confidence == pytest.approx(1 / (1 + math.exp(-3)))
    assert found.classes["b"].confidence == pytest.approx(1 / (1 + math.exp(-2)))


def test_a_volume_on_the_device_is_as_good_as_one_on_the_disk():
    here = Resident(torch.from_numpy(scan([2, 2, 0.5, 0.5]).image), None, None)
    found = look_at_unlabeled({"u0": here}, model("mean-teacher", 0.0, 1.0), most=10)
    assert found.classes["vessel"].agreement == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("shape", "patch"), [((4, 4), 4), ((6, 4), 4), ((9, 4), 4), ((30, 17), 8), ((3, 40), 5)]
)
def test_windows_are_counted_as_they_are_made(shape, patch):
    plan = replace(PICTURES, patch=(patch, patch))
    asked = model("segpl", 0.0, plan=plan)
    volume = Resident(np.zeros((1, *shape), np.float32), None, None)
    look_at_unlabeled({"u0": volume}, asked, most=10)
    assert asked.method.network.body.windows == windows_of(shape, plan.patch)


def test_no_more_cases_are_asked_about_than_wanted_and_they_lie_evenly():
    volumes = {f"u{number}": scan() for number in range(9)}
    found = look_at_unlabeled(volumes, model("segpl", 0.0), most=3)
    assert found.cases == ("u0", "u3", "u6")


def test_a_case_that_would_take_too_long_is_passed_over_and_counted(monkeypatch):
    """One window for a small case, 64 for the large one, and 45 for three cases."""
    large = Resident(np.zeros((1, 31, 31), np.float32), None, None)
    volumes = {"u0": scan([2, 2, 2, 2]), "u1": large, "u2": scan([2, 2, 2, 2])}
    found = look_at_unlabeled(volumes, model("segpl", 0.0), most=3)
    assert found.cases == ("u0", "u2")
    assert found.too_large == 1
    monkeypatch.setattr(trust, "PASSES", 40)
    assert look_at_unlabeled(volumes, model("segpl", 0.0), most=3).too_large == 0


def test_every_network_takes_its_time():
    """Of two cases of 28 windows, one network can look at one in 30 passes, two at none."""
    volumes = {f"u{n}": Resident(np.zeros((1, 25, 13), np.float32), None, None) for n in range(2)}
    assert windows_of((25, 13), (4, 4)) == 28
    assert look_at_unlabeled(volumes, model("segpl", 0.0), most=2).too_large == 1
    assert look_at_unlabeled(volumes, model("cps", 0.0, 0.0), most=2).too_large == 2


def test_networks_are_asked_as_in_prediction_and_go_on_as_they_were():
    asked = model("mean-teacher", 0.0, 1.0)
    look_at_unlabeled({"u0": scan([2, 2, 2, 2])}, asked, most=10)
    assert not asked.method.network.body.saw_training
    assert asked.method.training
    assert asked.method.network.training


class TestFile:
    @pytest.fixture
    def folder(self, tmp_path) -> RunFolder:
        folder = RunFolder(tmp_path)
        folder.checkpoint("last").parent.mkdir()
        folder.checkpoint("last").write_bytes(b"weights")
        folder.training.log.write_text("step,threshold,threshold_std\n2,0.5,0.3\n4,0.625,0.125\n")
        return folder

    def words(self, folder: RunFolder, **options: int) -> str:
        asked = model("mean-teacher", 0.0, 1.0)
        return trust_in(folder, {"u0": scan([2, 2, 0.5, 0.5])}, asked, **{"most": 10, **options})

    def test_keeps_what_was_seen_and_said(self, folder):
        said = self.words(folder)
        kept = json.loads(folder.trust.read_text())
        assert kept["words"] == said
        assert kept["cases"] == ["u0"]
        assert kept["classes"]["vessel"]["agreement"] == pytest.approx(2 / 3)

    def test_has_the_threshold_at_the_end_of_the_log(self, folder):
        assert "ended at 0.62, with a spread of 0.12" in self.words(folder)
        kept = json.loads(folder.trust.read_text())
        assert (kept["threshold"], kept["threshold_std"]) == (0.625, 0.125)

    @pytest.mark.parametrize("log", ["step,threshold,threshold_std\n2,0.5,0.0\n", "step\n2\n"])
    def test_says_nothing_of_a_threshold_without_a_spread(self, folder, log):
        folder.training.log.write_text(log)
        assert "threshold" not in self.words(folder)
        assert json.loads(folder.trust.read_text())["threshold"] is None

    def test_is_read_as_it_was_seen(self, folder):
        self.words(folder)
        known = read_trust(folder)
        assert known is not None
        assert (known.cases, known.networks) == (("u0",), ("student", "teacher"))
        assert known.classes["vessel"].agreement == pytest.approx(2 / 3)
        assert (known.threshold, known.threshold_std) == (0.625, 0.125)

    @pytest.mark.parametrize(
        ("changes", "wrong"),
        [
            ({"classes": []}, "a 'classes' that is []"),
            ({"classes": {"vessel": 0.5}}, "a 'classes' that is"),
            ({"classes": {"vessel": {"found": 1}}}, "a 'classes' that is"),
            ({"classes": {"vessel": SURE | {"found": -1}}}, "a 'classes' that is"),
            ({"classes": {"vessel": SURE | {"lowest": "0.5"}}}, "a 'classes' that is"),
            ({"classes": {"vessel": SURE | {"more": 1}}}, "a 'classes' that is"),
            ({"cases": "u0"}, "a 'cases' that is 'u0'"),
            ({"networks": [1]}, "a 'networks' that is [1]"),
            ({"too_large": None}, "a 'too_large' that is None"),
            ({"too_large": True}, "a 'too_large' that is True"),
            ({"threshold": "0.5"}, "a 'threshold' that is '0.5'"),
            ({"threshold_std": []}, "a 'threshold_std' that is []"),
        ],
    )
    def test_of_another_shape_is_refused_with_what_to_do(self, folder, changes, wrong):
        self.words(folder)
        folder.trust.write_text(json.dumps(json.loads(folder.trust.read_text()) | changes))
        with pytest.raises(InputError) as refused:
            read_trust(folder)
        assert f"holds {wrong}" in str(refused.value)
        assert f"`segpl train --out {folder.path} --resume` writes it anew; or delete it." in str(
            refused.value
        )

    @pytest.mark.parametrize(
        ("text", "wrong"),
        [("{}", "no 'cases'"), ("[]", "no table"), ('{"weights": ', "no JSON")],
    )
    def test_that_is_broken_is_refused_and_written_anew_by_a_training(self, folder, text, wrong):
        said = self.words(folder)
        kept = folder.trust.read_bytes()
        folder.trust.write_text(text)
        with pytest.raises(InputError, match=f"holds {wrong}: .* --resume"):
            read_trust(folder)
        assert self.words(folder) == said
        assert folder.trust.read_bytes() == kept

    def test_without_words_is_written_anew(self, folder):
        said = self.words(folder)
        kept = json.loads(folder.trust.read_text())
        del kept["words"]
        folder.trust.write_text(json.dumps(kept))
        assert self.words(folder) == said

    def test_of_the_same_weights_is_not_made_again(self, folder, monkeypatch):
        said = self.words(folder)
        monkeypatch.delattr(trust, "look_at_unlabeled")
        assert self.words(folder) == said

    def test_of_other_weights_is_made_again(self, folder):
        self.words(folder)
        before = folder.trust.read_bytes()
        folder.checkpoint("last").write_bytes(b"other weights")
        self.words(folder)
        assert folder.trust.read_bytes() != before

    def test_of_fewer_cases_is_made_again(self, folder):
        self.words(folder, most=1)
        self.words(folder, most=2)
        assert json.loads(folder.trust.read_text())["asked"] == 2


class TestWords:
    def seen(self, *names: str, **classes: ClassTrust) -> Trust:
        return Trust(("u0", "u1"), 0, names or ("network",), classes)

    def test_say_that_agreement_is_no_accuracy(self):
        said = trust_words(self.seen("student", "teacher", liver=ClassTrust(2, 0.93, 0.9, 0.95)))
        assert said == (
            "On 2 unlabeled cases: student and teacher agree on liver with a Dice of 0.93; a "
            "voxel called liver has a probability of 0.95 on average. This is no accuracy: "
            "networks can agree, be sure, and be wrong."
        )

    def test_of_a_single_network_name_no_agreement(self):
        said = trust_words(self.seen(liver=ClassTrust(2, None, None, 0.95)))
        assert said.startswith("On 2 unlabeled cases: a voxel called liver")

    def test_of_several_classes_name_the_lowest_and_the_mean(self):
        said = trust_words(
            self.seen(
                *("a", "b", "c"), x=ClassTrust(2, 0.9, 0.9, 0.9), y=ClassTrust(2, 0.5, 0.5, 0.7)
            )
        )
        assert "the 3 networks agree on y with a Dice of 0.50 (the lowest of 2 classes;" in said
        assert "their mean is 0.70)" in said

    @pytest.mark.parametrize(("found", "word"), [(0, "none"), (1, "1")])
    def test_tell_a_class_that_was_not_found_everywhere(self, found, word):
        said = trust_words(self.seen(liver=ClassTrust(found, None, None, None)))
        assert f"liver was found in {word} of them" in said

    def test_tell_when_nothing_could_be_looked_at(self):
        said = trust_words(Trust((), 3, ("network",), {}))
        assert "was not asked: 3 of them would take too long" in said
