"""Run an audit: plan, train and attack what is missing, judge, export. Interrupted, it resumes."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vflsec import check
from vflsec._version import __version__
from vflsec.audit.exposure import tables
from vflsec.cell import Measure
from vflsec.config.scenario import Scenario, load_scenario
from vflsec.engine.executor import (
    Backend,
    Tasks,
    Work,
    default_backend,
    do_work,
    missing_work,
    run_parallel,
)
from vflsec.engine.store import STORE_NAME, Store, make_folder
from vflsec.plan.planner import Group, Plan, make_plan

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["OUR_FILES", "Audit", "Interrupted", "Reporter", "judge", "run_audit"]

OUR_FILES = (
    STORE_NAME, f"{STORE_NAME}-wal", f"{STORE_NAME}-shm", "results.parquet", "results.csv",
    "summary.json", "scenario.resolved.toml", "report.html", "summary.md", "junit.xml",
    "results.sarif",
)  # fmt: skip
"""What an audit writes into a results directory; ``--fresh`` removes these and nothing else."""


@dataclass
class Audit:
    """A finished audit.

    Attributes:
        folder: the results directory.
        results: one row for each measure, see `vflsec.audit.leakage.COLUMNS`, and ``role``.
        summary: what ``summary.json`` holds.
        verdicts: one for each gate.
        exit_code: 0 passed, 1 a gate failed, 3 inconclusive (or not all was measured).
    """

    folder: Path
    results: pd.DataFrame
    summary: dict[str, Any]
    verdicts: Sequence[Any]
    exit_code: int


class Interrupted(KeyboardInterrupt):
    """The audit was stopped; what is finished is stored and the same command goes on."""

    def __init__(self, folder: Path, done: int, total: int) -> None:
        super().__init__(f"{done} of {total} trainings are stored in {folder}")
        self.folder, self.done, self.total = folder, done, total


class Reporter:
    """Told what happens during an audit; this one is silent."""

    def plan(self, plan: Plan, folder: Path, works: Sequence[Work]) -> None:
        """Called before the first training with the work that is missing."""

    def begin(self, work: Work) -> None:
        """A piece of work starts."""

    def step(self, work: Work, event: str, fraction: float) -> None:
        """It is `fraction` done; `event` says what it is at."""

    def finish(self, work: Work) -> None:
        """A piece of work is in the store."""

    def results(self, frame: pd.DataFrame) -> None:
        """The exports were rewritten with this summary."""

    def close(self) -> None:
        """Nothing more will come."""


def run_audit(
    scenario: str | Path | Mapping[str, Any] | Scenario,
    out: str | Path | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    device: str = "auto",
    jobs: int = 1,
    set: Iterable[str] = (),
    fresh: bool = False,
    replicas: int = 32,
    looks: int = 1,
    progress: Reporter | None = None,
    backend: Backend | None = None,
) -> Audit:
    """Audit a scenario and write its results; what is finished already is not done again.

    Args:
        scenario: path, packaged name, or the sections as a dictionary.
        out: results directory; default ``out/NAME``.
        seeds: instead of the scenario's.
        device: ``auto``, ``cpu`` or ``cuda``.
        jobs: worker processes, one thread each.
        set: overrides ``a.b=value``, as on the command line.
        fresh: remove an earlier audit's files from `out` first (and nothing else there).
        replicas: most cells that train as one batched model; bounds the memory.
        looks: how often the gates are judged before they must be decided, see
            `vflsec.engine.decide`; each look gets its share of the error.
        progress: told what happens.
        backend: data layer and trainer, for tests.

    Returns:
        results as pandas, summary, verdicts, exit code.

    Raises:
        VflsecError: scenario, data or output directory cannot be used.
        Interrupted: by Ctrl-C; run again to resume.
    """
    overrides = list(set)
    if seeds is not None:
        value = seeds if isinstance(seeds, int) else list(seeds)
        overrides.append(f"audit.seeds={value}")
    check.integer("--jobs", jobs)
    check.integer("--replicas", replicas)
    check.integer("looks", looks)
    where = _device(device)
    loaded = load_scenario(scenario, overrides)
    folder = Path(out) if out is not None else Path("out") / loaded.name
    make_folder(folder)
    given = backend
    backend = backend or default_backend()
    plan = make_plan(loaded, load=backend.load_source, try_out=given is None)
    if fresh:
        _clear(folder)
    reporter = progress or Reporter()
    started = time.monotonic()
    with Store(folder) as store:
        _record(store, loaded, plan, where, looks)
        _refuse(store, plan)
        try:
            _work(store, plan, backend, given, where, jobs, replicas, reporter)
        except KeyboardInterrupt:
            cells = plan.cells
            raise Interrupted(folder, store.count(cells), len(cells)) from None
        finally:
            reporter.close()
        return judge(store, seconds=time.monotonic() - started)


def _device(name: str) -> str:
    from vflsec.train.cohort import pick_device

    return pick_device(name).type


def _clear(folder: Path) -> None:
    for name in OUR_FILES:
        (folder / name).unlink(missing_ok=True)


def _record(store: Store, scenario: Scenario, plan: Plan, device: str, looks: int) -> None:
    """Keep with the results what judging them later needs: no data is read again for it."""
    wanted: dict[str, dict[str, None]] = {}
    known_rows: dict[str, int] = {}
    datasets: dict[str, str] = {}
    algorithms: dict[str, str] = {}
    for group in plan.groups:
        for cell in group.cells:
            wanted.setdefault(cell.key, {}).update(dict.fromkeys(a.key for a in group.attacks))
            datasets.setdefault(f"{group.role}:{cell.key}", group.data.name)
            algorithms.setdefault(f"{group.role}:{cell.key}", group.title)
        known_rows.update({a.key: a.known_rows for a in group.attacks})
    for refused in plan.refused:
        known_rows[refused.attack.key] = refused.attack.known_rows
        for key in refused.cells:
            wanted.setdefault(key, {})[refused.attack.key] = None
    store.set_meta(
        "audit",
        {
            "name": scenario.name,
            "scenario_hash": scenario.hash,
            "scenario_toml": scenario.to_toml(),
            "confidence": plan.confidence,
            "gates": [g.model_dump(exclude_none=True) for g in scenario.root.gate],
            "datasets": datasets,
            "algorithms": algorithms,
            "wanted": {cell: list(keys) for cell, keys in wanted.items()},
            "known_rows": known_rows,
            "attacks": _threats(plan),
            "defenses": _defenses(plan),
            "scenario_file": _shown(scenario.origin.file),
            "looks": looks,
            "gate_lines": [
                scenario.error(("gate", i), "").line for i in range(len(scenario.root.gate))
            ],
            "when": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S"),
            "data": {g.data.name: g.data.digest for g in plan.groups},
            "refused": [asdict(r) for r in plan.refused],
            "notes": list(plan.notes),
            "visibility": tables(plan.groups),
            "device": device,
            "versions": _versions(),
        },
    )


def _shown(file: str) -> str:
    """A scenario's path as a build sees it: relative to where the audit runs, if it is below."""
    path = Path(file)
    if not path.is_absolute():
        return path.as_posix()
    below = path.is_relative_to(Path.cwd())
    return (path.relative_to(Path.cwd()) if below else Path(path.name)).as_posix()


