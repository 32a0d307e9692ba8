"""What installed packages say that they bring, by their entry points, without importing it."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

from vflsec.errors import ConfigError

_MODULE = re.compile(r"[\w.]+\s*(?::[\w.\s]*)?(?:\[.*\]\s*)?")


def find_modules(group: str) -> list[tuple[str, str, Path, str]]:
    """Name, module, source file, and package with its version, of a group's entry points, by name.

    Raises:
        ConfigError: one that names no module, or another one than it is called after.
    """
    out: list[tuple[str, str, Path, str]] = []
    packages: dict[int, str] = {}
    for point in sorted(_list_points(group), key=lambda e: e.name):
        stem = point.value.partition(":")[0].strip().rpartition(".")[2]
        spec = None
        if not point.name.isidentifier() or not _MODULE.fullmatch(point.value):
            wrong = "name a module by letters, digits and underscores"
        elif point.name != stem:
            wrong = f"be called like its module, {stem!r}"
        else:
            wrong = "name a module that can be found"
            with suppress(ImportError):  # a parent package is absent
                spec = importlib.util.find_spec(point.module)
        if spec is None or spec.origin is None:
            what = f"entry point {point.name!r} of group {group!r}"
            remedy = "Correct that package's pyproject.toml, or reinstall it."
            raise ConfigError.must(what, wrong, repr(point.value), remedy)
        of = point.dist
        if of is not None and id(of) not in packages:  # each reads its metadata anew
            packages[id(of)] = f"{of.name} {of.version}"
        package = packages[id(of)] if of is not None else point.module
        out.append((point.name, point.module, Path(spec.origin), package))
    return out


def _list_points(group: str) -> list[EntryPoint]:
    """Entry points of a group; of two packages of one name the first on the path counts."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for folder in sys.path:
        with suppress(OSError):
            for name, points in _read_folder(folder, os.stat(folder or ".").st_mtime_ns):
                found.setdefault(name, points)
    return [p for points in found.values() for p in points if p.group == group]


@lru_cache(maxsize=64)
def _read_folder(folder: str, changed: int) -> list[tuple[str, tuple[EntryPoint, ...]]]:
    """Packages in a folder by name, with their entry points; reads the metadata of each, so they
    are kept until one is installed there or removed.
    """
    return [
        (re.sub(r"[-_.]+", "-", d.name or "").lower(), tuple(d.entry_points))
        for d in distributions(path=[folder])
    ]
