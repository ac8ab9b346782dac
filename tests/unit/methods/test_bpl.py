from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from scipy import stats
from tiny import Slope, build, build_with, make_batch, moved, table_network, trainable

from segpl.errors import InputError, UserError
from segpl.losses import dice_cross_entropy, dice_loss
from segpl.methods.bpl import BPL
from segpl.methods.latent_threshold import ThresholdSettings
from segpl.networks.network import Network
from segpl.threshold.base import FAMILIES
from segpl.threshold.exact import dice_of_thresholds, exact_posterior
from segpl.threshold.histogram import threshold_grid
from segpl.threshold.priors import PRIORS, StepPredictions
from segpl.threshold.rules import DATA_DRIVEN_RULES, RULES
from segpl.threshold.scopes import SCOPES
from segpl.types import Batch, Labeled, Unlabeled

every_rule = pytest.mark.parametrize("rule", list(RULES))
every_family = pytest.mark.parametrize("family", FAMILIES.names)
every_scope = pytest.mark.parametrize("scope", list(SCOPES))


def bpl(dims: int = 2, *, classes: int = 2, **threshold: object) -> BPL:
    settings = {"threshold": ThresholdSettings(**threshold)}
    method = build("bpl", dims, classes=classes, settings=settings)
    assert isinstance(method, BPL)
    return method


def head_of(method: BPL) -> list[torch.Tensor]:
    assert method.latent.head is not None
    return trainable(method.latent.head)


def e_step(method: BPL, batch: Batch):
    """The pseudo-labels of a batch with their gradient, and the logits they were made of."""
    with torch.no_grad():
        on_labeled, on_unlabeled = (
            method.network(part.image) for part in (batch.labeled, batch.unlabeled)
        )
    pseudo = method.label(on_labeled, batch.labeled, on_unlabeled, batch.unlabeled, batch.generator)
    return pseudo, on_unlabeled.logits


def head_gradient(method: BPL, value: torch.Tensor) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, head_of(method))])


@every_rule
@every_family
def test_data_move_the_head_by_the_rules_that_average_and_by_no_other(rule, family):
    method = bpl(rule=rule, family=family)
    pseudo, logits = e_step(method, make_batch(2))
    loss = dice_loss(logits, pseudo.target, pseudo.weight)
    moves = loss.requires_grad and moved(loss, head_of(method))
    assert moves == (rule in DATA_DRIVEN_RULES)


@every_rule
def test_temperature_matters_to_the_head_only_where_the_data_move_it(rule):
    gradients = []
    for temperature in (0.05, 0.5):
        method = bpl(rule=rule, temperature=temperature)
        term = method.step(make_batch(2), 1.0).terms["threshold_cost"].value
        gradients.append(head_gradient(method, term))
    assert torch.equal(*gradients) == (rule not in DATA_DRIVEN_RULES)


@every_family
def test_pseudo_labels_of_a_head_that_says_nothing_are_those_of_the_prior(family):
    table = torch.randn((4, 1, 16, 16), generator=torch.Generator().manual_seed(5))
    settings = {"threshold": ThresholdSettings(family=family, prior_mean=0.8, prior_std=0.05)}
    method = build_with("bpl", lambda: table_network(table), settings=settings)
    for parameter in trainable(method.latent.head.last):
        torch.nn.init.zeros_(parameter)
    batch = make_batch(2)
    output = method.step(batch, 1.0)
    probability = table[2:].sigmoid()
    kind = FAMILIES.get(family)()
    prior = kind.posterior(torch.zeros(kind.parameters), torch.tensor(0.8), torch.tensor(0.05))
    target = (probability > 0.5).float()
    weight = prior.cdf(torch.maximum(probability, 1 - probability))
    torch.testing.assert_close(
        output.terms["pseudo"].value, dice_cross_entropy(table[2:], target, weight)
    )
    assert output.monitors["threshold"].item() == pytest.approx(0.8, abs=1e-3)
    assert output.monitors["threshold_std"].item() == pytest.approx(0.05, rel=0.02)


def test_pseudo_labels_are_facts_to_the_network():
    method = bpl(rule="marginal")
    term = method.step(make_batch(2), 1.0).terms["pseudo"].value
    assert moved(term, trainable(method.network))
    assert not moved(term, head_of(method))


