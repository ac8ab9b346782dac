"""Folds of the labeled cases: who is held out, and who is never touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from segpl.data.case import Case, Dataset
from segpl.data.split import Split, SplitSettings, make_split
from segpl.errors import InputError


def case(name: str, *, label: bool = True, test: bool = False) -> Case:
    """The subject is the first two letters: visits `s1-a` and `s1-b` are of one."""
    file = Path(f"{name}.nii.gz")
    return Case(name, (file,), file if label else None, test, name[:2])


def dataset(*cases: Case) -> Dataset:
    return Dataset(Path("scans"), "folders", cases)


def visits(labels: int = 2) -> Dataset:
    """Six subjects of three visits each, of which the first `labels` are labeled; and a test."""
    return dataset(
        *(
            case(f"s{n}-{visit}", label=visit in "abc"[:labels])
            for n in range(6)
            for visit in "abc"
        ),
        case("u0-a", label=False),
        case("t0-a", test=True),
    )


def single(labeled: int = 9, unlabeled: int = 4) -> Dataset:
    cases = [case(f"{n:02}") for n in range(labeled)]
    return dataset(*cases, *(case(f"u{n}", label=False) for n in range(unlabeled)))


def split(data: Dataset, *, needs_unlabeled: bool = True, **settings: int) -> Split:
    return make_split(data, SplitSettings(**settings), needs_unlabeled=needs_unlabeled)


def folds_of(data: Dataset, count: int, **settings: int) -> list[Split]:
    return [split(data, folds=count, fold=number, **settings) for number in range(count)]


@pytest.mark.parametrize("count", [2, 4, 5])
def test_every_labeled_case_is_held_out_once_and_trained_on_otherwise(count):
    whole = split(single(), labeled=5)
    parts = folds_of(single(), count, labeled=5)
    held = [name for part in parts for name in part.validation]
    assert sorted(held) == list(whole.labeled)
    for part in parts:
        assert sorted([*part.labeled, *part.validation]) == list(whole.labeled)
    sizes = [len(part.validation) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_folds_leave_unlabeled_hidden_and_test_cases_as_they_are():
    whole = split(single(), labeled=5, test=1)
    for part in folds_of(single(), 5, labeled=5, test=1):
        assert part.unlabeled == whole.unlabeled
        assert part.hidden == whole.hidden
        assert part.test == whole.test
        assert part.notes == ()


@pytest.mark.parametrize("seed", range(4))
def test_no_scan_of_a_held_out_subject_is_trained_on(seed):
    """Neither another labeled visit, nor one without a label, nor one whose label is hidden."""
    for part in folds_of(visits(), 3, labeled=7, test=2, seed=seed):
        held = {name[:2] for name in part.validation}
        assert held
        assert not held & {name[:2] for name in (*part.labeled, *part.unlabeled, *part.hidden)}
        assert set(part.hidden) <= set(part.unlabeled)


def test_unlabeled_scans_that_a_fold_leaves_out_are_told():
    part = folds_of(visits(1), 6)[0]
    assert part.notes == (
        "2 unlabeled cases are of subjects that this fold holds out, and left out.",
    )
    assert len(part.unlabeled) == 6 * 2 + 1 - 2


def test_no_test_case_is_in_a_fold():
    for part in folds_of(visits(), 3, test=2):
        assert "t0-a" in part.test
        assert not set(part.test) & {*part.labeled, *part.validation, *part.unlabeled}


def test_validation_cases_of_the_run_take_no_part_in_its_folds():
    whole = split(single(), labeled=5, validation=2)
    for part in folds_of(single(), 5, labeled=5, validation=2):
        everyone = {*part.labeled, *part.validation, *part.unlabeled}
        assert not set(whole.validation) & everyone


def test_another_draw_of_the_labels_is_dealt_out_anew():
    held = [[p.validation for p in folds_of(single(), 2, labeled=4, draw=d)] for d in (0, 1)]
    assert held[0] != held[1]


def test_a_fold_keeps_as_many_labels_of_a_benchmark_as_the_whole_training():
    data = dataset(*(case(f"{n:02}") for n in range(20)))
    whole = split(data)
    for part in folds_of(data, 3):
        assert sorted([*part.labeled, *part.validation]) == list(whole.labeled)


def test_more_folds_than_labeled_subjects_are_refused_with_the_most():
    with pytest.raises(InputError, match=r"--folds 6 needs .* there are 5\. Ask for 5 at most"):
        split(single(), labeled=5, folds=6)


def test_visits_of_one_subject_do_not_count_as_several():
    with pytest.raises(InputError, match=r"there are 6 with 18 cases\. Ask for 6 at most"):
        split(visits(3), folds=7, needs_unlabeled=False)


def test_a_single_labeled_subject_cannot_be_dealt_out():
    with pytest.raises(InputError, match=r"there are 1\. Label more, or leave it out"):
        split(single(), labeled=1, folds=2)


@pytest.mark.parametrize("count", [-2, 1])
def test_fewer_than_two_folds_are_refused(count):
    with pytest.raises(InputError, match=rf"--folds {count} .* Ask for 2 or more"):
        split(single(), folds=count)


@pytest.mark.parametrize("number", [-1, 3])
def test_a_fold_that_is_not_there_is_refused(number):
    with pytest.raises(InputError, match=rf"split\.fold is {number}: 3 folds .* from 0 to 2"):
        split(single(), folds=3, fold=number)


def test_a_fold_without_folds_is_refused():
    with pytest.raises(InputError, match="--folds 0"):
        split(single(), fold=1)


def test_a_fold_that_leaves_nothing_unlabeled_is_refused():
    data = dataset(case("s0-a"), case("s1-a"), case("s0-b", label=False))
    parts = [split(data, folds=2, fold=n, needs_unlabeled=False) for n in (0, 1)]
    empty = next(n for n, part in enumerate(parts) if not part.unlabeled)
    with pytest.raises(InputError, match="all 1 unlabeled cases of scans are of the subjects"):
        split(data, folds=2, fold=empty)
