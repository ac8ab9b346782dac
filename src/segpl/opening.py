"""The settings of a training: new ones for a new folder, or those of a run that is resumed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from segpl.assembly import with_rate
from segpl.config import Config, differences, merged, read_config, resolve
from segpl.data.plan import Plan
from segpl.engine.checkpoint import read_checkpoint
from segpl.engine.run import RunFolder
from segpl.errors import InputError

FREE = ("train.steps", "train.device", "train.track", "train.agreement")  # may be given anew


@contextmanager
def opened(
    folder: RunFolder, content: Mapping[str, Any], *, resume: bool, source: str | Path | None = None
) -> Iterator[Config]:
    """The settings of the training in `folder`, which no other process may enter meanwhile."""
    is_going_on(folder, resume)
    with folder.held():
        if is_going_on(folder, resume):
            resolved = resumed_config(folder, content)
        else:
            resolved = resolve(content, str(source) if source else "the settings")
        if not resolved.data.path:
            raise InputError(
                "no dataset was given. Name its folder, or set data.path in the config."
            )
        yield resolved


def is_going_on(folder: RunFolder, resume: bool) -> bool:
    """Whether there is a run to resume; a folder that holds anything else is refused."""
    if resume and folder.config.exists():
        return True
    folder.refuse_if_taken()
    return False


def changed_settings(folder: RunFolder, wanted: Config, *, free: Collection[str]) -> list[str]:
    """Each setting in which `wanted` differs from those that a run has saved, but for `free`.

    Saved settings name the learning rate that others may leave to the plan.
    """
    # the plan that others share, where there is one: a rate of its own would be no comparison
    for place in (Path(wanted.data.plan), folder.plan):
        if place.is_file():
            wanted = with_rate(wanted, Plan.read(place))
            break
    saved = resolve(read_config(folder.config), str(folder.config))
    return [text for text in differences(saved, wanted) if text.split(" ")[0] not in free]


def resumed_config(folder: RunFolder, content: Mapping[str, Any]) -> Config:
    """The saved settings of a run; those that change no step may be given anew, and the length."""
    saved = read_config(folder.config)
    known = resolve(saved, str(folder.config))
    name = content.get("method", {}).get("name", known.method)
    if name != known.method:
        raise InputError(
            f"{folder.path} was trained with method '{known.method}', not '{name}'. Choose another "
            "--out for another method."
        )
    wanted = resolve(merged(saved, content))
    if changed := changed_settings(folder, wanted, free=FREE):
        raise InputError(
            f"{folder.path} was trained with other settings: {', '.join(changed)}. A resumed run "
            "keeps its settings; leave these out, or choose another --out."
        )
    last = folder.training.last
    if last.exists() and (taken := read_checkpoint(last).step) > wanted.train.steps:
        raise InputError(
            f"{folder.path} has taken {taken} steps already, and {wanted.train.steps} are asked "
            "for. Give more --steps, or choose another --out."
        )
    return wanted
