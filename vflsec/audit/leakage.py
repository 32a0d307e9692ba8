"""From the measures of cells to what is leaked: the advantage over all controls, with its interval.

``records`` → ``results_frame`` (one row for each measure) → ``summarise`` (one row for each point:
mean over seeds, t intervals, utility beside it) → ``curves`` (one row for each defense and attack:
the privacy-utility curve and its CAP).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from vflsec.audit import controls as ctl
from vflsec.audit import defense_label, intervals, reversed_ranking
from vflsec.audit.controls import Leakage
from vflsec.audit.metrics import METRICS, reach
from vflsec.core import check
from vflsec.specs import QUESTIONS, TURNED, CellResult, DefenseSpec, Measure, victims

__all__ = ["COLUMNS", "POINT", "TRAINING", "UNDEFENDED", "clean", "defense_point", "is_undefended",
           "records", "results_frame", "rows_of", "summarise"]  # fmt: skip

UNDEFENDED = "none"
"""Name of having no defense."""

COLUMNS = (
    "cell", "dataset", "algorithm", "defense", "strength", "phase", "seed", "adversary", "attack",
    "attack_key", "of_label", "known_rows", "target", "victim", "split", "metric", "primary",
    "value", "low", "high", "n", "chance", "control", "control_value", "advantage", "controls",
    "status", "reason", "bytes", "messages", "turned", "asked",
)  # fmt: skip
"""Columns of the results; texts are never missing (""), numbers are NaN where there is none.

``turned`` is the figure of the answer turned round, where the value does not tell it (hits at few
false alarms).

``asked`` is the column, or the question about one, that an attack chose by itself, or "".

``bytes`` and ``messages`` are what all parties of the cell sent in training, all phases together.
"""

POINT = ("dataset", "algorithm", "defense", "strength", "phase", "adversary", "attack",
         "attack_key", "of_label", "known_rows", "target", "victim", "split", "metric")  # fmt: skip
"""What identifies a point: everything but the seed; `of_label` is one of several labels, or ''."""

_NUMBERS = ("strength", "known_rows", "value", "low", "high", "chance", "control_value",
            "advantage", "bytes", "messages", "turned")  # fmt: skip
_SPLITS = ("test", "validation", "train")
TRAINING = ("dataset", "algorithm", "defense", "strength")
"""What identifies a training: everything but the seed."""


def defense_point(defenses: Sequence[DefenseSpec]) -> tuple[str, float | None]:
    """Label of a stack of defenses, and the strength swept along the curve.

    The strength is that of the first defense that has one; strengths of the others are part of the
    label. No defense is ("none", 0).
    """
    labels, swept = [], None
    for d in defenses:
        inner = dict(d.params)
        if d.strength is not None and swept is not None:
            inner["strength"] = d.strength
        elif d.strength is not None:
            swept = float(d.strength)
        if d.party:
            inner["party"] = d.party
        labels.append(defense_label.called(d.name, inner))
    return (" + ".join(labels), swept) if labels else (UNDEFENDED, 0.0)


def rows_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a frame whose column names are text."""
    return cast("list[dict[str, Any]]", frame.to_dict("records"))


def records(result: CellResult) -> Iterator[dict[str, Any]]:
    """The measures of a finished cell as records for :func:`results_frame`."""
    defense, strength = defense_point(result.spec.defenses)
    sent = [row for row in result.ledger if row.phase != "predict"]
    for m in result.measures:
        yield {
            "cell": result.key,
            "dataset": result.spec.data["name"],
            "algorithm": result.spec.algorithm,
            "defense": defense,
            "strength": strength,
            "seed": result.spec.seed,
            "bytes": sum(row.bytes for row in sent),
            "messages": sum(row.messages for row in sent),
            **vars(m),
            "turned": m.notes.get(TURNED),
            "asked": _chosen(m),
            "victim": m.victim or _victim(m, result.facts.get("parties", ())),
        }


def _chosen(m: Measure) -> str:
    """What an attack chose by itself to be asked, '' where nothing was left to it."""
    return str(m.notes.get("column" if m.metric == "r2_column" else "asked", ""))


def _victim(m: Measure, parties: Sequence[str]) -> str:
    """Whose secret was attacked, for a measure of an earlier version, which did not say it."""
    if not m.attack or not parties:
        return ""
    named = str(m.notes.get("victim", ""))
    return named or "+".join(victims(m.target, m.adversary.split("+"), parties))