def test_weight_of_pseudo_labels_rises_in_a_straight_line():
    settings = {"alpha": 0.4, "ramp_begin": 0.2, "ramp_end": 0.6}
    method = build("bpl", 2, settings=settings)
    weights = [method.step(make_batch(2), at).terms["pseudo"].weight for at in (0.1, 0.4, 1.0)]
    assert weights == pytest.approx([0.0, 0.2, 0.4])


@every_scope
@pytest.mark.parametrize("classes", [2, 3])
def test_scope_says_who_shares_a_threshold(scope, classes):
    method = bpl(scope=scope, classes=classes, rule="marginal")
    head = method.latent.head
    for parameter in trainable(head):
        torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    batch = make_batch(2, classes=classes)
    features = torch.randn(
        (2, method.network.features, 16, 16), generator=torch.Generator().manual_seed(2)
    )
    # one probability everywhere: labels differ exactly where thresholds do
    outputs = method.network.outputs
    answers = StepPredictions(
        torch.full((2, outputs, 16, 16), 0.6),
        batch.labeled.label,
        torch.full((2, outputs, 16, 16), 0.6),
        torch.ones(2, 1, 16, 16),
    )
    with torch.no_grad():
        target = method.latent(
            answers, torch.zeros(2, outputs, 16, 16), features, batch.generator
        ).target
    own_image, own_class = SCOPES[scope]
    assert (target[0] != target[1]).any() == own_image
    if classes == 3:
        assert (target[:, 0] != target[:, 1]).any() == own_class
    assert (target.flatten(2).std(2) > 1e-6).any() == (scope == "voxel")


@pytest.mark.parametrize("family", ["normal", "logit-normal", "beta"])
def test_thresholds_drawn_for_neighboring_voxels_are_nearly_equal_and_for_distant_ones_are_not(
    family,
):
    latent = bpl(scope="voxel", family=family).latent
    numbers = torch.zeros(latent.family.parameters, 400, 1, 4, 4)
    posterior = latent.learned(numbers, (32, 32)).posterior
    draws = posterior.sample(torch.Generator().manual_seed(0))
    assert draws.shape == (400, 1, 32, 32)
    correlation = torch.corrcoef(draws[:, 0, 12, :].T)
    assert correlation[12, 13] > 0.9
    assert correlation[4, 28].abs() < 0.2
    assert draws.std() == pytest.approx(0.07, abs=0.03)


def test_free_energy_is_what_the_head_climbs():
    method = bpl(rule="marginal", temperature=0.1)
    output = method.step(make_batch(2), 1.0)
    monitors = output.monitors
    assert output.terms["threshold_cost"].value.item() == pytest.approx(
        -monitors["free_energy"].item()
    )
    parts = monitors["energy"] + monitors["kl"]
    assert parts.item() == pytest.approx(-monitors["free_energy"].item())
    pseudo, logits = e_step(method, make_batch(2))
    loss = dice_loss(logits, pseudo.target, pseudo.weight).item()
    assert monitors["energy"].item() == pytest.approx(loss / 0.1, rel=1e-5)


@pytest.mark.parametrize("rule", sorted(DATA_DRIVEN_RULES))
@every_family
def test_head_alone_raises_the_free_energy(rule, family):
    """The E-step of a network that stands still."""
    method = bpl(rule=rule, family=family, temperature=0.05)
    optimizer = torch.optim.Adam(head_of(method), lr=0.003)
    energies = []
    for _ in range(40):
        output = method.step(make_batch(2), 1.0)
        optimizer.zero_grad()
        output.terms["threshold_cost"].value.backward()
        optimizer.step()
        energies.append(output.monitors["free_energy"].item())
    assert energies[-1] > energies[0] + 1e-3
    falls = sum(after < before - 1e-3 for before, after in pairwise(energies))
    assert falls == 0


