"""Records what a party sends and receives at the cut, from within somebody's PyTorch loop.

    with vflsec.record("trace/", party="bank", role="passive", rows=ids) as rec:
        ...
        z = rec.cut(z, batch_ids)   # right before z is sent (or right after it was received)

The embedding is written when :meth:`Recording.cut` is called, the gradient when it comes back
through the returned tensor. Nothing that the loop computes is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from vflsec.core import check
from vflsec.core.view import Schema
from vflsec.errors import ConfigError
from vflsec.trace.limits import check_name
from vflsec.trace.manifest import PartyInfo, PublicFacts, Run, Software, begin_manifest
from vflsec.trace.recorder import NO_COLUMNS, Holdings, Loop, Recording
from vflsec.trace.recorder_inputs import (
    Ids,
    aux_columns,
    known_rows,
    own_columns,
    read_claim,
    read_shares,
)

__all__ = ["Recording", "record"]


def record(
    folder: str | Path,
    *,
    party: str,
    role: Literal["passive", "active"],
    rows: int | Sequence[Any] | ArrayLike,
    peer: str = "",
    parties: Mapping[str, str] | None = None,
    classes: int | None = None,
    loss_reduction: str = "unknown",
    grad_scale: float | Callable[[], float] | Any = None,
    accumulation: int = 1,
    columns: ArrayLike | Tensor | None = None,
    schema: Schema | None = None,
    model: nn.Module | None = None,
    known: tuple[Any, Any] | None = None,
    prior: Sequence[float] | None = None,
    aux: Mapping[str, tuple[Any, Any]] | None = None,
    claim: tuple[float, float] | float | None = None,
    facts: Mapping[str, Any] | None = None,
    run: Mapping[str, Any] | None = None,
    tap: str = "boundary",
    every_n_epochs: int = 1,
    max_bytes: int | None = None,
    behind: int = 0,
    resume: bool = False,
) -> Recording:
    """Record what `party` sends and receives at the cut; use it as a context manager.

    Args:
        folder: where; a new trace for every run.
        party, role: whose process this is, and whether it holds the labels (``active``).
        rows: the party's row ids in a fixed order, whose positions become the row ids of the
            trace; or their number, if ids are 0..N-1 already. The ids themselves are not written.
        peer: the other end, by default the first of `parties` that is not this one; ``active`` or
            ``passive``, whichever `party` is not, if they are not given.
        parties: {name: role} of all, if there are more than these two; role ``server`` for who has
            neither labels nor columns.
        classes: number of classes, if it is known to this party; 1 if the label is a quantity.
        loss_reduction: of the batch loss: ``mean``, ``sum``, ``none`` or ``unknown``.
        grad_scale: what the loss is multiplied by before the backward pass: a number, a function
            that returns it, or a GradScaler; None if it is not scaled.
        accumulation: micro batches of one optimisation step, whose losses are divided by their
            number; 1 if they are not.
        columns: (N, ...) own input rows in the order of `rows`, as the model takes them; (N, 0) is
            as if none were given.
        schema: their layout; numeric columns by default.
        model: own module, from rows of `columns` to the embedding; kept as it is when recording
            begins and when it ends.
        known: (ids, labels) of rows whose labels this party was given; class numbers from 0, or
            values of a quantity.
        prior: class shares, if this party knows them.
        aux: {other party: (ids, its columns (q, ...))} of rows whose columns this party was given;
            the same ids for all.
        claim: epsilon, or (epsilon, delta), by which every label is said to be protected.
        facts: fields of `vflsec.trace.manifest.PublicFacts` that are known: ``aggregation``,
            ``top``, ``batch_size``, ``epochs``, ``widths``.
        run: ``dataset``, ``algorithm``, ``defense``, ``strength``, ``seed`` of this run; runs that
            differ in the seed only are judged together.
        tap: where :meth:`Recording.cut` stands: ``boundary`` (at send and receive),
            ``before_defense``, ``after_defense``.
        every_n_epochs: record every n-th epoch only; needs :meth:`Recording.epoch`.
        max_bytes: stop recording beyond, and say so.
        behind: messages that a thread of its own may still have to write, so that a step waits for
            a copy only; a process that is killed loses them. 0 writes each before the step goes on.
        resume: the training may be stopped (by a kill, an error or :meth:`Recording.pause`) and go
            on in another process that records into the same folder with the same arguments; the
            one that comes to the end of its ``with`` seals the trace.

    Raises:
        ConfigError: an argument cannot be used, or the folder holds something else.
    """
    for key, value, rule in (
        ("role", role, check.among("passive", "active")),
        ("loss_reduction", loss_reduction, check.among("mean", "sum", "none", "unknown")),
        ("tap", tap, check.among("boundary", "before_defense", "after_defense", "unknown")),
        ("accumulation", accumulation, check.integer),
        ("every_n_epochs", every_n_epochs, check.integer),
        ("behind", behind, partial(check.integer, low=0, high=100_000)),
    ):
        rule(f"record: {key}", value)
    opposite = "active" if role == "passive" else "passive"
    other = peer or next((n for n in parties or () if n != party), opposite)
    roles = dict(parties or {party: role, other: opposite})
    if roles.get(party) != role or other not in roles or other == party:
        raise check.fail("record: parties", f"roles of {party!r} ({role}) and {other!r}", roles)
    for name in roles:
        check_name("record", name)
    ids = Ids(rows)
    own = None if columns is None else own_columns(columns, schema, len(ids))
    if model is not None and own is None:
        raise ConfigError(NO_COLUMNS)
    try:
        manifest = begin_manifest(
            "vflsec.record", Software(name="torch", version=str(torch.__version__)), tap=tap,
            parties=[PartyInfo(name=n, role=r) for n, r in roles.items()],  # type: ignore[arg-type]
            rows=len(ids), classes=classes, loss_reduction=loss_reduction,
            run=Run(**dict(run or {})), claim=read_claim(claim),
        )  # fmt: skip
        public = PublicFacts(
            reduction=loss_reduction,  # type: ignore[arg-type]
            **dict(facts or {}),  # type: ignore[arg-type]
        )
    except ValueError as why:
        first = str(why).splitlines()
        raise ConfigError(f"record: {' '.join(first[1:3]).strip() or first[0]}.") from None
    holdings = Holdings(
        own,
        known_rows(known, ids, classes), read_shares(prior, classes),
        aux_columns(aux or {}, ids, roles, party), model,
    )  # fmt: skip
    loop = Loop(grad_scale, accumulation, every_n_epochs, max_bytes, behind, resume)
    return Recording(Path(folder), manifest, party, other, ids, public, holdings, loop)
