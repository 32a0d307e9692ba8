"""One audit for several processes that ask for it at the same time, as the workers of pytest do.

A lock beside the results directory is held by whoever audits; it is a SQLite transaction, so it is
let go when the process ends, however it ends. Who comes later in the same run reads what is stored:
nothing is trained twice, and no file is written twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from vflsec.audit.result import Audit
from vflsec.engine.run import judge
from vflsec.engine.store import Store, make_folder
from vflsec.errors import ConfigError

__all__ = ["audit_once"]

_PATIENCE = 24 * 3600.0  # seconds; a process that dies lets go at once


def audit_once(folder: Path, run: str, audit: Callable[[], Audit]) -> Audit:
    """What `audit` returns; in a `run` in which it was made before, its results read back.

    Args:
        folder: the results directory that `audit` writes.
        run: names what the callers have in common, for example one call of pytest; empty if
            nothing: then every caller audits, one after the other.
        audit: makes the audit; an error of it is raised, and the next caller tries again.

    Raises:
        ConfigError: the folder of `folder` cannot be written.
    """
    make_folder(folder.parent)
    lock = folder.with_name(f"{folder.name}.lock")
    try:
        db = sqlite3.connect(lock, timeout=_PATIENCE, isolation_level=None)
    except sqlite3.Error as error:
        raise ConfigError(f"{lock}: cannot be written: {error}.") from None
    with closing(db):
        db.execute("begin exclusive")
        db.execute("create table if not exists done (run text primary key)")
        if run and db.execute("select 1 from done where run = ?", (run,)).fetchone():
            with Store(folder, readonly=True) as store:
                return judge(store, export=False)
        found = audit()
        db.execute("delete from done")
        if run:
            db.execute("insert into done values (?)", (run,))
        db.execute("commit")
        return found
