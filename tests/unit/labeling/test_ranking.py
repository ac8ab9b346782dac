"""The order in which scans should be labeled, from given measures."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from mutations import Mutation

from segpl.errors import InputError, UnknownNameError
from segpl.labeling.measures import ScanMeasures, ScanPool
from segpl.labeling.ranking import (
    DEFAULT_COUNT,
    DEFAULT_RULE,
    RANKING_RULES,
    rank_pool,
    require_numbers,
    require_rule,
)

LATE = 60  # a round without noise


def scan(case: str, *, entropy=0.1, classes=(0.1, 0.1), disagreement=0.0, features=(0.0, 0.0)):
    return ScanMeasures(case, entropy, tuple(classes), disagreement, tuple(features))


def pool(*scans: ScanMeasures, labeled=((0.0, 0.0),)) -> ScanPool:
    return ScanPool(("left", "right"), scans, tuple(labeled))


def cases(found) -> list[str]:
    return [one.case for one in found]


def random_pool(count: int = 20, seed: int = 0) -> ScanPool:
    rng = np.random.default_rng(seed)
    return pool(
        *(
            scan(
                f"case{number:02}",
                entropy=rng.uniform(0.01, 0.1),
                classes=rng.uniform(0.1, 0.5, 2),
                disagreement=rng.uniform(0, 1),
                features=rng.normal(0, 1, 2),
            )
            for number in range(count)
        )
    )


@pytest.mark.parametrize("rule", RANKING_RULES)
def test_every_scan_is_ranked_once_and_the_start_does_not_depend_on_the_count(rule):
    scans = random_pool()
    everything = rank_pool(scans, rule=rule)
    assert sorted(cases(everything)) == sorted(one.case for one in scans.scans)
    assert rank_pool(scans, rule=rule, count=4) == everything[:4]
    assert all(one.reason and np.isfinite(one.score) for one in everything)


@pytest.mark.parametrize("rule", ["random", "entropy"])
def test_random_choices_depend_on_seed_and_round_only(rule):
    scans = random_pool()
    first = rank_pool(scans, rule=rule, seed=3, round=1)
    assert rank_pool(scans, rule=rule, seed=3, round=1) == first
    assert cases(rank_pool(scans, rule=rule, seed=4, round=1)) != cases(first)
    assert cases(rank_pool(scans, rule=rule, seed=3, round=2)) != cases(first)


def test_entropy_without_noise_serves_each_class_and_every_third_time_all_voxels():
    scans = pool(
        scan("left1", classes=(0.9, 0.1)),
        scan("left2", classes=(0.8, 0.2)),
        scan("right1", classes=(0.1, 0.9)),
        scan("right2", classes=(0.2, 0.8)),
        scan("overall", entropy=0.5, classes=(0.05, 0.05)),
    )
    found = rank_pool(scans, rule="entropy", round=LATE, count=4)
    assert set(cases(found[:2])) == {"left1", "right1"}
    assert found[2].case == "overall"
    assert found[2].score == 0.5
    assert found[3].case in ("left2", "right2")
    left = next(one for one in found if one.case == "left1")
    assert left.reason == "uncertain about left (4.5 times the median entropy)"


def test_entropy_of_a_class_ignores_scans_in_which_it_is_not_predicted():
    scans = pool(
        scan("a", entropy=0.9, classes=(None, 0.9)), scan("b", classes=(0.2, 0.2)), scan("c")
    )
    for seed in range(5):
        first = rank_pool(scans, rule="entropy", round=LATE, seed=seed)[0]
        assert first.case == ("a" if "right" in first.reason else "b")


def test_noise_decays_over_rounds():
    """In round 0 the most uncertain scan is first only sometimes, later almost always."""
    values = [scan(f"c{i}", classes=(0.1 * 1.1**i,) * 2) for i in range(10)]

    def hits(round_number: int) -> int:
        return sum(
            rank_pool(pool(*values), rule="entropy", round=round_number, seed=seed)[0].case == "c9"
            for seed in range(100)
        )

    assert hits(0) < 50
    assert hits(0) < hits(3) < hits(6)
    assert hits(8) > 95


def test_default_round_follows_from_the_number_of_labels():
    scans = random_pool()
    many = replace(scans, labeled=((0.0, 0.0),) * (2 * DEFAULT_COUNT))
    assert rank_pool(many, rule="entropy") == rank_pool(many, rule="entropy", round=2)
    assert rank_pool(scans, rule="entropy") == rank_pool(scans, rule="entropy", round=0)


def test_low_entropy_is_called_exploration():
    levels = [0.1 + 0.01 * i for i in range(10)]
    values = pool(*(scan(f"c{i}", entropy=one, classes=(one, one)) for i, one in enumerate(levels)))
    for one in rank_pool(values, rule="entropy", round=0):
        is_low = int(one.case[1:]) < 6  # the sixth is 1.03 times the median
        assert (one.reason == "picked at random, for variety") is is_low


def test_reason_mentions_the_strongest_other_measure():
    plain = [scan(f"c{i}", disagreement=0.1, features=(1, 1)) for i in range(9)]
    odd = [
        scan("torn", disagreement=0.14, features=(1, 1)),
        scan("strange", disagreement=0.02, features=(9, 9)),
        scan("both", disagreement=0.12, features=(-9, -9)),
        scan("quiet", disagreement=0.001, features=(1, 1)),
    ]
    found = {
        rule: {one.case: one.reason for one in rank_pool(pool(*plain, *odd), rule=rule)}
        for rule in RANKING_RULES
    }
    notes = {case: reason.partition("; ")[2] for case, reason in found["entropy"].items()}
    assert notes["torn"] == "networks disagree on 14 % of the boundary"
    assert notes["strange"] == notes["both"] == "unlike any labeled scan"
    assert notes["quiet"] == ""
    assert found["disagreement"]["both"] == (
        "networks disagree on 12 % of the boundary; unlike any labeled scan"
    )
    assert found["distance"]["both"].endswith("; networks disagree on 12 % of the boundary")
    assert found["distance"]["strange"].count("unlike any labeled scan") == 1
    assert not any("; " in reason for reason in found["random"].values())


def test_measures_of_a_single_network_without_labels_have_no_notes():
    scans = pool(scan("a", disagreement=None), scan("b", disagreement=None), labeled=())
    assert not any("; " in one.reason for one in rank_pool(scans, rule="entropy"))


def test_disagreement_is_sorted_and_described():
    scans = pool(scan("a", disagreement=0.02), scan("b", disagreement=0.14), scan("c"))
    found = rank_pool(scans, rule="disagreement")
    assert cases(found) == ["b", "a", "c"]
    assert found[0].reason == "networks disagree on 14 % of the boundary"


def test_distance_spreads_a_batch_over_the_feature_space():
    """Two far scans that look alike are not both chosen before the one in between."""
    scans = pool(
        scan("near", features=(0.5, 0)),
        scan("nearer", features=(0.4, 0)),
        scan("far", features=(10, 0)),
        scan("twin", features=(9.9, 0)),
        scan("between", features=(5, 0)),
    )
    found = rank_pool(scans, rule="distance")
    assert cases(found)[:2] == ["far", "between"]
    assert found[0].reason.startswith("unlike any labeled scan (2.0 times")
    assert found[-1].case in ("near", "nearer", "twin")


def test_distance_is_to_the_nearest_labeled_scan():
    scans = (scan("a", features=(10, 0)), scan("b", features=(-4, 0)))
    assert cases(rank_pool(pool(*scans), rule="distance")) == ["a", "b"]
    labeled = ((0, 0), (9, 0))
    assert cases(rank_pool(pool(*scans, labeled=labeled), rule="distance")) == ["b", "a"]


def test_random_draws_classes_equally_and_scans_without_foreground_last():
    common = [scan(f"l{i}", classes=(0.1, None)) for i in range(8)]
    scans = pool(*common, scan("r", classes=(None, 0.1)), scan("empty", classes=(None, None)))
    firsts = Counter()
    for seed in range(200):
        order = rank_pool(scans, rule="random", seed=seed)
        assert order[-1].case == "empty"
        assert order[-1].reason == "chosen at random among scans without foreground"
        firsts[order[0].case] += 1
    assert 70 < firsts["r"] < 130  # half of 200
    assert len(firsts) == 9


def test_bad_names_and_counts_are_refused():
    with pytest.raises(UnknownNameError, match=r"ranking rule named 'entrpy'.*'entropy'"):
        require_rule("entrpy")
    with pytest.raises(InputError, match="--count is 0"):
        require_numbers(0, 0)
    with pytest.raises(InputError, match="--seed is -1"):
        require_numbers(None, -1)
    require_rule(DEFAULT_RULE)


def mutation(title: str, before: str, after: str, check: str) -> Mutation:
    return Mutation(title, before, after, check, file="labeling/ranking.py")


MUTATIONS = [
    mutation(
        "never reduces the noise", "NOISE_DECAY**-number", "1.0", "test_noise_decays_over_rounds"
    ),
    mutation(
        "never chooses by all voxels",
        "yield 0 if place == period - 1 else next(each)",
        "yield next(each)",
        "test_entropy_without_noise_serves_each_class_and_every_third_time_all_voxels",
    ),
    mutation(
        "serves one class only",
        "each = cycle(columns)",
        "each = cycle(columns[:1])",
        "test_entropy_without_noise_serves_each_class_and_every_third_time_all_voxels",
    ),
    mutation(
        "counts absent classes",
        "for i in left if not column or _has(pool.scans[i], column - 1)",
        "for i in left if pool.scans[i].class_entropy[0] is None",
        "test_entropy_of_a_class_ignores_scans_in_which_it_is_not_predicted",
    ),
    mutation(
        "forgets chosen scans",
        "nearest = np.minimum(nearest,",
        "_ = np.minimum(nearest,",
        "test_distance_spreads_a_batch_over_the_feature_space",
    ),
    mutation(
        "looks at the first labeled scan only",
        "feature_distances(*np.split(points, [len(pool.scans)])).min(1)",
        "feature_distances(*np.split(points, [len(pool.scans)]))[:, 0]",
        "test_distance_is_to_the_nearest_labeled_scan",
    ),
    mutation(
        "draws from all scans",
        "if chosen is None or _has(scan, chosen)",
        "if True",
        "test_random_draws_classes_equally_and_scans_without_foreground_last",
    ),
    mutation(
        "prefers agreement",
        "(-pair[0], pair[1])",
        "(pair[0], pair[1])",
        "test_disagreement_is_sorted_and_described",
    ),
    mutation(
        "calls every choice uncertain",
        "if (ratio := relative(values, index)) < RAISED:",
        "if (ratio := relative(values, index)) < 0:",
        "test_low_entropy_is_called_exploration",
    ),
]
