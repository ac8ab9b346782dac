from __future__ import annotations

from segpl.experiments.estimate import ComparisonEstimate


def test_runs_share_the_slots_but_the_longest_is_a_lower_bound():
    estimate = ComparisonEstimate(1, (600.0, 600.0, 1800.0), True, 2)
    counts, times = estimate.sentences
    assert counts == "4 runs: 1 done, 3 to train."
    assert "about 50m in total (measured on this machine), 30m with 2 at the same time." in times
    many = ComparisonEstimate(0, (600.0,) * 6, False, 3).sentences[1]
    assert "about 1h in total (from the finished runs), 20m with 3 at the same time." in many


def test_unknown_number_of_slots_is_said():
    words = ComparisonEstimate(0, (600.0, 600.0), True, None).sentences[1]
    assert words.endswith("divided by the number of runs at the same time.")


def test_a_long_comparison_comes_with_advice():
    """51 hours get advice, an hour does not; a cluster is suggested on one machine only."""
    long = (4.5 * 3600.0,) * 12
    *_, advice = ComparisonEstimate(0, long, True, 1).sentences
    for words in ("--seeds, methods or steps", "GPU", "--jobs N", "--on ray"):
        assert words in advice
    *_, advice = ComparisonEstimate(0, long, True, None, is_local=False).sentences
    assert "--seeds, methods or steps" in advice
    assert "--steps" not in advice  # `segpl paper` has neither --steps nor --methods
    assert "--on" not in advice
    assert len(ComparisonEstimate(0, (3600.0,), True, 1).sentences) == 2
    assert len(ComparisonEstimate(0, (3600.0,) * 4, True, 4).sentences) == 2
