"""One audit for several processes that ask for it at the same time, as the workers of pytest do.

Whoever audits holds the folder (:func:`vflsec.storage.results_folder.claim`), the others wait. Who
comes
later in the same run reads what is stored: nothing is trained twice, and no file is written twice.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vflsec.engine.evaluate_store import judge
from vflsec.report.notebook import Audit
from vflsec.storage.results_folder import claim
from vflsec.storage.store import Store

_PATIENCE = 24 * 3600.0  # seconds; a process that dies lets go at once


def audit_once(folder: Path, run: str, audit: Callable[[], Audit]) -> Audit:
    """What `audit` returns; in a `run` in which it was made before, its results read back.

    Args:
        folder: the results directory that `audit` writes.
        run: names what the callers have in common, for example one call of pytest; empty if
            nothing: then every caller audits, one after the other.
        audit: makes the audit; an error of it is raised, and the next caller tries again.

    Raises:
        ConfigError: `folder` cannot be written.
    """
    with claim(folder, patience=_PATIENCE) as lock:
        if lock.was_done(run):
            with Store(folder, readonly=True) as store:
                return judge(store, export=False)
        found = audit()
        lock.done(run)
        return found
