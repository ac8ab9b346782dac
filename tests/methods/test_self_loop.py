from __future__ import annotations

import copy
import itertools
import math
from dataclasses import replace

import pytest
import torch
from method_case import MethodCase
from mutations import Mutation
from tiny import BATCH_NORM, build, build_with, make_batch, moved, table_network, trainable
from torch.nn.functional import cross_entropy

from segpl.errors import InputError
from segpl.losses import dice_loss
from segpl.methods.base import METHODS
from segpl.methods.self_loop import SelfLoop
from segpl.networks.network import NetworkSettings
from segpl.types import Batch, Unlabeled
from segpl.views.jigsaw import distant_permutations, rearrange_tiles

CASE = MethodCase(
    curve={
        "supervised": [0.651867, 0.619749],
        "pseudo": [0.456134, 0.446061],
        "jigsaw": [2.322864, 2.151444],
    },
)
every_network = pytest.mark.parametrize(
    "network",
    [NetworkSettings(), BATCH_NORM, NetworkSettings("DynUNet")],
    ids=["unet", "batch norm", "DynUNet"],
)


def make(dims: int = 2, network: NetworkSettings | None = None, **settings: object) -> SelfLoop:
    # DynUNet needs two downsamplings
    strides = ((2,) * dims,) * 2 if network and network.name == "DynUNet" else ()
    method = build("self-loop", dims, network=network, strides=strides, settings=settings)
    assert isinstance(method, SelfLoop)
    return method


def drawn(method: SelfLoop, batch: Batch) -> torch.Tensor:
    """The puzzles that a step on this batch draws."""
    generator = torch.Generator().manual_seed(batch.generator.initial_seed())
    return method.puzzle.draw(batch.unlabeled.image, generator)


def shuffled(image: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    cuts = (2,) * (image.dim() - 2)
    orders = torch.from_numpy(distant_permutations(math.prod(cuts), 10))
    return rearrange_tiles(image, orders[number], cuts)


def state_of(method: SelfLoop) -> dict[str, torch.Tensor]:
    return {key: value.clone() for key, value in method.state_dict().items()}


def looped(values: torch.Tensor) -> SelfLoop:
    """A method whose loop returns these probabilities (Q, B, K, *S)."""
    method = make()
    method.loop = lambda image, numbers: values  # type: ignore[method-assign]  # a known answer
    return method


@every_network
def test_loop_trains_on_one_puzzle_after_another(network):
    """Compared with torch's SGD on a copy of the network."""
    method = make(2, network, rounds=3, loop_lr=0.05)
    image = make_batch(2).unlabeled.image
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
        assert torch.allclose(found[turn], expected, atol=1e-3), turn


@every_network
def test_loop_changes_neither_weights_nor_statistics_nor_gradients(network):
    """DynUNet has layers with two names; neither may keep the copied weights."""
    method, batch = make(2, network, loop_lr=1.0), make_batch(2)
    before, owned = state_of(method), [id(p) for p in method.parameters()]
    method.loop(batch.unlabeled.image, drawn(method, batch))
    assert all(torch.equal(value, before[key]) for key, value in method.state_dict().items())
    assert [id(p) for p in method.parameters()] == owned
    assert all(p.grad is None and p.requires_grad for p in method.parameters())


def test_running_statistics_come_from_one_pass_over_unshuffled_images():
    method, batch = make(network=BATCH_NORM), make_batch(2)
    other = copy.deepcopy(method)
    method.step(batch, 1.0)
    other.network(torch.cat([batch.labeled.image, batch.unlabeled.image]))
    for (key, ours), theirs in zip(method.named_buffers(), other.buffers(), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-5), key


def test_every_round_updates_all_weights_of_the_head_under_bfloat16():
    """Autocast caches rounded weights; a copy without gradient would freeze a weight."""
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


def test_loop_repeats_puzzles_if_there_are_fewer_than_rounds():
    method = make(rounds=3, permutations=2)
    numbers = torch.tensor([[1, 0], [0, 1]])
    image = make_batch(2).unlabeled.image
    again = make(rounds=3, permutations=2).loop(image, numbers[:, [0, 1, 0]])
    assert torch.allclose(method.loop(image, numbers), again, atol=1e-5)


def test_target_is_the_mean_over_the_rounds():
    values = torch.tensor([0.1, 0.3, 0.8]).view(3, 1, 1, 1, 1).expand(3, 2, 1, 16, 16)
    (pseudo,) = looped(values).label(make_batch(2), 1.0)
    assert torch.allclose(pseudo.target, torch.full((2, 1, 16, 16), 0.4))


@pytest.mark.parametrize(
    ("answers", "weight"),
    [
        ([0.5, 0.5], 0.0),
        ([0.0, 1.0], 0.0),  # certain in each round, but contradictory
        ([1.0, 1.0], 1.0),
        ([0.0, 0.0], 1.0),
        ([0.25, 0.25], 0.1887),  # 1 - 0.8113 bits
        ([0.05, 0.15], 0.5310),  # 1 - 0.4690 bits at 0.1
    ],
)
def test_weight_is_one_minus_the_entropy_of_the_mean(answers, weight):
    values = torch.tensor(answers).view(2, 1, 1, 1, 1).expand(2, 2, 1, 16, 16)
    (pseudo,) = looped(values).label(make_batch(2), 1.0)
    assert pseudo.weight.unique().tolist() == pytest.approx([weight], abs=1e-4)
    assert pseudo.monitors["certainty"].item() == pytest.approx(weight, abs=1e-4)
    spread = abs(answers[0] - answers[1]) / 2
    assert pseudo.monitors["loop_spread"].item() == pytest.approx(spread, abs=1e-5)


def test_padding_does_not_count():
    batch = make_batch(2)
    inside = torch.ones((2, 16, 16), dtype=torch.bool)
    inside[:, :5] = False
    values = torch.ones((2, 2, 1, 16, 16))
    values[..., 5:, :] = torch.tensor([0.9, 1.0]).view(2, 1, 1, 1, 1)
    batch = replace(batch, unlabeled=Unlabeled(batch.unlabeled.image, inside))
    (pseudo,) = looped(values).label(batch, 1.0)
    assert not pseudo.weight[:, :, :5].any()
    assert (pseudo.weight[:, :, 5:] > 0).all()
    # 1 - 0.2864 bits at 0.95, and half of 0.1
    assert pseudo.monitors["certainty"].item() == pytest.approx(0.7136, abs=1e-4)
    assert pseudo.monitors["loop_spread"].item() == pytest.approx(0.05)


def test_pseudo_term_is_the_weighted_loss_against_the_mean():
    """By hand: a table does not change in the loop, so its answer is its own soft label."""
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
    assert term.item() == pytest.approx(expected.item(), rel=1e-4)
    assert torch.allclose(ours[2:], theirs, atol=1e-6)
    assert not ours[:2].any()


def test_jigsaw_term_is_the_cross_entropy_of_the_tile_order():
    method, batch = make(2), make_batch(2)
    found = method.step(batch, 1.0).terms["jigsaw"].value
    number = drawn(method, batch)[:, 0]
    features = method.network(shuffled(batch.unlabeled.image, number)).features
    expected = cross_entropy(method.head(features), number)
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)


