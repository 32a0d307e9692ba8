"""How one verdict is called and described in every machine-readable report."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

from vflsec.report.numbers import against
from vflsec.report.sanitize import clean
from vflsec.report.tree import (
    Block,
    Column,
    GateLine,
    Gates,
    Kind,
    Paragraph,
    Section,
    Table,
    Tone,
    View,
)

__all__ = [
    "beside_verdicts", "build_gates", "counts", "gate_of", "headline", "identity", "judged",
    "place", "point_of", "some", "title", "titles", "unfinished", "weighed",
]  # fmt: skip

Verdict = Mapping[str, Any]
_TRAINING = ("dataset", "algorithm", "defense", "strength")


def place(row: Mapping[str, Any]) -> str:
    """The defense and its strength: ``iso 5``, ``no defense``."""
    if not row["defense"]:
        return ""
    if row["defense"] == "none":
        return "no defense"
    strength = row["strength"]
    return clean(row["defense"] if strength is None else f"{row['defense']} {strength:g}")


def point_of(verdict: Verdict) -> str:
    """Where it was judged: data, algorithm, defense and strength; empty if nowhere."""
    if not verdict["defense"]:
        return ""
    return ", ".join(
        x for x in (clean(verdict["dataset"]), clean(verdict["algorithm"]), place(verdict)) if x
    )


def title(verdict: Verdict) -> str:
    """The gate and the point."""
    point = point_of(verdict)
    return clean(verdict["label"]) + (f" [{point}]" if point else "")


def titles(verdicts: Sequence[Verdict]) -> list[str]:
    """The title of each, unlike all others: a server shows two cases of one name as one.

    Two gates may be called alike as they are shown: a name may be that of another's rule, or differ
    from another in marks that cannot be seen.
    """
    seen: dict[str, int] = {}
    out = []
    for verdict in verdicts:
        name = title(verdict)
        while name in seen:
            seen[name] += 1
            name = f"{name} ({seen[name]})"
        seen[name] = 1
        out.append(name)
    return out


def identity(verdict: Verdict, shown: str = "") -> str:
    """A short hash of what was asked and where: the same in every run of the same audit.

    Args:
        verdict: one.
        shown: its name of :func:`titles`, where that is not its title alone.
    """
    text = "\x1f".join(
        str(verdict[k]) for k in ("label", "dataset", "algorithm", "defense", "strength")
    )
    text += f"\x1f{shown}" if shown not in ("", title(verdict)) else ""
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=16).hexdigest()


def counts(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many gates came out how."""
    names = ("PASS", "FAIL", "INCONCLUSIVE")
    return {name: sum(v["verdict"] == name for v in verdicts) for name in names}


def headline(summary: Mapping[str, Any]) -> tuple[str, str]:
    """The verdict over all gates, and one sentence on how it came about."""
    verdicts = summary["gates"]
    if not summary.get("complete", True) and not any(v["verdict"] == "FAIL" for v in verdicts):
        return "UNFINISHED", unfinished(summary)
    if not verdicts:
        return "NO GATE", "The scenario sets no threshold, so nothing was judged."
    n = counts(verdicts)
    found = "FAIL" if n["FAIL"] else "INCONCLUSIVE" if n["INCONCLUSIVE"] else "PASS"
    total = f"{len(verdicts)} judgement{'s' if len(verdicts) > 1 else ''}"
    said = [f"{n[k]} {w}" for k, w in _WORDS if n[k]]
    return found, f"{total}: {', '.join(said)}."


def unfinished(summary: Mapping[str, Any]) -> str:
    """Why an audit that is not complete has no verdict, one sentence."""
    if summary.get("shard"):
        return f"Shard {summary['shard']} of an audit: nothing is judged before `vflsec merge`."
    return "Not all that was planned is measured, so nothing passes."


_WORDS = (("FAIL", "failed"), ("INCONCLUSIVE", "inconclusive"), ("PASS", "passed"))


def judged(summary: Mapping[str, Any]) -> list[str]:
    """How each gate came out, where and by how much, the failed ones first: what the headline
    speaks of."""
    where: dict[tuple[str, str], list[str]] = {}
    for found, _ in _WORDS:
        for v in summary["gates"]:
            if v["verdict"] == found:
                point = point_of(v) or "nowhere"
                by = f" by {clean(v['attack'])}" if v["attack"] else ""
                much = "" if v["value"] is None else f" ({against(v, 'value')}{by})"
                where.setdefault((found, clean(v["label"])), []).append(point + much)
    return [f"{f}: {label}: {some(points, '; ')}" for (f, label), points in where.items()]


def gate_of(v: Verdict) -> Any:
    """The gate that a verdict is of; one of an earlier version asks nothing of what it lacks."""
    from vflsec.audit.gate import Gate

    return SimpleNamespace(**{f.name: f.default for f in fields(Gate)} | v["gate"])


def beside_verdicts(summary: Mapping[str, Any]) -> list[str]:
    """The findings that are no verdict, as sentences."""
    return [f["text"] for f in summary["findings"] if f["kind"] != "verdict"]


def weighed(v: Verdict, points: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The points of attacks that a verdict speaks of."""
    from vflsec.audit.gate_selection import weighs

    gate = gate_of(v)
    here = {k: v[k] for k in _TRAINING}
    return [
        p for p in points
        if p["attack"] and all(p[k] == x for k, x in here.items()) and weighs(p, gate)
    ]  # fmt: skip


def some(parts: Sequence[str], comma: str, most: int = 4) -> str:
    """The first of `parts` and how many more there are."""
    more = len(parts) - most
    return comma.join(parts[:most]) + (f" and {more} more" if more > 0 else "")


def build_gates(summary: Mapping[str, Any], bounds: Paragraph) -> Section:
    """Every gate at every point, and which attacks are shown to work.

    Args:
        summary: of the audit.
        bounds: what pairs of bounds mean.
    """
    verdicts = summary["gates"]
    page, pages = frozenset({View.PAGE}), frozenset({View.PAGE, View.STATEMENT, View.SUMMARY})
    blocks: list[Block] = []
    if verdicts:
        rule = (
            "A gate passes when the upper bound over seeds is within the threshold and every "
            "attack is shown to work; it fails when the lower bound is beyond it; it is "
            "inconclusive between."
        )
        blocks.append(Paragraph(rule, Tone.SOFT, views=page))
        several = len({v["algorithm"] for v in verdicts if v["algorithm"]}) > 1
        lines = tuple(_gate_line(v, several) for v in verdicts)
        blocks.append(Gates(lines, "Every gate at every point it selects"))
    else:
        blocks.append(Paragraph("The scenario sets no gate.", views=pages))
    blocks.append(replace(bounds, views=pages))
    if summary.get("alive"):
        heads = (Column("Attack", Kind.NAME), Column("Shown to work"),
                 Column("Evidence", Kind.PROSE))  # fmt: skip
        rows = tuple(
            (name, "yes" if a["alive"] else "no", a["evidence"])
            for name, a in summary["alive"].items()
        )
        blocks.append(Table("Is each attack shown to work?", heads, rows, views=page))
    return Section("Gates", tuple(blocks), key="gates", nav="Gates")


def _gate_line(v: Verdict, several: bool) -> GateLine:
    return GateLine(
        v["verdict"], v["label"], point_of(v), point_of(v if several else {**v, "algorithm": ""}),
        v["reason"], against(v, "value"), against(v, "low"), against(v, "high"), v["n"],
        v["attack"], v["adversary"], v["split"],
    )  # fmt: skip
