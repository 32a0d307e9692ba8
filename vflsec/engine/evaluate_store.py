"""Stored results judged: figures, verdicts and exports; needs neither the data nor a trainer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vflsec.audit.record import AuditRecord, write_record
from vflsec.report.notebook import Audit
from vflsec.specs import hash_value
from vflsec.storage.results_folder import WRITTEN, Lock, claim, withdraw
from vflsec.storage.store import STORE_NAME, Store


def judge(
    store: Store,
    record: AuditRecord | None = None,
    *,
    seconds: float | None = None,
    worked: float = 0.0,
    partial: bool = False,
    export: bool = True,
    **how: Any,
) -> Audit:
    """Judge what a store holds and rewrite the exports beside it; trains nothing.

    Args:
        store: with the results.
        record: of the audit whose gates are judged; the one in the store if not given.
        seconds: of the run, for the summary.
        worked: processor seconds of the run and its children, for the summary; trainings of earlier
            runs may have taken more.
        partial: more is to come, so no gate is judged and nothing passes or fails; so it is where a
            planned result is missing, and for a shard.
        export: whether to write files.
        how: see `vflsec.audit.evaluate.evaluate`.
    """
    from vflsec.audit.evaluate import evaluate
    from vflsec.report.exports import locate_results, make_summary, write_exports, write_reports

    record = store.record() if record is None else record
    results = store.results(record.wanted)
    partial = partial or bool(record.shard) or bool(store.unfinished(record.wanted))
    evaluation = evaluate(record, results, partial=partial, **how)
    summary = make_summary(record, evaluation, results, seconds, worked)
    code = evaluation.exit_code
    summary |= {"complete": not partial, "exit_code": code, "shard": record.shard}
    summary["command"] = locate_results(summary, store.folder)
    rows = evaluation.rows
    del results, evaluation  # most of the memory, and no report asks for it
    audit = Audit(store.folder, lambda: rows, summary)
    if export:
        withdraw(store.folder)  # killed in between, no file stands beside one of another judgement
        write_exports(store.folder, record.scenario_toml, audit.results, summary)
        if not partial:
            write_reports(store.folder, audit.found)
    return audit


def audit_once(folder: Path, run: str, audit: Callable[[], Audit], **how: Any) -> Audit:
    """What `audit` returns; in a `run` in which it was made before, its results read back.

    Whoever audits holds the folder (:func:`vflsec.storage.results_folder.claim`), the others wait,
    as workers of pytest do. Nothing is trained twice, and no file is written twice.

    Args:
        folder: the results directory that `audit` writes.
        run: names what the callers have in common, for example one call of pytest; empty if
            nothing: then every caller audits, one after the other.
        audit: makes the audit; an error of it is raised, and the next caller tries again.
        how: results that are read back are judged, see :func:`judge`.

    Raises:
        ConfigError: `folder` cannot be written.
    """
    # a process that dies lets go at once
    with claim(folder, patience=24 * 3600.0) as lock:
        if lock.was_done(run):
            with Store(folder, readonly=True) as store:
                return judge(store, export=False, **how)
        found = audit()
        lock.done(run)
        return found


def read_standing(lock: Lock, folder: Path, record: AuditRecord) -> Audit | None:
    """The audit in a folder, if it is the one of this record, whole and as it was written.

    Args:
        lock: on the folder.
        folder: the results directory.
        record: of the audit that is asked for.
    """
    if not lock.stands(mark_standing(folder, record)):
        return None
    from vflsec.report.exports import load_rows, load_summary

    return Audit(folder, load_rows(folder), load_summary(folder))


def mark_standing(folder: Path, record: AuditRecord) -> str:
    """What an audit rests on and wrote, as a hash; '' if a file is missing.

    Where it is the same again, the audit stands and is only read back. Its store is closed.
    """
    log = folder / f"{STORE_NAME}-wal"
    paths = [folder / name for name in WRITTEN]
    if not all(p.is_file() for p in paths) or (log.is_file() and log.stat().st_size):
        return ""
    held = []
    for path in paths:
        with path.open("rb") as file:
            held.append(hashlib.file_digest(file, "blake2b").hexdigest())
    return hash_value([write_record(replace(record, when="", runnable=None)), held])
