from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from records import collect, make_record

from segpl.data.manifest import PredictedCase
from segpl.data.split import Split
from segpl.data.summary import CaseSummary, ClassSummary
from segpl.evaluate.fold_scores import FoldScore
from segpl.evaluate.postprocessing_file import (
    CheckpointComponents,
    ComponentEffect,
    LabelComponents,
    PostProcessing,
)
from segpl.evaluate.scores import Score
from segpl.evaluate.validation import ValidationRow
from segpl.report.collection import RunCollection, cases_by_score, typical_cases
from segpl.report.comparison import comparison_table
from segpl.report.curves import curve_figure, thin_out
from segpl.report.page.cases import case_requests
from segpl.report.page.gallery import Gallery, ShownCase, ShownMask, Tile
from segpl.report.page.report import (
    Page,
    Preface,
    class_legends,
    legends_of,
    sections_of,
    title_of,
    warnings_of,
)
from segpl.report.page.slices import View, class_layer
from segpl.report.run_record import RunSummary
from segpl.report.sections.answer import answer, answers
from segpl.report.sections.predictions import predictions_section
from segpl.report.sections.repeat import (
    component_table,
    settings_table,
    train_command,
    versions_table,
)
from segpl.report.sections.scores import cases_table, class_table, methods_table, score_section
from segpl.report.sections.stress import stress_section
from segpl.report.sections.training import VALIDATION_DICE, cost_section, curve_sections, log_of
from segpl.report.sections.volumes import volume_section
from segpl.report.stress_rows import StressRow

BASE = np.random.default_rng(0).uniform(0.5, 0.7, 12)
NOISE = np.random.default_rng(1).normal(0, 0.05, 12)


class TestGrouping:
    def test_runs_that_differ_only_in_their_seed_are_one_method(self):
        runs = [make_record("segpl", 0), make_record("segpl", 1), make_record("supervised", 0)]
        found = collect(*runs)
        assert found.labels == ["supervised", "segpl"]
        assert [run.seed for run in found.of("segpl")] == [0, 1]

    def test_variants_are_named_by_the_settings_in_which_they_differ(self):
        runs = [make_record("segpl", settings={"method.alpha": alpha}) for alpha in (0.1, 1.0)]
        assert collect(*runs).labels == ["segpl (alpha=0.1)", "segpl (alpha=1.0)"]

    def test_note_of_the_scores_mentions_seeds_and_unequal_cases_only_if_there_are_some(self):
        one, other = make_record("segpl", 0, BASE), make_record("segpl", 1, BASE[:2])
        count = len(BASE)
        assert methods_table(collect(one)).note.startswith(f"Mean over {count} test cases. Bold")
        assert methods_table(collect(one, other)).note.startswith(
            f"Mean over up to {count} test cases, then mean ± standard deviation over seeds. Bold"
        )

    def test_tables_mark_a_reconstructed_method(self):
        runs = [
            make_record(
                "self-loop",
                0,
                [0.5],
                settings={"method.alpha": alpha},
                summary=RunSummary(reconstruction=True),
            )
            for alpha in (0.1, 1.0)
        ]
        labels = [f"self-loop (reconstruction) (alpha={alpha})" for alpha in (0.1, 1.0)]
        assert [row[0] for row in methods_table(collect(*runs)).rows] == labels
        assert collect(runs[0]).labels == ["self-loop (reconstruction)"]
        assert collect(make_record("segpl")).labels == ["segpl"]

    def test_a_second_run_of_one_method_and_seed_is_left_out(self):
        run = make_record("segpl")
        found = collect(run, replace(run, path=Path("/elsewhere"), name="again"))
        assert len(found.runs) == 1
        assert "would count twice" in found.left_out["again"]

    def test_datasets_are_kept_apart(self):
        runs = [
            make_record(method, 0, BASE, dataset=data)
            for method in ("segpl", "cps")
            for data in ("/data/a", "/data/b")
        ]
        found = collect(*runs)
        assert len(answers(found)) == 2
        assert found.labels == ["segpl on a", "segpl on b", "cps on a", "cps on b"]
        assert any("2 datasets" in text for text in warnings_of(found))

    def test_images_generated_for_each_seed_are_compared_at_equal_seeds(self):
        """Generated scans have the same names in every seed, but are different images."""
        runs = [
            make_record(method, seed, BASE + shift, dataset=f"/data/seed-{seed}")
            for method, shift in (("supervised", 0.0), ("segpl", 0.05))
            for seed in (0, 1)
        ]
        found = collect(*runs)
        assert found.labels == ["supervised", "segpl"]
        assert "of 24 cases" in answers(found)[0].sentences[0]
        assert len(cases_table(found).rows) == 24


