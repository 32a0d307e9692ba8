"""What installed packages say that they bring, by their entry points, without importing it."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from vflsec.errors import ConfigError

_MODULE = re.compile(r"[\w.]+\s*(?::[\w.\s]*)?(?:\[.*\]\s*)?")


def find_modules(group: str) -> list[tuple[str, str, Path, str]]:
    """Name, module, source file, and package with its version, of a group's entry points, by name.

    Raises:
        ConfigError: one that names no module, or another one than it is called after.
    """
    out: list[tuple[str, str, Path, str]] = []
    packages: dict[int, str] = {}
    for point in sorted(_read_points(_installed()).select(group=group), key=lambda e: e.name):
        stem = point.value.partition(":")[0].strip().rpartition(".")[2]
        spec = None
        if not point.name.isidentifier() or not _MODULE.fullmatch(point.value):
            wrong = (
                "must name a module by letters, digits and underscores, got the value "
                f"{point.value!r}. Correct it in the pyproject.toml of that package."
            )
        elif point.name != stem:
            wrong = (
                f"must be called like its module, {stem!r}, got the value {point.value!r}. Correct "
                "it in the pyproject.toml of that package."
            )
        else:
            wrong = (
                f"names the module {point.module!r}, which cannot be found. Reinstall or remove "
                "that package."
            )
            with suppress(ImportError):  # a parent package is absent
                spec = importlib.util.find_spec(point.module)
        if spec is None or spec.origin is None:
            raise ConfigError(f"entry point {point.name!r} of group {group!r} {wrong}")
        of = point.dist
        if of is not None and id(of) not in packages:  # each reads its metadata anew
            packages[id(of)] = f"{of.name} {of.version}"
        package = packages[id(of)] if of is not None else point.module
        out.append((point.name, point.module, Path(spec.origin), package))
    return out


def _installed() -> tuple[tuple[str, int], ...]:
    """Where packages are, and when one was last installed there or removed."""
    out = []
    for folder in sys.path:
        try:
            out.append((folder, os.stat(folder or ".").st_mtime_ns))
        except OSError:
            out.append((folder, 0))
    return tuple(out)


@lru_cache(maxsize=4)
def _read_points(installed: tuple[tuple[str, int], ...]) -> Any:
    """Entry points of all groups; reads the metadata of every package, so they are kept."""
    return entry_points()
