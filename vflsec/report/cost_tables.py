"""What an audit cost, what was sent, and what defenses claim, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vflsec.report.numbers import format_bytes
from vflsec.report.tree import Block, Column, Folded, Kind, Table, View
from vflsec.report.verdicts import place

__all__ = ["build_claims", "build_cost"]

Row = Mapping[str, Any]

_OPERATIONS = ("encrypt", "multiply", "decrypt", "transfer")


def _columns(**kinds: str) -> tuple[Column, ...]:
    """Columns by head: ``n`` holds numbers, ``h`` names, ``w`` prose, ``t`` other texts."""
    of = {"n": Kind.NUMBER, "h": Kind.NAME, "w": Kind.PROSE, "t": Kind.TEXT}
    return tuple(Column(head.replace("_", " "), of[kind]) for head, kind in kinds.items())


def build_cost(summary: Mapping[str, Any]) -> tuple[Block, ...]:
    """Time and traffic by training, what encryption cost, and every message of one training."""
    points = summary["cost"]["points"]
    costs = Table(
        "Mean over seeds of one training with its attacks",
        _columns(For="t", Data="t", Training="h", Defense="n", Runs="n", Seconds="n", Traffic="n",
                 Rounds="n"),
        tuple(_cost_row(c) for c in points),
    )  # fmt: skip
    sealed = _build_encryption(points)
    return (costs, *([sealed] if sealed else []), *_build_messages(points))


def _cost_row(c: Row) -> tuple[str, ...]:
    size, rounds = (sum(t[k] for t in c["traffic"]) for k in ("bytes", "rounds"))
    return (c["role"], c["dataset"], c["algorithm"], place(c), str(c["cells"]),
            f"{c['seconds']:.2f}", format_bytes(size), f"{rounds:.0f}")  # fmt: skip


def _build_encryption(points: tuple[Row, ...]) -> Table | None:
    """What ciphertexts cost, for every point that has any: measured seconds, bytes, batches."""
    rows = []
    for c in points:
        sent = [t for t in c["traffic"] if t["kind"] == "ciphertext"]
        if sent:
            rows.append(_encryption_row(c, sent))
    if not rows:
        return None
    return Table(
        "What encryption costs in one training: seconds measured where ciphertexts were computed, "
        "bytes also where they were only counted",
        _columns(Defense="h", Data="t", Steps="n", Encrypt="n", Multiply="n", Decrypt="n",
                 Transfer="n", Seconds_a_step="n", Ciphertexts="n", A_step="n"),
        tuple(rows),
    )  # fmt: skip


def _encryption_row(c: Row, sent: list[Row]) -> tuple[str, ...]:
    batches, size = max(t["rounds"] for t in sent), sum(t["bytes"] for t in sent)
    seconds = c.get("encryption", {})
    spent = (f"{seconds[k]:.1f} s" if k in seconds else "emulated" for k in _OPERATIONS)
    each = f"{sum(seconds.values()) / batches:.2f}" if sum(seconds.values()) else "-"
    return (place(c), c["dataset"], f"{batches:.0f}", *spent, each, format_bytes(size),
            format_bytes(size / max(batches, 1)))  # fmt: skip


def _build_messages(points: tuple[Row, ...]) -> list[Folded]:
    """Messages by direction for one training of every (data, algorithm): the first point of each.

    Where defenses change the traffic, the table of costs shows it.
    """
    first: dict[tuple[str, str], Row] = {}
    for c in points:
        if c["role"] == "audit" and c["traffic"]:
            first.setdefault((c["dataset"], c["algorithm"]), c)
    out = []
    for c in first.values():
        title = f"{c['dataset']}, {c['algorithm']}, {place(c)}"
        table = Table(
            "What crossed a party boundary",
            _columns(Phase="t", Kind="h", From="t", To="t", Messages="n", Numbers="n", Traffic="n",
                     Rounds="n"),
            tuple(_message_row(t) for t in c["traffic"]), f"Messages of {title}",
        )  # fmt: skip
        only = len(first) == 1
        out.append(Folded(f"Messages of one training: {title}", (table,), open=only))
    return out


def _message_row(t: Row) -> tuple[str, ...]:
    kind = f"{t['kind']} ({t['name']})" if t["name"] else t["kind"]
    return (t["phase"], kind, t["sender"], t["receiver"], f"{t['messages']:.0f}",
            f"{t['elements']:.0f}", format_bytes(t["bytes"]), f"{t['rounds']:.0f}")  # fmt: skip


def build_claims(summary: Mapping[str, Any]) -> Table | None:
    """What defenses claim by their accountants, each claim once."""
    rows: dict[tuple[str, ...], None] = {}
    for c in summary["cost"]["points"]:
        for g in c["guarantees"]:
            if g["epsilon"] is not None or "called" in g or g.get("idle"):
                epsilon = "none" if g["epsilon"] is None else f"{g['epsilon']:.4g}"
                says = g.get("says") or g.get("covers", "")
                row = (place(g), c["dataset"], epsilon, f"{g['delta']:g}", g["accountant"], says)
                rows[row] = None
    if not rows:
        return None
    return Table(
        "What defenses promise, by their accountant",
        _columns(Defense="h", Data="t", Epsilon="n", Delta="n", Accountant="t",
                 What_is_claimed="w"),
        tuple(rows), views=frozenset({View.PAGE, View.STATEMENT}),
    )  # fmt: skip
