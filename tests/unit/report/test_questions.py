from __future__ import annotations

import pytest
from scipy import stats
from segpl.report.comparison.outcomes import Outcome
from segpl.report.comparison.questions import (
    Finding,
    Question,
    corrected,
    findings,
    on_test,
    on_validation,
    p_text,
    question_table,
    settings_table,
    to_correct,
    verdict,
)

from segpl.evaluate.scores import Score
from segpl.report.tables import Table

ASKED = Question("a", "Is it?", "segpl", ("high", "same"))


def outcomes(label: str, *values: float) -> list[Outcome]:
    """One training for each seed; two validation cases around each value, a test case below."""
    return [
        Outcome(
            label,
            seed,
            [Score("t", "x", "dice", value / 2)],
            validation={"a": value - 0.1, "b": value + 0.1},
        )
        for seed, value in enumerate(values)
    ]


REFERENCE = outcomes("segpl", 0.5, 0.6, 0.7)
HIGH = outcomes("high", 0.7, 0.81, 0.9)
SAME = outcomes("same", 0.5, 0.6, 0.7)
ALL = [*REFERENCE, *HIGH, *SAME]


# what a log could say: the opposite of the Dice
MEASURES = {"": on_validation, "kl": lambda outcome: 1 - on_validation(outcome)}


def found_by(question: Question, among: list[Question], found_in: list[Outcome]) -> list[Finding]:
    return findings(question, among, found_in, MEASURES)


def whole_table(question: Question, found_in: list[Outcome], **options: object) -> Table:
    among = [question] if options.pop("is_corrected", True) else []
    found, measure = found_by(question, among, found_in), MEASURES[question.measure]
    return question_table(question, found, found_in, measure, cases="validation", **options)


def table_of(found_in: list[Outcome], question: Question = ASKED) -> list[list[str]]:
    return whole_table(question, found_in).rows


def sentence(found_in: list[Outcome], question: Question = ASKED) -> str:
    return verdict(question, found_by(question, [question], found_in))


def test_table_has_values_of_seeds_and_their_paired_difference():
    """By hand: differences 0.2, 0.21, 0.2; mean 0.203, error 1/300, quantile 4.303."""
    reference, high, same = table_of(ALL)
    p = stats.ttest_rel([0.7, 0.81, 0.9], [0.5, 0.6, 0.7]).pvalue
    assert reference == ["segpl", "0.600 ± 0.100", "", "", "", ""]
    assert high[:3] == ["high", "0.803 ± 0.100", "+0.203 [+0.189, +0.218]"]
    assert high[3:] == [p_text(p), p_text(2 * p), "3 of 3"]
    assert same == [
        "same",
        *["0.600 ± 0.100", "+0.000 [+0.000, +0.000]"],
        "1.000",
        "1.000",
        "0 of 3",
    ]


def test_pairs_are_of_equal_seeds_whatever_the_order_of_the_trainings():
    assert table_of(ALL[::-1]) == table_of(ALL)


def test_failed_training_drops_its_pair_and_is_told():
    failed = [*REFERENCE, *HIGH[:2], Outcome("high", 2, error="diverged"), *SAME]
    table = whole_table(ASKED, failed)
    assert table.rows[1][5] == "2 of 2"
    assert "left out with their pairs: `high` with seed 2." in table.note
    assert table.rows[2][5] == "0 of 3"


def test_one_seed_gives_a_difference_and_no_test():
    single = [o for o in ALL if o.seed == 0]
    assert table_of(single)[1] == ["high", "0.700", "+0.200", "-", "-", "1 of 1"]
    assert sentence(single) == "One pair is no test."


def test_no_pair_gives_no_numbers():
    failed = [Outcome("segpl", 0, error="no"), HIGH[0], SAME[0]]
    assert table_of(failed)[0][1] == "-"
    assert table_of(failed)[1][2:] == ["-"] * 4
    assert sentence(failed) == "Without a pair nothing can be told."


def test_sentence_names_what_can_be_told_and_its_direction():
    assert sentence(ALL) == (
        "`high` is better than `segpl` (+0.203, Holm p < 0.001); no other difference can be told."
    )
    worse = Question("b", "", "high", ("segpl",))
    assert sentence(ALL, worse).startswith("`segpl` is worse than `high` (-0.203, Holm p < 0.001)")


def test_sentence_says_where_nothing_can_be_told():
    assert sentence(ALL, Question("b", "", "segpl", ("same",))) == (
        "No difference from `segpl` can be told."
    )


def test_sentence_goes_by_the_corrected_p():
    """By hand: differences 0.1, 0.1 and 0.2 have t 4 and p 0.057; with 0.16 t is 6 and p 0.027."""
    close = [*REFERENCE, *outcomes("high", 0.6, 0.7, 0.86), *SAME]
    alone = Question("b", "", "segpl", ("high",))
    assert sentence(close, alone) == "`high` is better than `segpl` (+0.120, Holm p 0.027)."
    assert sentence(close) == "No difference from `segpl` can be told."


def test_p_is_corrected_for_the_comparisons_of_all_questions():
    noisy = [*ALL, *outcomes("noisy", 0.6, 0.55, 0.9)]
    other = Question("b", "", "segpl", ("noisy",))
    alone = found_by(ASKED, [ASKED], noisy)[0]
    among = found_by(ASKED, [ASKED, other], noisy)[0]
    assert alone.holm == pytest.approx(2 * alone.difference.p)
    assert among.holm == pytest.approx(3 * alone.difference.p)


