"""The names that `import segpl` offers."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest

import segpl
from segpl.cli.main import main
from segpl.cli.options import options_of, parser_of
from segpl.data.arrays import image_in_memory
from segpl.data.generated import write_generated_dataset
from segpl.data.manifest import read_manifest
from segpl.data.phantom import PhantomSettings, vessel_phantom
from segpl.errors import InputError, Spelling, StorageError, UserError
from segpl.evaluate.scores import Score, write_scores
from segpl.experiments.engines.base import EngineKeywords, EngineOptions
from segpl.predict.inference import Inference, predict_image
from segpl.predict.options import PredictKeywords, PredictOptions
from segpl.training import new_folder, train

TURNED = np.array([[0, 0, 0.7, 5], [-0.5, 0, 0, 7], [0, 0.6, 0, -3], [0, 0, 0, 1.0]])
OPTIONS = {"samples": 2, "by": "views", "largest": "none"}


@pytest.fixture(autouse=True)
def in_python(monkeypatch):
    monkeypatch.setattr(Spelling, "is_command_line", False)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("api") / "scans"
    generate = partial(vessel_phantom, settings=PhantomSettings(shape=(16, 16, 16)))
    counts = {"labeled": 2, "unlabeled": 1}
    write_generated_dataset(root, generate, counts=counts, seed=0, spacing=0.7)
    return root


def test_dir_lists_the_api():
    assert set(segpl.__all__) <= set(dir(segpl))
    for name in segpl.__all__:
        assert callable(getattr(segpl, name)), name


def test_importing_the_package_loads_nothing_heavy():
    code = (
        "import sys, segpl; dir(segpl);"
        "print([n for n in ('torch', 'monai', 'numpy', 'rich') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_report_is_a_function_and_a_package(tmp_path, monkeypatch):
    import segpl.report.tables
    from segpl import api

    calls = []
    monkeypatch.setattr(api, "write_report", lambda runs, out, **_: calls.append((runs, out)))
    assert segpl.report("runs/a", out=tmp_path / "r.html", quiet=True) == tmp_path / "r.html"
    assert calls == [([Path("runs/a")], tmp_path / "r.html")]
    assert segpl.report.tables.Table


@pytest.fixture
def no_predictions(monkeypatch):
    """The test fails if `segpl report` starts to predict."""
    from segpl import api
    from segpl.experiments import scoring

    for module in (api, scoring):
        for name in ("fill_all", "predict_missing"):
            monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("predicts"))


@pytest.mark.usefixtures("no_predictions")
def test_assets_that_cannot_be_written_are_rejected_before_runs_are_predicted(tmp_path, capsys):
    (tmp_path / "file").touch()
    page, assets = tmp_path / "report.html", tmp_path / "file" / "new"
    words = r"file is not a folder, so nothing can be written to .*file/new\. Choose another"
    with pytest.raises(InputError, match=words):
        segpl.report("nowhere", out=page, assets=assets, fill=True)
    command = ["report", "nowhere", "--fill", "--out", str(page), "--assets", str(assets)]
    assert main(command) == 1
    assert "Choose another --assets." in capsys.readouterr().err
    (tmp_path / "assets" / "scores.csv").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"scores\.csv"):
        segpl.report("nowhere", out=page, assets=tmp_path / "assets", fill=True)


@pytest.mark.usefixtures("no_predictions")
def test_unusable_stress_tables_are_rejected_before_runs_are_predicted(tmp_path, capsys):
    page, table = tmp_path / "report.html", tmp_path / "stress.csv"
    table.write_text("run,dice\n")
    for path, words in (
        (tmp_path, f"{tmp_path} is not a file. Pass the stress.csv"),
        (tmp_path / "none.csv", "none.csv is not a file. Pass the stress.csv"),
        (table, "'run,dice'. Delete the file, and write it again with `segpl stress`"),
    ):
        for fill in (True, False):
            with pytest.raises(UserError, match=re.escape(words)):
                segpl.report("nowhere", out=page, stress=path, fill=fill)
            options = ["--stress", str(path), *["--fill"] * fill]
            assert main(["report", "nowhere", "--out", str(page), *options]) == 1
            assert words in capsys.readouterr().err


def test_check_prints_the_dataset_and_returns_its_problems(data, capsys):
    assert not [problem for problem in segpl.check(data) if problem.fatal]
    shown = capsys.readouterr().out
    assert "scans" in shown
    assert "segpl.train(" in shown
    segpl.check(data, yes=True, subject="(a.)")
    assert ", yes=True, settings={" in capsys.readouterr().out
    segpl.check(data, quiet=True)
    assert capsys.readouterr().out == ""


def test_compare_needs_data(tmp_path):
    with pytest.raises(InputError, match="phantom=True"):
        segpl.compare(out=tmp_path)


def test_the_default_folder_is_new(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = {"data": {"path": "/data/scans"}}
    assert new_folder(content) == Path("runs/scans")
    Path("runs/scans").mkdir(parents=True)
    assert new_folder(content) == Path("runs/scans-2")


def test_common_options_are_arguments(data, tmp_path, monkeypatch):
    """They win over `settings`, and `out` may be omitted."""
    monkeypatch.chdir(tmp_path)
    trained = []
    monkeypatch.setattr(
        "segpl.training.train_config",
        lambda config, folder, **_: trained.append((config, folder)),
    )
    train(data, steps=20, seed=3, labeled=1, test=0, device="cpu", settings={"train": {"steps": 5}})
    (config, folder) = trained[0]
    assert (config.train.steps, config.train.seed, config.train.device) == (20, 3, "cpu")
    assert (config.split.labeled, config.split.test) == (1, 0)
    assert folder.path == Path("runs/scans")


def test_time_and_steps_exclude_each_other(data):
    with pytest.raises(InputError, match="cannot be combined with `steps`"):
        train(data, steps=20, time="30m")
    with pytest.raises(InputError, match="cannot read time='half an hour'"):
        train(data, time="half an hour")


def test_resuming_needs_the_folder(data):
    with pytest.raises(InputError, match="resume=True needs the folder of the run, `out`"):
        train(data, resume=True)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    settings = {"network": {"width": 4}}
    out = tmp_path_factory.mktemp("runs") / "a"
    return train(
        data, out=out, method="supervised", steps=2, device="cpu", settings=settings, quiet=True
    )


@pytest.fixture(scope="module")
def scan(data, tmp_path_factory):
    """A scan whose axes are permuted, flipped and not of equal spacing."""
    import nibabel

    values = nibabel.load(next((data / "unlabeled" / "imgs").iterdir())).get_fdata()
    path = tmp_path_factory.mktemp("scan") / "scan.nii.gz"
    nibabel.save(nibabel.Nifti1Image(values.astype(np.float32)[:, :14], TURNED), path)
    return path


@pytest.fixture(scope="module")
def stored(run, scan, tmp_path_factory):
    """Labels, probabilities, entropy and deviation as files."""
    import nibabel

    out = tmp_path_factory.mktemp("masks")
    run.predict(scan, out=out, probabilities=True, **OPTIONS)
    found = {path.name: path for path in out.rglob("*.nii.gz")}
    name = scan.name.removesuffix(".nii.gz")
    return {
        "labels": nibabel.load(out / scan.name),
        "probabilities": nibabel.load(out / "probabilities" / scan.name),
        "entropy": nibabel.load(found[f"{name}_entropy.nii.gz"]),
        "std": nibabel.load(found[f"{name}_std.nii.gz"]),
        "score": read_manifest(out).summaries[name].out_of_distribution,
    }


@pytest.mark.parametrize("kind", ["array", "nibabel", "sitk"])
def test_an_image_in_memory_gives_what_its_file_gives(run, scan, stored, kind):
    import nibabel
    import SimpleITK as sitk  # noqa: N813

    image = nibabel.load(scan)
    if kind == "array":
        found = run.predict_array(image.get_fdata(), affine=image.affine, **OPTIONS)
        assert found.image is None
    elif kind == "nibabel":
        found = run.predict_array(image, **OPTIONS)
        np.testing.assert_array_equal(found.image.affine, image.affine)
        np.testing.assert_array_equal(found.image.get_fdata(), found.labels)
    else:
        source = sitk.ReadImage(str(scan))
        found = run.predict_array(source, **OPTIONS)
        assert found.image.GetOrigin() == source.GetOrigin()
        np.testing.assert_array_equal(sitk.GetArrayFromImage(found.image).T, found.labels)
    np.testing.assert_array_equal(found.labels, stored["labels"].get_fdata())
    assert found.summary.out_of_distribution == stored["score"]
    assert "array" not in repr(found)
    for name in ("probabilities", "entropy", "std"):
        expected = np.asarray(stored[name].dataobj)
        np.testing.assert_array_equal(getattr(found, name)[0], expected, err_msg=name)


def test_predictions_are_means_over_mirrored_views_unless_fast(run, scan, tmp_path):
    import nibabel

    assert run.plan.mirror_axes == (0,)
    image = image_in_memory(nibabel.load(scan), dims=3, channels=1)

    def mirrored(windows):
        return run.method.predict(windows.flip(2)).flip(2)

    both = lambda windows: (run.method.predict(windows) + mirrored(windows)) / 2  # noqa: E731
    for options, predict in (({}, both), ({"fast": True}, run.method.predict)):
        infer = Inference(predict, run.plan, (), run.device, needs_maps=True)
        expected = predict_image(infer, image)
        in_memory = run.predict_array(nibabel.load(scan), largest="none", **options)
        assert in_memory.probabilities == pytest.approx(expected.probabilities, abs=1e-6)
        for name, probabilities in (("maps", True), ("rows", False)):
            out = tmp_path / f"{name}-{options}"
            run.predict(scan, out=out, probabilities=probabilities, largest="none", **options)
            labels = nibabel.load(out / scan.name).get_fdata()
            np.testing.assert_array_equal(labels, in_memory.labels)
            has_note = read_manifest(out).run.endswith(" (mean of mirrored views)")
            assert has_note == (not options)
            made = "with" if options else "without"
            with pytest.raises(
                InputError, match=f"contains predictions made {made} fast=True, for"
            ):
                run.predict(scan, out=out, largest="none", fast=not options)
        stored = nibabel.load(tmp_path / f"maps-{options}" / "probabilities" / scan.name)
        np.testing.assert_array_equal(in_memory.probabilities[0], np.asarray(stored.dataobj))
    averaged = run.predict_array(nibabel.load(scan)).probabilities
    assert not np.allclose(expected.probabilities, averaged, atol=1e-4)


@pytest.mark.parametrize("kind", ["files", "array"])
def test_all_given_options_are_used(run, scan, tmp_path, monkeypatch, kind):
    given = {"overlap": 0.25, "samples": 3, "by": "views", "seed": 5, "fast": True}
    given |= {"largest": "all"}
    used, prepare = [], type(run).prepare

    def recorded(self, options, **others):
        used.append((options, others))
        return prepare(self, PredictOptions(), ensemble=None, needs_maps=True)

    monkeypatch.setattr(type(run), "prepare", recorded)
    if kind == "array":
        run.predict_array(np.zeros((16, 16, 16)), ensemble=[run], **given)
    else:
        run.predict(scan, out=tmp_path, probabilities=True, ensemble=[run], **given)
    assert used == [(PredictOptions(**given), {"ensemble": [run], "needs_maps": True})]
    assert all(getattr(PredictOptions(), name) != value for name, value in given.items())
    assert given.keys() == {entry.name for entry in fields(PredictOptions)}


def test_unknown_options_are_errors(run, tmp_path):
    for name in ("sample", "name"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            run.predict(out=tmp_path, **{name: 2})
    for name in ("sample", "probabilities", "overwrite"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'"):
            run.predict_array(np.zeros((8, 8, 8)), **{name: 2})


@pytest.mark.parametrize(
    ("options", "keywords"), [(PredictOptions, PredictKeywords), (EngineOptions, EngineKeywords)]
)
def test_keyword_arguments_have_the_types_of_the_options(options, keywords):
    assert get_type_hints(keywords) == get_type_hints(options)


def test_the_command_line_has_all_options_with_the_same_defaults():
    args = parser_of("predict").parse_args(["run", "--out", "masks"])
    assert options_of(PredictOptions, args) == PredictOptions()
    assert options_of(EngineOptions, args) == EngineOptions()


def test_fast_uses_a_single_run(run, scan):
    with pytest.raises(InputError, match="fast=True uses a single run"):
        run.predict_array(scan, fast=True, ensemble=[run])


def test_the_spacing_matters(run):
    array = np.random.default_rng(0).normal(size=(8, 8, 8))
    plain = run.predict_array(array).probabilities
    assert plain.shape == (1, 8, 8, 8)
    longer = run.predict_array(array, spacing=(1, 1, 1.2))
    assert not np.array_equal(plain, longer.probabilities)
    assert longer.summary.unit == "ml"
    assert longer.entropy is None


def test_wrong_geometry_is_an_error(run):
    array = np.zeros((4, 4, 4))
    with pytest.raises(InputError, match="both `spacing` and `affine`"):
        run.predict_array(array, spacing=(1, 1, 1), affine=np.eye(4))
    with pytest.raises(InputError, match="4x4"):
        run.predict_array(array, affine=np.eye(3))
    with pytest.raises(InputError, match="the array has 2 axes"):
        run.predict_array(array[0])
    with pytest.raises(InputError, match="is a path"):
        run.predict_array("scan.nii.gz")


def test_repr_has_ten_lines(run):
    lines = repr(run).splitlines()
    assert len(lines) == 10
    assert "supervised" in lines[1]
    assert "2 of 2 steps" in repr(run)


def test_repr_has_the_dice_of_cases_that_were_not_labeled_in_training(run):
    assert "not scored yet" in repr(run)
    path = run.path / "scores.csv"
    write_scores(path, [Score(name, "x", "dice", 0.5) for name in ("new", run.split.labeled[0])])
    assert "0.500 (1 case)" in repr(run)
    path.unlink()
