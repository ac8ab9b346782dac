from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from method_case import MethodCase
from mutations import Mutation
from scipy import stats
from tiny import build, build_with, make_batch, moved, table_network, trainable

from segpl.errors import UserError
from segpl.losses import dice_cross_entropy, dice_loss
from segpl.methods.bpl import BPL
from segpl.methods.latent_threshold import ThresholdSettings
from segpl.threshold.base import FAMILIES
from segpl.threshold.exact import dice_of_thresholds, grid_posterior
from segpl.threshold.histogram import threshold_grid
from segpl.threshold.rules import DATA_DRIVEN_RULES, RULES, SELECTING_RULES
from segpl.threshold.scopes import SCOPES
from segpl.types import Unlabeled

CASE = MethodCase(
    curve={
        "supervised": [0.651825, 0.621078],
        "pseudo": [0.338340, 0.338549],
        "threshold_cost": [4.545838, 4.597769],
    },
    terms_without_network=frozenset({"threshold_cost"}),
)
IMAGE = make_batch(2, images=1).labeled.image
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


def head_gradient(method: BPL, value: torch.Tensor) -> torch.Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, head_of(method))])


@every_rule
def test_data_train_the_head_only_with_marginal_rules(rule):
    """The temperature scales the data term, and nothing else that the head learns from."""
    gradients = []
    for temperature in (0.05, 0.5):
        method = bpl(rule=rule, temperature=temperature)
        term = method.step(make_batch(2), 1.0).terms["threshold_cost"].value
        gradients.append(head_gradient(method, term))
    assert torch.equal(*gradients) == (rule not in DATA_DRIVEN_RULES)


@every_family
def test_head_of_zeros_labels_with_the_prior(family):
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


def test_m_step_trains_the_network_and_not_the_head():
    method = bpl(rule="marginal")
    term = method.step(make_batch(2), 1.0).terms["pseudo"].value
    assert moved(term, trainable(method.network))
    assert not moved(term, head_of(method))


@every_scope
@pytest.mark.parametrize("classes", [2, 3])
def test_scope_decides_what_shares_a_threshold(scope, classes):
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
    logits, inside = torch.zeros(2, outputs, 16, 16), torch.ones(2, 1, 16, 16)
    with torch.no_grad():
        target = method.latent(logits, inside, features, batch.generator).target
    own_image, own_class = SCOPES[scope]
    assert (target[0] != target[1]).any() == own_image
    if classes == 3:
        assert (target[:, 0] != target[:, 1]).any() == own_class
    assert (target.flatten(2).std(2) > 1e-6).any() == (scope == "voxel")


@pytest.mark.parametrize("family", ["normal", "logit-normal"])
def test_draws_of_neighboring_voxels_are_correlated_and_of_distant_ones_are_not(family):
    latent = bpl(scope="voxel", family=family).latent
    numbers = torch.zeros(latent.family.parameters, 400, 1, 4, 4)
    posterior = latent.variational(numbers, (32, 32)).posterior
    draws = posterior.sample(torch.Generator().manual_seed(0))
    assert draws.shape == (400, 1, 32, 32)
    correlation = torch.corrcoef(draws[:, 0, 12, :].T)
    assert correlation[12, 13] > 0.9
    assert correlation[4, 28].abs() < 0.2
    assert draws.std() == pytest.approx(0.07, abs=0.03)


def test_threshold_cost_is_the_negative_free_energy():
    method = bpl(rule="marginal", temperature=0.1)
    output = method.step(make_batch(2), 1.0)
    monitors = output.monitors
    assert output.terms["threshold_cost"].value.item() == pytest.approx(
        -monitors["free_energy"].item()
    )
    parts = monitors["energy"] + monitors["kl"]
    assert parts.item() == pytest.approx(-monitors["free_energy"].item())
    with torch.no_grad():
        logits = method.network(make_batch(2).unlabeled.image).logits
    (pseudo,) = output.pseudo
    loss = dice_loss(logits, pseudo.target, pseudo.weight).item()
    assert monitors["energy"].item() == pytest.approx(loss / 0.1, rel=1e-4)


@pytest.mark.parametrize("rule", sorted(DATA_DRIVEN_RULES))
@every_family
def test_step_along_the_gradient_of_the_head_raises_the_free_energy(rule, family):
    """The variational E-step is gradient ascent on F."""
    method = bpl(rule=rule, family=family)
    before = method.step(make_batch(2), 1.0)
    cost = before.terms["threshold_cost"].value
    slopes = torch.autograd.grad(cost, head_of(method))
    square = sum(slope.square().sum() for slope in slopes)
    with torch.no_grad():  # so small that the cost is linear: it falls by 1 %
        for weight, slope in zip(head_of(method), slopes, strict=True):
            weight.sub_(0.01 * cost.detach().abs() / square * slope)
    after = method.step(make_batch(2), 1.0)
    rise = after.monitors["free_energy"] - before.monitors["free_energy"]
    assert rise.item() > 0.002 * cost.item()


