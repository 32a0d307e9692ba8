"""The strong attacker: settings chosen on drawn worlds, which then attack what is audited.

The choice is made from the stored trainings on those worlds alone (:mod:`vflsec.plan.strong`), with
their own truth: no audited row or seed has a part in it, and of the labels only how many there are
of each class, so what the chosen setting finds in the audit needs no correction for having been
chosen. At every point (defense, strength, adversary, rows) the setting with the largest mean
advantage over all controls wins, and the one that is written where the lead is within
:data:`vflsec.audit.controls.LEAST` or one standard error over the worlds. Winners join what is
written at every point of that data set and algorithm, so that each is seen without a defense too,
and no figure of the default attacker is lost.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from vflsec.audit import leakage
from vflsec.audit.controls import LEAST
from vflsec.audit.record import Attacker, Choice
from vflsec.engine.dry_run import make_plan
from vflsec.plan.strong import SEEDS, STRONG, Chosen
from vflsec.plan.values import TUNING, Plan, Setting
from vflsec.runtime.typed_values import read_as
from vflsec.specs import CellResult, Params, hash_value
from vflsec.storage.store import Store

if TYPE_CHECKING:
    from vflsec.config.scenario import Scenario
    from vflsec.data.source import Source


def choose_attacker(
    plan: Plan, store: Store, asked: str, search: Callable[[Plan], None]
) -> Attacker:
    """Which attacker audits, for the record; the choice that the store holds is not made again.

    Args:
        plan: with the trainings on drawn worlds, if there are any.
        store: of the results.
        asked: ``default`` or ``strong``.
        search: does these trainings, as far as they are missing; no record stands meanwhile.
    """
    if asked != STRONG:
        return Attacker()
    part = replace(plan, groups=tuple(g for g in plan.groups if g.role == TUNING))
    identity = hash_value([[*_name_point(t), t.written, t.spec.key, t.cells] for t in plan.tried])
    before = read_as(Attacker, (store.meta("audit") or {}).get("attacker"))
    if before.identity == identity:
        return before
    if part.groups:
        store.set_meta("audit", None)  # killed in the search, none before is judged for it
        search(part)
    wanted: dict[str, list[str]] = {}
    for g in part.groups:
        for c in g.cells:
            wanted.setdefault(c.key, []).extend(a.key for a in g.attacks)
    results = store.results(wanted)
    return Attacker(
        STRONG, identity, tuple(SEEDS) if part.groups else (), len(results),
        sum(r.seconds for r in results), _list_labels(plan.tried),
        choose_settings(plan.tried, results),
    )  # fmt: skip


def _list_labels(tried: Sequence[Setting]) -> dict[str, tuple[str, ...]]:
    """Labels of all settings that were tried, by the attack's name."""
    out: dict[str, dict[str, None]] = {}
    for t in tried:
        out.setdefault(t.spec.name, {})[t.spec.label] = None
    return {name: tuple(labels) for name, labels in out.items()}


def settle_plan(
    plan: Plan, found: Attacker, scenario: Scenario, load: Callable[..., Source]
) -> Plan:
    """What is audited: the plan without its search, with the settings that were found.

    Args:
        plan: of the scenario.
        found: of :func:`choose_attacker`.
        scenario, load: that it was made of.
    """
    if found.name != STRONG:
        return plan
    again = make_plan(scenario, load=load, try_out=False, chosen=read_chosen(found))
    return replace(again, notes=plan.notes, cost=plan.cost)


def choose_settings(tried: Sequence[Setting], results: Sequence[CellResult]) -> tuple[Choice, ...]:
    """The best setting of every attack at every point.

    Args:
        tried: every setting, in the order of preference where they tie.
        results: of the trainings on drawn worlds.
    """
    by_key = {r.key: r for r in results}
    out = []
    for cells, cohort in itertools.groupby(tried, key=lambda t: t.cells):
        gained = _list_advantages([by_key[c] for c in cells if c in by_key])
        for asked, of in itertools.groupby(cohort, key=_name_point):
            settings = list(of)
            for place, by_attack in gained.items():
                here = [(t, by_attack[t.spec.key]) for t in settings if t.spec.key in by_attack]
                if here:
                    out.append(_choose_best(asked, place, here))
    return tuple(out)


def _name_point(t: Setting) -> tuple[str, str, int, str]:
    return t.dataset, t.algorithm, t.section, "+".join(t.spec.adversary)


Place = tuple[str, float | None, str]
"""Defense, strength, and the rows that are guessed."""


def _list_advantages(results: Sequence[CellResult]) -> dict[Place, dict[str, dict[int, float]]]:
    """Advantages by seed of each attack's key, after the last phase, in its primary metric."""
    every = leakage.complete_rows(row for r in results for row in leakage.list_rows(r))
    rows = [r for r in every if r.is_main and r.advantage is not None]
    out: dict[Place, dict[str, dict[int, float]]] = {}
    for r in rows:
        if r.phase == rows[-1].phase:
            by_attack = out.setdefault((r.defense, r.strength, r.split), {})
            by_attack.setdefault(r.attack_key, {})[r.seed] = r.advantage or 0.0
    return out


def _choose_best(
    asked: tuple[str, str, int, str], place: Place, here: Sequence[tuple[Setting, dict[int, float]]]
) -> Choice:
    """The choice for one attack at one place, of the settings that have figures there."""
    top, most = max(here, key=lambda pair: np.mean([*pair[1].values()]))
    written, own = next((pair for pair in here if pair[0].written), (None, {}))
    joins = top is not written and _leads(most, own)
    if written is not None and not joins:
        top, most = written, own
    (dataset, algorithm, section, adversary), (defense, strength, split) = asked, place
    return Choice(
        dataset, algorithm, defense, strength, section, adversary, top.spec.name, split,
        written=written.spec.label if written else "",
        written_advantage=float(np.mean([*own.values()])) if own else None,
        chosen=top.spec.label, advantage=float(np.mean([*most.values()])),
        params=dict(top.spec.params), joins=joins,
    )  # fmt: skip


def _leads(most: Mapping[int, float], own: Mapping[int, float]) -> bool:
    """Whether one setting is better than another by more than they differ from world to world."""
    lead = [most[s] - own[s] for s in most if s in own]
    if len(lead) < 2:
        return not own
    error = float(np.std(lead, ddof=1)) / math.sqrt(len(lead))
    return bool(np.mean(lead) > max(LEAST, error))


def read_chosen(attacker: Attacker) -> Chosen:
    """The settings that join those that are written."""
    out: dict[tuple[str, str, int], list[Params]] = {}
    for c in attacker.choices:
        params = out.setdefault((c.dataset, c.algorithm, c.section), [])
        if c.joins and c.params not in params:
            params.append(c.params)
    return out
