"""Look up classes by the names that users type.

A registry imports all modules of a package and collects every class that derives from `base` and
defines its own `name`. To add a class, add a file.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cached_property
from typing import Generic, TypeVar

from segpl.errors import unknown

T = TypeVar("T")


class Registry(Generic[T]):
    def __init__(self, kind: str, package: str, base: type[T]) -> None:
        self.kind = kind
        self.package = package
        self.base = base

    @cached_property
    def classes(self) -> dict[str, type[T]]:
        found: dict[str, type[T]] = {}
        folder = importlib.import_module(self.package)
        for entry in pkgutil.iter_modules(folder.__path__):
            module = importlib.import_module(f"{self.package}.{entry.name}")
            for value in vars(module).values():
                if not (isinstance(value, type) and issubclass(value, self.base)):
                    continue
                if value.__module__ != module.__name__ or "name" not in vars(value):
                    continue
                name: str = vars(value)["name"]
                assert name not in found, f"two {self.kind}s are named '{name}'"
                found[name] = value
        return dict(sorted(found.items()))

    @property
    def names(self) -> list[str]:
        return list(self.classes)

    def get(self, name: str) -> type[T]:
        if name not in self.classes:
            raise unknown(self.kind, name, self.classes)
        return self.classes[name]
