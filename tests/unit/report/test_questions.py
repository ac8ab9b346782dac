from __future__ import annotations

import pytest
from scipy import stats

from segpl.evaluate.scores import Score
from segpl.report.comparison import Outcome
from segpl.report.questions import (
    Question,
    findings,
    on_test,
    on_validation,
    p_text,
    question_table,
    settings_table,
    verdict,
)

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


def table_of(found_in: list[Outcome], question: Question = ASKED) -> list[list[str]]:
    found = findings([question], found_in, on_validation)[question.id]
    return question_table(question, found, found_in, on_validation, cases="validation").rows


def sentence(found_in: list[Outcome], question: Question = ASKED) -> str:
    return verdict(question, findings([question], found_in, on_validation)[question.id])


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
    found = findings([ASKED], failed, on_validation)["a"]
    table = question_table(ASKED, found, failed, on_validation, cases="validation")
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
    alone = findings([ASKED], noisy, on_validation)["a"][0]
    among = findings([ASKED, other], noisy, on_validation)["a"][0]
    assert alone.holm == pytest.approx(2 * alone.difference.p)
    assert among.holm == pytest.approx(3 * alone.difference.p)


def test_the_same_comparison_in_two_questions_counts_once():
    twin = Question("b", "", "high", ("segpl",))
    one, two = (findings(asked, ALL, on_validation)["a"][0] for asked in ([ASKED], [ASKED, twin]))
    assert one.holm == two.holm


def test_test_cases_have_numbers_of_their_own():
    found = findings([ASKED], ALL, on_test)["a"]
    rows = question_table(ASKED, found, ALL, on_test, cases="test").rows
    assert rows[0][1] == "0.300 ± 0.050"


@pytest.mark.parametrize(("p", "text"), [(0.0004, "< 0.001"), (0.0316, "0.032"), (1.0, "1.000")])
def test_p_is_written_as_it_is_read(p, text):
    assert p_text(p) == text


def test_settings_of_variants_are_named():
    table = settings_table({"low": ("segpl", {"threshold": 0.4}), "segpl": ("segpl", {})})
    assert table.rows == [["low", "segpl", "`threshold = 0.4`"], ["segpl", "segpl", "defaults"]]
