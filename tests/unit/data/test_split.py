from __future__ import annotations

import re
from dataclasses import replace
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


def visits(labels: int = 2) -> Dataset:
    """Six subjects with three visits each, the first `labels` of them labeled; and a test case."""
    scans = [(f"s{n}", visit) for n in range(6) for visit in "abc"]
    return dataset(
        *(case(f"{s}-{visit}", label=visit in "abc"[:labels], subject=s) for s, visit in scans),
        case("u0-a", label=False),
        case("t0-a", test=True),
    )


def split(data: Dataset, **settings: int) -> Split:
    return make_split(data, SplitSettings(**settings))


def everyone(result: Split) -> list[str]:
    return [*result.labeled, *result.unlabeled, *result.validation, *result.test]


def subjects(names: tuple[str, ...]) -> set[str]:
    return {name[:2] for name in names}


class TestParts:
    def test_every_case_is_in_exactly_one_part(self):
        result = split(mixed(12, 5), labeled=4, validation=2, test=3)
        assert sorted(everyone(result)) == sorted(entry.name for entry in mixed(12, 5).cases)
        assert len(result.labeled) == 4
        assert len(result.unlabeled) == 8
        assert len(result.validation) == 2
        assert len(result.test) == 3

    def test_labels_beyond_the_budget_are_hidden(self):
        result = split(mixed(8, 4), labeled=3)
        assert len(result.hidden) == 5
        assert set(result.hidden) < set(result.unlabeled)
        assert all(name.startswith("l") for name in result.hidden)

    def test_fewer_unlabeled_cases_are_a_subset_of_more(self):
        few, more, all_ = (split(mixed(8, 4), labeled=3, unlabeled=count) for count in (2, 6, 0))
        assert (len(few.unlabeled), len(more.unlabeled), len(all_.unlabeled)) == (2, 6, 9)
        assert set(few.unlabeled) < set(more.unlabeled) < set(all_.unlabeled)
        assert few.labeled == more.labeled == all_.labeled
        assert set(more.hidden) <= set(more.unlabeled)
        assert more.hidden
        assert "split.unlabeled leaves out 3 unlabeled cases." in more.notes
        assert all_.notes == ()
        assert split(mixed(8, 4), labeled=3, unlabeled=8).notes == (
            "split.unlabeled leaves out 1 unlabeled case.",
        )

    def test_round_trip(self, tmp_path):
        result = split(mixed(20, 0), labeled=4)
        result.write(tmp_path / "split.json")
        assert Split.read(tmp_path / "split.json") == result

    def test_file_without_a_split_is_rejected(self, tmp_path):
        path = tmp_path / "split.json"
        with pytest.raises(MissingFileError, match=r"split\.json does not exist"):
            Split.read(path)
        path.write_text('{"labeled": []}')
        with pytest.raises(InputError, match=r"split\.json .*missing required field .unlabeled."):
            Split.read(path)

    @pytest.mark.parametrize("part", ["unlabeled", "validation", "test"])
    def test_file_with_a_case_in_two_parts_is_rejected(self, tmp_path, part):
        result = split(mixed(20), labeled=4, validation=2, test=2)
        twice = replace(result, **{part: (*getattr(result, part), result.labeled[0])})
        twice.write(tmp_path / "split.json")
        with pytest.raises(InputError, match=f"case '{result.labeled[0]}' appears 2 times"):
            Split.read(tmp_path / "split.json")


