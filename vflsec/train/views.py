"""Builds what each adversary sees: the one place where a View is made from a Federation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vflsec.core.algorithm import Algorithm
from vflsec.core.attack import Attack
from vflsec.core.channel import Key
from vflsec.core.federation import Federation
from vflsec.core.quantity_questions import assign_turns, find_unclear, take_turns
from vflsec.core.rng import generator
from vflsec.core.task import Task
from vflsec.core.view import Known, Schema, Table, Tables, View
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.specs import OF_THE_LABELS, AttackSpec, list_victims
from vflsec.train.demand import Demand


def draw_known_rows(task: Task, seed: int, count: int) -> Known:
    """`count` labelled training rows granted to an adversary, classes alternating.

    At most half of a class take turns (:func:`vflsec.core.quantity_questions.take_turns`). Drawn
    for (seed) alone: a smaller grant is a prefix of a larger one, and the same rows go to every
    attack, to every control and to every defense strength. Questions about a quantity share one
    grant (:func:`vflsec.core.quantity_questions.assign_turns`), with the values behind the answers.
    """
    rows = task.sets["labelled"]
    g = generator(seed, "known_rows")
    rows = rows[torch.randperm(len(rows), generator=g)]
    y = task.y[rows]
    if task.behind is None:
        sides = task.label.sides
        turns = take_turns(((c, sides, y == c) for c in range(sides)), len(rows))
    else:
        turns = assign_turns(task.behind[rows])
    rows = rows[torch.argsort(turns, stable=True)[:count]]
    return Known(rows, task.truth[rows], None if task.behind is None else task.behind[rows])


def draw_aux_rows(task: Task, seed: int, count: int, known: Known | None) -> Tensor:
    """`count` training rows whose columns at the victims an adversary was granted, none `known`."""
    rows = task.sets["labelled"]
    if known is not None:
        rows = rows[~torch.isin(rows, known.rows.cpu())]
    order = torch.randperm(len(rows), generator=generator(seed, "aux_rows"))
    return rows[order[:count]]


def draw_sample(rows: Tensor, whole: Tensor, seed: int, count: int) -> Tensor:
    """`count` of the rows in their order; all if there are no more, or for 0. An attacker sees what
    it sees: fewer rows are guessed and scored.

    All of `whole` are put in an order that is drawn for (seed) alone, and the first that are in
    `rows` are taken: attacks with other known rows have the same sample but for these.
    """
    if not 0 < count < len(rows):
        return rows
    order = whole[torch.randperm(len(whole), generator=generator(seed, "sample"))]
    mine = torch.zeros(int(whole.max()) + 1, dtype=torch.bool)
    mine[rows] = True
    chosen = order[mine[order]][:count]
    mine[:] = False
    mine[chosen] = True
    return rows[mine[rows]]


@dataclass(frozen=True)
class Asked:
    """Which rows of a task an attack is about.

    Attributes:
        targets: sample ids to guess, by split.
        known: labelled rows that it was granted, or None.
        aux: rows whose columns at the victims it was granted, or None.
    """

    targets: Mapping[str, Tensor]
    known: Known | None = None
    aux: Tensor | None = None

    @property
    def rows(self) -> Tensor:
        """All of them, ascending."""
        return torch.cat([self.trained, *self.targets.values()]).unique()

    @property
    def trained(self) -> Tensor:
        """Those of training, ascending."""
        granted = [] if self.known is None else [self.known.rows]
        granted += [] if self.aux is None else [self.aux]
        return torch.cat([self.targets["train"], *granted]).unique()


def draw_asked(task: Task, seed: int, spec: AttackSpec) -> Asked:
    """The rows that the attack guesses and was granted, of the task's label if it has several."""
    labelled, known, aux = task.sets["labelled"], None, None
    if _find_target(spec) == "presence":  # of all rows that it has, and knows of none
        labelled = task.sets[f"local:{spec.adversary[0]}"]
    elif spec.known_rows:
        known = draw_known_rows(task, seed, spec.known_rows)
    whole = {"train": labelled, "test": task.sets["test"]}
    if known is not None:
        labelled = labelled[~torch.isin(labelled, known.rows)]
    if spec.aux_rows:
        aux = draw_aux_rows(task, seed, spec.aux_rows, known)
        labelled = labelled[~torch.isin(labelled, aux)]
    targets = {"train": labelled, "test": task.sets["test"]}
    drawn = {k: draw_sample(of, whole[k], seed, spec.sample) for k, of in targets.items()}
    return Asked(drawn, known, aux)


