from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from segpl.report.gathered import FoundRun, Gathered, grouped, spread_cases

from segpl.data.split import Split
from segpl.evaluate.scores import Score
from segpl.report.page.report import class_legends, title_of, warnings_of, write_report
from segpl.report.page.slices import BUDGET
from segpl.report.sections.answer import answer, answers, ranked
from segpl.report.sections.repeat import command_of, settings_table, versions_table
from segpl.report.sections.scores import cases_table, methods_table, score_section
from segpl.report.sections.stress import stress_section
from segpl.report.sections.training import VALIDATION, cost_section, curve_sections, log_of, thinned
from segpl.report.stress.rows import StressRow

BASE = np.random.default_rng(0).uniform(0.5, 0.7, 12)


def found_run(
    method: str,
    seed: int = 0,
    dice: np.ndarray | None = None,
    *,
    dataset: str = "/data/a",
    class_name: str = "vessel",
    case: str = "case",
    **settings: object,
) -> FoundRun:
    values = BASE if dice is None else dice
    return FoundRun(
        name=f"{method}-{seed}",
        path=Path(
            f"/runs/{Path(dataset).name}/{method}-{seed}{''.join(map(str, settings.values()))}"
        ),
        method=method,
        seed=seed,
        settings={"train.seed": seed, "train.steps": 10, "data.path": dataset, **settings},
        changed={"train.seed": seed, **settings},
        dataset=dataset,
        split=Split((), (), (), tuple(f"{case}{n}" for n in range(len(values))), ()),
        scores=[
            Score(f"{case}{n}", class_name, "dice", float(value), "", "no")
            for n, value in enumerate(values)
        ],
        seconds=10.0 + seed,
        peak_bytes=2.0**30,
        parameters=1234,
    )


def together(*runs: FoundRun) -> Gathered:
    return grouped(runs, {})


def test_runs_that_differ_in_seed_and_place_are_one_method():
    found = together(found_run("segpl", 0), found_run("segpl", 1), found_run("supervised", 0))
    assert found.labels == ["supervised", "segpl"]
    assert [run.seed for run in found.of("segpl")] == [0, 1]


def test_variants_are_named_by_the_settings_in_which_they_differ():
    found = together(
        found_run("segpl", **{"method.alpha": 0.1}), found_run("segpl", **{"method.alpha": 1.0})
    )
    assert found.labels == ["segpl (alpha=0.1)", "segpl (alpha=1.0)"]


def test_second_run_of_one_method_and_seed_is_left_out_by_name():
    twin = found_run("segpl", 0, dataset="/data/a")
    other = FoundRun(**{name: getattr(twin, name) for name in FoundRun.__dataclass_fields__})
    object.__setattr__(other, "path", Path("/elsewhere"))
    object.__setattr__(other, "name", "again")
    found = together(twin, other)
    assert len(found.runs) == 1
    assert "would count twice" in found.broken["again"]


def test_clear_difference_is_called_sure():
    noise = np.random.default_rng(1).normal(0, 0.002, 12)
    runs = [found_run("supervised", seed) for seed in range(5)]
    runs += [found_run("segpl", seed, BASE + 0.05 + noise) for seed in range(5)]
    said = answer(together(*runs))
    assert said.headline.startswith("segpl is best: a Dice of 0.6")
    assert said.headline.endswith("the difference from the other is sure.")
    assert "better by 5.0 Dice" in said.sentences[0]


def test_difference_within_the_noise_is_not_called_sure():
    noise = np.random.default_rng(1).normal(0, 0.05, 12)
    said = answer(together(found_run("supervised"), found_run("segpl", 0, BASE + noise)))
    assert said.headline.startswith("No method can be told to be best.")
    assert "is not sure" in said.headline