def _threats(plan: Plan) -> dict[str, dict[str, Any]]:
    """What every attack is and needs, by key, so that a report can say it without importing it."""
    from vflsec import registry
    from vflsec.view import as_needs

    every = [a for g in plan.groups if g.role == "audit" for a in g.attacks]
    every += [r.attack for r in plan.refused if r.role == "audit"]
    out = {}
    for spec in every:
        entry = registry.attacks.entry(spec.name)
        attack = registry.attacks.create(spec.name, spec.params)
        out[spec.key] = {
            "name": spec.name,
            "label": spec.label,
            "adversary": list(spec.adversary),
            "known_rows": spec.known_rows,
            "prior": spec.prior,
            "target": attack.target,
            "needs": sorted(str(n) for n in as_needs(attack.needs)),
            "active": attack.policy() is not None,
            "summary": entry.summary,
            "source": entry.source,
        }
    return out


def _defenses(plan: Plan) -> dict[str, dict[str, str]]:
    """What every defense of the audit is, by name."""
    from vflsec import registry

    used = {d.name for g in plan.groups for c in g.cells for d in c.defenses}
    entries = {name: registry.defenses.entry(name) for name in sorted(used)}
    return {n: {"summary": e.summary, "source": e.source} for n, e in entries.items()}


def _versions() -> dict[str, str]:
    import numpy
    import torch

    return {
        "vflsec": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
    }


