from __future__ import annotations

from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest

from segpl import assembly
from segpl.assembly import open_dataset
from segpl.data.phantom import PhantomSettings, vessel_phantom
from segpl.data.plan import Plan
from segpl.data.planner import Resources
from segpl.data.split import make_split
from segpl.errors import InputError
from segpl.experiments import phantom_data
from segpl.experiments.experiment import make_experiment
from segpl.experiments.jobs import TrainingJob, plan_jobs
from segpl.experiments.phantom_data import make_pelvis, make_phantom
from segpl.settings import resolve


@pytest.fixture(autouse=True)
def small(monkeypatch) -> None:
    tiny = partial(vessel_phantom, settings=PhantomSettings(shape=(16, 16, 16)))
    monkeypatch.setattr(phantom_data, "vessel_phantom", tiny)
    monkeypatch.setattr(phantom_data, "UNLABELED", 2)
    monkeypatch.setattr(phantom_data, "TEST", 1)
    monkeypatch.setattr(phantom_data, "PATCH", 16)


def scans(data: Path) -> dict[str, str]:
    return {
        str(path.relative_to(data)): sha256(path.read_bytes()).hexdigest()
        for path in data.rglob("*.nii.gz")
    }


def jobs(split: dict[str, int], folder: Path) -> list[TrainingJob]:
    """The runs of a comparison on generated scans."""
    content = {"datasets": {"": {"phantom": True, "seeds": [0], "split": split}}}
    experiment = make_experiment(content, "test", methods=["segpl"])
    (dataset,) = experiment.datasets
    return list(plan_jobs(experiment, dataset, folder, root=Path(), derive_plans=True, quiet=True))


def test_validation_scans_change_no_other_scan(tmp_path):
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
    split = make_split(open_dataset(config), config.split)
    assert len(split.labeled) == 2
    assert len(split.validation) == 3
    assert split.test == ("test_000",)
    assert split.hidden == ()


def test_plan_of_generated_scans_ignores_validation_cases(tmp_path, monkeypatch):
    seen = []
    inspect = assembly.inspect

    def watched(dataset, *, cases, read_labels_of, **options):
        seen.extend([[case.name for case in cases], list(read_labels_of)])
        return inspect(dataset, cases=cases, read_labels_of=read_labels_of, **options)

    monkeypatch.setattr(assembly, "inspect", watched)
    (job, _) = jobs({"validation": 2}, tmp_path)
    assert sorted(seen[1]) == sorted(job.split.labeled)
    assert not set(seen[0]) & set(job.split.validation)


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ({"validation": -1}, "split.validation is -1"),
        ({"validation": 1, "seed": 4}, "Remove split.seed"),
    ],
)
def test_impossible_split_of_generated_scans_is_rejected(tmp_path, split, words):
    with pytest.raises(InputError, match=words):
        jobs(split, tmp_path)


@pytest.mark.parametrize("accelerated", [False, True])
def test_plan_of_generated_scans_is_the_same_on_every_machine(tmp_path, monkeypatch, accelerated):
    machine = Resources(100 * 2**30, accelerated=accelerated)
    monkeypatch.setattr(assembly, "Resources", lambda *_, **__: machine)
    monkeypatch.setattr(phantom_data, "PELVIS_UNLABELED", 2)
    monkeypatch.setattr(phantom_data, "PELVIS_TEST", 1)
    for make, lr in ((make_phantom, 0.01), (make_pelvis, 0.005)):
        _, path = make(tmp_path / make.__name__, 0)
        plan = Plan.read(path)
        assert (plan.width, plan.lr, plan.batch) == (8, lr, 2)
        assert len(plan.kernels) == len(plan.strides) + 1 == 4
        assert list(plan.classes)[1:] == ["prostate" if make is make_pelvis else "foreground"]


def test_scans_are_generated_once(tmp_path):
    data, _ = make_phantom(tmp_path, 0, quiet=True)
    image = data / "test" / "imgs" / "test_000.nii.gz"
    image.write_bytes(b"edited")
    make_phantom(tmp_path, 0, quiet=True)
    assert image.read_bytes() == b"edited"