def test_partly_sure_answer_names_the_ones_that_are_not():
    noise = np.random.default_rng(1).normal(0, 0.05, 12)
    worse = [
        found_run("cps", 0, BASE - 0.2),
        found_run("supervised", 0, BASE + noise - noise.mean()),
    ]
    said = answer(together(found_run("segpl", 0, BASE + 0.005), *worse))
    assert "from cps is sure, that from supervised is not." in said.headline
    assert "with one seed, another may turn it round" in said.headline


def test_few_cases_are_never_sure_however_much_they_agree():
    """Five cases that all agree have p = 2 / 32, above 0.05, and an interval without 0."""
    said = answer(
        together(found_run("supervised", 0, BASE[:5]), found_run("segpl", 0, BASE[:5] + 0.1))
    )
    assert "is not sure" in said.headline
    assert "p 0.062" in said.sentences[0]


def test_answer_without_scores_says_so():
    assert "no run has scores" in answer(together(found_run("segpl", 0, np.array([])))).headline


def test_single_method_has_nothing_to_be_compared_with():
    said = answer(together(found_run("segpl")))
    assert "there is no other to compare" in said.headline
    assert said.sentences == ()


def test_different_datasets_get_an_answer_each_and_a_warning():
    runs = [
        found_run(method, 0, dataset=data)
        for method in ("segpl", "cps")
        for data in ("/data/a", "/data/b")
    ]
    found = together(*runs)
    assert len(answers(found)) == 2
    assert found.labels == ["segpl on a", "segpl on b", "cps on a", "cps on b"]
    assert any("2 datasets" in text for text in warnings_of(found))


def test_images_of_each_seed_are_compared_at_equal_seeds():
    """Generated scans have the same names in every seed and are other images."""
    runs = [
        found_run(method, seed, BASE + shift, dataset=f"/data/seed-{seed}")
        for method, shift in (("supervised", 0.0), ("segpl", 0.05))
        for seed in (0, 1)
    ]
    found = together(*runs)
    assert found.labels == ["supervised", "segpl"]
    assert len(answers(found)) == 1
    assert "24 of 24 cases" in answers(found)[0].sentences[0]
    assert len(cases_table(found, "dice").rows) == 24


def test_other_test_cases_are_warned_of():
    found = together(found_run("segpl"), found_run("cps", 0, BASE[:5]))
    assert any("not tested on the same cases" in text for text in warnings_of(found))


def test_table_of_methods_begins_with_the_best():
    found = together(found_run("supervised"), found_run("segpl", 0, BASE + 0.1))
    assert [row[0] for row in methods_table(found, found.metrics()).rows] == ["segpl", "supervised"]
    assert methods_table(found, found.metrics()).best == {(0, 3)}
    assert ranked(found) == ["segpl", "supervised"]


def test_deviation_is_that_over_seeds():
    """By hand: means 0.5 and 0.6, deviation 0.0707."""
    found = together(
        found_run("segpl", 0, np.array([0.4, 0.6])), found_run("segpl", 1, np.array([0.5, 0.7]))
    )
    assert methods_table(found, found.metrics()).rows[0][3] == "0.550 ± 0.071"


def test_empty_mask_of_one_run_is_counted_among_all_of_them():
    """Of 24 predictions one is empty, of a case that the other run does find."""
    one, other = found_run("segpl"), found_run("cps")
    object.__setattr__(one.scores[3], "empty", "prediction")
    found = together(one, other)
    note = methods_table(found, found.metrics()).note
    assert "needed for 1 of 24 pairs" in note
    assert "only the prediction 1" in note


@pytest.mark.parametrize(
    ("values", "chosen"),
    [
        ([0.3, 0.9, 0.5], {"worst": "case0", "median": "case2", "best": "case1"}),
        ([0.3, 0.9], {"worst": "case0", "best": "case1"}),
        ([0.3], {"only": "case0"}),
        ([], {}),
    ],
)
def test_cases_to_show_are_the_extremes_and_the_middle(values, chosen):
    assert spread_cases(found_run("segpl", 0, np.array(values))) == chosen