class TestAnswer:
    def test_clear_difference_is_significant(self):
        runs = [make_record("supervised", seed, BASE) for seed in range(5)]
        runs += [make_record("segpl", seed, BASE + 0.05 + NOISE / 25) for seed in range(5)]
        found = answer(collect(*runs))
        assert found.headline.startswith("segpl is best: Dice 0.6")
        assert "supervised scores 0.050 Dice lower than segpl" in found.sentences[0]

    @pytest.mark.parametrize(("seeds", "shift"), [(1, 0.05), (2, 0.05), (1, 0.0)])
    def test_a_significant_difference_of_single_runs_comes_with_a_caution(self, seeds, shift):
        runs = [make_record("supervised", seed, BASE) for seed in range(seeds)]
        runs += [make_record("segpl", seed, BASE + shift) for seed in range(seeds)]
        headline = answer(collect(*runs)).headline
        assert ("single training run" in headline) == (seeds == 1 and shift > 0)

    def test_mixed_result_names_both_groups(self):
        runs = [
            make_record("segpl", 0, BASE + 0.005),
            make_record("cps", 0, BASE - 0.2),
            make_record("supervised", 0, BASE + NOISE - NOISE.mean()),
        ]
        headline = answer(collect(*runs)).headline
        assert (
            "difference from cps is significant, the difference from supervised is not" in headline
        )

    def test_note_says_that_test_scores_chose_the_best_of_three_methods(self):
        runs = [make_record(name, 0, BASE + shift) for name, shift in (("segpl", 0), ("cps", 0.1))]
        assert "optimistic" not in answer(collect(*runs)).note
        assert "optimistic" in answer(collect(*runs, make_record("supervised", 0, BASE))).note

    def test_five_cases_are_never_significant(self):
        """Five cases that all agree have p = 2 / 32."""
        runs = make_record("supervised", 0, BASE[:5]), make_record("segpl", 0, BASE[:5] + 0.1)
        found = answer(collect(*runs))
        assert found.headline.startswith("No method is significantly best.")
        assert "p = 0.062" in found.sentences[0]

    def test_no_method_is_best_if_every_score_is_zero(self):
        runs = make_record("supervised", 0, BASE * 0), make_record("segpl", 0, BASE * 0)
        found = answer(collect(*runs))
        assert "Every method has a mean Dice of 0.000" in found.headline
        assert "highest" not in found.headline

    def test_missing_scores_and_a_single_method_are_stated(self):
        split = Split((), (), (), ("t",), ())
        assert "no scores yet" in answer(collect(make_record("segpl", split=split))).headline
        alone = answer(collect(make_record("segpl", 0, BASE)))
        assert "no other method to compare with" in alone.headline
        assert alone.sentences == ()

    def test_run_without_test_cases_suggests_cross_validation(self):
        split = Split(("a", "b", "c"), ("u", "v"), (), (), ())
        shown = answer(collect(make_record("segpl", split=split)))
        assert shown.headline.startswith("The training set of segpl has 3 labeled and 2 ")
        assert "the accuracy on new scans was not measured" in shown.headline
        (sentence,) = shown.sentences
        assert "--resume --folds 3" in sentence

    def test_cross_validation_is_the_answer_without_test_cases(self):
        folds = [
            FoldScore(9, n, case, "x", dice) for n, case, dice in ((0, "a", 0.5), (1, "b", 0.7))
        ]
        run = make_record("segpl", split=Split(("a", "b"), (), (), (), ()), folds=folds)
        assert answer(collect(run)).headline == (
            "segpl: Dice 0.600 by cross-validation (0.500 to 0.700 in 2 labeled cases, 2 folds)."
        )


