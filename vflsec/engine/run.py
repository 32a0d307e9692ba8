"""Run an audit: plan, train and attack what is missing, judge, export. Interrupted, it resumes."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vflsec.audit.looks import Looks
from vflsec.audit.record import AuditRecord
from vflsec.config.overrides import ask_seeds
from vflsec.config.scenario import Scenario, load_scenario
from vflsec.core import check
from vflsec.data.in_memory import on_disk
from vflsec.engine import strong_attacker
from vflsec.engine.audit_record import find_runnable, list_versions, make_record
from vflsec.engine.dry_run import make_plan
from vflsec.engine.evaluate_store import judge, mark_standing, read_standing
from vflsec.engine.executor import Listener, Order, execute, find_replicas
from vflsec.engine.options import Options
from vflsec.engine.read_results import read_looks
from vflsec.engine.shard import divide_groups
from vflsec.engine.work import Backend, Progress, Tasks, default_backend, missing_work
from vflsec.engine.worker_pools import Pool, Processes, open_cluster, warm_workers
from vflsec.errors import format_count
from vflsec.plan.values import TUNING, Plan, Work
from vflsec.report.notebook import Audit
from vflsec.report.progress import pick_reporter
from vflsec.runtime.grouping import group_by
from vflsec.runtime.progress_protocol import Reporter
from vflsec.specs import Measure
from vflsec.storage.results_folder import (
    Lock,
    claim,
    clear,
    for_controls,
    only_ours,
    probe,
    tidy,
    withdraw,
)
from vflsec.storage.store import Store
from vflsec.storage.view_folder import VIEWS, KeptViews, not_kept

if TYPE_CHECKING:
    from vflsec.train.view_writer import Keep

FIRST = 60.0
"""Seconds of work before unfinished results are exported the first time."""


class Interrupted(KeyboardInterrupt):
    """The audit was stopped; what is finished is stored and the same command goes on."""

    def __init__(self, folder: Path, done: int, total: int) -> None:
        super().__init__(f"{done} of {format_count(total, 'training')} stored in {folder}")
        self.folder, self.done, self.total = folder, done, total


def run_audit(
    scenario: str | Path | Mapping[str, object] | Scenario,
    out: str | Path | None = None,
    *,
    seeds: int | Sequence[int] | None = None,
    attacker: str | None = None,
    set: Iterable[str] = (),
    progress: Reporter | bool | None = None,
    backend: Backend | None = None,
    **options: Any,
) -> Audit:
    """Audit a scenario and write its results; what is finished already is not done again.

    Args:
        scenario: path, packaged name, or the sections as a dictionary, whose `file` or `files`
            under `data` may be DataFrames: they are written to a temporary folder for the run.
        out: results directory; default ``out/NAME``.
        seeds: instead of the scenario's.
        attacker: instead of the scenario's, ``default`` or ``strong``: see
            :mod:`vflsec.engine.strong_attacker`.
        set: overrides ``a.b=value``, as on the command line.
        progress: True prints it: bars on a terminal, else lines; by default on a terminal alone.
            False is silent; a Reporter is told.
        backend: data layer and trainer, for tests.
        options: how to run, see :class:`vflsec.engine.options.Options`.

    Returns:
        results as pandas, summary, verdicts, exit code.

    Raises:
        VflsecError: scenario, data or output directory cannot be used.
        Interrupted: by Ctrl-C; run again to resume.
    """
    if not isinstance(scenario, str | Path | Mapping | Scenario):
        rule = "a path, a packaged name or a dictionary of sections"
        got, remedy = type(scenario).__name__, "For tables use vflsec.audit(tables, label=...)."
        raise check.fail("run_audit: scenario", rule, got, remedy)
    from vflsec.train.device import full_name

    _check_kinds(out, progress, set, seeds)
    known = [f.name for f in fields(Options)]
    for key in options:
        if key not in known:
            named = ("seeds", "attacker", "set", "progress", *known)
            raise check.unknown("run_audit: an argument", key, named)
    how = Options(**options)
    overrides = list(set)
    if seeds is not None:
        overrides.append(ask_seeds(seeds))
    if attacker is not None:
        check.one_of("--attacker", attacker, ("default", "strong"))
        overrides.append(f"audit.attacker={attacker}")
    where = full_name(how.device)
    if out is not None and not str(out).strip():
        raise check.fail("--out", "a folder", str(out))
    with on_disk(scenario) as (found, base):
        loaded = load_scenario(found, overrides, base=base)
        folder = Path(out) if out is not None else Path("out") / loaded.name
        reporter = pick_reporter(progress)
        try:
            reporter.open()
            return _run(loaded, folder, where, how, reporter, backend)
        finally:
            reporter.close()


def _check_kinds(out: Any, progress: Any, texts: Any, seeds: Any) -> None:
    for name, given, rule, fits in (
        ("out", out, "a path", out is None or isinstance(out, str | Path)),
        ("seeds", seeds, "a number of seeds or a list of them",
         seeds is None or isinstance(seeds, int | Iterable)),
        ("progress", progress, "True, False or a Reporter",
         progress is None or isinstance(progress, Reporter | bool)),
        ("set", texts, "a list of KEY.PATH=VALUE texts",
         isinstance(texts, list | tuple) and all(isinstance(t, str) for t in texts)),
    ):  # fmt: skip
        if not fits:
            raise check.fail(f"run_audit: {name}", rule, given)


def _run(
    loaded: Scenario, folder: Path, where: str, how: Options, reporter: Reporter,
    given: Backend | None,
) -> Audit:  # fmt: skip
    from vflsec.audit.facts import describe_older

    probe(folder)
    backend = given or default_backend()
    views = KeptViews(folder)
    early = nullcontext() if given else warm_workers(folder, how.jobs, how.cluster, how.fresh)
    with early:
        plan = make_plan(
            loaded, load=backend.load_source, try_out=given is None,
            trained=(lambda _: ()) if how.fresh else views.phases,
        )  # fmt: skip
    if how.keep_views:
        _check_writable(plan)
    started, worked = time.monotonic(), _worked()
    asked = loaded.root.audit.attacker
    whole = given is None and how.part is None and not how.keep_views and asked == "default"
    with claim(folder) as lock:
        looks = _count_looks(folder, loaded.root.audit.seeds, how)
        record = make_record(loaded, plan, where, looks, folder)
        if whole and not how.fresh and (standing := read_standing(lock, folder, record)):
            reporter.plan(plan, folder, [])
            _warn_of_age(reporter, folder, standing.found.made_before)
            return standing
        lock.forget()
        clear(folder) if how.fresh else only_ours(folder)
        tidy(folder)
        with Store(folder) as store:
            do = partial(_work, store, given=given, device=where, how=how,
                         reporter=reporter, lock=lock)  # fmt: skip
            try:
                who = strong_attacker.choose_attacker(plan, store, asked, do)
                if asked != "default":
                    plan = strong_attacker.settle_plan(plan, who, loaded, backend.load_source)
                    record = make_record(loaded, plan, where, looks, folder)
                record = replace(
                    record, attacker=who, shard=str(how.part or ""), runnable=find_runnable(plan)
                )
                if how.part is not None:
                    parts = divide_groups(plan.groups, how.part.of)
                    plan = replace(plan, groups=parts[how.part.index - 1])
                was = describe_older(store.made_with(record.wanted), record.versions)
                _warn_of_age(reporter, folder, was)
                _tell_looks(reporter, record)
                store.keep(record)
                _refuse(store, plan)
                do(plan, record=record)
            except KeyboardInterrupt:
                raise Interrupted(folder, _stored(store, plan), len(plan.cells)) from None
            lock.held()
            took = time.monotonic() - started
            audit = judge(store, record, seconds=took, worked=_worked() - worked)
            left = [g for g in plan.groups if missing_work(store, g, how.replicas)]
        if whole and not left:
            lock.stand(mark_standing(folder, record))
        return audit


def _count_looks(folder: Path, seeds: Sequence[int], how: Options) -> Looks:
    """The looks at what a folder holds, with this one; no attack is judged on a single seed."""
    before = Looks() if how.fresh else read_looks(folder)
    if not before.seeds:
        before = Looks(planned=how.sequential)
    return before.add(seeds) if how.sequential or len(seeds) > 1 else replace(before, after=0)


def _check_writable(plan: Plan) -> None:
    from vflsec.train.export import check_writable

    for data in (g.data for g in plan.groups):
        check_writable(data.classes, data.parties, "--keep-views: a file of kept views")


def _warn_of_age(reporter: Reporter, folder: Path, was: str) -> None:
    if was:
        reporter.note(f"What is stored in {folder} was made with {was}; --fresh trains it again.")


def _tell_looks(reporter: Reporter, record: AuditRecord) -> None:
    looks = record.looks
    if len(looks.seeds) > 1 and looks.share < 1:
        reporter.note(
            f"This folder was judged before, at other seeds (numbers of seeds: {looks}). All looks "
            f"share one error level, so intervals are of {100 * record.level:g} %."
        )


def _worked() -> float:
    """Seconds that processors worked on this process and on its children that have ended."""
    if multiprocessing.active_children():
        gc.collect()  # a training that ended may hold some, which end with it
    return time.process_time() + sum(os.times()[2:4])


def _refuse(store: Store, plan: Plan) -> None:
    by_key = {c.key: c for g in plan.groups for c in g.cells}
    for refused in plan.refused:
        measure = Measure.missing(
            refused.attack, refused.status, refused.reason, target=refused.target,
            victim="+".join(refused.victims),
        )  # fmt: skip
        store.refuse([by_key[k] for k in refused.cells if k in by_key], measure)


def _stored(store: Store, plan: Plan) -> int:
    """How many trainings of a plan are finished."""
    tuning = [g for g in plan.groups if g.role == TUNING]
    left = sum(len(store.missing(g.cells, g.attacks, main=False)) for g in tuning)
    trained = store.count(k for k, role in plan.cells.items() if role != TUNING)
    return trained + sum(len(g.cells) for g in tuning) - left


def _work(
    store: Store, plan: Plan, *, given: Backend | None, device: str, how: Options,
    reporter: Reporter, lock: Lock, record: AuditRecord | None = None,
) -> None:  # fmt: skip
    """Do what is missing of a plan; `record` is what the exports are made by meanwhile, if any."""

    def todo(retry: bool = True) -> list[Work]:
        works = [w for g in plan.groups for w in missing_work(store, g, most, retry=retry)]
        by_data = group_by(works, lambda w: w.data.digest)  # whose tasks are made once
        return [w for of in by_data.values() for w in of]

    most = how.replicas
    works = todo()
    withdraw(store.folder)  # it may be killed, and a shard says nothing: no earlier verdict stands
    keep = _keep(store.folder, how)
    with ExitStack() as stack:
        pool: Pool | None = None
        if works and (how.cluster or how.jobs > 1):
            pool = open_cluster(how.cluster) if how.cluster else Processes(how.jobs)
            stack.enter_context(pool)
            most = find_replicas(works, most, pool.workers)
            works = todo()
            if len(works) < 2 and not how.cluster:
                pool = None
        reporter.plan(plan, store.folder, works)
        for label, why in dict.fromkeys(of for w in works for of in w.why):
            reporter.note(f"{label}: trained again for it, for {why}.")
        exports = _Exports(store, reporter, lock, record)

        def finished(work: Work) -> None:
            reporter.finish(work)
            if pool is not None or work is not works[-1]:  # then the results are judged anyway
                exports.maybe()

        def watch(work: Work) -> Progress | None:
            if pool is not None:
                return None
            reporter.begin(work)
            return partial(reporter.step, work)

        seen = pool is not None and not pool.remote
        beside = seen or given is None
        controls = stack.enter_context(for_controls(store.folder)) if beside else None
        folder = store.folder if seen else None
        order = Order((), plan.base, device, given, list_versions(), folder, controls, keep)
        listener = Listener(finished, reporter.note, watch)
        here = Tasks(given or default_backend(), plan.base, controls)
        execute(works, partial(todo, retry=False), store, pool, order, here, listener)
    if keep:
        for text in not_kept(store.folder, plan, works, keep.most):
            reporter.note(text)


def _keep(folder: Path, how: Options) -> Keep | None:
    if not how.keep_views:
        return None
    from vflsec.train.view_writer import Keep

    return Keep(folder / VIEWS, how.views_mb * 10**6, how.jobs)


class _Exports:
    """Rewrites the exports as results come, after the first seconds, in a fiftieth of the time."""

    def __init__(
        self, store: Store, reporter: Reporter, lock: Lock, record: AuditRecord | None
    ) -> None:
        self.store, self.reporter, self.lock, self.record = store, reporter, lock, record
        self.next = time.monotonic() + FIRST

    def maybe(self) -> None:
        start = time.monotonic()
        if self.record is None or start < self.next:
            return
        self.lock.held()
        audit = judge(self.store, self.record, partial=True)
        self.reporter.results(audit.rows)
        took = time.monotonic() - start
        self.next = time.monotonic() + 49 * took
