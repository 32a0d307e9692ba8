"""Views made from tensors, and their scoring: attacks are tested on what they are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vflsec.audit.metrics import score
from vflsec.core.attack import Attack
from vflsec.core.guess import Guess, Truth
from vflsec.core.rng import generator
from vflsec.core.view import Facts, Known, Schema, Table, View
from vflsec.plugins import registry

PARTY = "passive1"


def made(name: str, **params: object) -> Attack:
    """A registered attack with these settings."""
    return registry.attacks.create(name, params)


def alternating(y: Tensor, count: int) -> Tensor:
    """Positions of `count` rows, classes alternating."""
    classes = int(y.max()) + 1
    place = torch.empty_like(y)
    for c in range(classes):
        of = (y == c).nonzero().squeeze(1)
        place[of] = torch.arange(len(of))
    return torch.argsort(place * classes + y)[:count]


def tables(
    epochs: Sequence[Tensor],
    kind: str = "gradient",
    way: str = "received",
    batch: int = 64,
    party: str = PARTY,
    shuffled: bool = False,
) -> dict[tuple[str, str, str, str], Table]:
    """Messages (n, d) of rows 0..n-1 in several epochs, in every recorded form.

    In batches of their order, or `shuffled` as :func:`turns` says.
    """
    n = len(epochs[0])
    rows = torch.arange(n)
    per_epoch = -(-n // batch)
    if shuffled:
        by_turn = [turns(n, e).argsort() for e in range(len(epochs))]
        kept = tables([x[i] for x, i in zip(epochs, by_turn, strict=True)], kind, way, batch, party)
        whole = kept[way, kind, "all", party]
        whole = Table(whole.tensor, torch.cat(by_turn), whole.epoch, whole.step)
        forms = ("mean", "scaled", "centred", "first", "last")
        return {(way, kind, form, party): whole.folded(form) for form in forms} | {
            (way, kind, "all", party): whole
        }
    step = [rows // batch + e * per_epoch for e in range(len(epochs))]
    epoch = [torch.full((n,), e) for e in range(len(epochs))]
    whole = Table(
        torch.cat(list(epochs)), rows.repeat(len(epochs)), torch.cat(epoch), torch.cat(step)
    )
    found = {
        "mean": Table(torch.stack(list(epochs)).mean(0), rows, epoch[-1], step[-1]),
        "scaled": whole.folded("scaled"),
        "centred": whole.folded("centred"),
        "first": Table(epochs[0], rows, epoch[0], step[0]),
        "last": Table(epochs[-1], rows, epoch[-1], step[-1]),
        "all": whole,
    }
    return {(way, kind, form, party): t for form, t in found.items()}


ID_ORDERS = ("up", "down", "rotated", "up in batches", "down in batches", "blocks", "buffer")
"""Ways in which rows pass by their ids, or nearly."""


def passed_by_ids(view: View, way: str, batch: int) -> View:
    """The view with the messages of every epoch of all rows passed in one of :data:`ID_ORDERS`."""
    held = dict(view.tables)
    for key, table in held.items():
        if key[2] == "all":
            n, epochs = int(table.rows.max()) + 1, int(table.epoch.max()) + 1
            by_id = torch.argsort(table.epoch * n + table.rows)
            turned = [id_order(way, n, batch, rng(30 + e)) + e * n for e in range(epochs)]
            held[key] = replace(table.take(by_id[torch.cat(turned)]), step=table.step)
    return replace(view, tables=held)


def id_order(way: str, n: int, batch: int, draw: torch.Generator) -> Tensor:
    """The rows (n,) of an epoch."""
    rows, parts = torch.arange(n), torch.randperm(n, generator=draw).split(batch)
    if way in ("up", "down"):
        return rows if way == "up" else rows.flip(0)
    if way == "rotated":
        return rows.roll(int(parts[0][0]))
    if way == "blocks":
        blocks = rows.split(batch)
        return torch.cat([blocks[i] for i in torch.randperm(len(blocks), generator=draw)])
    if way == "buffer":  # each is drawn from the next 1.5 batches
        return torch.argsort(rows + 1.5 * batch * torch.rand(n, generator=draw))
    return torch.cat([p.sort(descending=way.startswith("down")).values for p in parts])


def turns(n: int, epoch: int) -> Tensor:
    """Which turn each of n rows has in an epoch of shuffled batches, (n,)."""
    return torch.randperm(n, generator=rng(70 + epoch))


def make_view(
    y: Tensor,
    *,
    gradients: Tensor | Sequence[Tensor] | None = None,
    columns: Tensor | None = None,
    bottom: nn.Module | None = None,
    known: int = 0,
    test: int = 0,
    batch: int = 64,
    shuffled: bool = False,
    extra: Mapping[tuple[str, str, str, str], Table] | None = None,
    facts: Mapping[str, Any] | None = None,
    aux: Mapping[str, tuple[Tensor, Tensor]] | None = None,
) -> View:
    """The view of one passive party; the last `test` of the rows are test rows.

    `y` (n,) serves the grant of `known` rows and the class shares only.
    """
    train = len(y) - test
    classes = int(y.max()) + 1
    held = dict(extra or {})
    if gradients is not None:
        each = [gradients] if isinstance(gradients, Tensor) else gradients
        held |= tables(each, batch=batch, shuffled=shuffled)
    if columns is None:
        columns = torch.zeros(len(y), 1)
    rows = alternating(y[:train], known)
    targets = {"train": torch.arange(train)[~torch.isin(torch.arange(train), rows)]}
    if test:
        targets["test"] = torch.arange(train, len(y))
    return _build_view(
        PARTY, columns, {"classes": classes, "batch_size": batch, **(facts or {})},
        tables=MappingProxyType(held),
        models=MappingProxyType({PARTY: {"bottom": (bottom or nn.Identity()).eval()}}),
        targets=MappingProxyType(targets),
        known=Known(rows, y[:train][rows]) if known else None,
        prior=torch.bincount(y[:train], minlength=classes).double() / train,
        aux=aux,
    )  # fmt: skip


def _build_view(
    who: str, columns: Tensor, facts: Mapping[str, Any],
    others: Mapping[str, Schema] = MappingProxyType({}), **given: Any,
) -> View:  # fmt: skip
    """The view of a party with columns (n, d) of numbers."""
    n, d = columns.shape
    usual = {"algorithm": "splitnn", "phase": "train", "active": "active",
             "parties": ("active", PARTY), "batch_size": 64}  # fmt: skip
    return View(
        adversary=(who,),
        columns=MappingProxyType({who: columns}),
        present=MappingProxyType({who: torch.ones(n, dtype=torch.bool)}),
        schema=MappingProxyType({who: Schema(tuple(map(str, range(d))), (0,) * d, (d,)), **others}),
        facts=Facts(**{**usual, **facts}),
        **given,
    )


def passed(view: View, table: Table) -> View:
    """The view of one who received these gradients, and nothing else."""
    found = {("received", "gradient", "all", PARTY): table}
    return replace(view, tables=MappingProxyType(found))


def visited(parts: Sequence[Tensor], y: Tensor, known: int, batch: int = 64) -> View:
    """Dense random gradients of rows that come in this order, a list an epoch, in batches."""
    rows = torch.cat(list(parts))
    sizes = [len(b) for p in parts for b in p.split(batch)]
    step = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    epoch = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor([len(p) for p in parts]))
    table = Table(torch.randn(len(rows), 4, generator=rng(9)), rows, epoch, step)
    return passed(make_view(y, known=known), table)


def rng(seed: int = 0) -> torch.Generator:
    return generator(seed, "test")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=rng(seed), dtype=torch.float64)


def measure(guess: Guess, y: Tensor, metric: str = "auc", rows: Tensor | None = None) -> float:
    """The audit's figure for a guess on `rows` (default: all that were guessed)."""
    classes = int(y.max()) + 1
    truth = Truth("label", np.arange(len(y)), y.numpy())
    prior = np.bincount(y.numpy(), minlength=classes) / len(y)
    where = np.unique(guess.rows) if rows is None else rows.numpy()
    (found,) = score(guess, truth, where, classes=classes, prior=prior, metrics=[metric])
    assert found.value is not None
    return found.value