def test_score_that_is_no_number_is_left_out_of_means_and_pictures():
    run = found_run("segpl", 0, np.array([0.4, np.nan, 0.6]))
    found = together(run)
    assert methods_table(found, found.metrics()).rows[0][3] == "0.500"
    assert "case1" not in spread_cases(run).values()


def test_missing_scores_are_told_with_what_to_do():
    run = found_run("segpl", 0, np.array([]))
    object.__setattr__(run, "problems", ("no scores: there is no scores.csv.",))
    part = score_section(together(run))
    assert part.missing == ("segpl-0: no scores: there is no scores.csv.",)
    assert part.tables == ()


def test_validation_joins_the_log_at_its_steps():
    run = found_run("segpl")
    object.__setattr__(run, "log", {"step": [2.0, 4.0], "total": [1.0, 0.5]})
    object.__setattr__(run, "validation", {4: 0.7, 5: 0.8})
    log = log_of(run)
    assert log["step"] == [2.0, 4.0, 5.0]
    np.testing.assert_equal(log[VALIDATION], [np.nan, 0.7, 0.8])
    np.testing.assert_equal(log["total"], [1.0, 0.5, np.nan])


@pytest.mark.parametrize(
    ("second", "title"),
    [
        (["background", "gland", "tumor"], "gland"),
        (["background", "liver", "x"], "gland or liver"),
    ],
)
def test_shares_of_classes_are_named_in_the_order_of_the_classes(second, title):
    runs = [found_run("segpl", 0), found_run("segpl", 1)]
    shares = {f"pseudo_foreground_{number}": [0.1] for number in (10, 2, 1)}
    for run, classes in zip(runs, (["background", "gland", "tumor"], second), strict=True):
        object.__setattr__(run, "log", {"step": [2.0], **shares})
        object.__setattr__(run, "plan", SimpleNamespace(classes=dict.fromkeys(classes, 0)))
    *_, section = curve_sections(together(*runs))
    told = [
        shown.description.removesuffix(" over the steps of training") for shown in section.figures
    ]
    assert told[0] == f"pseudo-labeled {title}"
    assert told[2] == "pseudo foreground 10"  # the plan knows no such class
    assert [shown.figure.axes[0].get_ylabel() for shown in section.figures] == told


def test_runs_without_a_log_have_a_section_that_says_so():
    first, *_ = curve_sections(together(found_run("segpl")))
    assert first.missing == ("no run has a log.",)


def test_cost_has_seconds_weights_and_memory():
    table = cost_section(together(found_run("segpl", 0), found_run("segpl", 1))).tables[0].table
    assert table.rows == [["segpl", "10.5 ± 0.707", "1,050", "1,234", "1.000"]]


def test_settings_show_all_values_of_a_method():
    table = settings_table(together(found_run("segpl", 0), found_run("segpl", 3)))
    assert table.rows == [["train.seed", "0, 3"]]


def test_same_versions_are_one_row():
    runs = [found_run("segpl", seed) for seed in (0, 1)]
    for run in runs:
        object.__setattr__(run, "environment", {"segpl": "1.0", "packages": {"torch": "2.8"}})
    table = versions_table(together(*runs))
    assert table.rows == [["segpl-0, segpl-1", "1.0", "-", "-", "2.8", "-", "-"]]


def test_command_to_repeat_a_run_takes_its_config_and_plan():
    run = found_run("segpl")
    object.__setattr__(run, "path", Path("/my runs/a"))
    assert command_of(run) == (
        "segpl train --config '/my runs/a/config.toml' --set 'data.plan=/my runs/a/plan.json' "
        "--out NEW"
    )