@every_rule
@pytest.mark.parametrize("scope", ["batch", "image-class"])
def test_exact_posterior_is_that_of_bayes_rule(rule, scope):
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
    selects = rule in ("select", "marginal-select")
    weight = torch.ones_like(probability)
    dice = dice_of_thresholds(probability, weight, scope=scope, selects=selects)
    expected = grid_posterior(dice, prior, temperature=0.02)
    mean = (expected.exp() * threshold_grid(100)).sum(-1).mean()
    assert output.monitors["threshold"].item() == pytest.approx(mean.item(), abs=1e-4)


def test_fractions_of_foreground_background_and_excluded_voxels_sum_to_one():
    """Half of each crop is padding, which is neither labeled nor excluded."""
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


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"family": "gamma"}, "family"),
        ({"rule": "majority"}, "rule"),
        ({"scope": "patient"}, "scope"),
        ({"e_step": "sampled"}, "e_step"),
        ({"temperature": 1e-7}, "must be 1e-06 or more"),
        ({"temperature": float("nan")}, "must be 1e-06 or more"),
        ({"temperature": float("inf")}, "and finite"),
        ({"prior_mean": 1.0}, "prior_mean is 1.0"),
        ({"prior_std": 0.0}, "prior_std is 0.0"),
        ({"scope": "voxel", "e_step": "exact"}, "e_step 'variational'"),
        ({"scope": "voxel", "family": "categorical"}, "like 'beta'"),
    ],
)
def test_invalid_threshold_setting_is_rejected(settings, words):
    with pytest.raises(UserError, match=words):
        ThresholdSettings(**settings)


def test_prior_is_recomputed_only_after_a_move():
    method = bpl(prior_mean=0.9)
    before = method.latent.references()
    method.step(make_batch(2), 1.0)
    assert method.latent.references() is before
    assert before.prior.mean.item() == pytest.approx(0.9, abs=1e-3)
    assert method.double().latent.references().prior.mean.dtype == torch.float64


def test_small_masses_of_the_prior_are_exact():
    """Compared with scipy.stats.norm(0.5, 0.05); in float32 all masses beyond 0.8 were equal."""
    latent = bpl(family="normal", prior_mean=0.5, prior_std=0.05, e_step="exact").latent
    cells = stats.norm(0.5, 0.05)
    masses = [cells.sf(edge / 100) - cells.sf((edge + 1) / 100) for edge in range(50, 90)]
    ours = latent.references().log_mass[50:90].double()
    torch.testing.assert_close(ours, torch.tensor(masses).log(), rtol=1e-3, atol=1e-3)


def test_free_energy_of_the_exact_posterior_is_the_evidence_and_the_maximum():
    """The evidence log Z is a sum over the grid."""
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
def test_kl_is_the_mean_over_thresholds(scope):
    method = bpl(family="normal", scope=scope, rule="marginal")
    for parameter in trainable(method.latent.head.last):
        torch.nn.init.zeros_(parameter)
    torch.nn.init.constant_(
        method.latent.head.last.bias, 0.5
    )  # a shift of half a standard deviation, e^0.5
    kl = method.step(make_batch(2), 1.0).monitors["kl"].item()
    spread = 0.5 / (1 + (0.5 / 3) ** 2) ** 0.5  # soft limit of the log standard deviation
    expected = -spread + (math.exp(2 * spread) + 0.25) / 2 - 0.5
    assert kl == pytest.approx(expected, rel=1e-4)


@every_rule
def test_padding_changes_neither_threshold_nor_labels(rule):
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


def test_latent_threshold_uses_single_precision_under_autocast():
    method = bpl(rule="marginal")
    batch = make_batch(2)
    features = torch.randn(
        (2, method.network.features, 16, 16), generator=torch.Generator().manual_seed(0)
    )
    logits = torch.randn((2, 1, 16, 16), generator=torch.Generator().manual_seed(1))
    inside = torch.ones_like(logits[:, :1])
    plain = method.latent(logits, inside, features, batch.generator)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = method.latent(logits, inside, features, batch.generator)
    assert torch.equal(plain.target, half.target)
    assert torch.equal(plain.terms["threshold_cost"].value, half.terms["threshold_cost"].value)


@pytest.mark.parametrize(
    "threshold",
    [
        {"rule": "select"},
        {"rule": "marginal", "scope": "voxel"},
        {"rule": "marginal", "e_step": "exact"},
    ],
)
def test_a_step_that_changes_from_call_to_call_is_not_recorded(threshold):
    """A CUDA graph would repeat the draws of the step that was recorded."""
    assert bpl(rule="marginal").latent.recordable() is not None
    assert bpl(**threshold).latent.recordable() is None


def with_threshold(**threshold: object) -> BPL:
    settings = {"threshold": ThresholdSettings(**threshold)}
    return build("bpl", 2, settings=settings).eval()


