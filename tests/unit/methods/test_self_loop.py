from __future__ import annotations

import copy
import itertools
import math

import pytest
import torch
from tiny import build, build_with, make_batch, moved, phantom_batch, table_network, trainable
from torch.nn.functional import cross_entropy

from segpl.errors import InputError
from segpl.losses import dice_loss
from segpl.methods.self_loop import SelfLoop
from segpl.networks.network import NetworkSettings
from segpl.types import Batch, Unlabeled
from segpl.views.jigsaw import distant_permutations, rearrange_tiles

RAMP = {"alpha": 0.4, "ramp_begin": 0.2, "ramp_end": 0.6}
both_dims = pytest.mark.parametrize("dims", [2, 3])
BATCH_NORM = NetworkSettings(norm="batch")
every_network = pytest.mark.parametrize(
    "network",
    [NetworkSettings(), BATCH_NORM, NetworkSettings("DynUNet")],
    ids=["unet", "unet with batch norm", "DynUNet"],
)


def make(dims: int = 2, network: NetworkSettings | None = None, **settings: object) -> SelfLoop:
    method = build("self-loop", dims, network=network, settings=settings)
    assert isinstance(method, SelfLoop)
    return method


def drawn(method: SelfLoop, batch: Batch) -> torch.Tensor:
    """The numbers of the puzzles that a step on this batch draws."""
    generator = torch.Generator().manual_seed(batch.generator.initial_seed())
    return method.puzzle.draw(batch.unlabeled.image, generator)


def shuffled(image: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    cuts = (2,) * (image.dim() - 2)
    orders = torch.from_numpy(distant_permutations(math.prod(cuts), 10))
    return rearrange_tiles(image, orders[number], cuts)


def state_of(method: SelfLoop) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in method.state_dict().items()}


def looped(values: torch.Tensor) -> SelfLoop:
    """A method whose loop gives these probabilities (Q, B, K, *S)."""
    method = make()
    method.loop = lambda image, numbers: values  # type: ignore[method-assign]  # a known answer
    return method


@both_dims
@every_network
def test_loop_is_a_training_on_one_puzzle_after_the_other(dims, network):
    """Against torch's own SGD on a network of its own."""
    method = make(dims, network, rounds=3, loop_lr=0.05)
    image = make_batch(dims).unlabeled.image
    numbers = torch.tensor([[4, 1, 7], [9, 2, 3]])
    found = method.loop(image, numbers)

    other = copy.deepcopy(method)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.05)
    for turn in range(3):
        features = other.network(shuffled(image, numbers[:, turn])).features
        optimizer.zero_grad()
        cross_entropy(other.head(features), numbers[:, turn]).backward()
        optimizer.step()
        with torch.no_grad():
            expected = other.network(image).logits.sigmoid()
        assert torch.allclose(found[turn], expected, atol=1e-4), turn


@both_dims
def test_every_round_of_the_loop_predicts_something_else(dims):
    method, batch = make(dims, rounds=4), make_batch(dims)
    answers = method.loop(batch.unlabeled.image, drawn(method, batch))
    assert answers.shape[0] == 4
    for before, after in itertools.pairwise(answers):
        assert (before - after).abs().max() > 1e-4


def test_loop_begins_at_the_weights_as_they_are():
    method, batch = make(loop_lr=0.0), make_batch(2)
    answers = method.loop(batch.unlabeled.image, drawn(method, batch))
    expected = method.network(batch.unlabeled.image).logits.sigmoid()
    assert all(torch.allclose(answer, expected, atol=1e-6) for answer in answers)


@both_dims
@every_network
def test_loop_leaves_weights_statistics_and_gradients_alone(dims, network):
    """DynUNet has layers with two names, of which the second must not keep the copy."""
    method, batch = make(dims, network, loop_lr=1.0), make_batch(dims)
    before, owned = state_of(method), [id(p) for p in method.parameters()]
    method.loop(batch.unlabeled.image, drawn(method, batch))
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items())
    assert [id(p) for p in method.parameters()] == owned
    assert all(p.grad is None and p.requires_grad for p in method.parameters())


@every_network
def test_step_leaves_the_weights_to_the_optimizer(network):
    method = make(2, network)
    before = [p.clone() for p in method.parameters()]
    owned = [id(p) for p in method.parameters()]
    method.step(make_batch(2), 1.0)
    assert [id(p) for p in method.parameters()] == owned
    assert all(torch.equal(*pair) for pair in zip(method.parameters(), before, strict=True))


def test_running_statistics_are_those_of_one_pass_over_the_images_as_they_are():
    method, batch = make(network=BATCH_NORM), make_batch(2)
    other = copy.deepcopy(method)
    method.step(batch, 1.0)
    other.network(torch.cat([batch.labeled.image, batch.unlabeled.image]))
    for (key, ours), theirs in zip(method.named_buffers(), other.buffers(), strict=True):
        assert torch.allclose(ours, theirs), key