def test_the_same_comparison_in_two_questions_counts_once():
    twin = Question("b", "", "high", ("segpl",))
    one, two = (found_by(ASKED, asked, ALL)[0] for asked in ([ASKED], [ASKED, twin]))
    assert one.holm == two.holm
    assert len(corrected([ASKED, twin], ALL, MEASURES)) == 2


def test_another_measure_of_the_same_two_is_a_comparison_of_its_own():
    other = Question("b", "", "segpl", ("high",), measure="kl")
    assert len(corrected([ASKED, other], ALL, MEASURES)) == 3
    assert found_by(ASKED, [ASKED, other], ALL)[0].holm == pytest.approx(
        3 * found_by(ASKED, [ASKED], ALL)[0].difference.p
    )


def test_what_cannot_be_tested_counts_for_nothing_in_the_correction():
    absent = Question("b", "", "segpl", ("gone",))
    assert len(corrected([ASKED, absent], ALL, MEASURES)) == 2
    assert not corrected([ASKED], [o for o in ALL if o.seed == 0], MEASURES)


def test_primary_questions_alone_are_corrected_where_there_are_any():
    main = Question("b", "", "segpl", ("high",), is_primary=True)
    drawn = Question("c", "", "segpl", ("high",), curves=("kl",), has_tables=False)
    assert to_correct([ASKED, main, drawn]) == [main]
    assert to_correct([ASKED, drawn]) == [ASKED]


def test_question_that_is_not_corrected_has_p_alone_and_describes():
    table = whole_table(ASKED, ALL, is_corrected=False)
    assert table.columns[3:] == ["p", "seeds better"]
    reference, high, same = table.rows
    assert reference[2:] == [""] * 3
    assert high[3:] == [table_of(ALL)[1][3], "3 of 3"]
    assert same[3:] == ["1.000", "0 of 3"]
    gone = [*REFERENCE, *HIGH]
    assert whole_table(ASKED, gone, is_corrected=False).rows[2][2:] == ["-"] * 3
    assert verdict(ASKED, found_by(ASKED, [], ALL)) == (
        "Not corrected, descriptive: compared with `segpl` at equal seeds, the mean Dice is 0.203 "
        "higher for `high`, the same to three decimals for `same`."
    )
    assert verdict(ASKED, found_by(ASKED, [], gone)).endswith("is 0.203 higher for `high`.")


def test_measure_of_the_log_stands_in_the_heading_and_is_higher_or_lower():
    question = Question("b", "", "segpl", ("high", "same"), measure="kl")
    table = whole_table(question, ALL)
    assert table.columns[1::4] == ["last `kl`", "seeds higher"]
    assert table.note == "Mean and standard deviation of the last `kl` in `log.csv` over 3 seeds."
    assert table.rows[1][:3] == ["high", "0.197 ± 0.100", "-0.203 [-0.218, -0.189]"]
    assert sentence(ALL, question).startswith(
        "`high` has a lower `kl` than `segpl` (-0.203, Holm p < 0.001); no other"
    )
    turned = Question("b", "", "high", ("segpl",), measure="kl")
    assert sentence(ALL, turned).startswith("`segpl` has a higher `kl` than `high` (+0.203")
    none = Question("b", "", "segpl", ("same",), measure="kl")
    assert sentence(ALL, none) == "No difference from `segpl` in `kl` can be told."
    assert "the mean last `kl` is 0.203 lower for `high`" in verdict(
        question, found_by(question, [], ALL)
    )


def test_methods_that_were_fitted_to_validation_cases_are_named_below_their_scores_there():
    words = (
        "Fitted to the labels of these cases, so that its scores are not those of new ones: `high`."
    )
    assert whole_table(ASKED, ALL, fitted=["high", "cold"]).note.endswith(f"3 seeds. {words}")
    assert "Fitted" not in whole_table(ASKED, ALL, fitted=["cold"]).note
    of_log = Question("b", "", "segpl", ("high",), measure="kl")
    assert "Fitted" not in whole_table(of_log, ALL, fitted=["high"]).note
    found = findings(ASKED, [ASKED], ALL, {"": on_test})
    on_tests = question_table(ASKED, found, ALL, on_test, cases="test", fitted=["high"])
    assert "Fitted" not in on_tests.note


def test_test_cases_have_numbers_of_their_own():
    found = findings(ASKED, [ASKED], ALL, {"": on_test})
    rows = question_table(ASKED, found, ALL, on_test, cases="test").rows
    assert rows[0][1] == "0.300 ± 0.050"


@pytest.mark.parametrize(("p", "text"), [(0.0004, "< 0.001"), (0.0316, "0.032"), (1.0, "1.000")])
def test_p_is_written_as_it_is_read(p, text):
    assert p_text(p) == text


def test_settings_of_variants_are_named():
    table = settings_table({"low": ("segpl", {"threshold": 0.4}), "segpl": ("segpl", {})})
    assert table.rows == [["low", "segpl", "`threshold = 0.4`"], ["segpl", "segpl", "defaults"]]
