"""What methods with a learned threshold tell of it in prediction."""

from __future__ import annotations

import pytest
import torch
from tiny import build, make_batch

from segpl.methods.base import METHODS
from segpl.methods.latent_threshold import ThresholdSettings
from segpl.threshold.base import FAMILIES
from segpl.threshold.rules import RULES, SELECTING_RULES

IMAGE = make_batch(2, images=1).labeled.image
DRAWS = 3000
WITH_THRESHOLD = ["bpl", "bpl-mix", "segpl-vi"]


def bpl(classes: int = 2, calibrate: str = "off", **threshold: object):
    settings = {"threshold": ThresholdSettings(**threshold), "calibrate": calibrate}
    return build("bpl", 2, classes=classes, settings=settings).eval()


def mean_of_hard_maps(told) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    total = torch.zeros_like(told.probability)
    for _ in range(DRAWS):
        total += told.probability > told.threshold.sample(generator)
    return total / DRAWS


@pytest.mark.parametrize("name", METHODS.names)
def test_a_method_tells_of_a_threshold_exactly_if_it_has_one(name):
    method = build(name, 2).eval()
    with torch.no_grad():
        told = method.thresholded(IMAGE)
    assert (told is not None) == method.has_threshold
    assert method.has_threshold == (name in WITH_THRESHOLD)


@pytest.mark.parametrize("family", [None, *FAMILIES.names, "exact"])
@torch.no_grad()
def test_mean_of_hard_maps_tends_to_the_cumulative_probability(family):
    """Standard errors of a share are at most 0.5 / sqrt(DRAWS), 0.0091; five of them are enough."""
    if family is None:
        method = build("segpl-vi", 2, settings={"prior_std": 0.05}).eval()
    elif family == "exact":
        method = bpl(e_step="exact", rule="binarize", temperature=5.0)
    else:
        method = bpl(family=family, rule="binarize")
    told = method.thresholded(IMAGE)
    expected = told.threshold.cdf(told.probability)
    assert (mean_of_hard_maps(told) - expected).abs().max() < 0.046
    assert expected.std() > 0.02, "thresholds all on one side would show nothing"


@pytest.mark.parametrize("name", WITH_THRESHOLD)
@torch.no_grad()
def test_probabilities_are_those_of_the_prediction(name):
    method = build(name, 2, classes=3).eval()
    told = method.thresholded(IMAGE)
    assert torch.equal(told.probability, method.predict(IMAGE))


@torch.no_grad()
def test_a_calibrated_threshold_cuts_calibrated_probabilities():
    method = bpl(calibrate="all")
    torch.nn.init.constant_(method.temperature.log_temperature, 1.0)
    told = method.thresholded(IMAGE)
    logits = method.network(IMAGE).logits
    assert torch.equal(told.probability, method.temperature(logits).sigmoid())
    assert not torch.equal(told.probability, logits.sigmoid())


@torch.no_grad()
def test_the_head_of_segpl_vi_is_asked():
    method = build("segpl-vi", 2).eval()
    torch.nn.init.constant_(method.head.mean.bias, 0.8)
    assert method.thresholded(IMAGE).threshold.mean.item() == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("rule", list(RULES))
def test_rules_that_select_say_so(rule):
    assert bpl(rule=rule).thresholded(IMAGE).selects == (rule in SELECTING_RULES)


@pytest.mark.parametrize("prior", ["labeled", "confidence"])
@pytest.mark.parametrize("e_step", ["variational", "exact"])
@torch.no_grad()
def test_prediction_teaches_the_prior_nothing(prior, e_step):
    method = bpl(prior=prior, e_step=e_step)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    method.thresholded(IMAGE)
    after = method.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items())


@torch.no_grad()
def test_exact_posterior_of_an_image_is_that_of_its_own_probabilities():
    method = bpl(e_step="exact", rule="binarize", scope="image")
    told = method.thresholded(torch.cat([IMAGE, 3 * IMAGE.flip(2)]))
    assert told.threshold.mean.shape[:2] == (2, 1)
    alone = method.thresholded(IMAGE).threshold.mean
    assert told.threshold.mean[0].item() == pytest.approx(alone.item(), abs=1e-5)