def test_stress_of_seeds_is_one_curve_and_strangers_are_named():
    found = together(found_run("segpl", 0), found_run("segpl", 1))
    rows = [
        StressRow(run, corruption, level, "a", "x", dice, dice)
        for run, dice in (("segpl-0", 0.4), ("segpl-1", 0.6), ("other", 0.1))
        for corruption, level in (("clean", 0.0), ("blur", 1.0))
    ]
    part = stress_section(found, rows)
    assert part.tables[0].table.rows[0][:4] == ["blur", "segpl", "0.500", "0.500"]
    assert part.missing == ("other was measured and is not in this report.",)
    assert "segpl stress" in stress_section(found, None).missing[0]


def test_names_are_text_and_never_markup(tmp_path):
    """Names of cases, classes, folders and methods come from files that anybody may write."""
    evil = "<img src=x onerror=alert(1)>$x^$ </script>"
    run = found_run("segpl", 0, class_name=evil, case=evil, dataset=f"/data/{evil}")
    second = found_run("segpl", 1, class_name="b" + evil, case=evil, dataset=f"/data/{evil}")
    object.__setattr__(run, "name", evil)
    found = grouped([run, second], {evil: evil})
    found = Gathered(
        tuple(
            FoundRun(
                **{n: getattr(r, n) for n in FoundRun.__dataclass_fields__ if n != "label"},
                label=evil,
            )
            for r in found.runs
        ),
        found.broken,
    )
    out = tmp_path / "page.html"
    sections = [score_section(found), cost_section(found)]
    write_report(out, found, sections, sheets={evil: "data:,"}, picture_note=evil, command=evil)
    page = out.read_text()
    assert "<img" not in page
    assert page.count("</script>") == 3  # those of the template
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_long_log_is_thinned_to_means_of_neighbors():
    """By hand: blocks of two rows; a cell without a number counts for nothing."""
    log = {"step": [1.0, 2.0, 3.0, 4.0, 5.0], "total": [1.0, 3.0, np.nan, 5.0, 6.0]}
    assert thinned(log, 3) == {"step": [2.0, 4.0, 5.0], "total": [2.0, 5.0, 6.0]}
    assert thinned(log, 5) is log


def test_page_without_pictures_leaves_room_for_them(tmp_path):
    """5 runs of 40 cases and 20,000 rows of log; pictures have 11 MiB, and all is under 15 MB."""
    steps = np.arange(1, 20_001, dtype=float)
    noise = np.random.default_rng(0)
    runs = [found_run("segpl", 0, noise.uniform(size=40), **{"method.alpha": a}) for a in range(5)]
    columns = ("supervised", "pseudo", "kl", "threshold", "threshold_std", "hidden_dice")
    for run in runs:
        log = {name: noise.normal(size=len(steps)).tolist() for name in columns}
        weights = {f"{name}.weight": [1.0] * len(steps) for name in columns[:3]}
        object.__setattr__(run, "log", {"step": steps.tolist(), **log, **weights})
    found = together(*runs)
    out = tmp_path / "page.html"
    write_report(out, found, [score_section(found), *curve_sections(found), cost_section(found)])
    assert out.stat().st_size + BUDGET < 15_000_000


def test_title_has_the_folder_above_where_the_last_one_says_nothing():
    assert title_of(together(found_run("segpl", dataset="/x/hippocampus"))) == (
        "1 method on hippocampus"
    )
    assert title_of(together(found_run("segpl", dataset="/x/demo/data"))) == "1 method on demo/data"


def test_classes_of_several_datasets_have_a_legend_each():
    runs = [found_run("segpl", dataset="/data/a"), found_run("cps", dataset="/data/b")]
    for run, names in zip(runs, (("background", "vessel"), ("background", "gland")), strict=True):
        classes = {name: number for number, name in enumerate(names)}
        object.__setattr__(run, "plan", SimpleNamespace(classes=classes))
    assert [(head, list(names)) for head, names in class_legends(together(*runs))] == [
        ("truth and prediction of a", ["vessel"]),
        ("truth and prediction of b", ["gland"]),
    ]
    assert [head for head, _ in class_legends(together(runs[0]))] == ["truth and prediction"]
