"""A run as ten lines of text, and as a picture of its training and predictions for notebooks."""

from __future__ import annotations

import base64
import io
import math
import time
from html import escape
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from PIL import Image as Picture

from segpl.assembly import open_dataset
from segpl.data.masks import class_index
from segpl.data.plan import Plan
from segpl.data.prepare import prepare_image
from segpl.data.readers import Grid, read_image
from segpl.data.split import Split
from segpl.engine.folder import RunFolder
from segpl.engine.log import read_log
from segpl.errors import UserError, count_noun, in_voxels
from segpl.predict.sampling_choice import TrainedRun
from segpl.predict.window import pad_to_patch, window_box
from segpl.report.run_scores import current_scores
from segpl.settings import Config

SHOWN_CASES = 3
MOST_SECONDS = 10.0  # for all pictures
PICTURE_WIDTH = 240  # pixels
CURVE = (420, 160)  # pixels


class ShownRun(TrainedRun, Protocol):
    @property
    def folder(self) -> RunFolder: ...
    @property
    def config(self) -> Config: ...
    @property
    def split(self) -> Split: ...
    @property
    def checkpoint(self) -> str: ...
    @property
    def parameters(self) -> int: ...


def describe_run(run: ShownRun) -> str:
    """Ten lines."""
    plan, split, config = run.plan, run.split, run.config
    classes = ", ".join(f"{name} {number}" for name, number in plan.classes.items())
    patch = "x".join(map(str, plan.patch))
    spacing = " x ".join(f"{size:g}" for size in plan.spacing)
    lines = {
        "method": f"{config.method}, {run.parameters:,} weights, checkpoint {run.checkpoint}",
        "data": config.data.path,
        "channels": ", ".join(plan.channels),
        "classes": classes,
        "cases": f"{len(split.labeled)} labeled, {len(split.unlabeled)} unlabeled, "
        f"{len(split.validation)} validation, {len(split.test)} test",
        "patch": f"{in_voxels(patch, plan.dims)} of {spacing}",
        "training": training_line(run),
        "test Dice": score_line(run),
        "device": str(run.device),
    }
    return "\n".join([f"Run {run.folder.path}", *(f"  {key:<10}{lines[key]}" for key in lines)])


def training_line(run: ShownRun) -> str:
    try:
        log = read_log(run.folder.log)
    except UserError:
        return "no log"
    if not log["step"]:
        return "no steps yet"
    loss = f", labeled loss {log['supervised'][-1]:.3f}" if "supervised" in log else ""
    return f"{log['step'][-1]:.0f} of {run.config.train.steps} steps{loss}"


def score_line(run: ShownRun) -> str:
    try:
        scores, _ = current_scores(run.folder, run.split)
    except UserError:
        return "not scored yet"
    values = [one.value for one in scores if one.metric == "dice"]
    cases = count_noun(len({one.case for one in scores}), "case")
    return f"{math.fsum(values) / len(values):.3f} ({cases})" if values else "not scored yet"


def show_run(run: ShownRun) -> str:
    """HTML: the ten lines, the curve, and predictions of three crops.

    A notebook calls this on its own, so no error may reach the user.
    """
    parts = [f"<pre>{escape(describe_run(run))}</pre>"]
    for draw in (loss_curve, draw_cases):
        try:
            parts.append(draw(run))
        except Exception as error:
            parts.append(f"<p>No picture: {escape(str(error))}</p>")
    return "".join(parts)


def loss_curve(run: ShownRun) -> str:
    """The labeled loss as inline SVG."""
    log = read_log(run.folder.log)
    points = [
        (step, value)
        for step, value in zip(log["step"], log.get("supervised", []), strict=False)
        if math.isfinite(value)
    ]
    if len(points) < 2:
        return ""
    width, height = CURVE
    first, last = points[0][0], points[-1][0]
    low, high = min(value for _, value in points), max(value for _, value in points)
    path = " ".join(
        f"{width * (step - first) / (last - first):.1f},"
        f"{height - height * (value - low) / max(high - low, 1e-9):.1f}"
        for step, value in points
    )
    return (
        f'<figure style="margin:0"><svg width="{width}" height="{height}" '
        f'viewBox="-4 -4 {width + 8} {height + 8}" role="img" aria-label="labeled loss">'
        f'<polyline points="{path}" fill="none" stroke="#0072B2" stroke-width="2"/></svg>'
        f"<figcaption>labeled loss from {points[0][1]:.3f} at step {first:.0f} to "
        f"{points[-1][1]:.3f} at step {last:.0f}</figcaption></figure>"
    )


def draw_cases(run: ShownRun) -> str:
    """Predictions of the central crop of three cases: test, then unlabeled, then labeled ones."""
    dataset = open_dataset(run.config)
    split, start = run.split, time.monotonic()
    figures = []
    for name in (*split.test, *split.unlabeled, *split.labeled)[:SHOWN_CASES]:
        if time.monotonic() - start > MOST_SECONDS:
            break
        picture = Picture.fromarray(predicted_slice(run, dataset.case(name).images))
        buffer = io.BytesIO()
        picture.save(buffer, "png")
        data = base64.b64encode(buffer.getvalue()).decode("ascii")
        figures.append(
            '<figure style="display:inline-block;margin:4px">'
            f'<img src="data:image/png;base64,{data}" alt="prediction of {escape(name)}">'
            f"<figcaption>{escape(name)}</figcaption></figure>"
        )
    return "".join(figures)


def predicted_slice(run: ShownRun, files: tuple[Path, ...]) -> np.ndarray:
    """The slice of the central crop with the most foreground, and its outlines: (Y, X, 3)."""
    from segpl.report.page.preview import draw_mosaic
    from segpl.report.page.slices import busiest_slice, planes
    from segpl.report.pictures import gray

    plan = run.plan
    stored = read_image(files, plan.dims)
    image, _ = pad_to_patch(torch.from_numpy(prepare_image(stored, plan)), plan.patch)  # (C, *S)
    starts = [(side - wide) // 2 for side, wide in zip(image.shape[1:], plan.patch, strict=True)]
    crop = image[:, *window_box(starts, plan.patch)].contiguous()
    with torch.no_grad():
        output = run.method.predict(crop[None].to(run.device))
    labels = class_index(output[0].float().cpu().numpy())
    _, turn, pixel = planes(crop_grid(plan, stored.grid))[0]
    stack = turn(labels)
    place = busiest_slice(stack)
    shown = turn(gray(crop[0].numpy()))[place : place + 1, ..., None]
    numbers = range(1, len(plan.classes))
    return draw_mosaic(shown, stack[place : place + 1], pixel, numbers, side=PICTURE_WIDTH)


def crop_grid(plan: Plan, stored: Grid) -> Grid:
    """Size and axes of a crop of the prepared image, so that pictures are upright."""
    affine = stored.affine
    if affine is not None and plan.orientation:
        from nibabel.orientations import axcodes2ornt

        affine = np.diag([0.0, 0.0, 0.0, 1.0])
        for axis, (world, sign) in enumerate(axcodes2ornt(tuple(plan.orientation))):
            affine[int(world), axis] = sign * plan.spacing[axis]
    return Grid(plan.patch, plan.spacing, affine)