@pytest.mark.parametrize("family", [*FAMILIES.names, "exact"])
@torch.no_grad()
def test_mean_of_sampled_masks_converges_to_the_cdf(family):
    """The standard error of a fraction is at most 0.5 / sqrt(1000), 0.016; allow five."""
    if family == "exact":
        method = with_threshold(e_step="exact", rule="binarize", temperature=5.0)
    else:
        method = with_threshold(family=family, rule="binarize")
    found, generator = method.predict_threshold(IMAGE), torch.Generator().manual_seed(0)
    masks = [found.probability > found.threshold.sample(generator) for _ in range(1000)]
    expected = found.threshold.cdf(found.probability)
    assert (torch.stack(masks).float().mean(0) - expected).abs().max() < 0.08
    assert expected.std() > 0.02, "thresholds all on one side would show nothing"


@every_rule
def test_prediction_states_whether_the_rule_selects(rule):
    found = with_threshold(rule=rule).predict_threshold(IMAGE)
    assert found.selects == (rule in SELECTING_RULES)


@torch.no_grad()
def test_exact_posterior_of_an_image_does_not_depend_on_the_batch():
    method = with_threshold(e_step="exact", rule="binarize", scope="image")
    found = method.predict_threshold(torch.cat([IMAGE, 3 * IMAGE.flip(2)]))
    assert found.threshold.mean.shape[:2] == (2, 1)
    alone = method.predict_threshold(IMAGE).threshold.mean
    assert found.threshold.mean[0].item() == pytest.approx(alone.item(), abs=1e-3)


LATENT = "methods/latent_threshold.py"
MUTATIONS = [
    Mutation(
        "counts padding",
        "mask_padding(unlabeled, torch.ones_like(logits[:, :1]))",
        "torch.ones_like(logits[:, :1])",
        "test_padding_changes_neither_threshold_nor_labels",
        {"rule": "marginal"},
    ),
    Mutation(
        "drops the cost of the threshold",
        "replace(labels, outputs=outputs)",
        "replace(labels, terms={}, outputs=outputs)",
        "test_every_weight_is_moved_by_some_term",
    ),
    Mutation(
        "detaches the pseudo loss",
        "self.loss(on_unlabeled.logits, labels",
        "self.loss(on_unlabeled.logits.detach(), labels",
        "test_every_term_moves_some_weight",
    ),
    Mutation(
        "lets the M-step train the threshold",
        "target, weight = pseudo.target.detach(), weight.detach()",
        "target = pseudo.target",
        "test_m_step_trains_the_network_and_not_the_head",
        file=LATENT,
    ),
    Mutation(
        "detaches the cost of the threshold",
        '"threshold_cost": Term(cost)',
        '"threshold_cost": Term(cost.detach())',
        "test_every_term_moves_some_weight",
        file=LATENT,
    ),
    Mutation(
        "does not divide the energy by the temperature",
        "energy = loss / self.settings.temperature",
        "energy = loss",
        "test_threshold_cost_is_the_negative_free_energy",
        file=LATENT,
    ),
    Mutation(
        "minimizes the free energy",
        'else {"threshold_cost": Term(cost)}',
        'else {"threshold_cost": Term(-cost)}',
        "test_step_along_the_gradient_of_the_head_raises_the_free_energy",
        {"rule": "marginal", "family": "logit-normal"},
        file=LATENT,
    ),
    Mutation(
        "never recomputes the prior",
        "if self.cached is None or self.cached_mean is not mean:",
        "if self.cached is None:",
        "test_prior_is_recomputed_only_after_a_move",
        file=LATENT,
    ),
    Mutation(
        "infers every threshold as a decision boundary",
        "selects=settings.rule in SELECTING_RULES,",
        "selects=False,",
        "test_exact_posterior_is_that_of_bayes_rule",
        {"rule": "select", "scope": "batch"},
        file=LATENT,
    ),
    Mutation(
        "ignores the prior in the exact E-step",
        "grid_posterior(dice, prior_log, temperature",
        "grid_posterior(dice, torch.zeros_like(prior_log), temperature",
        "test_exact_posterior_is_that_of_bayes_rule",
        {"rule": "marginal", "scope": "batch"},
        file=LATENT,
    ),
    Mutation(
        "computes fractions of all voxels, padding included",
        "total = inside.expand_as(weight).sum().clamp(min=1)",
        "total = weight.numel()",
        "test_fractions_of_foreground_background_and_excluded_voxels_sum_to_one",
        file=LATENT,
    ),
    Mutation(
        "drops the KL of the exact E-step",
        "posterior.kl(Categorical(prior_log)).mean(), loss)",
        "torch.zeros_like(loss), loss)",
        "test_free_energy_of_the_exact_posterior_is_the_evidence_and_the_maximum",
        file=LATENT,
    ),
    Mutation(
        "adds up the KL of all voxels",
        "posterior.kl(references.prior).mean()",
        "posterior.kl(references.prior).sum()",
        "test_kl_is_the_mean_over_thresholds",
        {"scope": "voxel"},
        file=LATENT,
    ),
]
