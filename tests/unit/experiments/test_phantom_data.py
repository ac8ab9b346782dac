from __future__ import annotations

from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from segpl import assembly
from segpl.assembly import open_dataset
from segpl.data.phantom import PhantomSettings, write_phantom_dataset
from segpl.data.plan import Plan
from segpl.data.planner import Resources
from segpl.data.split import make_split
from segpl.errors import InputError
from segpl.experiments import phantom_data
from segpl.experiments.compare import CompareSettings, plan_jobs
from segpl.experiments.phantom_data import make_phantom
from segpl.settings import resolve


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    tiny = partial(write_phantom_dataset, settings=PhantomSettings(shape=(16, 16, 16)))
    monkeypatch.setattr(phantom_data, "write_phantom_dataset", tiny)
    monkeypatch.setattr(phantom_data, "UNLABELED", 2)
    monkeypatch.setattr(phantom_data, "TEST", 1)
    monkeypatch.setattr(phantom_data, "PATCH", 16)


def scans(data: Path) -> dict[str, str]:
    return {
        str(path.relative_to(data)): sha256(path.read_bytes()).hexdigest()
        for path in data.rglob("*.nii.gz")
    }


def test_validation_scans_are_more_scans_and_change_no_other(tmp_path):
    without, _ = make_phantom(tmp_path, 3, quiet=True)
    with_two, _ = make_phantom(tmp_path, 3, validation=2, quiet=True)
    assert without == tmp_path / "data"
    fewer, more = scans(without), scans(with_two)
    assert fewer.items() <= more.items()
    assert len(more) == len(fewer) + 2 * 2  # an image and a label each
    assert len(set(more.values())) == len(more)


def test_split_keeps_two_labels_and_the_test_cases(tmp_path):
    data, _ = make_phantom(tmp_path, 0, validation=3, quiet=True)
    config = resolve({"data": {"path": str(data)}, "split": {"validation": 3}})
    split = make_split(open_dataset(config), config.split, needs_unlabeled=True)
    assert len(split.labeled) == 2
    assert len(split.validation) == 3
    assert split.test == ("test_000",)
    assert split.hidden == ()


def test_plan_of_a_phantom_looks_at_no_validation_case(tmp_path, monkeypatch):
    seen = []
    inspect = assembly.inspect

    def watched(dataset, *, cases, read_labels_of, advance):
        seen.extend([[case.name for case in cases], list(read_labels_of)])
        return inspect(dataset, cases=cases, read_labels_of=read_labels_of, advance=advance)

    monkeypatch.setattr(assembly, "inspect", watched)
    settings = CompareSettings(("segpl",), (0,), {"split": {"validation": 2}})
    (job, _) = plan_jobs(None, tmp_path, settings, quiet=True)
    assert sorted(seen[1]) == sorted(job.split.labeled)
    assert not set(seen[0]) & set(job.split.validation)


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ({"validation": -1}, "split.validation is -1"),
        ({"validation": 1, "seed": 4}, "Leave split.seed out"),
    ],
)
def test_a_split_that_fits_no_phantom_is_refused(tmp_path, split, words):
    settings = CompareSettings(("segpl",), (0,), {"split": split})
    with pytest.raises(InputError, match=words):
        list(plan_jobs(None, tmp_path, settings, quiet=True))


@pytest.mark.parametrize("accelerated", [False, True])
def test_plan_of_generated_scans_is_the_same_on_every_machine(tmp_path, monkeypatch, accelerated):
    machine = Resources(100 * 2**30, accelerated=accelerated)
    monkeypatch.setattr(assembly, "Resources", lambda *_, **__: machine)
    _, path = make_phantom(tmp_path, 0, quiet=True)
    plan = Plan.read(path)
    assert (plan.width, plan.lr, plan.batch) == (8, 0.01, 2)
    assert len(plan.kernels) == len(plan.strides) + 1 == 4