def keep_asked(tables: Tables, rows: Tensor) -> dict[Key, Table]:
    """Messages about these rows, and about no row."""
    every = {id(table): table for table in tables.values()}
    kept = {k: t.take(torch.isin(t.rows, rows) | (t.rows < 0)) for k, t in every.items()}
    return {key: kept[id(table)] for key, table in tables.items()}


def build_grants(task: Task, seed: int, d: Demand) -> dict[str, Any]:
    """What an active attacker was granted of one task, as its policy finds it in its memory.

    ``known``: :class:`Known` rows. ``aux``, where there are any: sample ids (q,), columns (q, p) as
    numbers by victim, and own labels (q,) int64.
    """
    known = draw_known_rows(task, seed, d.known_rows)
    out: dict[str, Any] = {"known": known}
    if d.aux_rows:
        rows = draw_aux_rows(task, seed, d.aux_rows, known if d.known_rows else None)
        of = list_victims("feature", d.adversary, task.parties, d.victim)
        columns = {p: task.schema[p].design(task.x[p][rows]) for p in of}
        out["aux"] = rows, columns, (task.y if task.given is None else task.given)[rows]
    return out


def find_victims(spec: AttackSpec, task: Task) -> tuple[str, ...]:
    """Parties whose columns are attacked; one with labels only has none."""
    named = list_victims("feature", spec.adversary, task.parties, spec.victim)
    return tuple(p for p in named if not task.schema[p].empty)


def read_initial_states(fed: Federation) -> dict[str, dict[str, Tensor]]:
    """Weights before training: of bottoms by ``PARTY``, of top models by ``PARTY.top``."""
    found = {}
    for p in fed.parties.values():
        for part, key in (("bottom", p.name), ("top", f"{p.name}.top")):
            if part in p.modules:
                found[key] = p.modules[part].state()
    return found


def make_view(
    algorithm: Algorithm,
    fed: Federation,
    initial: dict[str, dict[str, Tensor]],
    spec: AttackSpec,
    r: int,
) -> View:
    """The view of `spec.adversary` in replica `r` after the phase that just ended.

    Every tensor in it is a copy of its own: nothing leads to another replica, party, or the truth.
    If the attack is on one of several labels, the view is of this label: its known rows, shares and
    predictions; gradients and models are of all.

    Args:
        initial: what :func:`read_initial_states` found, for the own-architecture control and for
            whoever is granted a peer's model.
    """
    task = fed.stack.tasks[int(fed.stack.of[r])].of_label(spec.of_label)
    mine = spec.adversary
    own = [p for p in mine if p in task.parties]
    models = {p: {k: m.one(r) for k, m in fed.parties[p].modules.items()} for p in own}
    for p in own:
        if p in initial:
            models[p]["initial"] = fed.parties[p].modules["bottom"].one(r, initial[p])
    if spec.peer_model:
        others = find_victims(spec, task)
        models |= {p: {k: m.one(r) for k, m in fed.parties[p].modules.items()} for p in others}
        for p in others:
            if f"{p}.top" in initial:
                top = fed.parties[p].modules["top"]
                models[p]["initial_top"] = top.one(r, initial[f"{p}.top"])
    encoders = {}
    for p in own:
        encoder = algorithm.encoder(fed, p, models[p])
        if encoder is not None:
            encoders[p] = encoder
    recorder = fed.channel.recorder
    tables = recorder.tables(r, mine, fed.phase, algorithm.servers)
    facts = replace(algorithm.facts(fed), classes=task.classes)
    if task.behind is not None:
        asked = {"question": task.asks, "unclear": find_unclear(task.asks, task.behind)}
        facts = replace(facts, extra={**facts.extra, **asked})
    elif spec.of_label:
        k = fed.stack.first.labels.index(spec.of_label)
        facts = replace(facts, extra={**facts.extra, "of_label": k})
        told = [key for key in tables if key[1] == "prediction"]
        tables |= {key: _of_label(tables[key], k) for key in told}
    return assemble(
        task, fed.seeds[r], spec, fed.stack.device, fed.stack.dtype,
        tables=tables,
        models=models,
        facts=facts,
        encoders=encoders,
        updates=recorder.updates(r, mine, fed.phase),
    )  # fmt: skip


