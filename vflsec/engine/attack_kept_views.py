"""One attack on a finished audit, by its kept views: nothing is trained and nothing is written."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vflsec.audit.record import AuditRecord
from vflsec.config.scenario import Scenario, load_scenario
from vflsec.engine.audit_record import record_of
from vflsec.engine.dry_run import make_plan
from vflsec.engine.work import Backend, Tasks, attack_views, default_backend
from vflsec.errors import ConfigError, TraceError
from vflsec.plan.values import Group, Work, chunks
from vflsec.plugins.loading import allow_imports
from vflsec.runtime.progress_protocol import NOTE
from vflsec.specs import CellResult, CellSpec
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
    from vflsec.report.exports import summary_of

    backend = backend or default_backend()
    views = KeptViews(folder)
    with Store(folder, readonly=True) as store:
        before = store.record()
        if not views.any:
            raise ConfigError(
                f"{folder}: holds no kept views. Audit with --keep-views --fresh, which trains "
                "once more; attacks need no training from then on."
            )
        loaded = _load_with_attack(before, folder, name, set)
        plan = make_plan(loaded, try_out=False, load=backend.load_source)
        allow_imports(plan.base)
        record = record_of(loaded, plan, device, 1, folder)
        results = {r.key: r for r in store.results(dict.fromkeys(record.wanted, ()))}
    if not any(g.attacks for g in plan.groups):
        why = "; ".join(dict.fromkeys(r.reason.rstrip(".") for r in plan.refused))
        raise ConfigError(f"{name}: cannot be tried: {why or 'no adversary is there'}.")
    trial = _Trial(folder, views, Tasks(backend, plan.base), device, replicas, progress, results)
    for group in plan.groups:
        trial.attack(group)
    why_not = "; ".join(trial.why_not)
    if not any(m.attack for r in results.values() for m in r.measures):
        raise ConfigError(
            f"{name}: cannot be tried on what is kept in {folder}: "
            f"{why_not or 'no training of the audit is there'}. "
            "Add it to the scenario and run the audit again, which trains for it."
        )
    if why_not:
        progress(f"Not on every training: {why_not}.", NOTE)
    every = [r for r in results.values() if any(m.attack for m in r.measures)]
    evaluation = evaluate(record, every)
    return summary_of(record, evaluation, every, None) | {"complete": True, "exit_code": 0}


@dataclass
class _Trial:
    """An attack that is made on one group of kept trainings after another.

    Attributes:
        folder, views: where they are kept.
        tasks: their data.
        device, replicas, progress: as for :func:`attempt`.
        results: of all trainings by key, to which measures are added.
        why_not: why some could not be attacked, in the order in which that was found.
        done: how many were attacked.
    """

    folder: Path
    views: KeptViews
    tasks: Tasks
    device: str
    replicas: int
    progress: Callable[[str, float], None]
    results: Mapping[str, CellResult]
    why_not: dict[str, None] = field(default_factory=dict)
    done: int = 0

    def attack(self, group: Group) -> None:
        """Attack those of a group that are kept, as many at a time as may be."""
        for cells, reasons in _split_kept(group, self.views, self.results):
            if reasons:
                self.why_not.update(dict.fromkeys(reasons, None))
                continue
            for part in chunks(cells, self.replicas):
                self._attack_part(Work(group.data, part, group.attacks, main=False, kept=True))

    def _attack_part(self, work: Work) -> None:
        self.progress(work.title, self.done / max(1, len(self.results)))
        self.done += len(work.cells)
        try:
            found = attack_views(work, self.folder, self.tasks, self.device, None, self._note)
        except TraceError as why:
            self.why_not[str(why).rstrip(".")] = None
            return
        for one in found:
            self.results[one.key].measures += one.measures

    def _note(self, text: str) -> None:
        self.progress(text, NOTE)


def _load_with_attack(before: AuditRecord, folder: Path, name: str, set: Sequence[str]) -> Scenario:
    """What was audited, with this attack alone and nothing to judge."""
    sections = tomllib.loads(before.scenario_toml)
    sections |= {"attack": [{"name": name}], "gate": []}
    sections["audit"] = sections.get("audit", {}) | {
        "references": [], "positive_control": False, "attacker": "default",
    }  # fmt: skip
    loaded = load_scenario(sections, [f"attack.0.{text}" for text in set])
    there = before.scenario_source.get("path")
    base = (folder / str(there)).resolve().parent if there else loaded.base
    return replace(loaded, base=base if base.is_dir() else loaded.base)


def _split_kept(
    group: Group, views: KeptViews, results: Mapping[str, CellResult]
) -> list[tuple[list[CellSpec], tuple[str, ...]]]:
    """Cells of a group that were trained, by why the attacks cannot be made on them."""
    lacking: dict[tuple[str, ...], list[CellSpec]] = {}
    for cell in group.cells:
        if cell.key in results:
            why = tuple(w for a in group.attacks if (w := views.lacking(cell, a)))
            lacking.setdefault(why, []).append(cell)
    return [(cells, why) for why, cells in lacking.items()]
