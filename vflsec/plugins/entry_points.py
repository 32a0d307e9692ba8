"""What installed packages say that they bring, by their entry points, without importing it."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from vflsec.errors import ConfigError

__all__ = ["find_modules"]

_MODULE = re.compile(r"[\w.]+\s*(?::[\w.\s]*)?(?:\[.*\]\s*)?")


def find_modules(group: str) -> list[tuple[str, str, Path, str]]:
    """Name, module, source file, and package with its version, of a group's entry points, by name.

    Raises:
        ConfigError: one that names no module, or another one than it is called after.
    """
    out = []
    for point in _points(group, _installed()):
        where = f"entry point {point.name!r} of group {group!r}"
        if not point.name.isidentifier() or not _MODULE.fullmatch(point.value):
            raise ConfigError(
                f"{where} must name a module by letters, digits and underscores, got the value "
                f"{point.value!r}. Correct it in the pyproject.toml of that package."
            )
        stem = point.module.rpartition(".")[2]
        if point.name != stem:
            raise ConfigError(
                f"{where} must be called like its module, {stem!r}, got the value "
                f"{point.value!r}. Correct it in the pyproject.toml of that package."
            )
        try:
            spec = importlib.util.find_spec(point.module)
        except ImportError:
            spec = None  # a parent package is absent
        if spec is None or spec.origin is None:
            raise ConfigError(
                f"{where} names the module "
                f"{point.module!r}, which cannot be found. Reinstall or remove that package."
            )
        package = f"{point.dist.name} {point.dist.version}" if point.dist else point.module
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
def _every_point(installed: tuple[tuple[str, int], ...]) -> Any:
    """Entry points of all groups; reads the metadata of every package, so they are kept."""
    return entry_points()


@lru_cache(maxsize=16)
def _points(group: str, installed: tuple[tuple[str, int], ...]) -> tuple[EntryPoint, ...]:
    """Entry points of a group, by name."""
    return tuple(sorted(_every_point(installed).select(group=group), key=lambda e: e.name))