def test_jigsaw_term_trains_the_head_and_all_of_the_network_but_its_last_layer():
    method = make(2)
    term = method.step(make_batch(2), 1.0).terms["jigsaw"].value
    last = list(method.network.body.last.parameters())
    others = [p for p in trainable(method) if all(p is not q for q in last)]
    assert all(moved(term, [parameter]) for parameter in others)
    assert not moved(term, last)


def test_segmentation_does_not_train_the_head():
    method = make(2)
    terms = method.step(make_batch(2), 1.0).terms
    for key in ("supervised", "pseudo"):
        assert not moved(terms[key].value, trainable(method.head)), key
        assert moved(terms[key].value, trainable(method.network)), key


def test_puzzle_has_a_constant_weight():
    terms = make(jigsaw_weight=0.3).step(make_batch(2), 0.0).terms
    assert terms["pseudo"].weight == 0
    assert terms["jigsaw"].weight == 0.3


def test_solved_is_the_fraction_of_correct_guesses():
    method, batch = make(), make_batch(2)
    with torch.no_grad():
        method.head.block[-1].weight.zero_()
        method.head.block[-1].bias.copy_(torch.eye(10)[drawn(method, batch)[0, 0]])
    assert drawn(method, batch)[0, 0] != drawn(method, batch)[1, 0]
    assert method.step(batch, 1.0).monitors["solved"].item() == 0.5


@pytest.mark.slow
def test_compiled_network_needs_three_graphs():
    """For the batch, the puzzles, and the predictions in the loop; each takes minutes on a GPU."""
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
        assert found[key].value.item() == pytest.approx(expected[key].value.item(), abs=1e-3)


def test_crops_too_small_for_a_puzzle_are_rejected():
    method = make(tiles=5)
    with pytest.raises(InputError, match=r"crops of \(16, 16\) are too small for a puzzle"):
        method.step(make_batch(2), 1.0)


UNET, DYNUNET = NetworkSettings(), NetworkSettings("DynUNet")


def test_tables_mark_it_as_a_reconstruction():
    assert METHODS.get("self-loop").title() == "self-loop (reconstruction)"
    assert METHODS.get("self-loop").title("slow") == "slow (reconstruction)"
    assert [kind.name for kind in METHODS.classes.values() if kind.is_reconstruction] == [
        "self-loop"
    ]


