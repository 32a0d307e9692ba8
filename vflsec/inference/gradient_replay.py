"""Replaying what was received: of which epochs and exchange, and how well label logits do it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vflsec.core.attack import Attack
from vflsec.core.guess import Guess
from vflsec.core.view import View
from vflsec.errors import ThreatModelError
from vflsec.nn.replicas import Replicas

EPOCHS = {"mean": ("scaled", "last"), "first": ("first", "first"), "last": ("last", "last")}
"""In which forms gradients and embeddings are replayed, by name of the epochs."""
BEST = ("mean", "first")
"""Those that compete as ``best``: fresh noise averages out, and a penalty may not act at first."""
USUAL = 0.03
"""The size of gradients without a factor, in the middle (0.07 to 0.12 in small trainings)."""
AROUND = 30.0
"""How far from that, either way, replays were seen to find labels without a factor."""


def messages_of(epoch: str) -> frozenset[str]:
    """The needs of an attack that replays the gradients of `epoch`."""
    pairs = [EPOCHS[e] for e in (BEST if epoch == "best" else (epoch,))]
    return frozenset(n for g, z in pairs for n in (f"gradient:{g}", f"sent.embedding:{z}"))


def by_epoch(
    attack: Any, views: Sequence[View], rngs: Sequence[torch.Generator]
) -> list[Guess] | None:
    """Answers of an attack that is made of one epoch's messages at a time, of one exchange each.

    With its ``epoch`` ``best`` each is from the better of :data:`BEST`: the one with which known
    rows agree more (note ``known_rows``, see :func:`measure_separation`); without that note, or
    where they agree alike, the one that is replayed better (``misfit``). Both are made from the
    same random draws, and the first alone where no other one was recorded. With another ``epoch``
    they are those of its exchanges, and None where there is one.
    """
    if attack.epoch != "best":
        return _by_exchange(attack, views, rngs, attack.epoch)
    several = [_several(view) for view in views]
    out: dict[int, Guess] = {}
    for epoch in BEST:
        of = [k for k, more in enumerate(several) if more or epoch == "first"]
        if not of:
            continue
        found = replace(attack, epoch=epoch).infer_many(
            [views[k] for k in of], [rngs[k].clone_state() for k in of]
        )
        for k, guess in zip(of, found, strict=True):
            if k not in out or _rank(guess) < _rank(out[k]):
                out[k] = replace(guess, notes={**guess.notes, "epoch": epoch})
    return [out[k] for k in range(len(views))]


def _rank(guess: Guess) -> tuple[float, float]:
    """What is least for the answer that is given."""
    return -_note(guess, "known_rows"), _note(guess, "misfit")


def _note(guess: Guess, name: str) -> float:
    value = guess.notes.get(name, 0.0)
    assert isinstance(value, int | float)
    return float(value)


def _several(view: View) -> bool:
    """Whether gradients of more than one epoch were received."""
    tables = [view.received("gradient", EPOCHS[epoch][0]) for epoch in BEST]
    steps = [t.step[torch.argsort(t.rows)] for t in tables]
    return not torch.equal(*steps)


def measure_separation(scores: Tensor, labels: Tensor) -> float:
    """How far scores (q, C) tell each class of labelled rows: areas under ROC curves, their mean.

    Of a class's score less the largest other one. A class of which there is no row, or no other
    one, is left out; 0.5 if all are.
    """
    areas = []
    for c in range(scores.shape[1]):
        others = torch.cat([scores[:, :c], scores[:, c + 1 :]], dim=1)
        lead = scores[:, c] - others.amax(1)
        ones, rest = lead[labels == c], lead[labels != c]
        if len(ones) and len(rest):
            above = ones.unsqueeze(1) - rest.unsqueeze(0)
            areas.append(float((above > 0).double().mean() + (above == 0).double().mean() / 2))
    return sum(areas) / len(areas) if areas else 0.5


def _by_exchange(
    attack: Attack, views: Sequence[View], rngs: Sequence[torch.Generator], epoch: str
) -> list[Guess] | None:
    """Answers where gradients come several times for one embedding, each made of one exchange.

    Of a view's answers, all from the same random draws, the one is given that replays its exchange
    best (note ``misfit``). None where gradients come once.

    Args:
        attack: replays gradients (n, d) of embeddings (n, d).
        epoch: of both messages, one of :data:`EPOCHS`.
    """
    parts = [_exchanges(view, *EPOCHS[epoch]) for view in views]
    if all(len(some) == 1 for some in parts):
        return None
    return [
        min(
            attack.infer_many(some, [rng.clone_state() for _ in some]),
            key=lambda guess: _note(guess, "misfit"),
        )
        for some, rng in zip(parts, rngs, strict=True)
    ]


def by_embedding(
    attack: Attack, views: Sequence[View], rngs: Sequence[torch.Generator]
) -> list[Guess] | None:
    """Answers where embeddings come several times in a step, made of the one that the model reads.

    That is the one as wide as the cut layers of their senders; of several, from the same random
    draws, the one that is replayed best (note ``misfit``). None where embeddings come once.

    Args:
        attack: replays the victims' or the own model; needs ``embedding:last+``.

    Raises:
        ThreatModelError: there is none, or the attack cannot tell which of several it is.
    """
    if all(
        len(v.adversary) > 1 or not v.facts.widths or len(v.exchanges("embedding")) == 1
        for v in views
    ):
        return None
    out = []
    for view, rng in zip(views, rngs, strict=True):
        some = _cuts(attack, view)
        found = attack.infer_many(list(some.values()), [rng.clone_state() for _ in some])
        if len(found) > 1 and any("misfit" not in guess.notes for guess in found):
            raise ThreatModelError(
                f"{attack.name}: {len(found)} embeddings of a step are as wide as the model's."
            )
        which = range(len(found))
        best = min(which, key=lambda k: _note(found[k], "misfit")) if len(found) > 1 else 0
        notes = {**found[best].notes, "exchange": list(some)[best]}
        out.append(replace(found[best], notes=notes))
    return out


def _cuts(attack: Attack, view: View) -> dict[int, View]:
    """By exchange, from 1: the view with it alone, of those that are as wide as the cut layers."""
    width = sum(d for p, d in view.facts.widths.items() if p not in view.adversary)
    apart = {k: t for k, t in view.tables.items() if "#" not in k[2] and "+" not in k[2]}
    out = {}
    for k, table in enumerate(view.exchanges("embedding"), 1):
        there = torch.isin(view.targets["train"], table.rows).all()
        if bool(there) and table.tensor.flatten(1).shape[1] == width:
            one = {("received", "embedding", "last", view.party): table}
            out[k] = replace(view, tables={**apart, **one})
    if not out:
        raise ThreatModelError(
            f"{attack.name}: no embedding of all rows has {width} numbers. embedding_inversion "
            "reads any width."
        )
    return out


def _exchanges(view: View, of_gradients: str, of_embeddings: str) -> list[View]:
    """The view with what came several times, gradients or embeddings, one exchange at a time.

    Itself where both came as often as each other.
    """
    keys = [
        (("received", "gradient", of_gradients, p), ("sent", "embedding", of_embeddings, p))
        for p in view.adversary
    ]
    if not all(key in view.tables for pair in keys for key in pair):
        return [view]
    widths = [tuple(view.tables[k].tensor.flatten(1).shape[1] for k in pair) for pair in keys]
    often = {(g // max(min(g, z), 1), z // max(min(g, z), 1)) for g, z in widths}
    whole = all(max(g, z) % max(min(g, z), 1) == 0 for g, z in widths)
    if len(often) > 1 or not whole or often == {(1, 1)}:
        return [view]
    ((gradients, embeddings),) = often
    split = [(g if gradients > 1 else z) for g, z in keys]
    out = []
    for k in range(max(gradients, embeddings)):
        mine = {}
        for key, pair in zip(split, widths, strict=True):
            part = slice(k * min(pair), (k + 1) * min(pair))
            table = view.tables[key]
            mine[key] = replace(table, tensor=table.tensor.flatten(1)[:, part])
        out.append(replace(view, tables={**view.tables, **mine}))
    return out


def compute_slopes(
    stack: Replicas, z: Tensor, g: Tensor, mean: Tensor, sd: Tensor, *, chunk: int = 4096
) -> tuple[Tensor, Tensor, Tensor]:
    """Log class shares (R, n, C), J g (R, n, C) and J J^T (R, n, C, C) of tops at `z`, float64.

    J (C, d) is the derivative of a row's logits by its embedding.
    """
    found = []
    for z_, g_ in zip(z.split(chunk, 1), g.split(chunk, 1), strict=True):
        at = z_.detach().requires_grad_()
        logits = stack((at - mean) / sd)
        j = torch.stack(
            [
                torch.autograd.grad(logits[..., c].sum(), at, retain_graph=True)[0]
                for c in range(logits.shape[2])
            ],
            dim=2,
        ).double()
        log_p = torch.log_softmax(logits.detach().double(), dim=2)
        found.append((log_p, (j @ g_.double().unsqueeze(3)).squeeze(3), j @ j.mT))
    log_p, pulled, gram = (torch.cat(parts, dim=1) for parts in zip(*found, strict=True))
    return log_p, pulled, gram


def compute_misfits(error: Tensor, pulled: Tensor, gram: Tensor, square: Tensor) -> Tensor:
    """|g - J^T e| (R, n) of errors e = p - y (R, n, C), from J g, J J^T and |g|^2 (R, n)."""
    replayed = sum(
        (gram[..., c] * error[..., c : c + 1] for c in range(error.shape[2])), -2 * pulled
    )
    off = square + (error * replayed).sum(2)
    return (off.clamp_min(0) + 1e-12 * square + 1e-30).sqrt()


def list_factors(z: Tensor, g: Tensor, prior: Tensor) -> tuple[float, ...]:
    """The factors to try received gradients with: 1, and where it is not usual that of their size.

    Where logits vary by 1 over the rows, a gradient by the embedding is about |p - y| / s_z long,
    with s_z the spread of an embedding's entries. Source: this package's own.

    Args:
        z, g: embeddings and gradients (n, d).
        prior: class shares (C,).
    """
    spread = z.double().var(0, correction=0).mean().sqrt()
    wrong = (1 - prior.double().square().sum()).clamp_min(1e-6).sqrt()
    length = torch.linalg.vector_norm(g.double(), dim=1).mean()
    size = float(length * spread / wrong) / USUAL
    return (1.0,) if size == 0 or 1 / AROUND < size < AROUND else (1.0, size)