class TestScores:
    def test_score_of_a_significantly_better_method_is_bold(self):
        runs = make_record("supervised", 0, BASE), make_record("segpl", 0, BASE + 0.1)
        table = methods_table(collect(*runs))
        assert [row[0] for row in table.rows] == ["supervised", "segpl"]
        assert table.columns[:2] == ["method", "Dice"]
        assert table.bold == {(1, 1)}
        higher = make_record("segpl", 0, BASE + NOISE)  # by chance
        assert methods_table(collect(runs[0], higher)).bold == frozenset()

    def test_all_tables_have_the_same_order_of_methods(self):
        runs = [make_record(name, 0, BASE + x) for name, x in (("cps", 0.1), ("supervised", 0.2))]
        found = collect(*runs, make_record("segpl", 0, BASE))
        for table in (
            methods_table(found),
            class_table(found),
            cost_section(found).tables[0].table,
        ):
            assert [row[0] for row in table.rows] == ["supervised", "cps", "segpl"]
        assert cases_table(found).columns[1:] == ["supervised", "cps", "segpl"]
        sentences = answer(found).sentences
        assert [text.split(" scores")[0] for text in sentences] == ["cps", "segpl"]

    def test_deviation_is_over_seeds(self):
        """By hand: means 0.5 and 0.6, deviation 0.0707."""
        runs = make_record("segpl", 0, [0.4, 0.6]), make_record("segpl", 1, [0.5, 0.7])
        assert methods_table(collect(*runs)).rows[0][1] == "0.550 ± 0.071"

    def test_classes_are_averaged_before_cases(self):
        run = make_record("segpl", 0, [0.2])
        scores = [*run.scores, Score("case0", "tumor", "dice", 0.6)]
        found = collect(replace(run, scores=scores))
        assert methods_table(found).rows[0][1] == "0.400"
        assert class_table(found).rows == [["segpl", "0.200", "0.600"]]

    def test_empty_masks_are_counted_per_run(self):
        run = make_record("segpl", 0, BASE)
        scores = [replace(run.scores[0], empty="prediction"), *run.scores[1:]]
        found = collect(replace(run, scores=scores), make_record("cps", 0, BASE))
        assert "1 of 24 pairs" in methods_table(found).note

    def test_nan_scores_are_left_out_of_means_and_come_last(self):
        run = make_record("segpl", 0, [0.4, np.nan, 0.3])
        assert methods_table(collect(run)).rows[0][1] == "0.350"
        assert cases_by_score([run]) == ["case2", "case0", "case1"]
        requests, _ = case_requests(collect(run))
        assert [one.title for one in requests] == ["worst: case2", "best: case0", "case1"]

    def test_page_warns_of_different_test_cases(self):
        found = collect(make_record("segpl", 0, BASE), make_record("cps", 0, BASE[:5]))
        assert any("not tested on the same cases" in text for text in warnings_of(found))


@pytest.mark.parametrize(
    ("order", "chosen"),
    [
        ("abcde", {"a": "worst", "c": "median", "e": "best"}),
        ("ab", {"a": "worst", "b": "best"}),
        ("a", {"a": "the only case"}),
        ("", {}),
    ],
)
def test_typical_cases_are_the_extremes_and_the_median(order, chosen):
    assert typical_cases(order) == chosen


def test_every_case_is_shown_by_all_methods_from_worst_to_best():
    """By hand: means over both are 0.5, 0.45 and 0.55."""
    runs = make_record("segpl", 0, [0.1, 0.5, 0.6]), make_record("cps", 0, [0.9, 0.4, 0.5])
    requests, note = case_requests(collect(*runs, make_record("cps", 1, [0.1, 0.1, 0.1])))
    assert [one.title for one in requests] == ["worst: case1", "median: case0", "best: case2"]
    assert [[mask.label for mask in one.masks] for one in requests] == [["segpl", "cps"]] * 3
    assert requests[0].masks[1].caption == "Dice 0.400"
    assert note == "Each method is shown with seed 0."


def test_predictions_without_scores_are_shown_in_the_order_of_review():
    predicted = {
        name: PredictedCase(
            (), "", summary=CaseSummary("ml", {"x": ClassSummary(volume, confidence)})
        )
        for name, volume, confidence in (("sure", 2.0, 0.9), ("unsure", 1.5, 0.8), ("a", 1, 0.1))
    }
    run = make_record("segpl", split=Split(("a",), (), (), (), ()), predicted=predicted)
    requests, _ = case_requests(collect(run))
    assert [(one.title, one.masks[0].caption) for one in requests] == [
        ("unsure", "confidence 0.80, 1.500 ml"),
        ("sure", "confidence 0.90, 2.000 ml"),
    ]
    table = predictions_section(collect(run)).tables[0].table
    assert table.columns == ["case", "confidence", "x (ml)", "review because"]
    assert [row[:3] for row in table.rows] == [
        ["unsure", "0.80", "1.500"],
        ["sure", "0.90", "2.000"],
    ]
    scored = replace(run, scores=[Score("sure", "x", "dice", 0.5)])
    assert predictions_section(collect(scored)).is_empty


