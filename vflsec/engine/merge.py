"""The shards of an audit put together again: what one run would have stored, judged once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vflsec.audit.looks import join_looks
from vflsec.audit.record import AuditRecord
from vflsec.core import check
from vflsec.engine.evaluate_store import judge
from vflsec.errors import ConfigError
from vflsec.report.notebook import Audit
from vflsec.runtime.atomic_files import make_folder, write_atomic
from vflsec.storage.results_folder import claim, clear, only_ours, probe, withdraw
from vflsec.storage.sqlite_file import FRESH
from vflsec.storage.store import STORE_NAME, Store
from vflsec.storage.view_folder import VIEWS

_SAME = {
    "scenario_hash": "scenario",
    "data": "data",
    "versions": "versions",
    "wanted": "plan",
}
"""What the folders of one audit have in common, and how it is called where they differ."""


def merge(folders: Sequence[str | Path], out: str | Path, *, fresh: bool = False) -> Audit:
    """Put the results of shards into one folder and judge them there; nothing is trained.

    What is stored for a cell is taken as it is, so the result equals that of one run. Where cells
    are still missing nothing is judged: `vflsec audit SCENARIO --out OUT` finishes them, or a merge
    with the shards that were left out. Interrupted, the same merge goes on.

    Args:
        folders: results directories of shards, or of whole audits, of one scenario.
        out: where the merged audit is written; results of the same audit there are kept.
        fresh: remove an earlier audit's files from `out` first.

    Returns:
        the whole audit; its exit code is 3 while something is missing.

    Raises:
        ConfigError: a folder holds no results, belongs to another scenario, version or data, holds
            other figures for the same cell, or `out` holds results of another audit.
    """
    sources, target = [Path(f) for f in folders], Path(out)
    check.some("merge: folders", sources)
    if target.resolve() in {s.resolve() for s in sources}:
        raise ConfigError.taken(target, "a shard")
    with ExitStack() as stack:
        stores = [stack.enter_context(Store(s, readonly=True)) for s in sources]
        records = [s.record() for s in stores]
        _same(sources, records)
        probe(target)
        with claim(target) as lock:
            only_ours(target)
            records += [] if fresh else _read_before(target, sources[0], records[0])
            lock.forget()
            if fresh:
                clear(target)
            withdraw(target)
            merged = stack.enter_context(Store(target))
            record = _whole(sources, records, target)
            merged.take(stores, record.wanted, record)
            _take_views(sources, target, record.wanted)
            return judge(merged, record)


def _read_before(out: Path, source: Path, record: AuditRecord) -> list[AuditRecord]:
    """The record of the same audit in `out`, which an interrupted merge may have left; none of an
    empty folder.

    Raises:
        ConfigError: it is another audit's.
    """
    if not (out / STORE_NAME).exists():
        return []
    with Store(out, readonly=True) as store:
        found = [] if store.meta("audit") is None else [store.record()]
    _same([source, *[out] * len(found)], [record, *found], FRESH)
    if any(of.shard for of in found):
        raise ConfigError.taken(out, "a shard")
    return found


def _same(
    folders: Sequence[Path], records: Sequence[AuditRecord], cure: str = "Merge parts of one audit."
) -> None:
    """Refuse folders that are not parts of one audit."""
    for folder, record in zip(folders[1:], records[1:], strict=True):
        for key, what in _SAME.items():
            first, other = (_compared(r, key) for r in (records[0], record))
            if first != other:
                told = ("the same", "another") if key == "wanted" else map(_short, (first, other))
                mine, its = told
                what, rule = f"merge: {what} of {folder}", f"be that of {folders[0]} ({mine})"
                raise ConfigError.must(what, rule, its, cure)


def _compared(record: AuditRecord, key: str) -> Any:
    found = getattr(record, key)
    if key == "versions":
        return {k: v for k, v in (found or {}).items() if k != "python"}
    if key == "wanted":
        return {cell: sorted(attacks) for cell, attacks in (found or {}).items()}
    return found


def _short(value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    return ", ".join(f"{k} {v}" for k, v in value.items())


def _whole(folders: Sequence[Path], records: Sequence[AuditRecord], out: Path) -> AuditRecord:
    """The record of the audit that the shards are parts of."""
    devices = {name for r in records for name in str(r.device).split("+")}
    whole = replace(
        records[0], shard="", device="+".join(sorted(devices)),
        looks=join_looks(r.looks for r in records),
    )  # fmt: skip
    source = whole.scenario_source
    if not source.path:
        return whole
    there = (folders[0].resolve() / source.path).resolve()  # as seen from the results
    try:
        path = os.path.relpath(there, out.resolve())
    except ValueError:  # on another drive
        path = str(there)
    return replace(whole, scenario_source=replace(source, path=path))


def _take_views(folders: Sequence[Path], out: Path, wanted: Mapping[str, object]) -> None:
    """Copy the kept views of wanted cells."""
    for folder in folders:
        for key in wanted:
            path = folder / VIEWS / f"{key}.zip"
            if path.is_file() and not (out / VIEWS / path.name).exists():
                make_folder(out / VIEWS)
                write_atomic(out / VIEWS / path.name, partial(shutil.copyfile, path))