def infer_auc(attack: Attack, view: View, y: Tensor) -> float:
    """The AUC of an attack on training rows."""
    return measure(attack.infer(view, rng()), y, rows=view.targets["train"])


def null_band(y: Tensor, rows: Tensor) -> tuple[float, float]:
    """AUC of independent scores on `rows`: 0.5 +- 4 exact standard deviations (Mann-Whitney)."""
    p = int((y[rows] == 1).sum())
    q = len(rows) - p
    half = 4 * float(np.sqrt((p + q + 1) / (12 * p * q)))
    return 0.5 - half, 0.5 + half


def same(a: Guess, b: Guess) -> bool:
    """True if two answers are equal, row by row."""
    return bool(np.array_equal(a.rows, b.rows) and np.array_equal(a.scores, b.scores))


def iso(g: Tensor, strength: float, seed: int = 0, batch: int | None = None) -> Tensor:
    """Gradients (n, d) after the `iso` defense, batch by batch."""
    from vflsec.core.message import Message
    from vflsec.core.policy import Own
    from vflsec.core.rng import Streams

    policy = registry.defenses.create("iso", {})
    own = Own("active", torch.tensor([strength], dtype=torch.float64), Streams([seed], "iso"))
    parts = [
        policy.outgoing(Message("gradient", "active", PARTY, part.unsqueeze(0)), own)[0]
        for part in g.split(batch or len(g))
    ]
    return torch.cat(parts)


