"""Variants of methods: a label, the method that it names, and settings of its own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from segpl.errors import InputError
from segpl.methods.base import METHODS
from segpl.settings import SECTIONS, resolve

# a label becomes the name of a folder
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
LABEL_WORDS = "letters, digits, - and _, beginning with a letter or a digit"


def known_labels(special: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """All methods, then the variants."""
    return [*METHODS.names, *(label for label in special if label not in METHODS.classes)]


def check_special(label: str, values: Mapping[str, Any]) -> None:
    """Refuse what `[methods.LABEL]` may not hold, and settings that its method does not know."""
    where = f"[methods.{label}]"
    if "name" in values:
        raise InputError(f"{where} has a name already. Leave 'name' out.")
    method = values.get("method", label)
    if not isinstance(method, str):
        raise InputError(f"{where}: method is {method!r}, and the name of a method is needed.")
    if not LABEL.fullmatch(label):
        raise InputError(f"{where}: a label has {LABEL_WORDS}. Choose another one.")
    if label in METHODS.classes and method != label:
        raise InputError(
            f"{where} names the method '{method}', and '{label}' is a method itself. Choose "
            "another label."
        )
    resolve(with_special({}, label, values), where)


def with_special(
    shared: Mapping[str, Any], label: str, special: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings of one method: its own, and those of sections that it has otherwise."""
    content = dict(shared)
    method: dict[str, Any] = {"name": special.get("method", label)}
    for key, value in special.items():
        if key == "method":
            continue
        if key in SECTIONS and isinstance(value, Mapping):
            content[key] = {**content.get(key, {}), **value}
        else:
            method[key] = value
    return {**content, "method": method}