class TestDraws:
    @pytest.mark.parametrize("draw", [0, 3])
    def test_smaller_budget_is_a_subset_of_a_larger_one(self, draw):
        for seed in range(3):
            few, many = (split(mixed(20), labeled=n, test=3, seed=seed, draw=draw) for n in (4, 8))
            assert set(few.labeled) < set(many.labeled)
            assert few.test == many.test

    def test_split_depends_on_the_seed_and_not_on_the_order_of_files(self):
        data = mixed(12)
        backwards = dataset(*reversed(data.cases))
        assert split(data, labeled=4, test=2, seed=3) == split(backwards, labeled=4, test=2, seed=3)
        assert len({split(data, labeled=4, seed=seed).labeled for seed in range(3)}) > 1

    def test_draws_of_another_seed_are_others(self):
        data = mixed(12)
        assert len({split(data, labeled=4, seed=seed, draw=1).labeled for seed in range(3)}) > 1

    def test_another_draw_changes_the_training_cases_only(self):
        results = [
            split(mixed(20, 9), labeled=5, unlabeled=6, validation=3, test=4, draw=draw)
            for draw in range(3)
        ]
        assert len({(result.test, result.validation) for result in results}) == 1
        assert len({result.labeled for result in results}) == 3
        assert len({result.unlabeled for result in results}) == 3


class TestSubjects:
    @pytest.mark.parametrize("seed", range(4))
    def test_subject_is_never_in_two_parts(self, seed):
        """Another visit of a test subject, labeled or not, would show its anatomy."""
        result = split(visits(), validation=2, test=3, labeled=3, seed=seed)
        trained = subjects((*result.labeled, *result.unlabeled))
        assert not trained & subjects(result.validation)
        assert not trained & subjects(result.test)
        assert not subjects(result.validation) & subjects(result.test)
        assert any("of held-out subjects" in note for note in result.notes)

    def test_all_cases_of_a_held_out_subject_are_held_out_together(self):
        cases = [case(f"{who}{visit}", subject=who) for who in "abcd" for visit in range(3)]
        result = split(dataset(*cases), test=1)
        assert len(result.test) == 3
        assert len({name[0] for name in result.test}) == 1

    def test_subject_in_training_and_in_the_own_test_is_reported(self):
        data = dataset(
            case("p1_a", subject="p1"), case("p2"), case("p1_b", test=True, subject="p1")
        )
        notes = split(data).notes
        assert any("for example 'p1'" in note for note in notes)


def numbered(pattern: str, subjects: int) -> Dataset:
    cases = [pattern.format(who, number) for who in range(subjects) for number in range(6)]
    return dataset(*map(case, cases))


@pytest.mark.parametrize(
    "pattern", ["p{}_{:03}", "vol{}_t1_sl{:02}", "patient{} slice {}", "{}.{}"]
)
@pytest.mark.parametrize("held_out", [{"test": 6}, {"folds": 3}])
def test_slices_that_may_be_of_one_subject_are_reported(pattern, held_out):
    (note,) = split(numbered(pattern, 4), **held_out).notes
    (advice,) = re.findall("data.subject='(.*)'", note)
    name = pattern.format(2, 5)
    assert re.search(advice, name)[1] == name[: name.index("2") + 1].replace("vol2", "vol2_t1")


def test_numbered_cases_of_one_dataset_are_different_subjects():
    assert split(numbered("BraTS{}_{:03}", 1), test=2).notes == ()
    assert split(numbered("site{}_{:03}", 2), test=2).notes == ()
    assert split(mixed(12), test=2).notes == ()
    assert split(numbered("p{}_{:03}", 4)).notes == ()  # nothing is held out


def test_test_images_that_serve_as_unlabeled_cases_are_reported():
    own = Case("t", (Path("scans/imagesTs/t_0000.nii.gz"),))
    assert split(dataset(case("a"), own)).notes == (
        "Unlabeled cases from imagesTs: 1. If these scans must stay unseen, move them out "
        "of the dataset.",
    )
    assert split(dataset(case("a"), case("u", label=False))).notes == ()


class TestFullyLabeled:
    def test_nothing_is_hidden_or_held_out_unasked(self):
        result = split(mixed(40, 0))
        assert len(result.labeled) == 40
        assert everyone(result) == list(result.labeled)
        assert result.notes == ()

    def test_own_test_cases_are_the_only_ones(self):
        data = dataset(*(case(f"l{n:02}") for n in range(15)), case("t", test=True, label=False))
        result = split(data)
        assert result.test == ("t",)
        assert len(result.labeled) == 15


