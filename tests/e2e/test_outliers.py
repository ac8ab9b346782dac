"""One scan unlike the others is named, and the plan fits the rest."""

from __future__ import annotations

import json

from conftest import QUICK, make_dataset, scan, write_volume


def test_one_thin_scan_is_named_and_padded(segpl, tmp_path):
    data = make_dataset(tmp_path / "data", side=16, labeled=4, unlabeled=1, test=0)
    image, _ = scan(3, 1, 16)
    write_volume(data / "unlabeled" / "imgs" / "thin.nii.gz", image[:, :, :4])
    checked = segpl("check", data)
    assert checked.code == 0, checked.out
    words = " ".join(checked.out.split())
    assert "the field of view" in words
    assert "voxels after resampling is much smaller than the others" in words
    run = tmp_path / "run"
    answer = segpl("train", data, *QUICK, "--method", "segpl", "--out", run)
    assert answer.code == 0, answer.err
    assert "Padded, because they are smaller than half the patch of 16x16x16" in answer.err
    assert "thin (16x16x4)" in answer.err
    assert json.loads((run / "plan.json").read_text())["patch"] == [16, 16, 16]
