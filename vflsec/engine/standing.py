"""An audit that stands: of what it rests on and wrote nothing changed, so it is only read back."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from vflsec.audit.record import AuditRecord, write_record
from vflsec.report.notebook import Audit
from vflsec.specs import hash_value
from vflsec.storage.results_folder import WRITTEN, Lock
from vflsec.storage.store import STORE_NAME


def read_standing(lock: Lock, folder: Path, record: AuditRecord) -> Audit | None:
    """The audit in a folder, if it is the one of this record and nothing was left to do.

    Args:
        lock: on the folder.
        folder: the results directory.
        record: of the audit that is asked for.
    """
    if not lock.stands(_mark(folder, record)):
        return None
    import pandas as pd

    from vflsec.report.exports import load_summary
    from vflsec.report.summary import read_summary

    summary = load_summary(folder)
    with (folder / "results.parquet").open("rb") as file:
        frame = pd.read_parquet(file)
    return Audit(folder, frame, summary, read_summary(summary).gates, summary["exit_code"])


def keep_standing(lock: Lock, folder: Path, record: AuditRecord) -> None:
    """Say that a folder holds the whole audit of a record; its store is closed."""
    lock.stand(_mark(folder, record))


def _mark(folder: Path, record: AuditRecord) -> str:
    """A hash of what was asked, and of the files of its audit; '' if one is missing."""
    log = folder / f"{STORE_NAME}-wal"
    paths = [folder / name for name in WRITTEN]
    if not all(p.is_file() for p in paths) or (log.is_file() and log.stat().st_size):
        return ""
    held = []
    for path in paths:
        with path.open("rb") as file:
            held.append(hashlib.file_digest(file, "blake2b").hexdigest())
    return hash_value([write_record(replace(record, when="", runnable=None)), held])