@every_rule
@pytest.mark.parametrize("scope", [name for name in SCOPES if name != "voxel"])
def test_exact_threshold_is_that_of_bayes_rule(rule, scope):
    method = bpl(
        rule=rule, scope=scope, e_step="exact", family="normal", prior_mean=0.7, temperature=0.02
    )
    assert method.latent.head is None
    output = method.step(make_batch(2), 1.0)
    assert "threshold_cost" not in output.terms
    with torch.no_grad():
        probability = method.network(make_batch(2).unlabeled.image).logits.sigmoid()
    normal = torch.distributions.Normal(*torch.tensor([0.7, 0.1], dtype=torch.float64))
    edges = torch.linspace(0, 1, 101, dtype=torch.float64)
    prior = normal.cdf(edges).diff().clamp(min=1e-30).log()
    expected = exact_posterior(
        probability,
        torch.ones_like(probability),
        prior,
        scope=scope,
        temperature=0.02,
        selects=rule in ("select", "marginal-select"),
    )
    mean = (expected.exp() * threshold_grid(100)).sum(-1).mean()
    assert output.monitors["threshold"].item() == pytest.approx(mean.item(), abs=1e-4)


def test_yardstick_is_logged_beside_a_head_and_changes_nothing():
    plain, measured = bpl().step(make_batch(2), 1.0), bpl(yardstick=True).step(make_batch(2), 1.0)
    exact = bpl(e_step="exact").step(make_batch(2), 1.0)
    assert {"exact_threshold", "exact_threshold_std"} == measured.monitors.keys() - plain.monitors
    assert torch.equal(measured.monitors["exact_threshold"], exact.monitors["threshold"])
    for key, term in plain.terms.items():
        assert torch.equal(term.value, measured.terms[key].value), key


@pytest.mark.parametrize("prior", list(PRIORS))
def test_prior_is_learned_where_it_is_asked_to(prior):
    method = bpl(prior=prior, prior_mean=0.3)
    for _ in range(3):
        method.step(make_batch(2), 1.0)
    mean = method.latent.prior.mean.item()
    assert (mean != pytest.approx(0.3)) == (prior != "fixed")
    assert method.latent.references().prior.mean.item() == pytest.approx(mean, abs=1e-3)


def test_shares_of_foreground_background_and_left_out_add_up():
    """Half of each crop lies beyond its scan, where nothing is labeled or left out."""
    batch = make_batch(2)
    inside = torch.ones(2, 16, 16, dtype=torch.bool)
    inside[:, :, 8:] = False
    batch = replace(batch, unlabeled=Unlabeled(batch.unlabeled.image, inside))
    output = bpl().step(batch, 1.0)
    monitors, weight = output.monitors, output.pseudo[0].weight
    assert monitors["kept"].item() == pytest.approx(weight[..., :8].mean().item(), rel=1e-5)
    shares = [monitors[f"share_{part}"] for part in ("foreground", "background", "left_out")]
    assert sum(shares).item() == pytest.approx(1)
    assert monitors["kept"].item() == pytest.approx(1 - shares[2].item())
    assert 0 < shares[0].item() < 1
    assert 0 < shares[2].item() < 1


def calibrated(calibrate: str, classes: int = 2) -> BPL:
    method = build("bpl", 2, classes=classes, settings={"calibrate": calibrate})
    assert isinstance(method, BPL)
    return method


@pytest.mark.parametrize(("calibrate", "temperatures"), [("all", 1), ("class", 3)])
def test_calibration_has_one_temperature_or_one_for_each_class(calibrate, temperatures):
    method = calibrated(calibrate, classes=3)
    assert len(method.temperature.log_temperature) == temperatures
    assert method.needs_validation
    assert not calibrated("off").needs_validation


def test_temperature_learns_from_validation_crops_and_the_network_does_not():
    method = calibrated("all")
    term = method.step(make_batch(2, validation=True), 1.0).terms["calibration"].value
    assert moved(term, trainable(method.temperature))
    assert not moved(term, trainable(method.network))


def test_temperature_is_fitted_to_validation_crops_and_no_others():
    """Labels that are the opposite of the labeled ones ask for the opposite."""
    batch = make_batch(2, validation=True)
    values = []
    for label in (batch.labeled.label, 1 - batch.labeled.label.clamp(min=0)):
        held = Labeled(batch.labeled.image, label)
        output = calibrated("all").step(replace(batch, validation=held), 1.0)
        values.append(output.terms["calibration"].value)
    assert not torch.equal(*values)


def test_temperature_comes_before_the_threshold():
    method = calibrated("all")
    torch.nn.init.constant_(method.temperature.log_temperature, -3.0)
    sharp = method.step(make_batch(2, validation=True), 1.0).monitors["kept"]
    plain = build("bpl", 2).step(make_batch(2), 1.0).monitors["kept"]
    assert sharp > plain + 0.1


