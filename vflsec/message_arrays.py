"""One call for messages in memory: from arrays of what a party saw to verdicts and reports.

    found = np.load("messages.npz")
    seen = vflsec.Messages(gradients=found["gradients"], ids=found["ids"])
    result = vflsec.audit_messages([seen, ...], found["labels"], gates=[{"max": 0.1}])

It records each training as a trace and audits these as ``vflsec trace audit`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vflsec.audit.result import Audit
from vflsec.core import check
from vflsec.core.rng import numpy_generator
from vflsec.engine.trace_attacks import infer
from vflsec.engine.trace_scores import score
from vflsec.errors import ConfigError, ShapeError
from vflsec.trace.limits import TRUSTED
from vflsec.trace.record_api import record
from vflsec.trace.truth import write_truth

PASSIVE = "passive"

Steps: TypeAlias = NDArray[Any] | Tensor | Sequence[Any]
"""Arrays or tensors, one for each step."""


@dataclass(frozen=True, kw_only=True)
class Messages:
    """What a party without labels saw of one training.

    Attributes:
        gradients: received, of the loss by what was sent: (steps, b, width), or a list of
            (b, width).
        embeddings: sent, alike.
        predictions: received, alike: scores or shares of classes.
        ids: rows of each step, from 0: (steps, b), or a list of (b,); None if each has all rows in
            order. A row that comes again begins another epoch.
        columns: own columns (N, p), numbers; the baseline learns from them.
        loss_reduction: of the batch loss, ``mean`` or ``sum``, if it is known.
        defense: what was on, by any name.
        strength: of the defense.
    """

    gradients: Steps | None = None
    embeddings: Steps | None = None
    predictions: Steps | None = None
    ids: Steps | None = None
    columns: ArrayLike | None = None
    loss_reduction: Literal["mean", "sum", "unknown"] = "unknown"
    defense: str = "none"
    strength: float = 0.0


def audit_messages(
    messages: Messages | Sequence[Messages],
    labels: ArrayLike,
    *,
    known: int | Sequence[int] = 20,
    gates: Sequence[Mapping[str, Any]] = (),
    attacks: Sequence[str] = (),
    out: str | Path = "out/messages",
    seed: int = 0,
    confidence: float = 0.95,
) -> Audit:
    """Attack what a party saw, compare with what it can do alone, and judge.

    Args:
        messages: of one training, or of several of one system, which are repetitions. Three are
            the fewest that can pass a gate.
        labels: (N,) class numbers from 0, each of some row, or numbers of a quantity (floats). The
            attacker is granted those of the known rows and the class shares; the scorer alone reads
            the others.
        known: how many rows the party is assumed to have the labels of, drawn by `seed`, half of
            them from each of two classes and alike beyond; or which rows. They are not scored.
        gates: sections as in a scenario.
        attacks: only these; all that such messages allow if empty.
        out: a new folder for traces, guesses, results and reports.
        seed: of the draw of known rows.
        confidence: of intervals.

    Returns:
        the audit, as :func:`vflsec.audit` returns it.

    Raises:
        ConfigError: there are no messages, `out` is in use, or a gate or attack cannot be used.
        ShapeError: arrays do not belong together; names which.
    """
    trainings = [messages] if isinstance(messages, Messages) else list(messages)
    check.integer("audit_messages: trainings", len(trainings))
    y, out = np.asarray(labels), Path(out)
    if y.ndim != 1 or y.dtype.kind not in "iufb":
        raise ShapeError.must("audit_messages: labels", "be numbers (N,)", f"{y.dtype} {y.shape}")
    quantity, found = y.dtype.kind == "f", np.unique(y[y == y])
    y = y if quantity else y.astype(np.int64)
    if len(found) < 2 + quantity or not (quantity or np.array_equal(found, np.arange(len(found)))):
        rule = "be whole class numbers 0, 1, ... without a gap, or floats of three values or more"
        raise ConfigError.must("audit_messages: labels", rule, found[:4].tolist())
    told = _draw_known(y, known, seed, quantity)
    steps = [list(_read_steps(m, len(y))) for m in trainings]
    if (out / "traces").exists():
        raise ConfigError(f"audit_messages: {out} holds an audit. Name a new folder.")
    for i, (m, of) in enumerate(zip(trainings, steps, strict=True)):
        _record(out / "traces" / str(i), m, of, y, told, i)
    truth = write_truth(out, np.arange(len(y)), y, quantity=quantity)
    traces = [out / "traces" / str(i) for i in range(len(trainings))]
    guesses = infer(traces, out / "guesses", attacks=attacks, limits=TRUSTED)
    return score(guesses, [truth], out, gates=gates, confidence=confidence)


class _Step(NamedTuple):
    """Rows (b,) of a step, its epoch, and messages (b, width) by kind."""

    rows: NDArray[np.int64]
    epoch: int
    of: Mapping[str, NDArray[Any] | Tensor]


def _read_steps(m: Messages, size: int) -> Iterator[_Step]:
    """The steps of a training of so many rows, in their order."""
    given = {"gradient": m.gradients, "embedding": m.embeddings, "prediction": m.predictions}
    kinds = {
        kind: [x if isinstance(x, Tensor) else np.asarray(x) for x in of]
        for kind, of in given.items()
        if of is not None
    }
    if not kinds:
        raise ConfigError("audit_messages: give gradients, embeddings or predictions.")
    counts = {kind: len(of) for kind, of in kinds.items()}
    n = next(iter(counts.values()))
    ids = [np.arange(size)] * n if m.ids is None else [np.asarray(x) for x in m.ids]
    if {*counts.values(), len(ids)} != {n}:
        got = f"{counts} and {len(ids)} ids"
        raise ShapeError.must("audit_messages: kinds and ids", "have one entry a step", got)
    seen, epoch = np.zeros(size, bool), 0
    for k, rows in enumerate(ids):
        if rows.dtype.kind not in "iu" or rows.ndim != 1 or not _is_within(rows, size):
            raise ShapeError(f"audit_messages: ids of step {k} must be rows 0 to {size - 1}, (b,).")
        for kind, of in kinds.items():
            if of[k].ndim < 2 or len(of[k]) != len(rows):
                what, rule = f"audit_messages: {kind} of step {k}", f"be ({len(rows)}, width)"
                raise ShapeError.must(what, rule, tuple(of[k].shape))
        if seen[rows].any():
            seen, epoch = np.zeros(size, bool), epoch + 1
        seen[rows] = True
        yield _Step(rows.astype(np.int64), epoch, {kind: of[k] for kind, of in kinds.items()})


def _is_within(rows: NDArray[Any], size: int) -> bool:
    return len(rows) == 0 or bool(rows.min() >= 0 and rows.max() < size)


def _draw_known(
    y: NDArray[Any], known: int | Sequence[int], seed: int, quantity: bool
) -> NDArray[np.int64]:
    """Rows (q,) whose labels the party has: as many of each class, or any of a quantity."""
    if not isinstance(known, int):
        told = np.asarray(known)
        if told.ndim != 1 or told.dtype.kind not in "iu" or not _is_within(told, len(y)):
            raise check.fail("audit_messages: known", f"a number, or rows 0 to {len(y) - 1}", known)
        return told.astype(np.int64)
    check.integer("audit_messages: known", known, low=0, high=len(y))
    rng = numpy_generator(seed, "audit_messages", "known")
    if quantity:
        return np.sort(rng.permutation(np.flatnonzero(np.isfinite(y)))[:known])
    classes = np.unique(y)
    rows = [rng.permutation(np.flatnonzero(y == c))[: known // len(classes)] for c in classes]
    return np.sort(np.concatenate(rows))


def _record(
    folder: Path, m: Messages, steps: Sequence[_Step], y: NDArray[Any], told: NDArray[np.int64],
    seed: int,
) -> None:  # fmt: skip
    """Write a training as a sealed trace of the passive party."""
    shares = np.bincount(y) / len(y) if y.dtype.kind == "i" else None
    columns = None if m.columns is None else np.asarray(m.columns, dtype=np.float64)
    with record(
        folder, party=PASSIVE, role="passive", rows=len(y), columns=columns,
        classes=1 if shares is None else len(shares), loss_reduction=m.loss_reduction,
        known=(told, y[told]) if len(told) else None,
        prior=None if shares is None else shares.tolist(),
        run={"dataset": "messages", "algorithm": "recorded", "defense": m.defense,
             "strength": float(m.strength), "seed": seed},
    ) as rec:  # fmt: skip
        for step, (rows, epoch, of) in enumerate(steps):
            rec.epoch(epoch)
            for kind, x in of.items():
                rec.tell(kind, x, rows, sent=kind == "embedding", epoch=epoch, step=step)