def test_loop_moves_all_that_the_head_reads_in_every_round_under_bfloat16():
    """Autocast keeps rounded copies of weights; one made without gradient would stop a weight."""
    method, batch = make(rounds=3), make_batch(2)
    seen: list[list[torch.Tensor]] = []

    def answer(image: torch.Tensor, weights: dict[str, torch.Tensor]) -> object:
        if not torch.is_grad_enabled():
            seen.append([w for name, w in weights.items() if "last" not in name])
        return SelfLoop.answer(method, image, weights)

    method.answer = answer  # type: ignore[method-assign]  # to look at the weights of each round
    with torch.autocast("cpu", torch.bfloat16):
        method.loop(batch.unlabeled.image, drawn(method, batch))
    assert len(seen) == 3
    for before, after in itertools.pairwise(seen):
        assert not any(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_loop_takes_up_the_first_puzzle_again_when_there_are_no_others():
    method = make(rounds=3, permutations=2)
    numbers = torch.tensor([[1, 0], [0, 1]])
    image = make_batch(2).unlabeled.image
    again = make(rounds=3, permutations=2).loop(image, numbers[:, [0, 1, 0]])
    assert torch.allclose(method.loop(image, numbers), again)


def test_target_is_the_mean_over_the_rounds():
    values = torch.tensor([0.1, 0.3, 0.8]).view(3, 1, 1, 1, 1).expand(3, 2, 1, 16, 16)
    pseudo = looped(values).label(make_batch(2).unlabeled, torch.zeros(2, 1))
    assert torch.allclose(pseudo.target, torch.full((2, 1, 16, 16), 0.4))


@pytest.mark.parametrize(
    ("answers", "weight"),
    [
        ([0.5, 0.5], 0.0),
        ([0.0, 1.0], 0.0),  # sure in each round, and never of the same
        ([1.0, 1.0], 1.0),
        ([0.0, 0.0], 1.0),
        ([0.25, 0.25], 0.1887),  # 1 - 0.8113 bits
        ([0.05, 0.15], 0.5310),  # 1 - 0.4690 bits at 0.1
    ],
)
def test_weight_is_what_the_entropy_of_the_mean_leaves_of_one(answers, weight):
    values = torch.tensor(answers).view(2, 1, 1, 1, 1).expand(2, 2, 1, 16, 16)
    pseudo = looped(values).label(make_batch(2).unlabeled, torch.zeros(2, 1))
    assert pseudo.weight.unique().tolist() == pytest.approx([weight], abs=1e-4)
    assert pseudo.monitors["certainty"].item() == pytest.approx(weight, abs=1e-4)
    spread = abs(answers[0] - answers[1]) / 2
    assert pseudo.monitors["loop_spread"].item() == pytest.approx(spread, abs=1e-6)


def test_weight_differs_from_voxel_to_voxel():
    pseudo = make().step(make_batch(2), 1.0).pseudo[0]
    assert pseudo.weight.std() > 0


def test_labels_and_weights_carry_no_gradient():
    method, batch = make(), make_batch(2)
    pseudo = method.label(batch.unlabeled, drawn(method, batch))
    assert not pseudo.target.requires_grad
    assert not pseudo.weight.requires_grad


def test_voxels_beyond_the_scan_do_not_count():
    batch = make_batch(2)
    inside = torch.ones((2, 16, 16), dtype=torch.bool)
    inside[:, :5] = False
    values = torch.ones((2, 2, 1, 16, 16))
    values[..., 5:, :] = torch.tensor([0.9, 1.0]).view(2, 1, 1, 1, 1)
    pseudo = looped(values).label(Unlabeled(batch.unlabeled.image, inside), torch.zeros(2, 1))
    assert not pseudo.weight[:, :, :5].any()
    assert (pseudo.weight[:, :, 5:] > 0).all()
    # 1 - 0.2864 bits at 0.95, and half of 0.1
    assert pseudo.monitors["certainty"].item() == pytest.approx(0.7136, abs=1e-4)
    assert pseudo.monitors["loop_spread"].item() == pytest.approx(0.05)


def test_pseudo_term_is_the_weighted_loss_against_the_mean():
    """By hand: a network of a table keeps its answer, which is then its own soft label."""
    rows = torch.randn((2, 1, 16, 16), generator=torch.Generator().manual_seed(5))
    table = torch.cat([rows, rows])
    settings = {"loss": "dice"}
    method = build_with("self-loop", lambda: table_network(table), settings=settings)
    term = method.step(make_batch(2), 1.0).terms["pseudo"].value
    (ours,) = torch.autograd.grad(term, [method.network.body.logits])

    logits = rows.clone().requires_grad_()
    target = logits.detach().sigmoid()
    bits = torch.distributions.Bernoulli(target).entropy() / math.log(2)
    expected = dice_loss(logits, target, 1 - bits)
    (theirs,) = torch.autograd.grad(expected, [logits])
    assert term.item() == pytest.approx(expected.item(), abs=1e-6)
    assert torch.allclose(ours[2:], theirs, atol=1e-7)
    assert not ours[:2].any()


@both_dims
def test_pseudo_term_holds_the_answer_as_it_is_against_the_loop(dims):
    method, batch = make(dims, loss="dice", loop_lr=0.3), make_batch(dims)
    output = method.step(batch, 1.0)
    target = method.loop(batch.unlabeled.image, drawn(method, batch)).mean(0)
    logits = method.network(batch.unlabeled.image).logits
    bits = torch.distributions.Bernoulli(target).entropy() / math.log(2)
    assert torch.allclose(output.pseudo[0].target, target, atol=1e-6)
    expected = dice_loss(logits, target, 1 - bits)
    assert output.terms["pseudo"].value.item() == pytest.approx(expected.item(), abs=1e-5)


@both_dims
def test_jigsaw_term_is_the_cross_entropy_of_the_order_of_the_tiles(dims):
    method, batch = make(dims), make_batch(dims)
    found = method.step(batch, 1.0).terms["jigsaw"].value
    number = drawn(method, batch)[:, 0]
    features = method.network(shuffled(batch.unlabeled.image, number)).features
    expected = cross_entropy(method.head(features), number)
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)