def test_calibration_is_of_the_network_as_it_predicts():
    """Statistics of batch normalization must not learn from validation cases."""
    method = build_with(
        "bpl",
        lambda: Network(Slope(), dims=2, outputs=1, features=1, trunk=1),
        settings={"calibrate": "all"},
    )
    method.train().step(make_batch(2, validation=True), 1.0)
    assert method.network.body.modes == [(False, False), (True, True)]  # held crops, then the rest


def test_prior_learns_from_calibrated_answers():
    means = []
    for number in (0.0, -3.0):
        settings = {"calibrate": "all", "threshold": ThresholdSettings(prior="labeled")}
        method = build("bpl", 2, settings=settings)
        torch.nn.init.constant_(method.temperature.log_temperature, number)
        method.step(make_batch(2, validation=True), 1.0)
        means.append(method.latent.prior.above.clone())
    assert not torch.equal(*means)


def test_calibration_lowers_the_error_of_an_overconfident_network():
    """Logits of 4 that are right three times out of four want a temperature of 4 / log 3."""
    label = (torch.arange(16) % 4 > 0).long().view(1, 4, 4)
    table = torch.full((2, 1, 4, 4), 4.0)
    method = build_with("bpl", lambda: table_network(table), settings={"calibrate": "all"})
    image = torch.zeros(1, 1, 4, 4)
    batch = Batch(
        Labeled(image, label),
        Unlabeled(image),
        torch.Generator().manual_seed(0),
        validation=Labeled(image, label),
    )
    optimizer = torch.optim.Adam(trainable(method.temperature), lr=0.05)
    for _ in range(150):
        output = method.step(batch, 1.0)
        optimizer.zero_grad()
        output.terms["calibration"].value.backward()
        optimizer.step()
    monitors = output.monitors
    assert monitors["temperature"].item() == pytest.approx(
        4 / torch.tensor(3.0).log().item(), rel=0.02
    )
    assert monitors["ece_before"].item() == pytest.approx(0.232, abs=1e-3)
    assert monitors["ece_after"].item() < 0.01


def test_calibration_without_validation_crops_is_refused():
    with pytest.raises(InputError, match="no crops of validation cases"):
        calibrated("all").step(make_batch(2), 1.0)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"family": "gamma"}, "family"),
        ({"rule": "majority"}, "rule"),
        ({"scope": "patient"}, "scope"),
        ({"e_step": "sampled"}, "e_step"),
        ({"prior": "flat"}, "prior"),
        ({"temperature": 1e-7}, "must be 1e-06 or more"),
        ({"temperature": float("nan")}, "must be 1e-06 or more"),
        ({"temperature": float("inf")}, "and finite"),
        ({"prior_mean": 1.0}, "prior_mean is 1.0"),
        ({"prior_std": 0.0}, "prior_std is 0.0"),
        ({"scope": "voxel", "e_step": "exact"}, "e_step 'variational'"),
        ({"scope": "voxel", "family": "categorical"}, "such as 'beta'"),
        ({"scope": "voxel", "yardstick": True}, "no yardstick"),
    ],
)
def test_setting_that_makes_no_sense_is_refused_by_name(settings, words):
    with pytest.raises(UserError, match=words):
        ThresholdSettings(**settings)


def test_unknown_calibration_is_refused():
    with pytest.raises(UserError, match="calibrate named"):
        BPL.Settings(calibrate="on")


def test_prior_is_worked_out_anew_when_and_only_when_its_numbers_change():
    fixed, learned = bpl(), bpl(prior="confidence")
    before = [method.latent.references() for method in (fixed, learned)]
    for method in (fixed, learned):
        method.step(make_batch(2), 1.0)
    assert fixed.latent.references() is before[0]
    assert learned.latent.references() is not before[1]
    other = bpl(prior_mean=0.9)
    fixed.load_state_dict(other.state_dict())
    assert fixed.latent.references().prior.mean.item() == pytest.approx(0.9, abs=1e-3)
    assert fixed.double().latent.references().prior.mean.dtype == torch.float64


