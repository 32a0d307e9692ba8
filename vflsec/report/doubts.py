"""What makes the figures on a data set say little: columns that are none, nothing to learn."""

from __future__ import annotations

from collections.abc import Iterator

from vflsec.audit.point import Point
from vflsec.data.features import is_nearly_unique
from vflsec.report.summary import ColumnFacts, Summary, UserTable, UserTables
from vflsec.report.verdicts import format_some

_POOLED = ("pooled_logistic", "pooled_boosting")


def find_doubts(dataset: str, summary: Summary) -> list[str]:
    """A sentence for each reason to doubt the tables of a data set, or what they can teach."""
    tables = summary.tables.get(dataset, UserTables()).tables
    found = [text for table in tables for text in _doubt_table(table)]
    return [f"{dataset}: {text}" for text in [*found, *_doubt_utility(dataset, summary)]]


def _doubt_table(table: UserTable) -> Iterator[str]:
    """Categories with almost as many values as rows, and parties of constant columns."""
    features = [c for c in table.columns if c.role == "feature"]
    odd = [c.name for c in features if _is_odd_category(c, table.rows)]
    if odd:
        yield (
            f"{format_some(odd, ', ')} of {table.file} has nearly unique texts: an id? Leave it "
            "out (drop)."
        )
    for party in table.parties:
        own = [c for c in features if c.party == party]
        if own and not any(map(_varies, own)):
            yield f"all columns of {party} are constant."


def _is_odd_category(c: ColumnFacts, rows: int) -> bool:
    """Whether nobody declared a category, and nearly every row has another value."""
    undeclared = c.kind == "category" and bool(c.warning)
    return undeclared and is_nearly_unique(c.distinct, rows - c.missing)


def _varies(c: ColumnFacts) -> bool:
    """Whether a column has two values; a missing category is one."""
    return c.distinct + (c.kind == "category" and c.missing > 0) > 1


def _doubt_utility(dataset: str, summary: Summary) -> Iterator[str]:
    """That no reference on all columns beats guessing."""
    pooled = [
        p for p in summary.points
        if p.dataset == dataset and p.algorithm in _POOLED and not p.attack and p.status == "ok"
        and p.metric == p.primary and p.value.mean is not None and p.chance is not None
    ]  # fmt: skip
    if not pooled or any(map(_beats_guessing, pooled)):
        return
    best = max(pooled, key=lambda p: p.value.mean or 0.0)
    yield (
        f"no model of all columns beats guessing ({best.algorithm}: {best.metric} "
        f"{best.value.mean:.3f}, guessing {best.chance:.3f}). See `vflsec check`."
    )


def _beats_guessing(p: Point) -> bool:
    """Whether a model is significantly better than guessing; of one seed, better at all."""
    least = p.value.mean if p.value.low is None else p.value.low
    return least is not None and p.chance is not None and least > p.chance
