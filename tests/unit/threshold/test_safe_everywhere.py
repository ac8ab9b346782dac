"""Labels, divergences and gradients are finite for every family, rule and scope.

Inputs cover half precision, saturated probabilities, images without foreground or without any
weight, thresholds near 0 and 1, stds near 0, and arbitrary head outputs.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_exact import exact_posterior
from torch import Tensor

from segpl.losses import LOSSES, dice_loss
from segpl.threshold.base import FAMILIES, Distribution
from segpl.threshold.categorical import Categorical
from segpl.threshold.histogram import GRID_POINTS
from segpl.threshold.rules import DATA_DRIVEN_RULES, RULES
from segpl.threshold.scopes import SCOPES, pool_to_scope, thresholds_per_location

SHAPE = (2, 2, 3, 4)  # B, K, *S
CORNERS = [0.0, 1e-8, 1e-3, 0.5, 0.999, 1 - 1e-6, 1.0]
near_the_ends = st.sampled_from(CORNERS) | st.floats(1e-6, 1 - 1e-6)
narrow_to_wide = st.sampled_from([0.0, 1e-8, 1e-3, 0.1, 0.5, 1.0])
# sigmoid(1e4) is exactly 1 and sigmoid(-1e4) exactly 0, also in half precision
saturated = st.sampled_from([-1e4, -90.0, -17.0, 0.0, 17.0, 90.0, 1e4])
precisions = st.sampled_from([torch.float32, torch.bfloat16])

every_family = pytest.mark.parametrize("family", FAMILIES.names)


def some_offsets(family: str, scope: str, seed: int, size: float) -> Tensor:
    """A head output for the scope."""
    count = FAMILIES.get(family).parameters
    shape = (count, SHAPE[0], thresholds_per_location(scope, SHAPE[1]), 4, 4)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return (size * noise).requires_grad_()


def some_logits(corners: list[float], precision: torch.dtype) -> Tensor:
    count = torch.Size(SHAPE).numel()
    repeated = (corners * count)[:count]
    return torch.tensor(repeated).view(SHAPE).to(precision)


def is_fraction(value: Tensor) -> bool:
    return bool(value.isfinite().all() and (value >= 0).all() and (value <= 1 + 1e-6).all())


def check_labels(rule: str, logits: Tensor, posterior: Distribution, kept: float) -> Tensor:
    """Check labels and M-step losses, and return the cost of the E-step."""
    pseudo = RULES[rule](logits.sigmoid(), posterior, torch.Generator().manual_seed(0))
    assert is_fraction(pseudo.target), rule
    assert is_fraction(pseudo.weight), rule
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
    offsets: Tensor,
    scope: str,
    moments: tuple[Tensor, Tensor],
    logits: Tensor,
    kept: float,
) -> None:
    """Check the posterior, the labels of every rule, and all gradients to the head."""
    kind = FAMILIES.get(family)()
    posterior = kind.posterior(pool_to_scope(offsets, scope, SHAPE[2:]), *moments)
    divergence = posterior.kl(kind.prior(*moments))
    for value in (divergence, posterior.mean, posterior.std):
        assert value.isfinite().all()
    (gradient,) = torch.autograd.grad(divergence.mean(), [offsets], retain_graph=True)
    assert gradient.isfinite().all()
    for rule in RULES:
        cost = check_labels(rule, logits, posterior, kept)
        assert cost.requires_grad == (rule in DATA_DRIVEN_RULES)
        if cost.requires_grad:
            (gradient,) = torch.autograd.grad(cost, [offsets], retain_graph=True)
            assert gradient.isfinite().all(), rule


@every_family
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    scope=st.sampled_from(sorted(SCOPES)),
    mean=near_the_ends,
    std=narrow_to_wide,
    corners=st.lists(saturated | st.floats(-8, 8), min_size=1, max_size=6),
    precision=precisions,
    size=st.sampled_from([0.0, 1.0, 50.0, 1e4]),
    kept=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 3),
)
def test_labels_divergence_and_gradients_are_finite(
    family, scope, mean, std, corners, precision, size, kept, seed
):
    offsets = some_offsets(family, scope, seed, size)
    moments = torch.tensor(mean), torch.tensor(std)
    check_e_step(family, offsets, scope, moments, some_logits(corners, precision), kept)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    family=st.sampled_from(FAMILIES.names),
    scope=st.sampled_from([scope for scope in sorted(SCOPES) if scope != "voxel"]),
    mean=near_the_ends,
    std=narrow_to_wide,
    corners=st.lists(saturated | st.floats(-8, 8), min_size=1, max_size=6),
    precision=precisions,
    kept=st.sampled_from([0.0, 1.0]),
    temperature=st.sampled_from([1e-12, 1e-3, 0.05, 1.0, 1e12]),
    selects=st.booleans(),
)
def test_exact_posterior_is_a_distribution_with_finite_labels(
    family, scope, mean, std, corners, precision, kept, temperature, selects
):
    """The prior of any family may leave grid cells without mass."""
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
    torch.testing.assert_close(
        log_mass.exp().sum(-1), torch.ones(log_mass.shape[:2]), rtol=0, atol=1e-4
    )
    posterior = Categorical(log_mass.view(*log_mass.shape[:2], 1, 1, GRID_POINTS))
    divergence = posterior.kl(Categorical(prior_log))
    for value in (posterior.mean, posterior.std, divergence):
        assert value.isfinite().all()
    for rule in RULES:
        check_labels(rule, logits, posterior, kept)


@every_family
@pytest.mark.parametrize(
    ("mean", "std", "corner"),
    [
        pytest.param(0.9, 0.1, -1e4, id="no foreground"),
        pytest.param(0.9, 0.1, 1e4, id="no background"),
        pytest.param(0.0, 0.0, -8.0, id="threshold at 0"),
        pytest.param(1.0, 0.0, 8.0, id="threshold at 1"),
        pytest.param(0.5, 0.0, 0.0, id="probability equal to a threshold of std 0"),
    ],
)
def test_edge_cases_are_finite_in_half_precision(family, mean, std, corner):
    scope = "image-class"
    offsets = some_offsets(family, scope, 0, 0.0)
    moments = torch.tensor(mean), torch.tensor(std)
    check_e_step(family, offsets, scope, moments, some_logits([corner], torch.bfloat16), 1.0)