def test_small_masses_of_the_prior_are_those_of_the_normal_distribution():
    """scipy.stats.norm(0.5, 0.05): in float32 all beyond 0.8 would be equal."""
    latent = bpl(family="normal", prior_mean=0.5, prior_std=0.05, e_step="exact").latent
    cells = stats.norm(0.5, 0.05)
    masses = [cells.sf(edge / 100) - cells.sf((edge + 1) / 100) for edge in range(50, 90)]
    ours = latent.references().log_mass[50:90].double()
    torch.testing.assert_close(ours, torch.tensor(masses).log(), rtol=1e-3, atol=1e-3)


def test_free_energy_of_the_exact_threshold_is_the_evidence_and_none_is_higher():
    """log Z by a sum over the grid, for one threshold for all."""
    method = bpl(rule="marginal", scope="batch", e_step="exact", temperature=0.1)
    monitors = method.step(make_batch(2), 1.0).monitors
    with torch.no_grad():
        probability = method.network(make_batch(2).unlabeled.image).logits.sigmoid()
    dice = dice_of_thresholds(probability, torch.ones_like(probability), scope="batch").flatten()
    prior = method.latent.references().log_mass.exp()
    evidence = (prior * ((dice - 1) / 0.1).exp()).sum().log()
    assert monitors["free_energy"].item() == pytest.approx(evidence.item(), abs=1e-3)
    for other in (prior, prior.roll(7), torch.full((100,), 0.01)):
        other = other / other.sum()
        energy = (other * (1 - dice)).sum() / 0.1
        divergence = (other * (other.clamp(min=1e-30) / prior.clamp(min=1e-30)).log()).sum()
        assert -energy - divergence < evidence + 1e-4


@every_scope
def test_divergence_is_the_mean_over_thresholds(scope):
    method = bpl(family="normal", scope=scope, rule="marginal")
    for parameter in trainable(method.latent.head.last):
        torch.nn.init.zeros_(parameter)
    torch.nn.init.constant_(method.latent.head.last.bias, 0.5)  # shift of half a spread, e^0.5
    kl = method.step(make_batch(2), 1.0).monitors["kl"].item()
    spread = 0.5 / (1 + (0.5 / 3) ** 2) ** 0.5  # as far as widths are limited
    expected = -spread + (math.exp(2 * spread) + 0.25) / 2 - 0.5
    assert kl == pytest.approx(expected, rel=1e-4)


@every_rule
def test_voxels_that_do_not_count_are_left_out(rule):
    """Whatever the network says beyond a scan, thresholds and labels inside stay as they are."""
    inside = torch.ones(2, 16, 16, dtype=torch.bool)
    inside[:, :, 8:] = False
    outputs = []
    for filling in (-3.0, 3.0):
        table = torch.randn((4, 1, 16, 16), generator=torch.Generator().manual_seed(5))
        table[2:, :, :, 8:] = filling
        settings = {"threshold": ThresholdSettings(rule=rule, e_step="exact")}
        method = build_with("bpl", lambda table=table: table_network(table), settings=settings)
        batch = make_batch(2)
        batch = replace(batch, unlabeled=Unlabeled(batch.unlabeled.image, inside))
        outputs.append(method.step(batch, 1.0))
    for key, term in outputs[0].terms.items():
        torch.testing.assert_close(term.value, outputs[1].terms[key].value)
    assert torch.equal(outputs[0].monitors["threshold"], outputs[1].monitors["threshold"])


def test_latent_threshold_stays_in_single_precision_under_autocast():
    """The head's convolutions and the labels come out to the bit as without half precision."""
    method = bpl(3, rule="marginal")
    batch, outputs = make_batch(3), 1
    features = torch.randn(
        (2, method.network.features, 16, 16, 16), generator=torch.Generator().manual_seed(0)
    )
    logits = torch.randn((2, outputs, 16, 16, 16), generator=torch.Generator().manual_seed(1))
    answers = StepPredictions(
        logits.sigmoid(), batch.labeled.label, logits.sigmoid(), torch.ones_like(logits[:, :1])
    )
    plain = method.latent(answers, logits, features, batch.generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = method.latent(answers, logits, features, batch.generator)
    assert torch.equal(plain.target, half.target)
    assert torch.equal(plain.terms["threshold_cost"].value, half.terms["threshold_cost"].value)
