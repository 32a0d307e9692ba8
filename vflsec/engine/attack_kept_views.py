"""One attack on a finished audit, by its kept views: nothing is trained and nothing is written."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from vflsec.audit.looks import Looks
from vflsec.audit.record import AuditRecord
from vflsec.config.scenario import Scenario, load_scenario
from vflsec.engine.audit_record import find_runnable, make_record
from vflsec.engine.dry_run import make_plan
from vflsec.engine.work import Backend, Tasks, attack_views, default_backend, divide_work
from vflsec.errors import ConfigError, TraceError
from vflsec.plan.values import Work
from vflsec.plugins.loading import allow_imports
from vflsec.runtime.progress_protocol import NOTE
from vflsec.specs import DECLINED, CellResult
from vflsec.storage.store import Store
from vflsec.storage.view_folder import KeptViews


def attempt(
    folder: Path,
    name: str,
    set: Sequence[str] = (),
    *,
    device: str = "auto",
    replicas: int = 32,
    backend: Backend | None = None,
    progress: Callable[[str, float], None] = lambda *_: None,
) -> dict[str, Any]:
    """Make one attack on every training of a finished audit whose views are kept.

    Args:
        folder: where `vflsec audit --keep-views` wrote.
        name: of the attack.
        set: ``key=value`` of its section: parameters, grants, adversary.
        device, replicas: as for an audit.
        backend: data layer, for tests.
        progress: called with (what is being done, share done); a sentence for the user comes with
            :data:`vflsec.runtime.progress_protocol.NOTE`.

    Returns:
        a summary as of an audit with this attack alone, without gates.

    Raises:
        VflsecError: the folder holds no audit with kept views, or the attack does not exist, cannot
            be made on them, or acts during training.
    """
    from vflsec.audit.evaluate import evaluate
    from vflsec.report.exports import make_summary

    backend = backend or default_backend()
    views = KeptViews(folder)
    with Store(folder, readonly=True) as store:
        before = store.record()
        if not views.any:
            raise ConfigError(f"{folder}: holds no kept views. Audit with --keep-views --fresh.")
        loaded = _load_with_attack(before, folder, name, set)
        plan = make_plan(loaded, try_out=False, load=backend.load_source)
        allow_imports(plan.base)
        record = make_record(loaded, plan, device, Looks(), folder)
        record = replace(record, runnable=find_runnable(plan))
        results = {r.key: r for r in store.results(dict.fromkeys(record.wanted, ()))}
    if not any(g.attacks for g in plan.groups):
        raise _refuse(name, folder, dict.fromkeys(r.reason.rstrip(".") for r in plan.refused))
    works = [
        work for g in plan.groups
        for work in divide_work(
            g, [(c, g.attacks) for c in g.cells if c.key in results], (), views, replicas
        )
    ]  # fmt: skip
    attack = partial(attack_views, folder=folder, tasks=Tasks(backend, plan.base), device=device)
    said = _attack_all(works, attack, results, progress)
    _refuse_unmade(name, folder, results.values(), said)
    if said:
        progress(f"Not on every training: {'; '.join(said)}.", NOTE)
    every = [r for r in results.values() if any(m.attack for m in r.measures)]
    evaluation = evaluate(record, every)
    return make_summary(record, evaluation, every, None) | {"complete": True, "exit_code": 0}


def _attack_all(
    works: Sequence[Work], attack: Callable[..., Sequence[CellResult]],
    results: Mapping[str, CellResult], progress: Callable[[str, float], None],
) -> dict[str, None]:  # fmt: skip
    """Add the measures of attacks that kept views suffice for; why others were not made."""
    why_not: dict[str, None] = {}
    done = 0
    for work in works:
        progress(work.title, done / max(1, len(results)))
        done += len(work.cells)
        why_not |= dict.fromkeys(why for _, why in work.why)
        if work.kept:
            try:
                found = attack(work, progress=None, note=lambda text: progress(text, NOTE))
            except TraceError as error:
                why_not[str(error).rstrip(".")] = None
                continue
            for one in found:
                results[one.key].measures += one.measures
    return why_not


def _refuse_unmade(
    name: str, folder: Path, results: Iterable[CellResult], said: Iterable[str]
) -> None:
    """Refuse an attack that was made on no training: `said` why, or by its errors."""
    tried = [m for r in results for m in r.measures if m.attack]
    if not any(m.status in ("ok", DECLINED) for m in tried):
        failed = dict.fromkeys(m.reason.rstrip(".") for m in tried)
        raise _refuse(name, folder, failed or said, "" if failed else _AUDIT_AGAIN)


_AUDIT_AGAIN = "Add it to the scenario and audit again."


def _refuse(name: str, folder: Path, why: Iterable[str], cure: str = _AUDIT_AGAIN) -> ConfigError:
    said = "; ".join(why) or "nothing is there to attack"
    return ConfigError(f"{name}: cannot be tried on {folder}: {said}. {cure}".rstrip())


def _load_with_attack(before: AuditRecord, folder: Path, name: str, set: Sequence[str]) -> Scenario:
    """What was audited, with this attack alone and nothing to judge."""
    sections = tomllib.loads(before.scenario_toml)
    sections |= {"attack": [{"name": name}], "gate": []}
    sections["audit"] = sections.get("audit", {}) | {
        "references": [], "positive_control": False, "attacker": "default",
    }  # fmt: skip
    loaded = load_scenario(sections, [f"attack.0.{text}" for text in set])
    there = before.scenario_source.path
    base = (folder / there).resolve().parent if there else loaded.base
    return replace(loaded, base=base if base.is_dir() else loaded.base)