@pytest.mark.parametrize(("unit", "size"), [("ml", "volume"), ("px", "area"), ("mm²", "area")])
def test_volumes_are_compared_with_those_of_the_labels(unit, size):
    """By hand: differences of 1 and 3, so a bias of 2."""
    volumes = (("a", 11, 10), ("b", 23, 20))
    run = make_record("segpl", 0, BASE)
    scores = [
        Score(case, "x", metric, value, unit)
        for case, *both in volumes
        for metric, value in zip(("volume", "label_volume"), both, strict=True)
    ]
    scores.append(Score("a", "x", "volume_error", 0.1))
    found = collect(replace(run, scores=[*run.scores, *scores]))
    assert f"{size} error" in methods_table(found).columns
    section = volume_section(found)
    assert section.tables[0].table.rows[0][:2] == ["segpl", "2.000"]
    assert section.title == f"Predicted and true {size}s"
    assert ("volume" in str(section.text)) == (size == "volume")
    assert section.figures[0].figure.axes[0].lines[-1].get_ydata().tolist() == [1, 3]
    assert volume_section(collect(run)).is_empty


def test_difference_in_a_comparison_is_bold_only_if_significant():
    scores = {name: {0: dict(enumerate(BASE + x))} for name, x in (("a", 0), ("b", 0.1))}
    scores["c"] = {0: dict(enumerate(BASE + NOISE))}
    assert comparison_table("a", scores, cases="test").bold == {(1, 2)}


class TestTraining:
    def test_validation_dice_joins_the_log_at_its_steps(self):
        rows = [ValidationRow(step, "a", "x", dice, dice) for step, dice in ((4, 0.7), (5, 0.8))]
        log = {"step": [2.0, 4.0], "total": [1.0, 0.5]}
        joined = log_of(replace(make_record("segpl", log=log), validation=rows))
        assert joined["step"] == [2.0, 4.0, 5.0]
        np.testing.assert_equal(joined[VALIDATION_DICE], [np.nan, 0.7, 0.8])
        np.testing.assert_equal(joined["total"], [1.0, 0.5, np.nan])

    def test_curves_of_classes_carry_the_names_of_the_classes(self):
        log = {"step": [2.0], **{f"pseudo_foreground_{n}": [0.1] for n in (10, 2, 1)}}
        plan = SimpleNamespace(classes={"background": 0, "gland": 1, "tumor": 2})
        *_, section = curve_sections(collect(make_record("segpl", log=log, plan=plan)))
        assert [shown.figure.axes[0].get_ylabel() for shown in section.figures] == [
            "pseudo-labeled gland",
            "pseudo-labeled tumor",
            "pseudo foreground 10",
        ]

    def test_long_logs_are_averaged_in_blocks(self):
        """By hand: blocks of two rows; nan is left out of a mean."""
        log = {"step": [1.0, 2.0, 3.0, 4.0, 5.0], "total": [1.0, 3.0, np.nan, 5.0, 6.0]}
        assert thin_out(log, 3) == {"step": [2.0, 4.0, 5.0], "total": [2.0, 5.0, 6.0]}
        assert thin_out(log, 5) is log

    def test_log_with_a_single_row_has_a_visible_point(self):
        figure = curve_figure({"segpl": [{"step": [10.0], "total": [0.5]}]}, "total", "loss")
        (line,) = figure.axes[0].lines
        assert line.get_marker() == "o"
        assert line.get_xydata().tolist() == [[10.0, 0.5]]

    def test_bands_have_no_impossible_values(self):
        high, low = (0.1, 0.98, 0.99), (0.9, 0.02, 0.01)
        for column, values, band in (
            ("threshold", high, (0.18, 1.0)),
            ("total", high, (0.18, 1.2)),
            ("total", low, (0.0, 0.82)),
            ("total", (-0.9, 0.02, 0.01), (-0.82, 0.24)),
        ):
            logs = [{"step": [1.0], column: [value]} for value in values]
            axes = curve_figure({"segpl": logs}, column, column).axes[0]
            shown = axes.collections[0].get_datalim(axes.transData).intervaly
            assert tuple(shown) == pytest.approx(band, abs=0.01)

    def test_cost_has_time_weights_and_memory(self):
        runs = make_record("segpl", 0), make_record("segpl", 1)
        table = cost_section(collect(*runs)).tables[0].table
        assert table.rows == [["segpl", "10.5 ± 0.707", "1,050", "1,234", "1.000"]]


