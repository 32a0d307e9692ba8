"""Earlier audits, read back from their results directories."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from vflsec.audit.baseline import Baseline, build_baseline, read_baseline
from vflsec.audit.compare import Comparison, compare
from vflsec.audit.looks import Looks
from vflsec.audit.summary import Summary
from vflsec.engine.evaluate_store import judge
from vflsec.errors import AUDIT_AGAIN, ConfigError
from vflsec.report.notebook import Audit
from vflsec.storage.store import STORE_NAME, Store


def read_audit(folder: Path, **how: Any) -> Audit:
    """The audit in a results directory, judged again; nothing is written.

    Args:
        folder: where `vflsec audit` wrote.
        how: see `vflsec.engine.evaluate_store.judge`.

    Raises:
        ConfigError: the directory holds no audit.
    """
    with Store(folder, readonly=True) as store:
        return judge(store, export=False, **how)


def read_looks(folder: Path) -> Looks:
    """The looks at what a results directory holds, whatever was begun; none where nothing was.

    Raises:
        ConfigError: its results cannot be read.
    """
    if not (folder / STORE_NAME).is_file():
        return Looks()
    with Store(folder, readonly=True) as store:
        return Looks() if store.meta("audit") is None else store.record().looks


def refuse_damaged(folder: Path, summary: Summary) -> None:
    """Refuse a summary beside results that are damaged, or not those that it speaks of.

    One without results beside it, as a build publishes it, stands for itself.

    Raises:
        ConfigError: they are; the summary would show a verdict that nothing there bears out.
    """
    if not (folder / STORE_NAME).is_file():
        return
    with Store(folder, readonly=True) as store:
        record = store.record()
        store.results(record.wanted)
        gone = summary.complete and store.unfinished(record.wanted)
        if record.scenario_hash != summary.scenario_hash or gone:
            why = "was made from other results than those beside it"
            raise ConfigError(f"{folder / 'summary.json'}: {why}. {AUDIT_AGAIN}")


def read_any(path: Path) -> Baseline:
    """The values in a baseline file, or in the results directory of an earlier audit.

    Raises:
        ConfigError: it is neither, or that audit is unfinished or has an attack that failed on
            every seed: what it lacks, nothing would be compared with.
    """
    if not path.is_dir():
        return read_baseline(path)
    audit = read_audit(path, only=True)
    if not audit.found.complete:
        shard = audit.found.shard
        cure = "Run vflsec merge first." if shard else AUDIT_AGAIN
        got = f"shard {shard}" if shard else "a part"
        raise ConfigError.must(f"{path}: --baseline", "be a whole audit", got, cure)
    return build_baseline(audit)


def compare_folders(before: Path, after: Path) -> Comparison:
    """What changed between two results directories, see `vflsec.audit.compare.compare`.

    Raises:
        ConfigError: a directory holds no audit.
    """
    for path, other in ((before, after), (after, before)):
        if path.is_file():
            command = shlex.join(["vflsec", "gate", str(other), "--baseline", str(path)])
            rule = "be a folder of `vflsec audit`"
            raise ConfigError.must(f"compare: {path}", rule, "a file", f"To judge by it: {command}")
    old, new = (read_audit(folder, only=True) for folder in (before, after))
    return compare(old, new)