def _of_label(table: Table, k: int) -> Table:
    """Predictions of several labels as the class shares of one of them, (m, 2)."""
    p = table.tensor[:, k]
    return replace(table, tensor=torch.stack([1 - p, p], dim=1))


def _make_attack(spec: AttackSpec) -> Attack | None:
    """The attack; None where none of the name is registered."""
    try:
        registry.attacks.entry(spec.name)
    except ConfigError:
        return None
    attack: Attack = registry.attacks.create(spec.name, spec.params)
    return attack


def _find_target(spec: AttackSpec) -> str:
    """What the attack guesses; '' where no attack of the name is registered."""
    attack = _make_attack(spec)
    return "" if attack is None else attack.target


def _own_labels(task: Task, spec: AttackSpec, device: torch.device) -> Tensor | None:
    """The label party's own labels but those of test rows, where it guesses something else."""
    if task.active not in spec.adversary:
        return None
    if spec.name and _find_target(spec) in ("", *OF_THE_LABELS):
        return None
    labels = task.training_labels.clone()
    labels[task.sets["test"]] = task.label.missing
    return labels.to(device)


def assemble(
    task: Task, seed: int, spec: AttackSpec, device: torch.device, dtype: torch.dtype, **seen: Any
) -> View:
    """A view of what was seen, with the adversary's own columns and the grants of `spec`.

    Args:
        task, seed: of the replica.
        spec: whose view it is; a server in it has no column and no row.
        device, dtype: of the columns.
        seen: ``tables``, ``models``, ``facts``, ``encoders`` and ``updates`` of the View.
    """
    mine, others, asked = spec.adversary, find_victims(spec, task), draw_asked(task, seed, spec)
    known, aux = asked.known, None
    if known is not None:
        behind = None if known.values is None else known.values.to(device)
        known = Known(known.rows.to(device), known.labels.to(device), behind)
    if asked.aux is not None:
        rows = asked.aux
        aux = {p: (rows.to(device), task.x[p][rows].to(device, dtype)) for p in others}
    attack = _make_attack(spec)
    if attack is not None and attack.sees_sample(spec):
        seen["tables"] = keep_asked(seen["tables"], asked.rows.to(device))
    told = spec.aux_rows or spec.peer_model or _find_target(spec) == "feature"
    shown = (*mine, *others) if told else mine
    bare, nowhere = torch.zeros(len(task.y), 0), torch.zeros(len(task.y), dtype=torch.bool)
    return View(
        adversary=mine,
        columns={p: task.x.get(p, bare).to(device, dtype, copy=True) for p in mine},
        present={p: task.present.get(p, nowhere).clone() for p in mine},
        schema={p: task.schema.get(p) or Schema.numbers((0,)) for p in shown},
        targets={k: of.to(device, copy=True) for k, of in asked.targets.items()},
        known=known,
        prior=task.prior.clone() if spec.prior else None,
        aux=aux,
        labels=_own_labels(task, spec, device),
        **seen,
    )
