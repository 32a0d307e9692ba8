"""Rows of which nothing came that an attack reads: it neither uses nor guesses them."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from vflsec.core.attack import Attack
from vflsec.core.message_kinds import find_kinds
from vflsec.core.view import View, as_needs

ROWWISE = find_kinds(lambda kind: kind.has_every_row)


def drop_unobserved_rows(attack: Attack, view: View) -> View:
    """The view without training rows that lack a kind of message that the attack needs.

    Of a sample that is never drawn (Poisson batches in few epochs, a sampler of one's own) nobody
    receives anything. Granted rows are left out likewise. The same view where every row came, where
    none did, and for an attack that reads the absence itself.
    """
    if attack.absent or "train" not in view.targets:
        return view
    train, known, aux = view.targets["train"], view.known, view.aux
    told = [train, *([] if known is None else [known.rows]), *(r for r, _ in (aux or {}).values())]
    asked = torch.cat(told)
    came = _find_observed(attack, view, int(asked.max()) + 1) if len(asked) else None
    if came is None or bool(came[asked].all()) or not bool(came[train].any()):
        return view
    if known is not None:
        known = known.take(came[known.rows])
    if aux is not None:
        aux = {p: (r[came[r]], x[came[r]]) for p, (r, x) in aux.items()}
    targets = {**view.targets, "train": train[came[train]]}
    return replace(view, targets=targets, known=known, aux=aux)


def _find_observed(attack: Attack, view: View, n: int) -> Tensor | None:
    """Of which rows all came that the attack needs, (n,) bool or more; None if it needs nothing."""
    needs = as_needs(attack.needs)
    wanted = {("sent" if n.sent else "received", n.kind) for n in needs if n.kind in ROWWISE}
    ids = [
        table.rows for (way, kind, form, _), table in view.tables.items()
        if (way, kind) in wanted and "#" not in form  # of what comes again, some rows may
    ]  # fmt: skip
    if any(n.what == "parameter_gradient" for n in needs):
        ids += [torch.cat([u.rows for u in of]) for of in view.updates.values() if of]
    there = [mine for of in ids if len(mine := of[of >= 0])]
    if not there:
        return None
    n = max(n, *(int(of.max()) + 1 for of in there))
    every = torch.ones(n, dtype=torch.bool, device=there[0].device)
    for mine in there:
        one = torch.zeros_like(every)
        one[mine] = True
        every &= one
    return every
