"""Samples of one image: drawing, averaging, and the choice of a way."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import PICTURES, build, build_with, predict_jobs

from segpl.data.arrays import image_in_memory
from segpl.data.plan import Plan
from segpl.errors import InputError
from segpl.methods.latent_threshold import ThresholdSettings
from segpl.networks.network import Network, NetworkSettings
from segpl.predict.inference import Inference, predict_image
from segpl.predict.inputs import Job
from segpl.predict.options import PredictOptions
from segpl.predict.samples import (
    THRESHOLDS_PER_PASS,
    RunSampler,
    SampleMaps,
    Sampling,
    apply_threshold,
    average_samples,
    average_views,
    mirrored_axes,
    plausible_views,
    sample_seed,
    shift,
)
from segpl.predict.sampling_choice import choose_sampling, samplers_for, sampling_note
from segpl.predict.window import predict_windows

PLAN = replace(
    PICTURES, classes={"background": 0, "organ": 1}, patch=(16, 16), strides=((2, 2), (2, 2))
)
THREE = replace(PLAN, classes={"background": 0, "organ": 1, "vessel": 2})
IMAGE = torch.randn(1, 28, 20, generator=torch.Generator().manual_seed(0))
DROPPING = NetworkSettings(dropout=0.5)


@dataclass(frozen=True)
class Trained:
    path: Path
    method: object
    plan: Plan = PLAN
    mirrors: bool = True


def choose(method, count: int, by: str | None = None, **options) -> Sampling:
    return choose_sampling([Trained(Path("a"), method, **options)], count, by, 0)


def windows(image, predict, plan, channels=0, *, window_batch=4) -> np.ndarray:
    return predict_windows(image, predict, plan, window_batch=window_batch).numpy()


def arrays(sampler: RunSampler, case: str = "a", image=IMAGE, whole=windows) -> list[np.ndarray]:
    return [sample for sample, _ in sampler.samples(image, case, whole)]


def vi(std: float = 0.1, mean: float = 0.5, classes: int = 2):
    """segpl-vi with a constant posterior of the threshold."""
    method = build("segpl-vi", 2, classes=classes).eval()
    for layer, value in ((method.head.mean, mean), (method.head.log_variance, 2 * np.log(std))):
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.constant_(layer.bias, value)
    return method


def method_for(way: str):
    if way == "thresholds":
        return vi()
    if way == "networks":
        return build("ensemble", 2, settings={"members": 3}).eval()
    return build("supervised", 2, network=DROPPING).eval()


def sampler_for(way: str, count: int = 3, **options) -> RunSampler:
    return RunSampler(method_for(way), PLAN, Sampling(way, count), **options)


every_way = pytest.mark.parametrize("way", ["thresholds", "networks", "dropout", "views"])
random_way = pytest.mark.parametrize("way", ["thresholds", "dropout"])


class Bright(torch.nn.Module):
    """Logits are the image, voxel by voxel."""

    def forward(self, image):
        return image, image, image


class TestEveryWay:
    @every_way
    def test_the_parts_of_a_scan_that_are_reported_add_up_to_it(self, way):
        parts = []
        samplers = (sampler_for(way), RunSampler(method_for(way), PLAN))
        cpu = torch.device("cpu")
        infer = Inference(torch.sigmoid, PLAN, samplers, cpu, needs_maps=True, advance=parts.append)
        noise = np.random.default_rng(0).normal(size=(20, 17)).astype("f")
        image = image_in_memory(noise, dims=2, channels=1, spacing=None, affine=None)
        predict_image(infer, image)
        assert sum(parts) == pytest.approx(1)

    @every_way
    def test_samples_differ_and_are_reproducible(self, way):
        first, second = (arrays(sampler_for(way)) for _ in range(2))
        assert len(first) == 3
        assert all(np.array_equal(one, two) for one, two in zip(first, second, strict=True))
        assert not np.array_equal(first[0], first[1])

    @every_way
    def test_the_window_batch_does_not_change_the_draws(self, way):
        one, four = (
            arrays(sampler_for(way), whole=lambda *a, size=size: windows(*a, window_batch=size))
            for size in (1, 4)
        )
        assert np.allclose(one, four, atol=1e-4)

    @random_way
    def test_more_samples_extend_the_same_series(self, way):
        short, long = (arrays(sampler_for(way, count)) for count in (2, THRESHOLDS_PER_PASS + 2))
        assert len(long) == THRESHOLDS_PER_PASS + 2
        assert all(np.array_equal(one, two) for one, two in zip(short, long, strict=False))
        assert not np.array_equal(long[0], long[THRESHOLDS_PER_PASS])

    @random_way
    def test_cases_runs_and_seeds_draw_independently(self, way):
        base = arrays(sampler_for(way))
        assert not np.array_equal(base, arrays(sampler_for(way), case="b"))
        assert not np.array_equal(base, arrays(sampler_for(way, number=1)))
        other = replace(sampler_for(way), sampling=Sampling(way, 3, seed=1))
        assert not np.array_equal(base, arrays(other))

    @every_way
    def test_the_global_generator_and_the_modes_are_restored(self, way):
        sampler = sampler_for(way)
        before = torch.random.get_rng_state()
        arrays(sampler)
        assert torch.equal(torch.random.get_rng_state(), before)
        assert not any(module.training for module in sampler.method.modules())


class TestThresholds:
    def test_masks_are_cut_at_draws_of_the_posterior(self):
        method = vi(std=0.05)
        sampler = RunSampler(method, PLAN, Sampling("thresholds", 5))
        probability = windows(IMAGE, method.predict, PLAN)
        for index, mask in enumerate(arrays(sampler)):
            generator = torch.Generator().manual_seed(sample_seed(0, 0, "a", index))
            posterior = method.predict_threshold(IMAGE[None, :, :16, :16]).threshold
            cut = posterior.sample(generator).item()
            is_clear = np.abs(probability - cut) > 1e-4
            assert np.array_equal(mask[is_clear], (probability > cut)[is_clear])

    def test_each_window_has_its_own_posterior(self):
        """The other windows of the batch must not change the threshold of a window."""
        sampler = RunSampler(build("segpl-vi", 2).eval(), PLAN, Sampling("thresholds", 4))
        torch.nn.init.normal_(sampler.method.head.mean.weight, std=0.5)
        one, four = (
            arrays(sampler, whole=lambda *a, size=size: windows(*a, window_batch=size))
            for size in (1, 4)
        )
        assert np.array_equal(one, four)

    @pytest.mark.parametrize("scope", ["batch", "image", "class", "image-class", "voxel"])
    @pytest.mark.parametrize("rule", ["binarize", "marginal-select"])
    def test_every_scope_of_bpl_can_be_sampled(self, scope, rule):
        settings = {"threshold": ThresholdSettings(scope=scope, rule=rule, prior_std=0.2)}
        method = build("bpl", 2, classes=3, settings=settings).eval()
        first, second = arrays(RunSampler(method, THREE, Sampling("thresholds", 2)))
        assert first.shape == (3, 28, 20)
        assert (set(np.unique(first)) <= {0, 1}) == (rule == "binarize")
        assert not np.array_equal(first, second)

    def test_a_selecting_threshold_keeps_uncertain_probabilities(self):
        p = np.array([[0.9, 0.6, 0.4, 0.1]], np.float32)
        threshold = np.full((1, 4), 0.7, np.float32)
        assert apply_threshold(p, threshold, selects=True)[0] == pytest.approx([1, 0.6, 0.4, 0])
        assert apply_threshold(p, threshold, selects=False)[0].tolist() == [1, 0, 0, 0]

    def test_probabilities_break_ties_between_channels(self):
        method = vi(std=1e-9, mean=0.001, classes=3)  # all channels are foreground everywhere
        answer = average_samples(
            [RunSampler(method, THREE, Sampling("thresholds", 3))], [IMAGE], "a", windows
        )
        plain = windows(IMAGE, method.predict, THREE)
        assert (answer.probability == 1).all()
        assert np.array_equal(answer.decisive.argmax(0), plain.argmax(0))
        assert len(np.unique(plain.argmax(0))) > 1

    def test_votes_outweigh_probabilities(self):
        """One more vote decides, however small the probability behind it."""

        class Voter:
            def samples(self, image, case, whole):
                for votes in ([1, 1], [0, 1]):
                    belief = np.array([[1.0], [0.0]], np.float32)
                    yield np.array(votes, np.float32)[:, None], belief

        answer = average_samples([Voter()], [IMAGE], "a", windows)
        assert answer.decisive.argmax(0).tolist() == [1]

    def test_masks_use_the_tie_break(self, tmp_path):
        np.save(tmp_path / "a.npy", np.eye(16))
        belief = np.stack([np.full((16, 16), 0.6), np.full((16, 16), 0.5), np.eye(16)])

        class Voter:
            plan, sampling = THREE, None

            def samples(self, image, case, whole):
                yield np.ones((3, 16, 16), np.float32), belief.astype(np.float32)

        (written,) = predict_jobs(
            [Job("a", (tmp_path / "a.npy",))],
            torch.sigmoid,
            THREE,
            tmp_path / "out",
            samplers=[Voter()],
        )
        assert np.array_equal(np.load(written), 2 * np.eye(16))


class TestOthers:
    def test_mean_of_networks_is_the_prediction(self):
        sampler = sampler_for("networks", 3)
        answer = average_samples([sampler], [IMAGE], "a", windows)
        plain = windows(IMAGE, sampler.method.predict, PLAN)
        assert answer.probability == pytest.approx(plain, abs=1e-5)
        assert answer.decisive is None

    def test_all_windows_share_one_dropout_mask(self):
        """On a constant image, one dropout mask gives the same prediction everywhere."""
        image = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(1)).repeat(1, 4, 2)
        seen = []

        def whole(image, predict, plan, channels):
            seen.append([predict(image[None, :, at : at + 16, :16]) for at in (0, 8, 16)])
            return windows(image, predict, plan)

        arrays(sampler_for("dropout", 4), image=image, whole=whole)
        for first, *others in seen:
            assert all(torch.equal(first, other) for other in others)
        assert not torch.equal(seen[0][0], seen[1][0])

    @pytest.mark.parametrize(
        ("mirrors", "change", "flips", "shifts"),
        [
            (True, {}, 4, 5),
            (False, {}, 1, 5),  # the network has never seen a mirrored image
            (True, {"classes": {"background": 0, "left ear": 1, "right ear": 2}}, 1, 5),
            (True, {"strides": ((2, 1),)}, 4, 3),
            (True, {"strides": ()}, 4, 1),
        ],
    )
    def test_views_are_all_plausible_pairs_of_flips_and_shifts(
        self, mirrors, change, flips, shifts
    ):
        views = plausible_views(replace(PLAN, **change), mirrors=mirrors)
        assert views[0] == ((), (0, 0))
        assert len(views) == len(set(views)) == flips * shifts
        assert {axes for axes, _ in views} == set(mirrored_axes(PLAN, mirrors=True)[:flips])

    def test_volumes_of_unknown_orientation_are_shifted_but_not_mirrored(self):
        plan = replace(PLAN, dims=3, patch=(16, 32, 8), strides=((2, 2, 2), (1, 2, 2)))
        views = plausible_views(plan, mirrors=True)
        assert {axes for axes, _ in views} == {()}
        assert {tuple(map(abs, offset)) for _, offset in views[1:]} == {(1, 2, 0)}

    def test_a_shift_repeats_the_border(self):
        row = torch.arange(5.0).view(1, 1, 1, 5)
        assert shift(row, (0, 2)).flatten().tolist() == [0, 0, 0, 1, 2]
        assert shift(row, (0, -1)).flatten().tolist() == [1, 2, 3, 4, 4]
        assert shift(shift(row, (0, 1)), (0, -1)).flatten().tolist() == [0, 1, 2, 3, 3]

    def test_shifts_are_undone(self):
        """Only the voxels that the shift moved out of the image are repeated ones."""
        bright = lambda: Network(Bright(), dims=2, outputs=1, features=1, trunk=1)  # noqa: E731
        sampler = RunSampler(build_with("supervised", bright), PLAN, Sampling("views", 20))
        one_window = IMAGE[:, :16, :16]
        for view in arrays(sampler, image=one_window):
            inside = (slice(None), slice(2, -2), slice(2, -2))
            assert view[inside] == pytest.approx(one_window.sigmoid().numpy()[inside], abs=1e-5)

    def test_all_samples_of_an_ensemble_have_equal_weight(self):
        samplers = [
            replace(sampler_for("views", 2), method=build("supervised", 2, seed=seed).eval())
            for seed in (0, 1)
        ]
        each = [sample for sampler in samplers for sample in arrays(sampler)]
        answer = average_samples(samplers, [IMAGE, IMAGE], "a", windows)
        assert answer.probability == pytest.approx(np.mean(each, 0), abs=1e-5)
        assert answer.std == pytest.approx(np.std(each, 0), abs=1e-5)


def ramp(windows: torch.Tensor) -> torch.Tensor:
    """Depends on the position in the window."""
    rows, columns = (torch.linspace(0, 1, side) for side in windows.shape[2:])
    return (windows + rows[:, None] ** 2 + 3 * columns**2).sigmoid()


class TestMirroredViews:
    @pytest.mark.parametrize(
        ("mirrors", "change", "expected"),
        [
            (True, {}, [(), (2,), (3,), (2, 3)]),
            (False, {}, [()]),
            (True, {"classes": {"background": 0, "left ear": 1, "right ear": 2}}, [()]),
            (True, {"dims": 3}, [()]),  # the orientation is unknown
            (True, {"dims": 3, "orientation": "RAS"}, [(), (2,)]),
            (True, {"dims": 3, "orientation": "PLS"}, [(), (3,)]),
        ],
    )
    def test_axes_are_those_that_training_mirrors(self, mirrors, change, expected):
        assert mirrored_axes(replace(PLAN, **change), mirrors=mirrors) == expected

    def test_the_prediction_is_the_mean_over_all_views(self):
        window = IMAGE[None]
        views = [ramp(window.flip(axes)).flip(axes) for axes in ((), (2,), (3,), (2, 3))]
        averaged = average_views(ramp, PLAN, mirrors=True)(window)
        assert averaged.numpy() == pytest.approx(torch.stack(views).mean(0).numpy(), abs=1e-6)
        assert not np.allclose(averaged, views[0], atol=1e-3)

    def test_without_mirrors_nothing_changes(self):
        assert average_views(ramp, PLAN, mirrors=False) is ramp
        assert average_views(ramp, replace(PLAN, dims=3), mirrors=True) is ramp

    def test_views_are_averaged_in_single_precision(self):
        """Rounded to bfloat16, the mean of the four views would be one of its neighbors."""
        averaged = average_views(lambda windows: ramp(windows).bfloat16(), PLAN, mirrors=True)
        found = averaged(IMAGE[None])
        assert found.dtype == torch.float32
        assert not torch.equal(found, found.bfloat16().float())

    @pytest.mark.parametrize("way", [None, "networks", "dropout", "thresholds"])
    def test_samples_are_means_over_views(self, way):
        """Of a mirrored image, they are the mirrored ones."""
        count = None if way is None else 2
        run = Trained(Path("a"), method_for(way or "networks"))
        runs = [run] if way else [run, replace(run, path=Path("b"))]
        for fast in (False, True):
            sampler = samplers_for(runs, PredictOptions(samples=count, by=way, fast=fast))[0]
            square = IMAGE[:, :16, :16]
            plain, mirrored = (arrays(sampler, image=one) for one in (square, square.flip(1)))
            turned = [sample[:, ::-1] for sample in mirrored]
            assert np.allclose(plain, turned, atol=1e-4) != fast

    def test_the_note_says_whether_views_were_averaged_and_how_samples_were_drawn(self):
        run = Trained(Path("a"), vi())
        views, dropout = " (mean of mirrored views)", " (3 samples by dropout, seed 0)"
        assert sampling_note([run], [], fast=False) == views
        assert sampling_note([run], [], fast=True) == ""
        assert sampling_note([replace(run, mirrors=False)], [], fast=False) == ""
        assert sampling_note([run], [sampler_for("dropout")], fast=False) == views + dropout
        assert sampling_note([run], [sampler_for("dropout")], fast=True) == dropout
        assert sampling_note([run], [sampler_for("views")], fast=False) == " (3 samples by views)"
        assert sampling_note([run], [RunSampler(vi(), PLAN)], fast=True) == ""


class TestAveraging:
    def test_running_maps_equal_those_of_all_samples_at_once(self):
        samples = np.random.default_rng(6).random((7, 2, 3)).astype(np.float32)
        maps = SampleMaps()
        for sample in samples:
            maps.add(sample)
        assert maps.mean == pytest.approx(samples.mean(0), abs=1e-5)
        assert maps.std == pytest.approx(samples.std(0), abs=1e-5)


class TestChoice:
    @pytest.mark.parametrize(
        ("name", "settings", "network", "expected"),
        [
            ("segpl-vi", {}, DROPPING, "views"),
            ("bpl", {}, None, "views"),
            ("ensemble", {}, DROPPING, "networks"),
            ("cps", {"predict_by": "both"}, DROPPING, "views"),  # only two networks
            ("supervised", {}, DROPPING, "views"),
        ],
    )
    def test_default_is_networks_if_there_are_enough_or_else_views(
        self, name, settings, network, expected
    ):
        method = build(name, 2, settings=settings, network=network)
        assert choose(method, 3).by == expected

    def test_runs_without_plausible_mirrors_have_a_default_too(self):
        plan = replace(PLAN, classes={"background": 0, "left ear": 1, "right ear": 2})
        assert choose(build("supervised", 2), 5, plan=plan) == Sampling("views", 5)

    def test_an_ensemble_needs_a_way_that_all_runs_support(self):
        runs = [Trained(Path("a"), vi()), Trained(Path("b"), build("supervised", 2))]
        assert choose_sampling(runs, 2, None, 0).by == "views"
        with pytest.raises(InputError, match=r"--by thresholds needs .* a run of the ensemble"):
            choose_sampling(runs, 2, "thresholds", 0)

    @pytest.mark.parametrize("way", ["thresholds", "networks", "dropout"])
    def test_an_unsupported_way_names_the_supported_ones(self, way):
        with pytest.raises(InputError, match=f"--by {way} needs .* Available: views"):
            choose(build("supervised", 2), 5, way)

    def test_numbers_of_views_and_networks_are_limited(self):
        method = method_for("networks")
        assert choose(method, 50, "networks").count == 3
        assert choose(method, 50).count == 20
        assert choose(vi(), 50, "thresholds").count == 50

    def test_bad_requests_are_errors(self):
        runs = [Trained(Path("a"), vi())]
        with pytest.raises(InputError, match="--samples is 0, but must be at least 1"):
            samplers_for(runs, PredictOptions(samples=0))
        with pytest.raises(LookupError, match=r"way of sampling.*treshold"):
            samplers_for(runs, PredictOptions(samples=5, by="tresholds"))
        with pytest.raises(InputError, match="Add --samples 5"):
            samplers_for(runs, PredictOptions(by="views"))

    def test_a_single_run_without_sampling_has_no_sampler(self):
        assert samplers_for([Trained(Path("a"), vi())], PredictOptions()) == []
        both = samplers_for([Trained(Path("a"), vi()), Trained(Path("b"), vi())], PredictOptions())
        assert [sampler.sampling for sampler in both] == [None, None]
        assert [sampler.number for sampler in both] == [0, 1]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"classes": {"background": 0, "tumor": 1}}, "tumor = 1, but .* organ = 1"),
            ({"classes": {"organ": 1, "background": 0}}, "organ = 1, background = 0, but"),
            ({"channels": ("T1", "T2")}, "has channels T1, T2, but .*a has gray"),
            ({"dims": 3}, "has dims 3, but .*a has 2"),
        ],
    )
    def test_an_ensemble_needs_the_same_task(self, change, words):
        runs = [Trained(Path("a"), vi()), Trained(Path("b"), vi(), replace(PLAN, **change))]
        with pytest.raises(InputError, match=words):
            samplers_for(runs, PredictOptions())

    def test_an_ensemble_needs_different_runs(self):
        runs = [Trained(Path("a"), vi()), Trained(Path("x/../a"), vi())]
        with pytest.raises(InputError, match="is given twice"):
            samplers_for(runs, PredictOptions())
