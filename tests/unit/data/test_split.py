from __future__ import annotations

from pathlib import Path

import pytest

from segpl.data.case import Case, Dataset
from segpl.data.split import Split, SplitSettings, make_split
from segpl.errors import InputError, MissingFileError


def case(name: str, *, label: bool = True, test: bool = False, subject: str = "") -> Case:
    file = Path(f"{name}.nii.gz")
    return Case(name, (file,), file if label else None, test, subject)


def dataset(*cases: Case) -> Dataset:
    return Dataset(Path("scans"), "folders", cases)


def mixed(labeled: int = 8, unlabeled: int = 4) -> Dataset:
    return dataset(
        *(case(f"l{n:02}") for n in range(labeled)),
        *(case(f"u{n:02}", label=False) for n in range(unlabeled)),
    )


def split(data: Dataset, *, needs_unlabeled: bool = True, **settings: int) -> Split:
    return make_split(data, SplitSettings(**settings), needs_unlabeled=needs_unlabeled)


def held_out(data: Dataset, seed: int) -> tuple[str, ...]:
    return split(data, test=1, seed=seed, needs_unlabeled=False).test


def everyone(result: Split) -> list[str]:
    return [*result.labeled, *result.unlabeled, *result.validation, *result.test]


def test_every_case_is_in_exactly_one_part():
    result = split(mixed(12, 5), labeled=4, validation=2, test=3)
    assert sorted(everyone(result)) == sorted(entry.name for entry in mixed(12, 5).cases)
    sizes = [len(result.labeled), len(result.unlabeled), len(result.validation), len(result.test)]
    assert sizes == [4, 8, 2, 3]


def test_labels_beyond_the_budget_are_hidden_and_listed():
    result = split(mixed(8, 4), labeled=3)
    assert len(result.hidden) == 5
    assert set(result.hidden) < set(result.unlabeled)
    assert all(name.startswith("l") for name in result.hidden)


def test_few_unlabeled_cases_are_part_of_more_and_no_label_of_others_is_hidden():
    parts = [split(mixed(8, 4), labeled=3, unlabeled=count) for count in (2, 6, 0)]
    assert [len(one.unlabeled) for one in parts] == [2, 6, 9]
    assert set(parts[0].unlabeled) < set(parts[1].unlabeled) < set(parts[2].unlabeled)
    assert len({one.labeled for one in parts}) == 1
    assert all(set(one.hidden) <= set(one.unlabeled) for one in parts)
    assert parts[1].hidden
    assert "3 unlabeled cases are left out, as split.unlabeled asks." in parts[1].notes
    assert not any("split.unlabeled" in note for note in parts[2].notes)


def test_another_draw_takes_other_unlabeled_cases():
    draws = {split(mixed(1, 20), unlabeled=5, draw=draw).unlabeled for draw in range(4)}
    assert len(draws) == 4


@pytest.mark.parametrize("count", [-1, 10])
def test_more_unlabeled_cases_than_there_are_cannot_be_had(count):
    with pytest.raises(InputError, match=rf"split\.unlabeled is {count}, and there are 9"):
        split(mixed(8, 4), labeled=3, unlabeled=count)


def test_all_labels_are_kept_by_default():
    result = split(mixed(8, 4))
    assert len(result.labeled) == 8
    assert result.hidden == ()


@pytest.mark.parametrize("seed", range(5))
def test_smaller_budget_is_part_of_a_larger_one(seed):
    four, eight = (split(mixed(20), labeled=n, test=3, seed=seed) for n in (4, 8))
    assert set(four.labeled) < set(eight.labeled)
    assert four.test == eight.test


def test_all_methods_see_the_same_labels():
    with_unlabeled = split(mixed(20), labeled=5, test=2)
    without = split(mixed(20), labeled=5, test=2, needs_unlabeled=False)
    assert with_unlabeled == without


def test_same_seed_gives_the_same_split_in_any_order_of_files():
    data = mixed(12)
    backwards = dataset(*reversed(data.cases))
    assert split(data, labeled=4, test=2, seed=3) == split(backwards, labeled=4, test=2, seed=3)


def test_another_seed_gives_another_split():
    assert split(mixed(20), labeled=5).labeled != split(mixed(20), labeled=5, seed=1).labeled


@pytest.mark.parametrize("seed", range(8))
def test_subject_is_never_on_both_sides_of_the_test(seed):
    cases = [case(f"s{n}-{visit}", subject=f"s{n}") for n in range(8) for visit in range(3)]
    result = split(dataset(*cases), validation=2, test=4, labeled=5, seed=seed)
    subjects = {entry.name: entry.subject for entry in cases}
    trained = {subjects[name] for name in (*result.labeled, *result.unlabeled)}
    watched = {subjects[name] for name in result.validation}
    tested = {subjects[name] for name in result.test}
    assert not trained & watched
    assert not trained & tested
    assert not watched & tested


@pytest.mark.parametrize("seed", range(4))
def test_unlabeled_scan_of_a_held_out_subject_is_not_trained_on(seed):
    """Another visit of a test subject would show the network the anatomy that it is tested on."""
    cases = [case(f"s{n}-a", subject=f"s{n}") for n in range(6)]
    cases += [case(f"s{n}-b", subject=f"s{n}", label=False) for n in range(6)]
    result = split(dataset(*cases), test=2, validation=1, seed=seed)
    held = {name[:2] for name in (*result.test, *result.validation)}
    assert not held & {name[:2] for name in result.unlabeled}
    assert len(result.unlabeled) == 3
    assert any("3 unlabeled" in note for note in result.notes)