@both_dims
def test_jigsaw_term_moves_the_head_and_all_of_the_network_but_its_last_layer(dims):
    method = make(dims)
    term = method.step(make_batch(dims), 1.0).terms["jigsaw"].value
    last = list(method.network.body.last.parameters())
    others = [p for p in trainable(method) if all(p is not q for q in last)]
    assert all(moved(term, [parameter]) for parameter in others)
    assert not moved(term, last)


@both_dims
def test_segmentation_does_not_move_the_head(dims):
    method = make(dims)
    terms = method.step(make_batch(dims), 1.0).terms
    for key in ("supervised", "pseudo"):
        assert not moved(terms[key].value, trainable(method.head)), key
        assert moved(terms[key].value, trainable(method.network)), key


@pytest.mark.parametrize(
    ("progress", "weight"), [(0.0, 0.0), (0.2, 0.0), (0.4, 0.2), (0.6, 0.4), (1.0, 0.4)]
)
def test_pseudo_labels_come_after_the_puzzle_has_begun(progress, weight):
    terms = make(jigsaw_weight=0.3, **RAMP).step(make_batch(2), progress).terms
    assert terms["pseudo"].weight == pytest.approx(weight)
    assert terms["jigsaw"].weight == 0.3
    assert terms["supervised"].weight == 1


def test_descent_on_the_jigsaw_term_solves_puzzles():
    method = make(rounds=1, permutations=4)
    optimizer = torch.optim.Adam(trainable(method), lr=0.02)
    values = []
    for step in range(40):
        batch = phantom_batch(2)
        batch.generator.manual_seed(step)
        output = method.step(batch, 0.0)
        optimizer.zero_grad()
        output.terms["jigsaw"].value.backward()
        optimizer.step()
        values.append(output.terms["jigsaw"].value.item())
    assert sum(values[-10:]) < 0.2 * sum(values[:10])


def test_share_of_solved_puzzles_counts_the_right_guesses():
    method, batch = make(), make_batch(2)
    with torch.no_grad():
        method.head.block[-1].weight.zero_()
        method.head.block[-1].bias.copy_(torch.eye(10)[drawn(method, batch)[0, 0]])
    assert drawn(method, batch)[0, 0] != drawn(method, batch)[1, 0]
    assert method.step(batch, 1.0).monitors["solved"].item() == 0.5


def test_puzzles_are_those_of_the_generator_of_the_batch():
    method = make()
    first, same = (method.step(make_batch(2), 1.0).terms["jigsaw"].value for _ in range(2))
    batch = make_batch(2)
    batch.generator.manual_seed(1234)
    assert torch.equal(first, same)
    assert not torch.equal(first, method.step(batch, 1.0).terms["jigsaw"].value)


def test_compiled_network_needs_three_graphs():
    """For both kinds of images, puzzles, and the loop's predictions; each is minutes on a GPU."""
    graphs = []

    def keep(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    method = make()
    method.network.body.compile(dynamic=False, backend=keep)
    found = method.step(make_batch(2), 1.0).terms
    expected = make().step(make_batch(2), 1.0).terms
    assert len(graphs) == 3
    for key in expected:
        assert found[key].value.item() == pytest.approx(expected[key].value.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("rounds", 0),
        ("tiles", 1),
        ("permutations", 1),
        ("loop_lr", -0.1),
        ("jigsaw_weight", float("nan")),
    ],
)
def test_a_loop_that_means_nothing_is_refused(setting, value):
    with pytest.raises(InputError, match=f"method.{setting} is"):
        make(**{setting: value})


def test_crops_too_small_for_a_puzzle_are_refused():
    method = make(tiles=5)
    with pytest.raises(InputError, match=r"crops of \(16, 16\) are too small for a puzzle"):
        method.step(make_batch(2), 1.0)
