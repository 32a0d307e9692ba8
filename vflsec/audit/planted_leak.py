"""Lays the planted leak of :mod:`vflsec.audit.dosing` over what an attacker sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

import numpy as np
import torch
from torch import Tensor

from vflsec.core import check
from vflsec.core.guess import Truth
from vflsec.core.view import Table, View
from vflsec.label import find_label

_FAR = 4.0  # embedding norms
_PART = 1 << 14  # rows that are worked on at once


@dataclass(frozen=True)
class _Dosed(View):
    """A view whose embedding of some rows was replaced: {party: (rows ascending, embeddings)}."""

    overlay: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def embed(self, rows: Tensor, party: str | None = None, *, part: str = "bottom") -> Tensor:
        z = super().embed(rows, party, part=part)
        name = party or self.party
        if (party is None and len(self.adversary) > 1) or part != "bottom":
            return z  # a coalition's parts came through here one by one
        chosen, laid = self.overlay[name]
        at = torch.searchsorted(chosen, rows).clamp_max(len(chosen) - 1)
        hit = chosen[at] == rows
        z = z.clone()
        z[hit] = laid[at[hit]].reshape(-1, *z.shape[1:]).to(z)
        return z


def plant_leak(
    view: View, truth: Truth, prior: Sequence[float], share: float, rng: torch.Generator
) -> View:
    """The view with a planted leak over `share` of its rows.

    Args:
        view: with recorded gradients, or a bottom of its own, or both.
        truth: labels of all rows, or values.
        prior: class shares (C,).
        share: of all rows, in (0, 1); rows of a smaller share are among those of a larger one.
        rng: on the CPU.
    """
    device = view.target_rows.device
    code = _code(truth, prior)
    order = torch.randperm(len(code), generator=rng)
    chosen = order[: max(1, round(share * len(code)))].sort().values
    directions = {p: torch.Generator().manual_seed(rng.initial_seed() + i)
                  for i, p in enumerate(view.adversary)}  # fmt: skip
    overlay = {}
    for party in view.adversary:
        if "bottom" in view.models.get(party, {}) or party in view.encoders:
            sample = view.embed(view.target_rows, party).flatten(1).double().cpu()
            u = _directions(directions[party], code.shape[1], sample.shape[1])
            far = _FAR * float((sample - sample.mean(0)).norm(dim=1).mean())
            laid = sample.mean(0) + far * code[chosen] @ u
            overlay[party] = (chosen.to(device), laid.to(device))
    tables = {
        key: _laid(table, chosen, code, directions[key[3]], view)
        if key[:2] == ("received", "gradient")
        else table
        for key, table in view.tables.items()
    }
    kept = {f.name: getattr(view, f.name) for f in fields(View)}
    return _Dosed(**kept | {"tables": tables}, overlay=overlay)


def _code(truth: Truth, prior: Sequence[float]) -> Tensor:
    """What the dose carries of each row, (N, C), by sample id, of root mean square 1.

    Of a quantity (N, 1): its value.
    """
    size, at = int(truth.rows.max()) + 1, torch.as_tensor(truth.rows)
    label = find_label(truth.target, len(prior))
    if label is None:
        raise check.fail("dosed: truth", "of a label", truth.target)
    y = torch.zeros(size, dtype=torch.float64 if label.floating else torch.int64)
    y[at] = torch.as_tensor(np.nan_to_num(truth.values))
    code = label.encode(y, prior)
    return code / float((code**2).sum(1).mean().sqrt())


def _laid(
    table: Table, chosen: Tensor, code: Tensor, rng: torch.Generator, view: View
) -> Table:  # fmt: skip
    """The same gradients with those of the chosen rows replaced, of the same mean square norm."""
    flat = table.tensor.flatten(1)
    k = view.facts.extra.get("of_label")
    if k is not None and not view.facts.top:
        u = torch.zeros(2, flat.shape[1], dtype=torch.float64)
        u[:, k] = torch.tensor([-1.0, 1.0])  # the gradient of this label's logit
    elif flat.shape[1] == code.shape[1] and not view.facts.top:
        u = torch.eye(code.shape[1], dtype=torch.float64)  # gradients of the logits themselves
    else:
        u = _directions(rng, code.shape[1], flat.shape[1])
    hit = torch.isin(table.rows, chosen.to(table.rows.device)).nonzero().squeeze(1)
    norms = torch.cat([part.double().norm(dim=1) for part in flat.split(_PART)])
    norm = float(norms.square().mean().sqrt())
    out = flat.clone()
    for at in hit.split(_PART):  # in float64 for a moment
        out[at] = (-norm * code[table.rows[at].cpu()] @ u).to(out)
    return Table(out.reshape(table.tensor.shape), table.rows, table.epoch, table.step)


def _directions(rng: torch.Generator, classes: int, width: int) -> Tensor:
    """One unit direction for each class (C, d); the same for the same generator state."""
    state = rng.get_state()
    u = torch.randn(classes, width, generator=rng, dtype=torch.float64)
    rng.set_state(state)
    return u / u.norm(dim=1, keepdim=True)