class TestFolds:
    def folds(self, data: Dataset, count: int, **settings: int) -> list[Split]:
        return [split(data, folds=count, fold=number, **settings) for number in range(count)]

    @pytest.mark.parametrize("count", [2, 4, 5])
    def test_every_labeled_case_is_held_out_once_and_nothing_else_changes(self, count):
        whole = split(mixed(9), labeled=5, test=1)
        parts = self.folds(mixed(9), count, labeled=5, test=1)
        assert sorted(name for part in parts for name in part.validation) == list(whole.labeled)
        sizes = [len(part.validation) for part in parts]
        assert max(sizes) - min(sizes) <= 1
        for part in parts:
            assert sorted([*part.labeled, *part.validation]) == list(whole.labeled)
            assert part.unlabeled == whole.unlabeled
            assert part.hidden == whole.hidden
            assert part.test == whole.test
            assert part.notes == ()

    @pytest.mark.parametrize("seed", range(3))
    def test_no_scan_of_a_held_out_subject_is_trained_on(self, seed):
        """Neither another labeled visit, nor an unlabeled one, nor one with a hidden label."""
        whole = split(visits(), labeled=7, test=2, seed=seed)
        for part in self.folds(visits(), 3, labeled=7, test=2, seed=seed):
            assert set(part.validation) <= set(whole.labeled)  # hidden labels stay hidden
            held_out = subjects(part.validation)
            assert held_out
            assert not held_out & subjects((*part.labeled, *part.unlabeled, *part.hidden))
            assert set(part.hidden) <= set(part.unlabeled)
            assert "t0-a" in part.test
            assert not set(part.test) & {*part.labeled, *part.validation, *part.unlabeled}

    def test_unused_unlabeled_cases_are_reported(self):
        part = self.folds(visits(1), 6)[0]
        assert part.notes == ("Not used: 2 unlabeled cases of subjects in this fold.",)
        assert len(part.unlabeled) == 6 * 2 + 1 - 2

    def test_validation_cases_of_the_run_are_in_no_fold(self):
        whole = split(mixed(9), labeled=5, validation=2)
        for part in self.folds(mixed(9), 5, labeled=5, validation=2):
            training = {*part.labeled, *part.validation, *part.unlabeled}
            assert not set(whole.validation) & training

    def test_another_draw_gives_other_folds(self):
        draws = [self.folds(mixed(9), 2, labeled=4, draw=draw) for draw in (0, 1)]
        assert draws[0][0].validation != draws[1][0].validation


@pytest.mark.parametrize(
    ("data", "settings", "words"),
    [
        (mixed(0, 4), {}, r"no labeled training case \(4 images"),
        (
            mixed(8),
            {"labeled": 9, "test": 2},
            r"--labeled 9 exceeds the number .* 6 .*Use 6 or fewer",
        ),
        (mixed(8), {"labeled": -3}, "--labeled -3: it must be 0 or more"),
        (mixed(8), {"test": -2}, "--test -2: it must be 0 or more"),
        (mixed(8), {"test": 8}, r"none is left to train on\. Lower --validation or --test"),
        (
            mixed(8),
            {"test": 6, "validation": 3},
            "cannot hold out 3 cases with only 2 labeled cases left",
        ),
        (mixed(8), {"labeled": 3, "unlabeled": 10}, r"split\.unlabeled is 10, .* is 9"),
        (mixed(9), {"labeled": 5, "folds": 6}, r"--folds 6 exceeds .* 5\. Use 5 or fewer"),
        (visits(3), {"folds": 7}, r"6 with 18 cases\. Use 6 or fewer"),
        (mixed(9), {"labeled": 1, "folds": 2}, r"1\. Label more, or omit --folds"),
        (mixed(9), {"folds": 1}, "--folds 1: cross-validation needs 2 folds or more"),
        (mixed(9), {"fold": 1}, "--folds 0"),
        (mixed(9), {"folds": 3, "fold": 3}, r"split\.fold is 3: it must be between 0 and 2"),
    ],
)
def test_impossible_split_is_rejected_with_a_remedy(data, settings, words):
    with pytest.raises(InputError, match=words):
        split(data, **settings)