def test_held_out_subjects_may_leave_no_unlabeled_case():
    cases = [case("a1", subject="a"), case("b1"), case("a2", subject="a", label=False)]
    seeds = [n for n in range(20) if held_out(dataset(*cases), seed=n) == ("a1",)]
    with pytest.raises(InputError, match="needs unlabeled ones"):
        split(dataset(*cases), test=1, labeled=1, seed=seeds[0])


def test_own_test_cases_are_held_out():
    data = dataset(case("a"), case("b", label=False), case("t", test=True, label=False))
    result = split(data)
    assert result.test == ("t",)
    assert "t" not in (*result.labeled, *result.unlabeled)


def test_fully_labeled_benchmark_is_split_with_notes():
    """Of 20 cases a fifth is tested; of the other 16 labels a fifth is kept."""
    result = split(mixed(20, 0))
    assert len(result.test) == 4
    assert len(result.labeled) == 3
    assert len(result.hidden) == 13
    held_out, hidden = result.notes
    assert "All 20 cases are labeled: 4 are held out" in held_out
    assert "3 of 16 training cases keep their label, the other 13 labels are hidden" in hidden


def test_benchmark_keeps_all_labels_for_a_method_that_uses_no_others():
    result = split(mixed(20, 0), needs_unlabeled=False)
    assert len(result.labeled) == 16
    assert len(result.notes) == 1


def test_benchmark_is_not_tested_where_the_user_says_so():
    result = split(mixed(20, 0), test=0, labeled=5)
    assert result.test == ()
    assert len(result.labeled) == 5
    assert result.notes == ()


def test_dataset_with_own_test_cases_loses_no_other_to_the_test():
    data = dataset(*(case(f"l{n:02}") for n in range(15)), case("t", test=True))
    assert split(data).test == ("t",)


def test_dataset_with_unlabeled_cases_is_not_taken_for_a_benchmark():
    result = split(mixed(20, 1))
    assert result.test == ()
    assert result.notes == ()


def test_split_comes_back_as_it_was_written(tmp_path):
    result = split(mixed(20, 0))
    result.write(tmp_path / "split.json")
    assert Split.read(tmp_path / "split.json") == result


def test_file_that_is_no_split_is_refused(tmp_path):
    (tmp_path / "split.json").write_text('{"labeled": []}')
    with pytest.raises(InputError, match=r"lacks \['hidden'.*it is no split of segpl"):
        Split.read(tmp_path / "split.json")


def test_missing_split_is_named(tmp_path):
    with pytest.raises(MissingFileError, match=r"split\.json does not exist"):
        Split.read(tmp_path / "split.json")


def test_dataset_without_a_label_is_refused():
    with pytest.raises(InputError, match=r"no labeled case to train on \(4 images"):
        split(mixed(0, 4))


def test_more_labels_than_there_are_are_refused_with_the_most():
    with pytest.raises(InputError, match=r"--labeled 9 asks for more.*Ask for 6 at most"):
        split(mixed(8), labeled=9, test=2)


def test_negative_number_of_labels_is_refused():
    with pytest.raises(InputError, match="--labeled -3 is no number of cases; 0 means all"):
        split(mixed(8), labeled=-3)


@pytest.mark.parametrize(("name", "count"), [("validation", -1), ("test", -2)])
def test_negative_number_of_held_out_cases_is_refused(name, count):
    with pytest.raises(InputError, match=f"--{name} {count} is no number of cases"):
        split(mixed(8), **{name: count})


def test_holding_out_every_label_is_refused():
    with pytest.raises(InputError, match=r"none is left to train on\. Lower --validation or --tes"):
        split(mixed(8), test=8)


def test_holding_out_more_than_there_are_is_refused():
    with pytest.raises(InputError, match="3 cases were to be held out, and only 2 labeled ones"):
        split(mixed(8), test=6, validation=3)


def test_method_that_needs_unlabeled_cases_refuses_labels_alone():
    with pytest.raises(InputError, match=r"needs unlabeled ones\. Add images without a label"):
        split(mixed(8, 0))


def test_benchmark_with_every_label_asked_for_is_refused_too():
    with pytest.raises(InputError, match="hide some labels with --labeled N"):
        split(mixed(20, 0), test=4, labeled=16)


def test_subject_in_training_and_in_the_own_test_is_told():
    data = dataset(
        case("p1_a", subject="p1"),
        case("p2_a", subject="p2"),
        case("p1_b", test=True, subject="p1"),
    )
    notes = split(data, needs_unlabeled=False).notes
    assert any("such as 'p1'" in note for note in notes)


def test_another_draw_changes_the_labeled_cases_and_no_others():
    first, second, other = (
        split(mixed(20), labeled=5, validation=3, test=4, draw=draw) for draw in (0, 1, 2)
    )
    assert first.test == second.test == other.test
    assert first.validation == second.validation == other.validation
    assert len({first.labeled, second.labeled, other.labeled}) == 3
    assert sorted(everyone(first)) == sorted(everyone(second))


def test_draw_keeps_smaller_budgets_inside_larger_ones():
    few, many = (split(mixed(20), labeled=count, draw=3) for count in (2, 6))
    assert set(few.labeled) < set(many.labeled)