def with_shared_noise(plain: Tensor, whose: str, epochs: int = 6, batch: int = 64) -> list[Tensor]:
    """Messages (n, d) of each epoch under noise of eight times their size.

    Batches are shuffled. It is drawn once for a ``batch``, by a generator that begins anew with
    every batch and so is the same at each ``place``, growing over epochs, or as it should be, for
    each ``row``.
    """
    draw, size = rng(11), 8 * float(plain.std())
    same, out = torch.randn(batch, plain.shape[1], generator=draw, dtype=plain.dtype), []
    for e in range(epochs):
        noise = torch.randn(plain.shape, generator=draw, dtype=plain.dtype)
        turn = turns(len(plain), e)
        if whose == "batch":
            noise = noise[turn // batch]
        elif whose == "place":
            noise = same[turn % batch] * (1 + e)
        out.append(plain + size * noise)
    return out


def binary_gradients(
    n: int = 4096, d: int = 128, positive_rate: float = 0.25, seed: int = 0
) -> tuple[Tensor, Tensor]:
    """Collinear gradients (p - y) v, logits normal around the class odds: (g (n, d), y (n,))."""
    g = generator(seed, "binary_gradients")
    y = (torch.rand(n, generator=g) < positive_rate).long()
    odds = torch.logit(torch.tensor(positive_rate))
    p = torch.sigmoid(odds + 0.8 * torch.randn(n, generator=g))
    v = torch.randn(d, generator=g)
    return (p - y).unsqueeze(1) * v / v.norm(), y


def feature_view(
    own: Tensor,
    victim: Tensor,
    embedding: Tensor | Sequence[Tensor],
    *,
    aux: int = 0,
    models: Mapping[str, Mapping[str, nn.Module]] | None = None,
    cardinalities: tuple[int, ...] | None = None,
    facts: Mapping[str, Any] | None = None,
    shuffled: bool = False,
) -> View:
    """The view of the active party: own columns (n, p), received embeddings (n, d), of each epoch.

    The first `aux` rows of the victim's columns are granted; the other rows are to be guessed.
    """
    n, d = victim.shape
    rows = torch.arange(n)
    epochs = [embedding] if isinstance(embedding, Tensor) else embedding
    held = tables(epochs, "embedding", party="active", shuffled=shuffled)
    names = tuple(f"v{i}" for i in range(d))
    return _build_view(
        "active", own, {"classes": 2, **(facts or {})},
        {PARTY: Schema(names, cardinalities or (0,) * d, (d,))},
        tables=MappingProxyType(held),
        models=MappingProxyType(dict(models or {})),
        targets=MappingProxyType({"train": rows[aux:], "test": rows[:0]}),
        aux=MappingProxyType({PARTY: (rows[:aux], victim[:aux])}) if aux else None,
    )  # fmt: skip


def r2(guess: Guess, truth: Tensor) -> float:
    """The audit's R^2 of guessed features (n, d)."""
    whole = Truth("feature", np.arange(len(truth)), truth.numpy())
    (found,) = score(guess, whole, guess.rows, classes=2, prior=[0.5, 0.5], metrics=["r2"])
    assert found.value is not None
    return found.value
