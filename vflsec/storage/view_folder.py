"""The folder ``views`` of a results directory: what is kept there, and what it can answer."""

from __future__ import annotations

import re
import shutil
import zipfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vflsec.errors import TraceError, format_count
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec

if TYPE_CHECKING:
    from vflsec.plan.values import Plan, Work

VIEWS = "views"

_FILE = re.compile(r"[0-9a-f]{24}\.zip")
_LEFT = re.compile(r"\.[0-9a-f]{24}\.(part|zip\.[a-z0-9_]{8})")


class KeptViews:
    """What is kept beside the results in `folder`, looked up once a cell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / VIEWS
        self._said: dict[str, Mapping[str, Any] | str] = {}

    @cached_property
    def any(self) -> bool:
        """Whether views of some training are kept."""
        return self.folder.is_dir() and any(_FILE.fullmatch(p.name) for p in self.folder.iterdir())

    def path(self, cell: CellSpec) -> Path:
        """Where the views of a cell are."""
        return self.folder / f"{cell.key}.zip"

    def said(self, cell: CellSpec) -> Mapping[str, Any] | str:
        """What is kept of a cell, or why nothing is."""
        from vflsec.train.view_reader import read_about

        if cell.key not in self._said:
            try:
                there = self.path(cell).is_file()
                self._said[cell.key] = (
                    read_about(self.path(cell)) if there else "its views are not kept"
                )
            except TraceError as why:
                self._said[cell.key] = str(why).rstrip(".")
        return self._said[cell.key]

    def phases(self, cell: CellSpec) -> tuple[str, ...]:
        """The phases after which views of a cell are kept."""
        said = self.said(cell) if self.any else ""
        return () if isinstance(said, str) else tuple(str(p["name"]) for p in said["phases"])

    def lacking(self, cell: CellSpec, spec: AttackSpec) -> str:
        """Why an attack on a cell cannot be made without training, or ''."""
        from vflsec.train.view_reader import find_insufficient

        attack = registry.attacks.create(spec.name, spec.params)
        why = find_insufficient(spec, attack, {})
        if why:
            return why
        said = self.said(cell)
        if isinstance(said, str):
            return said
        algorithm = registry.algorithms.create(cell.algorithm, cell.params)
        (who, *others) = spec.adversary
        if not others and who not in said["alone"] and algorithm.local_training(who) is not None:
            return "one of its controls trains an encoder, which was not kept"
        return find_insufficient(spec, attack, said)


def not_kept(folder: Path, plan: Plan, works: Sequence[Work], most: int) -> list[str]:
    """Which views an audit with ``--keep-views`` did not keep after all, and why.

    Args:
        folder: the results directory.
        plan: of the audit.
        works: what was done now.
        most: bytes that all views may have.
    """
    views = KeptViews(folder)
    asked = {c.key: c for g in plan.groups if g.role != "reference" and g.main for c in g.cells}
    lost = {k for k, c in asked.items() if not views.path(c).is_file()}
    now = {c.key for w in works if w.main for c in w.cells}
    out = []
    if lost & now:
        out.append(
            f"views of {format_count(len(lost & now), 'training')} are not kept, beyond "
            f"{most / 1e6:g} MB (--views-mb)."
        )
    if lost - now:
        out.append(
            f"views of {format_count(len(lost - now), 'training')} are not kept. "
            "--fresh trains them once more."
        )
    return out


def clear_views(folder: Path, remove: Callable[[Path], None]) -> None:
    """Remove the kept views of a results directory, and nothing else in there."""
    here = folder / VIEWS
    if not here.is_dir():
        return
    tidy_views(folder, remove)
    for path in sorted(here.iterdir()):
        if _FILE.fullmatch(path.name) and _is_ours(path):
            remove(path)
    if not any(here.iterdir()):
        here.rmdir()


def tidy_views(folder: Path, remove: Callable[[Path], None]) -> None:
    """Remove what a killed audit left half written."""
    here = folder / VIEWS
    for path in sorted(here.iterdir()) if here.is_dir() else ():
        if _LEFT.fullmatch(path.name):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                remove(path)


def _is_ours(path: Path) -> bool:
    from vflsec.train.view_writer import ABOUT

    try:
        with zipfile.ZipFile(path) as file:
            return ABOUT in file.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def views_bytes(folder: Path) -> int:
    """Bytes of all views that are kept beside the results in `folder`."""
    here = folder / VIEWS
    found: Sequence[Path] = list(here.iterdir()) if here.is_dir() else []
    return sum(p.stat().st_size for p in found if _FILE.fullmatch(p.name))
