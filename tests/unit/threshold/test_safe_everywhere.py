"""No family, rule or scope has an input that makes a label, a divergence or a gradient infinite.

Half precision, saturated probabilities, images without foreground or without a voxel that counts,
thresholds near 0 and 1, spreads near 0, and heads that say anything.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from segpl.losses import LOSSES, dice_loss
from segpl.threshold.base import FAMILIES, Distribution
from segpl.threshold.categorical import Categorical
from segpl.threshold.exact import exact_posterior
from segpl.threshold.histogram import GRID_POINTS
from segpl.threshold.rules import DATA_DRIVEN_RULES, RULES
from segpl.threshold.scopes import SCOPES, pool_to_scope, thresholds_per_location

SHAPE = (2, 2, 3, 4)  # B, K, *S
CORNERS = [0.0, 1e-8, 1e-3, 0.5, 0.999, 1 - 1e-6, 1.0]
near_the_ends = st.sampled_from(CORNERS) | st.floats(1e-6, 1 - 1e-6)
narrow_to_wide = st.sampled_from([0.0, 1e-8, 1e-3, 0.1, 0.5, 1.0])
# sigmoid(1e4) is 1 and sigmoid(-1e4) is 0, to the bit and in half precision too
saturated = st.sampled_from([-1e4, -90.0, -17.0, 0.0, 17.0, 90.0, 1e4])
precisions = st.sampled_from([torch.float32, torch.bfloat16])

every_family = pytest.mark.parametrize("family", FAMILIES.names)
every_scope = pytest.mark.parametrize("scope", SCOPES)


def some_numbers(family: str, scope: str, seed: int, size: float) -> Tensor:
    """What a head may say, on the grid of the scope."""
    count = FAMILIES.get(family).parameters
    shape = (count, SHAPE[0], thresholds_per_location(scope, SHAPE[1]), 4, 4)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (size * noise).requires_grad_()


def some_logits(corners: list[float], precision: torch.dtype) -> Tensor:
    count = torch.Size(SHAPE).numel()
    repeated = (corners * count)[:count]
    return torch.tensor(repeated).view(SHAPE).to(precision)


def is_share(value: Tensor) -> bool:
    return bool(value.isfinite().all() and (value >= 0).all() and (value <= 1 + 1e-6).all())


def check_labels(rule: str, logits: Tensor, posterior: Distribution, kept: float) -> Tensor:
    """The cost of an E-step, after a look at the labels and at what an M-step makes of them."""
    pseudo = RULES[rule](logits.sigmoid(), posterior, torch.Generator().manual_seed(0))
    assert is_share(pseudo.target), rule
    assert is_share(pseudo.weight), rule
    target, weight = pseudo.target.float(), kept * pseudo.weight.float()
    answer = logits.float().clone().requires_grad_()
    for name, loss in LOSSES.items():
        value = loss(answer, target.detach(), weight.detach())
        assert value.isfinite(), f"{name} of {rule}"
        assert torch.autograd.grad(value, [answer])[0].isfinite().all(), f"{name} of {rule}"
    cost = dice_loss(logits.float(), target, weight)
    assert cost.isfinite(), rule
    return cost


def check_e_step(
    family: str,
    numbers: Tensor,
    scope: str,
    moments: tuple[Tensor, Tensor],
    logits: Tensor,
    kept: float,
) -> None:
    """Everything that the numbers of a head lead to, by every rule, and what leads back to them."""
    kind = FAMILIES.get(family)()
    posterior = kind.posterior(pool_to_scope(numbers, scope, SHAPE[2:]), *moments)
    divergence = posterior.kl(kind.prior(*moments))
    for value in (divergence, posterior.mean, posterior.std):
        assert value.isfinite().all()
    (gradient,) = torch.autograd.grad(divergence.mean(), [numbers], retain_graph=True)
    assert gradient.isfinite().all()
    for rule in RULES:
        cost = check_labels(rule, logits, posterior, kept)
        assert cost.requires_grad == (rule in DATA_DRIVEN_RULES)
        if cost.requires_grad:
            (gradient,) = torch.autograd.grad(cost, [numbers], retain_graph=True)
            assert gradient.isfinite().all(), rule


@every_family
@every_scope
@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    mean=near_the_ends,
    std=narrow_to_wide,
    corners=st.lists(saturated | st.floats(-8, 8), min_size=1, max_size=6),
    precision=precisions,
    size=st.sampled_from([0.0, 1.0, 50.0, 1e4]),
    kept=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 3),
)
def test_labels_divergence_and_gradients_are_finite_by_every_rule(
    family, scope, mean, std, corners, precision, size, kept, seed
):
    numbers = some_numbers(family, scope, seed, size)
    moments = torch.tensor(mean), torch.tensor(std)
    check_e_step(family, numbers, scope, moments, some_logits(corners, precision), kept)


@every_family
@every_scope
@pytest.mark.parametrize(
    ("mean", "std", "corner"),
    [
        pytest.param(0.9, 0.1, -1e4, id="no foreground"),
        pytest.param(0.9, 0.1, 1e4, id="no background"),
        pytest.param(0.0, 0.0, -8.0, id="threshold at 0"),
        pytest.param(1.0, 0.0, 8.0, id="threshold at 1"),
        pytest.param(0.5, 0.0, 0.0, id="probability on a threshold without spread"),
    ],
)
def test_corners_are_finite_in_half_precision_by_every_rule(family, scope, mean, std, corner):
    numbers = some_numbers(family, scope, 0, 0.0)
    moments = torch.tensor(mean), torch.tensor(std)
    check_e_step(family, numbers, scope, moments, some_logits([corner], torch.bfloat16), 1.0)


@every_family
@pytest.mark.parametrize("scope", [scope for scope in SCOPES if scope != "voxel"])
@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    mean=near_the_ends,
    std=narrow_to_wide,
    corners=st.lists(saturated | st.floats(-8, 8), min_size=1, max_size=6),
    precision=precisions,
    kept=st.sampled_from([0.0, 1.0]),
    temperature=st.sampled_from([1e-12, 1e-3, 0.05, 1.0, 1e12]),
    selects=st.booleans(),
)
def test_exact_posterior_is_a_distribution_whose_labels_are_finite(
    family, scope, mean, std, corners, precision, kept, temperature, selects
):
    """Against the prior of any family, which may leave cells of the grid without mass."""
    prior = FAMILIES.get(family)().prior(torch.tensor(mean), torch.tensor(std))
    masses = prior.cdf(torch.linspace(0, 1, GRID_POINTS + 1)).diff()  # (G,)
    prior_log = masses.clamp(min=1e-30).log()
    logits = some_logits(corners, precision)
    log_mass = exact_posterior(
        logits.sigmoid(),
        torch.full(SHAPE, kept),
        prior_log,
        scope=scope,
        temperature=temperature,
        selects=selects,
    )  # (b, k, G)
    assert not log_mass.isnan().any()
    torch.testing.assert_close(log_mass.exp().sum(-1), torch.ones(log_mass.shape[:2]))
    posterior = Categorical(log_mass.view(*log_mass.shape[:2], 1, 1, GRID_POINTS))
    divergence = posterior.kl(Categorical(prior_log))
    for value in (posterior.mean, posterior.std, divergence):
        assert value.isfinite().all()
    for rule in RULES:
        check_labels(rule, logits, posterior, kept)