def results_frame(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One tidy row for each measure, with the control that leaves least and the advantage over it.

    That is, at each point, the control with the least mean advantage over its seeds; the figures of
    all controls are in ``controls``.

    Args:
        records: cell fields and fields of :class:`vflsec.specs.Measure`. Needed: cell,
            dataset, seed, metric, value. Optional beside the rest: ``known_rows``, and ``primary``
            (the metric that verdicts rest on; told from the levels of chance if not given).

    Returns:
        columns :data:`COLUMNS`. ``advantage`` is signed so that larger is worse for privacy.

    Raises:
        ConfigError: a record lacks a needed field.
    """
    rows = [_filled(r) for r in records]
    points: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for r in rows:
        if r["attack"] and r["status"] == "ok":
            points[tuple(clean(r[k]) for k in POINT)].append(r)
    for of in points.values():
        found = Leakage.between(*ctl.advantages(of), named="")
        for r in of if found else ():
            assert found is not None
            r["control"] = found.least.name
            r["control_value"] = ctl.figures(r).get(found.least.name)
            if r["value"] is not None and r["control_value"] is not None:
                r["advantage"] = ctl.signed(r["metric"]) * (r["value"] - r["control_value"])
    _name_primary(rows)
    for r in rows:
        r["controls"] = ctl.as_json(r["controls"])
    frame = pd.DataFrame([[r[c] for c in COLUMNS] for r in rows], columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(_NUMBERS, "float64") | {"seed": "int64", "n": "int64"})


_EMPTY: dict[str, Any] = {
    "algorithm": "", "defense": UNDEFENDED, "strength": None, "phase": "", "adversary": "",
    "attack": "", "attack_key": "", "of_label": "", "known_rows": None, "target": "", "victim": "",
    "split": "",
    "primary": "", "low": None, "high": None, "n": 0, "chance": None, "control": "",
    "control_value": None, "advantage": None, "controls": {}, "status": "ok", "reason": "",
    "bytes": None, "messages": None, "turned": None, "asked": "",
}  # fmt: skip


def _filled(record: Mapping[str, Any]) -> dict[str, Any]:
    lost = [k for k in ("cell", "dataset", "seed", "metric", "value") if k not in record]
    if lost:
        raise check.fail(
            "results_frame: a record", f"complete with {', '.join(lost)}", dict(record)
        )
    row = {**_EMPTY, **record}
    if row["status"] != "ok":  # an exception never becomes a number
        row |= {"value": None, "low": None, "high": None, "controls": {}}
    if row["defense"] in ("", UNDEFENDED):
        row |= {"defense": UNDEFENDED, "strength": 0.0}
    row["controls"] = dict(row["controls"] or {})
    return row


def _name_primary(rows: list[dict[str, Any]]) -> None:
    seen: dict[tuple[Any, ...], dict[str, float | None]] = defaultdict(dict)
    for r in rows:
        chances = seen[_asked(r)]
        if r["metric"] and chances.get(r["metric"]) is None:
            chances[r["metric"]] = r["chance"]
    for r in rows:
        if not r["primary"]:
            r["primary"] = _primary(seen[_asked(r)])


def _asked(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """What has one primary metric: a question about a quantity has another than its values."""
    about = row["of_label"] in QUESTIONS
    return row["dataset"], bool(row["attack"]), row["target"], about


def _primary(chances: Mapping[str, float | None]) -> str:
    """The primary metric among those present, told from their levels of chance."""
    for metric in ("concordance", "macro_auc"):
        if metric in chances:
            return metric
    balanced, top = chances.get("balanced_accuracy"), chances.get("accuracy")
    two = any(METRICS[m].binary_only for m in chances if m in METRICS) or balanced == 0.5
    wish = "auc" if two else "accuracy"
    if not two and balanced and top and top < 1:
        smallest = (1 - top) / (1 / balanced - 1)  # of the classes, at most
        wish = "balanced_accuracy" if top > 1.5 * smallest else "accuracy"
    if wish in chances:
        return wish
    return next((m for m in METRICS if m in chances), next(iter(chances), ""))


def is_undefended(row: Mapping[str, Any]) -> bool:
    """No defense, or a stack of which every one has strength 0, which is the exact identity.

    The swept strength is that of one defense; the label tells those of the others
    (:func:`defense_point`), and a defense beside it without a strength is always on.
    """
    if row["defense"] == UNDEFENDED or row["strength"] != 0:
        return bool(row["defense"] == UNDEFENDED)
    return defense_label.stacked(row["defense"]) - defense_label.off(row["defense"]) <= 1


def _mean(
    name: str, values: Mapping[int, float], confidence: float, metric: str, of: str = ""
) -> dict[str, Any]:
    """Mean over seeds with its t bounds: low/high two-sided, lower/upper one-sided.

    Bounds stay where the metric can be.
    """
    v = np.array(list(values.values()), float)
    ends = reach(metric, of)
    low, high = intervals.t_interval(v, confidence)
    lower = intervals.t_interval(v, confidence, "lower").low
    upper = intervals.t_interval(v, confidence, "upper").high
    return {
        name: float(v.mean()) if len(v) else None,
        f"{name}_sd": float(v.std(ddof=1)) if len(v) > 1 else None,
        f"{name}_low": intervals.within(low, ends),
        f"{name}_high": intervals.within(high, ends),
        f"{name}_lower": intervals.within(lower, ends),
        f"{name}_upper": intervals.within(upper, ends),
        f"{name}_seeds": len(v),
    }


def _leakage(leak: Leakage | None, confidence: float, metric: str) -> dict[str, Any]:
    """The advantage over all controls: the mean over the least, bounds as in `Leakage`."""
    tail, ends = (1 - confidence) / 2, reach("advantage", metric)
    bounds = {"low": ("lower", tail), "high": ("upper", tail), "lower": ("lower", 2 * tail),
              "upper": ("upper", 2 * tail)}  # fmt: skip
    return {
        "advantage": leak.least.mean if leak else None,
        "advantage_sd": leak.least.sd if leak else None,
        **{
            f"advantage_{k}": intervals.within(getattr(leak, side)(alpha), ends) if leak else None
            for k, (side, alpha) in bounds.items()
        },
        "advantage_seeds": leak.least.n if leak else 0,
    }


def clean(value: Any) -> Any:
    """None for NaN, which tables hold where there is no number."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _by_seed(rows: Iterable[Mapping[str, Any]], column: str) -> dict[int, float]:
    found: dict[int, list[float]] = defaultdict(list)
    for r in rows:
        if clean(r.get(column)) is not None:
            found[int(r["seed"])].append(float(r[column]))
    return {seed: float(np.mean(v)) for seed, v in sorted(found.items())}


def _often(asked: Iterable[str]) -> str:
    """What was asked on how many seeds, the most frequent first; '' where nothing was chosen."""
    count = Counter(a for a in asked if a)
    if len(count) == 1:
        return next(iter(count))
    return ", ".join(f"{a} ({n})" for a, n in count.most_common())


def _average(values: Mapping[int, float]) -> float | None:
    return float(np.mean(list(values.values()))) if values else None


class _Utility:
    """Main-task figures by seed, looked up for a point of the audit."""

    def __init__(self, rows: Sequence[Mapping[str, Any]], metric: str | None) -> None:
        self.values: dict[tuple[Any, ...], dict[int, float]] = {}
        self.metric: dict[str, str] = {}
        main = [r for r in rows if not r["attack"] and r["status"] == "ok"]
        for r in [*main, *(r for r in rows if not r["attack"] and not r["target"])]:
            self.metric.setdefault(r["dataset"], metric or r["primary"])
        groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = defaultdict(list)
        for r in main:
            if r["metric"] == self.metric[r["dataset"]]:
                groups[self._key(r), r["phase"], r["split"]].append(r)
        for key, of in groups.items():
            self.values[key] = _by_seed(of, "value")

    @staticmethod
    def _key(row: Mapping[str, Any]) -> tuple[Any, ...]:
        return row["dataset"], row["algorithm"], row["defense"], clean(row["strength"])

    def find(self, row: Mapping[str, Any]) -> tuple[dict[int, float], str, str]:
        """Values by seed, phase and split: of the row's phase if measured there, else the last."""
        here = [k for k in self.values if k[0] == self._key(row)]
        phases = [k[1] for k in here]
        if not phases:
            return {}, "", ""
        phase = row["phase"] if row["phase"] in phases else phases[-1]
        splits = [k[2] for k in here if k[1] == phase]
        split = next((s for s in _SPLITS if s in splits), splits[0])
        return self.values[self._key(row), phase, split], phase, split

    def reference(self, row: Mapping[str, Any], phase: str, split: str) -> dict[int, float]:
        """Values by seed of the undefended cells, same phase and split."""
        found: dict[int, float] = {}
        for (key, p, s), values in self.values.items():
            same = key[:2] == (row["dataset"], row["algorithm"]) and (p, s) == (phase, split)
            if same and is_undefended({"defense": key[2], "strength": key[3]}):
                found = {**values, **found} if key[2] != UNDEFENDED else {**found, **values}
        return found


def summarise(
    frame: pd.DataFrame, confidence: float = 0.95, utility: str | None = None
) -> pd.DataFrame:
    """One row for each point: means over seeds with t intervals, and the utility beside them.

    Args:
        frame: of :func:`results_frame`.
        confidence: of the two-sided (``_low``, ``_high``) and of the one-sided (``_lower``,
            ``_upper``) bounds; missing where there are fewer than two seeds.
        utility: main-task metric; None takes the primary one.

    Returns:
        columns :data:`POINT`, ``primary``, ``n`` and ``n_least`` (the most and the fewest rows that
        were scored on a seed), ``chance``, ``control`` (the one with the least
        mean advantage), ``named`` (the one named beforehand), ``controls`` (figures of all, see
        :class:`vflsec.audit.controls.Leakage`), ``planned`` (seeds of this training), ``seeds``
        (with a figure), ``asked`` (what the attack chose by itself, with how many seeds if these
        differ), ``failed`` (seeds that ended in an error), ``failed_trainings`` (seeds on
        which the training did), ``status``, ``reason``, and for each of
        ``value``, ``control_value``, ``advantage`` (over all controls, paired by seed),
        ``turned`` (the figure of the answer turned round, where scores of two classes can be),
        ``mirrored`` (its advantage over the named control), ``utility`` and ``utility_drop``
        (undefended minus defended, paired by seed) the mean, ``_sd``, bounds and ``_seeds``;
        ``worst_seed`` (the largest advantage over all controls in a single seed);
        ``utility_metric``; means of ``bytes`` and ``messages``. Main-task metrics are points too
        (``attack`` empty).
    """
    rows = [{k: clean(v) for k, v in r.items()} for r in rows_of(frame)]
    task = _Utility(rows, utility)
    named = ctl.named_by_set(r for r in rows if r["attack"] and r["status"] == "ok")
    planned: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    lost: dict[tuple[Any, ...], set[int]] = defaultdict(set)
    for r in rows:
        for found in [planned] + [lost] * (not r["attack"] and r["status"] == "error"):
            found[tuple(r[k] for k in TRAINING)].add(int(r["seed"]))
    points: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for r in rows:
        points[tuple(r[k] for k in POINT)].append(r)
    out = []
    for of in points.values():
        first, ok = of[0], [r for r in of if r["status"] == "ok"]
        u, phase, split = task.find(first)
        main = task.metric.get(first["dataset"], "")
        base = task.reference(first, phase, split)
        values = _by_seed(ok, "value")
        turned = reversed_ranking.turned(first, values, _by_seed(ok, "turned"))
        bad = {r["seed"] for r in of if r["status"] == "error"}
        ahead = named.get(ctl.control_set(ok[0]), "") if ok and first["attack"] else ""
        gained, own = ctl.advantages(ok) if first["attack"] else ({}, {})
        leak = Leakage.between(gained, own, ahead)
        control = leak.least.name if leak else ""
        out.append(
            {k: first[k] for k in POINT}
            | {
                "primary": first["primary"],
                "n": max(r["n"] for r in of),
                "n_least": min((r["n"] for r in ok), default=0),
                "chance": next((r["chance"] for r in ok if r["chance"] is not None), None),
                "control": control,
                "named": leak.ahead.name if leak else "",
                "controls": leak.as_dict() if leak else {},
                "planned": len(planned[tuple(first[k] for k in TRAINING)]),
                "seeds": len(values),
                "failed": len(bad),
                "failed_trainings": len(lost[tuple(first[k] for k in TRAINING)]),
                "status": "ok" if ok else first["status"],
                "reason": next((r["reason"] for r in of if r["reason"]), ""),
                "asked": _often(r.get("asked") or "" for r in ok),
                **{k: _average(_by_seed(of, k)) for k in ("bytes", "messages")},
            }
            | _mean("value", values, confidence, first["metric"])
            | _mean("control_value", own.get(control, {}), confidence, first["metric"])
            | _leakage(leak, confidence, first["metric"])
            | {"worst_seed": ctl.worst(gained)}
            | _mean("turned", turned, confidence, first["metric"])
            | _mean("mirrored", reversed_ranking.mirrored(turned, own, leak), confidence, "advantage")
            | {"utility_metric": main}
            | _mean("utility", u, confidence, main)
            | _mean("utility_drop", {s: base[s] - u[s] for s in u if s in base}, confidence,
                    "utility_drop", main)
        )  # fmt: skip
    summary = pd.DataFrame(out)
    numeric = [c for c in summary.columns if c.endswith(("_sd", "low", "high", "lower", "upper"))]
    exact = ["strength", "known_rows", "chance", "value", "control_value", "advantage", "turned",
             "mirrored", "worst_seed", "utility", "utility_drop", "bytes", "messages"]  # fmt: skip
    return summary.astype(dict.fromkeys([*numeric, *exact], "float64")) if out else summary