def _refuse(store: Store, plan: Plan) -> None:
    by_key = {c.key: c for g in plan.groups for c in g.cells}
    for refused in plan.refused:
        measure = Measure(
            phase="", split="", metric="", value=None, attack=refused.attack.label,
            adversary="+".join(refused.attack.adversary), attack_key=refused.attack.key,
            target=refused.target, victim="+".join(refused.victims), status=refused.status,
            reason=refused.reason,
        )  # fmt: skip
        store.refuse([by_key[k] for k in refused.cells if k in by_key], measure)


def _work(
    store: Store, plan: Plan, backend: Backend, given: Backend | None, device: str, jobs: int,
    replicas: int, reporter: Reporter,
) -> None:  # fmt: skip
    def todo(groups: Iterable[Group], retry: bool = True) -> list[Work]:
        return [w for g in groups for w in missing_work(store, g, replicas, retry=retry)]

    works = todo(plan.groups)
    reporter.plan(plan, store.folder, works)
    exports = _Exports(store, reporter)

    def finished(work: Work) -> None:
        reporter.finish(work)
        exports.maybe()

    if jobs > 1 and len(works) > 1:
        run_parallel(
            lambda retry: todo(plan.groups, retry), store.folder, plan.base, device=device,
            jobs=jobs, backend=given, finished=finished,
        )  # fmt: skip
        return
    tasks = Tasks(backend, plan.base)
    for work in works:
        reporter.begin(work)
        do_work(work, store, tasks, device, partial(reporter.step, work))
        finished(work)


class _Exports:
    """Rewrites the exports as results come, but spends at most a tenth of the time on it."""

    def __init__(self, store: Store, reporter: Reporter) -> None:
        self.store, self.reporter = store, reporter
        self.next = 0.0

    def maybe(self) -> None:
        start = time.monotonic()
        if start < self.next:
            return
        audit = judge(self.store, partial=True)
        self.reporter.results(audit.results)
        took = time.monotonic() - start
        self.next = time.monotonic() + 9 * took


def judge(
    store: Store,
    *,
    seconds: float | None = None,
    partial: bool = False,
    export: bool = True,
    **how: Any,
) -> Audit:
    """Judge what a store holds and rewrite the exports beside it; trains nothing.

    Args:
        seconds: of the run, for the summary.
        partial: more is to come, so no gate is judged.
        export: whether to write files.
        how: see `vflsec.audit.evaluate.evaluate`.
    """
    from vflsec.audit.evaluate import evaluate
    from vflsec.report.exports import summary_of, write_exports
    from vflsec.report.outputs import write_reports

    record = store.record()
    results = store.results(record["wanted"])
    evaluation = evaluate(record, results, partial=partial, **how)
    missing = store.unfinished(record["wanted"])
    code = evaluation.exit_code
    if missing and code == 0:
        code = 3  # what was not measured cannot pass
    summary = summary_of(record, evaluation, results, seconds)
    summary |= {"complete": not missing, "exit_code": code}
    if export:
        write_exports(store.folder, str(record["scenario_toml"]), evaluation.frame, summary)
        if not partial:
            write_reports(store.folder, summary)
    return Audit(store.folder, evaluation.frame, summary, evaluation.verdicts, code)