class TestReproduction:
    def test_settings_show_all_values_of_a_method(self):
        table = settings_table(collect(make_record("segpl", 0), make_record("segpl", 3)))
        assert table.rows == [["train.seed", "0, 3"]]

    def test_runs_with_the_same_versions_share_a_row(self):
        environment = {"segpl": "1.0", "packages": {"torch": "2.8"}}
        runs = [make_record("segpl", seed, environment=environment) for seed in (0, 1)]
        assert versions_table(collect(*runs)).rows == [
            ["segpl-0, segpl-1", "1.0", "-", "-", "2.8", "-", "-"]
        ]

    def test_post_processing_shows_what_labels_and_validation_decided(self):
        labels = {"liver": LabelComponents(3, 4, 0), "vessel": LabelComponents(3, 4, 2)}
        effect = {"liver": ComponentEffect(0.8, 0.7, 2, 0, 2)}
        overruled = CheckpointComponents(10, "abc", (), effect)
        decisions = [
            PostProcessing(labels, ("liver",)),
            PostProcessing(labels, ("liver",), {"last": overruled}),
        ]
        runs = [
            make_record("segpl", seed, postprocessing=one) for seed, one in enumerate(decisions)
        ]
        assert component_table(collect(*runs)).rows == [
            ["segpl-0", "liver", "4", "0", "largest component"],
            ["segpl-0, segpl-1", "vessel", "4", "2", "all components"],
            [
                "segpl-1",
                "liver",
                "4",
                "0",
                "all components (the largest one alone has a lower validation Dice)",
            ],
        ]

    def test_command_uses_the_config_and_plan_of_the_run(self):
        assert train_command(make_record("segpl", path=Path("/my runs/a"))) == (
            "segpl train --config '/my runs/a/config.toml' --set 'data.plan=/my runs/a/plan.json' "
            "--out NEW"
        )


def test_stress_rows_are_grouped_by_method_and_foreign_runs_are_named():
    found = collect(make_record("segpl", 0), make_record("segpl", 1))
    rows = [
        StressRow(run, degradation, level, "a", "x", dice, dice)
        for run, dice in (("segpl-0", 0.4), ("segpl-1", 0.6), ("other", 0.1))
        for degradation, level in (("clean", 0.0), ("blur", 1.0))
    ]
    section = stress_section(found, rows)
    assert section.tables[0].table.rows[0][:4] == ["blur", "segpl", "0.500", "0.500"]
    assert section.missing == ("other is in the table but not in this report.",)
    assert "segpl stress" in stress_section(found, None).missing[0]


