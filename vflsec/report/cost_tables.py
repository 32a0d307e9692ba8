"""What an audit cost, what was sent, and what defenses claim, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from vflsec.audit.facts import PointCost
from vflsec.audit.summary import Summary
from vflsec.report.numbers import format_bytes
from vflsec.report.tree import Block, Folded, Table, View, make_columns
from vflsec.report.verdicts import format_place
from vflsec.specs import RATES, LedgerRow

_OPERATIONS = ("encrypt", "multiply", "decrypt", "transfer")


def build_cost(summary: Summary) -> tuple[Block, ...]:
    """Time and traffic by training, what encryption cost, and every message of one training."""
    points = summary.cost.points
    numbers = ("Defense", "Runs", "Seconds", "Traffic", "Rounds")
    costs = Table(
        "One training with its attacks (mean over seeds)",
        make_columns("For", "Data", "Training", *numbers, name="Training", numbers=numbers),
        tuple(map(_cost_row, points)),
    )
    return (costs, _build_encryption(points), *_build_messages(points))


def _cost_row(c: PointCost) -> tuple[str, ...]:
    size, rounds = sum(t.bytes for t in c.traffic), sum(t.rounds for t in c.traffic)
    return (c.role, c.dataset, c.algorithm, format_place(c), str(c.cells), f"{c.seconds:.2f}",
            format_bytes(size), f"{rounds:.0f}")  # fmt: skip


def _build_encryption(points: Sequence[PointCost]) -> Table:
    """What ciphertexts cost, for every point that has any: measured seconds, bytes, batches."""
    sent = [(c, [t for t in c.traffic if t.kind == "ciphertext"]) for c in points]
    rows = tuple(_encryption_row(c, of) for c, of in sent if of)
    numbers = ("Steps", *map(str.capitalize, _OPERATIONS), "Seconds a step", "Ciphertexts",
               "A step")  # fmt: skip
    return Table(
        "What encryption costs in one training",
        make_columns("Defense", "Data", *numbers, name="Defense", numbers=numbers), rows,
    )  # fmt: skip


def _encryption_row(c: PointCost, sent: Sequence[LedgerRow]) -> tuple[str, ...]:
    batches, size = max(t.rounds for t in sent), sum(t.bytes for t in sent)
    seconds, every = c.encryption, sum(c.encryption.values())
    spent = (f"{seconds[k]:.1f} s" if k in seconds else "emulated" for k in _OPERATIONS)
    return (format_place(c), c.dataset, f"{batches:.0f}", *spent,
            f"{every / batches:.2f}" if every else "-", format_bytes(size),
            format_bytes(size / max(batches, 1)))  # fmt: skip


def _build_messages(points: Sequence[PointCost]) -> list[Folded]:
    """Messages by direction for one training of every (data, algorithm): the first point of each.

    Where defenses change the traffic, the table of costs shows it.
    """
    first: dict[tuple[str, str], PointCost] = {}
    for c in points:
        if c.role == "audit" and c.traffic:
            first.setdefault((c.dataset, c.algorithm), c)
    numbers = ("Messages", "Numbers", "Traffic", "Rounds")
    heads = make_columns("Phase", "Kind", "From", "To", *numbers, name="Kind", numbers=numbers)
    out = []
    for c in first.values():
        title = f"{c.dataset}, {c.algorithm}, {format_place(c)}"
        table = Table(
            "Messages", heads, tuple(map(_message_row, c.traffic)), f"Messages of {title}"
        )
        out.append(Folded(f"Messages of one training: {title}", (table,), open=len(first) == 1))
    return out


def _message_row(t: LedgerRow) -> tuple[str, ...]:
    kind = f"{t.kind} ({t.name})" if t.name else t.kind
    return (t.phase, kind, t.sender, t.receiver, f"{t.messages:.0f}", f"{t.elements:.0f}",
            format_bytes(t.bytes), f"{t.rounds:.0f}")  # fmt: skip


def build_claims(summary: Summary) -> tuple[Table, ...]:
    """What defenses claim by their accountants, each claim once, and what each lets one tell."""
    rows: dict[tuple[str, ...], None] = {}
    hits: dict[tuple[str, ...], None] = {}
    for c in summary.cost.points:
        for g in c.guarantees:
            if g.epsilon is not None or g.called is not None or g.idle:
                epsilon = "none" if g.epsilon is None else f"{g.epsilon:.4g}"
                rows[format_place(g), c.dataset, epsilon, f"{g.delta:g}", g.accountant, g.says] = (
                    None
                )
            for many, shares in g.hits_by_rows.items():
                whom = "a row" if many == 1 else f"{many} rows of a group"
                hits[format_place(g), c.dataset, whom, *(f"{100 * x:.3g} %" for x in shares)] = None
    if not rows:
        return ()
    heads = make_columns("Defense", "Data", "Epsilon", "Delta", "Accountant", "Claim",
                         name="Defense", numbers=("Epsilon", "Delta"),
                         prose=("Claim",))  # fmt: skip
    seen = View.PAGE | View.STATEMENT
    made = Table("What defenses claim", heads, tuple(rows), views=seen)
    at = [f"at {100 * rate:g} %" for rate in RATES]
    curve = Table(
        "Largest share of secrets found (f-DP), at so many false alarms",
        make_columns("Defense", "Data", "Of", *at, name="Defense", numbers=at), tuple(hits),
        "f-DP", views=View.PAGE,
    )  # fmt: skip
    return made, curve