MUTATIONS = [
    Mutation(
        "passes for the published method",
        "is_reconstruction: ClassVar[bool] = True",
        "is_reconstruction: ClassVar[bool] = False",
        "test_tables_mark_it_as_a_reconstruction",
    ),
    Mutation(
        "drops the puzzle",
        "return (PseudoLabels(target, certainty * inside, terms, monitors),)",
        "return (PseudoLabels(target, certainty * inside, {}, monitors),)",
        "test_every_weight_is_moved_by_some_term",
    ),
    Mutation(
        "detaches the puzzle",
        "Term(cross_entropy(scores, first)",
        "Term(cross_entropy(scores.detach(), first)",
        "test_every_term_moves_some_weight",
    ),
    Mutation(
        "detaches the features for its head",
        "self.head(output.features)",
        "self.head(output.features.detach())",
        "test_jigsaw_term_trains_the_head_and_all_of_the_network_but_its_last_layer",
    ),
    Mutation(
        "detaches the pseudo loss",
        "self.loss(on_unlabeled.logits, labels",
        "self.loss(on_unlabeled.logits.detach(), labels",
        "test_every_term_moves_some_weight",
    ),
    Mutation(
        "does not move in its loop",
        "weight - self.settings.loop_lr * slope",
        "weight - 0 * slope",
        "test_loop_trains_on_one_puzzle_after_another",
        {"network": UNET},
    ),
    Mutation(
        "climbs the loss of the puzzle",
        "weight - self.settings.loop_lr * slope",
        "weight + self.settings.loop_lr * slope",
        "test_loop_trains_on_one_puzzle_after_another",
        {"network": UNET},
    ),
    Mutation(
        "moves the weights themselves",
        "else weight - self.settings.loop_lr * slope",
        "else weight.sub_(self.settings.loop_lr * slope)",
        "test_loop_changes_neither_weights_nor_statistics_nor_gradients",
        {"network": UNET},
    ),
    Mutation(
        "leaves its copies in layers with two names",
        ", tie_weights=False",
        "",
        "test_loop_changes_neither_weights_nor_statistics_nor_gradients",
        {"network": DYNUNET},
    ),
    Mutation(
        "trains running statistics",
        "{name: buffer.clone() for",
        "{name: buffer for",
        "test_loop_changes_neither_weights_nor_statistics_nor_gradients",
        {"network": BATCH_NORM},
    ),
    Mutation(
        "solves one puzzle in all rounds",
        "numbers[:, turn % numbers.shape[1]]",
        "numbers[:, 0]",
        "test_loop_trains_on_one_puzzle_after_another",
        {"network": UNET},
    ),
    Mutation(
        "restarts in each round",
        "leaves = {name: Parameter(weight) for name, weight in weights.items()}",
        "leaves = {name: Parameter(weight.detach()) for name, weight in self.named_parameters()}",
        "test_loop_trains_on_one_puzzle_after_another",
        {"network": UNET},
    ),
    Mutation(
        "does not shuffle in its loop",
        "self.answer(self.puzzle(image, number), leaves)",
        "self.answer(image, leaves)",
        "test_loop_trains_on_one_puzzle_after_another",
        {"network": UNET},
    ),
    Mutation(
        "predicts shuffled images in its loop",
        "logits, _ = self.answer(image, weights)",
        "logits, _ = self.answer(self.puzzle(image, number), weights)",
        "test_loop_trains_on_one_puzzle_after_another",
        {"network": UNET},
    ),
    Mutation(
        "does not shuffle for its term",
        "self.puzzle(unlabeled.image, first)",
        "unlabeled.image",
        "test_jigsaw_term_is_the_cross_entropy_of_the_tile_order",
    ),
    Mutation(
        "shuffles labeled images",
        "self.puzzle(unlabeled.image, first)",
        "self.puzzle(batch.labeled.image, first)",
        "test_other_terms_see_unlabeled_images_and_labeled_ones_only_if_declared",
    ),
    Mutation(
        "learns the number of another puzzle",
        "Term(cross_entropy(scores, first)",
        "Term(cross_entropy(scores, numbers[:, 1])",
        "test_jigsaw_term_is_the_cross_entropy_of_the_tile_order",
    ),
    Mutation(
        "keeps the last round only",
        "target = answers.mean(0)",
        "target = answers[-1]",
        "test_target_is_the_mean_over_the_rounds",
    ),
    Mutation(
        "weights all voxels alike",
        "PseudoLabels(target, certainty * inside",
        "PseudoLabels(target, inside",
        "test_weight_is_one_minus_the_entropy_of_the_mean",
        {"answers": [0.25, 0.25], "weight": 0.1887},
    ),
    Mutation(
        "weights by uncertainty",
        "PseudoLabels(target, certainty * inside",
        "PseudoLabels(target, (1 - certainty) * inside",
        "test_weight_is_one_minus_the_entropy_of_the_mean",
        {"answers": [0.25, 0.25], "weight": 0.1887},
    ),
    Mutation(
        "counts padding",
        "PseudoLabels(target, certainty * inside",
        "PseudoLabels(target, certainty",
        "test_padding_does_not_count",
    ),
    Mutation(
        "ramps the puzzle",
        "self.settings.jigsaw_weight)}",
        "self.settings.jigsaw_weight * progress)}",
        "test_puzzle_has_a_constant_weight",
    ),
]