class TestPage:
    def test_names_are_text_and_never_markup(self):
        """Case, class, folder and method names come from files that anybody may write."""
        evil = "<img src=x onerror=alert(1)>$x^$ </script>"
        runs = [
            make_record("segpl", seed, BASE, class_name=name, case=evil, dataset=f"/data/{evil}")
            for seed, name in ((0, evil), (1, f"b{evil}"))
        ]
        named = tuple(replace(run, name=evil, label=evil) for run in runs)
        found = RunCollection(named, {evil: evil})
        preface = Preface(title=evil, paragraphs=[evil])
        page = Page(found, [score_section(found), cost_section(found)], preface, evil)
        view = View(evil, 1, 1, 1, 1, 1.0, 0, (0,), evil)
        mask = ShownMask(evil, evil, ({"errors": evil},))
        tile = Tile("data:,", evil, evil, evil)
        shown = (ShownCase(evil, (view,), (mask,)),)
        html = page.render(Gallery(shown, (tile,), {evil: "data:,"}, (evil,), evil))
        assert html.count("<img") == 1  # the tile
        assert html.count("</script>") == 3  # those of the template
        assert "&lt;img src=x onerror=alert(1)&gt;" in html

    def test_same_runs_give_the_same_page_and_figures_take_the_text_color(self):
        found = collect(make_record("segpl", 0, BASE))
        one, two = (
            Page(found, [score_section(found)], Preface(), "").render(Gallery()) for _ in "ab"
        )
        assert one == two
        assert "currentColor" in one
        assert "#0b0c0d" not in one

    def test_long_logs_leave_room_for_slices(self):
        rng = np.random.default_rng(0)
        columns = ("supervised", "pseudo", "kl", "threshold", "threshold_std", "hidden_dice")
        log = {"step": list(range(20_000)), **{c: rng.normal(size=20_000) for c in columns}}
        runs = [make_record("segpl", settings={"method.alpha": a}, log=log) for a in range(5)]
        found = collect(*runs)
        html = Page(found, curve_sections(found), Preface(), "").render(Gallery())
        assert len(html) < 4_000_000

    def test_title_includes_the_parent_of_a_folder_named_data(self):
        runs = (
            make_record("segpl", dataset="/x/heart"),
            make_record("segpl", dataset="/x/demo/data"),
        )
        titles = [title_of(collect(run)) for run in runs]
        assert titles == ["1 method on heart", "1 method on demo/data"]

    @pytest.mark.parametrize("layers", [("errors",), ("prediction", "uncertainty")])
    def test_only_layers_that_are_shown_have_a_legend(self, layers):
        view = View("stored", 1, 1, 1, 1, 1.0, 0, (0,), "i")
        mask = ShownMask("segpl", "", (dict.fromkeys(layers, "s"),))
        shown = Gallery((ShownCase("a", (view,), (mask,)),))
        found = [heading for heading, _ in legends_of(collect(make_record("segpl")), shown)]
        assert found == [layer for layer in ("errors", "uncertainty") if layer in layers]

    def test_empty_sections_are_one_list_of_what_is_missing(self):
        found = collect(make_record("segpl", 0, BASE))
        page = Page(found, sections_of(found), Preface(), "")
        html = page.render(Gallery())
        listed = html.split('<section id="missing">')[1]
        for title, remedy in (("Calibration", "--probabilities"), ("Degraded", "segpl stress")):
            assert title in listed
            assert remedy in listed
        assert '<section id="calibration">' not in html
        assert 'href="#calibration"' not in html

    def test_legend_of_predictions_without_labels_does_not_mention_ground_truth(self):
        view = View("stored", 1, 1, 1, 1, 1.0, 0, (0,), "i")
        mask = ShownMask("segpl", "", ({"prediction": "s"},))
        run = make_record("segpl", plan=SimpleNamespace(classes={"bg": 0, "vessel": 1}))
        legends = legends_of(collect(run), Gallery((ShownCase("a", (view,), (mask,)),)))
        assert [heading for heading, _ in legends] == ["prediction"]

    def test_runs_without_test_cases_miss_no_part_that_needs_them(self):
        """`segpl report --fill`, the remedy of the others, cannot help."""
        found = collect(make_record("segpl", problems=("no scores: no case was held out",)))
        html = Page(found, sections_of(found), Preface(), "").render(Gallery())
        listed = html.split('<section id="missing">')[1]
        assert "no case was held out" in listed
        assert "--fill" not in listed
        assert "segpl stress" not in listed

    def test_every_dataset_has_a_legend_of_its_classes(self):
        runs = [
            make_record(
                "segpl", dataset=f"/data/{name}", plan=SimpleNamespace(classes={"bg": 0, c: 1})
            )
            for name, c in (("a", "vessel"), ("b", "gland"))
        ]
        assert [
            (head, list(names)) for head, names in class_legends(collect(*runs), "prediction")
        ] == [("prediction of a", ["vessel"]), ("prediction of b", ["gland"])]

    def test_the_legend_has_the_colors_of_the_overlays_for_any_number_of_classes(self):
        classes = {str(number): number for number in range(20)}
        run = make_record("segpl", plan=SimpleNamespace(classes=classes))
        ((_, legend),) = class_legends(collect(run), "prediction")
        _, overlay = class_layer(np.arange(20))
        assert list(legend.values()) == [color for color, _ in overlay]
