"""Builds what each adversary sees: the one place where a View is made from a Federation."""

from __future__ import annotations

from types import MappingProxyType

import torch
from torch import Tensor

from vflsec.algorithm import Algorithm
from vflsec.cell import AttackSpec
from vflsec.cell import victims as whose
from vflsec.federation import Federation
from vflsec.rng import generator
from vflsec.task import Task
from vflsec.view import Known, View

__all__ = ["aux_rows", "known_rows", "make_view", "victims"]


def known_rows(task: Task, seed: int, count: int) -> Known:
    """`count` labelled training rows granted to an adversary, classes alternating.

    Drawn for (seed) alone: a smaller grant is a prefix of a larger one, and the same rows go to
    every attack, to every control and to every defense strength.
    """
    rows = task.sets["labelled"]
    y = task.y[rows]
    g = generator(seed, "known_rows")
    order = torch.randperm(len(rows), generator=g)
    rows, y = rows[order], y[order]
    place = torch.empty_like(y)
    for c in range(task.classes):
        of = (y == c).nonzero().squeeze(1)
        place[of] = torch.arange(len(of))
    rank = torch.argsort(place * task.classes + y)[:count]
    return Known(rows[rank], y[rank])


def aux_rows(task: Task, seed: int, count: int, known: Known | None) -> Tensor:
    """`count` training rows whose columns at the victims an adversary was granted, none `known`."""
    rows = task.sets["labelled"]
    if known is not None:
        rows = rows[~torch.isin(rows, known.rows.cpu())]
    order = torch.randperm(len(rows), generator=generator(seed, "aux_rows"))
    return rows[order[:count]]


def victims(spec: AttackSpec, task: Task) -> tuple[str, ...]:
    """Parties whose columns are attacked."""
    return whose("feature", spec.adversary, task.parties, spec.victim)


def make_view(
    algorithm: Algorithm,
    fed: Federation,
    initial: dict[str, dict[str, Tensor]],
    spec: AttackSpec,
    r: int,
) -> View:
    """The view of `spec.adversary` in replica `r` after the phase that just ended.

    Args:
        initial: initial bottom weights by party, (R, ...) each, for the own-architecture control.
    """
    task = fed.stack.tasks[int(fed.stack.of[r])]
    device, dtype = fed.stack.device, fed.stack.dtype
    known = known_rows(task, fed.seeds[r], spec.known_rows) if spec.known_rows else None
    labelled = task.sets["labelled"]
    if known is not None:
        labelled = labelled[~torch.isin(labelled, known.rows)]
        known = Known(known.rows.to(device), known.labels.to(device))
    mine = spec.adversary
    aux = None
    others = victims(spec, task)
    if spec.aux_rows:
        rows = aux_rows(task, fed.seeds[r], spec.aux_rows, known)
        labelled = labelled[~torch.isin(labelled, rows)]
        aux = {p: (rows.to(device), task.x[p][rows].to(device, dtype)) for p in others}
    models = {p: {k: m.one(r) for k, m in fed.parties[p].modules.items()} for p in mine}
    for p in mine:
        if p in initial:
            models[p]["initial"] = fed.parties[p].modules["bottom"].one(r, initial[p])
    if spec.peer_model:
        models |= {p: {k: m.one(r) for k, m in fed.parties[p].modules.items()} for p in others}
    seen = (*mine, *others) if spec.aux_rows or spec.peer_model else mine
    encoders = {}
    for p in mine:
        encoder = algorithm.encoder(fed, p, models[p])
        if encoder is not None:
            encoders[p] = encoder
    steps = fed.channel.recorder.updates(r, mine, fed.phase)
    # what a plug-in gets is a copy, so that what it does in place reaches nobody else
    own = torch.clone if spec.code else torch.Tensor.detach
    return View(
        adversary=mine,
        columns=MappingProxyType({p: own(task.x[p].to(device, dtype)) for p in mine}),
        present=MappingProxyType({p: own(task.present[p]) for p in mine}),
        schema=MappingProxyType({p: task.schema[p] for p in seen}),
        tables=MappingProxyType(fed.channel.recorder.tables(r, mine, fed.phase)),
        models=MappingProxyType(models),
        facts=algorithm.facts(fed),
        targets=MappingProxyType(
            {"train": own(labelled.to(device)), "test": own(task.sets["test"].to(device))}
        ),
        known=known,
        prior=own(task.prior) if spec.prior else None,
        encoders=MappingProxyType(encoders),
        updates=MappingProxyType(
            {p: [u.copied(own) for u in of] for p, of in steps.items()} if spec.code else steps
        ),
        aux=None if aux is None else MappingProxyType(aux),
    )
