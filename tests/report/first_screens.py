"""Audits of which nothing was run, one for each way a first screen can come out.

The approved screens and the gallery of the documentation are made from them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from generated import expose, make_point, make_summary

from vflsec.audit.facts import DatasetFacts, PointCost
from vflsec.audit.gate import Gate, Origin, Reason, Rule, Verdict, Warn
from vflsec.audit.point import Training
from vflsec.audit.summary import Cost, Summary
from vflsec.specs import LedgerRow

NONE, ISO = Training("loans", "splitnn", "none"), Training("loans", "splitnn", "iso", 5.0)
OFF = replace(ISO, strength=0.0)
LIMIT = Gate(max=0.1)


@dataclass(frozen=True)
class Answer:
    """What a reader must know: the verdict, the rules behind it, who learns what where."""

    verdict: str
    rules: tuple[str, ...]
    leaks: tuple[str, ...] = ()
    tone: str = ""


def passes_at_a_strength() -> Summary:
    bare = make_point(OFF, "norm", "label", 0.3)
    points = [bare, expose(bare, 235.0), make_point(ISO, "norm", "label", 0.01)]
    return make_summary(points, [Gate(max=0.1, strength=5.0)])


def passes_undefended() -> Summary:
    return make_summary([make_point(NONE, "norm", "label", 0.01)], [LIMIT])


def rises_no_more() -> Summary:
    """A leak beside a baseline that had it: nothing limits it."""
    found, v = _leaks_as_before()
    return replace(found, gates=(v,))


def _leaks_as_before() -> tuple[Summary, Verdict]:
    """A system that leaks, and that it does so no more than before."""
    found = make_summary([make_point(NONE, "norm", "label", 0.35)], [Gate(max=0.4)])
    (v,) = found.gates
    gate = Gate(max=0.03, name="no rise above the baseline: norm by shop")
    reason = "The advantage of norm changed by +0.001 over 5 seeds, within the tolerated +0.030."
    steady = replace(
        v, gate=gate, label=gate.label, origin=Origin.BASELINE, reason=reason, threshold=0.03,
        value=0.001, low=-0.01, high=0.012, detectable={}, attacks=(),
    )  # fmt: skip
    return found, steady


def rises_in_one_figure() -> Summary:
    """Of forty figures one rose, and half were made of other data."""
    found, v = _leaks_as_before()
    gate = replace(v.gate, name="no rise above the baseline: cluster by shop")
    rise = replace(
        v, gate=gate, label=gate.label, verdict="FAIL", rule=Rule.REGRESSION, attack="cluster",
        reason="The advantage of cluster changed by +0.150 over 5 seeds; +0.030 is tolerated.",
        value=0.15, low=0.1, high=0.2,
    )  # fmt: skip
    warn = Reason.warning(Warn.OTHER_DATA, "loans; --update-baseline renews it")
    other = replace(v, warning=warn.text, warnings=(Warn.OTHER_DATA,))
    return replace(found, gates=(rise, *[v] * 19, *[other] * 20))


def passes_with_a_warning() -> Summary:
    return make_summary([make_point(NONE, "norm", "label", 0.01, 0.075)], [LIMIT])


def fails() -> Summary:
    points = [make_point(NONE, "norm", "label", 0.3), make_point(NONE, "cluster", "label", 0.1)]
    return make_summary(points, [LIMIT])


def is_undecided() -> Summary:
    return make_summary([make_point(NONE, "norm", "label", 0.08, 0.06)], [LIMIT])


def has_one_seed() -> Summary:
    return make_summary([make_point(NONE, "norm", "label", 0.3, seeds=1)], [LIMIT])


def has_few_seeds() -> Summary:
    return make_summary([make_point(NONE, "norm", "label", 0.4, 0.2, seeds=3)], [])


def is_not_validated() -> Summary:
    return make_summary([make_point(NONE, "norm", "label", 0.01)], [LIMIT], validated=False)


def ranks_in_reverse() -> Summary:
    return make_summary([make_point(NONE, "norm", "label", -0.5)], [LIMIT])


def gives_an_error() -> Summary:
    failed = make_point(NONE, "norm", "label", 0.0)
    failed = replace(failed, status="error", leakage=None, failed=5, reason="it ran out of memory")
    return make_summary([failed], [LIMIT])


def has_several_parties() -> Summary:
    points = [
        make_point(NONE, "norm", "label", 0.3),
        make_point(NONE, "norm", "label", 0.02, 0.05, adversary="telco"),
        make_point(NONE, "grn", "feature", 0.4, metric="r2", adversary="bank", victim="telco"),
        make_point(NONE, "norm", "label", 0.35, adversary="shop+telco"),
    ]
    facts = DatasetFacts(("bank", "shop", "telco"), 2, seeds=(0, 1, 2, 3, 4))
    return make_summary(points, [Gate(max=0.1, target="label")], parties={"loans": facts})


def has_trees() -> Summary:
    at = Training("loans", "secureboost", "none")
    points = [make_point(at, "leaf_labels", "label", 0.25)]
    ways = (("partition", "bank", "shop"), ("histogram", "shop", "bank"))
    sent = tuple(LedgerRow("train", kind, "", one, other, 1, 1, 1, 1) for kind, one, other in ways)
    cost = Cost(points=(PointCost(**at.as_dict(), role="audit", traffic=sent),))
    return make_summary(points, [LIMIT], cost=cost)


def is_a_trace() -> Summary:
    points = [make_point(NONE, "norm", "label", 0.01)]
    return make_summary(points, [LIMIT], scenario="", scenario_file="", data={"run 1": "ab12"})


LABELS, OPEN = (f"{where}: labels of bank to shop" for where in ("none", "iso 0"))
CASES: dict[Callable[[], Summary], Answer] = {
    passes_at_a_strength: Answer("PASS", ("within",), (OPEN, f"{OPEN}, single rows"), "warning"),
    passes_undefended: Answer("PASS", ("within",), tone="good"),
    rises_no_more: Answer("NO RISE", ("within",), (LABELS,), "warning"),
    rises_in_one_figure: Answer("FAIL", ("regression", *["within"] * 39), (LABELS,), "leak"),
    passes_with_a_warning: Answer("PASS", ("within",), tone="warning"),
    fails: Answer("FAIL", ("exceeded",), (LABELS,), "leak"),
    is_undecided: Answer("INCONCLUSIVE", ("undecided",), (LABELS,), "warning"),
    has_one_seed: Answer("INCONCLUSIVE", ("single_seed",), tone="warning"),
    has_few_seeds: Answer("NO GATE", ()),
    is_not_validated: Answer("INCONCLUSIVE", ("not_validated",), tone="warning"),
    ranks_in_reverse: Answer("INCONCLUSIVE", ("reversed_ranking",),
                             (f"{LABELS}, labels flipped",), "warning"),
    gives_an_error: Answer("INCONCLUSIVE", ("nothing_measured",), tone="warning"),
    has_several_parties: Answer("FAIL", ("exceeded",), (
        LABELS, "none: labels of bank to shop+telco", "none: columns of telco to bank"), "leak"),
    has_trees: Answer("FAIL", ("exceeded",), (LABELS,), "leak"),
    is_a_trace: Answer("PASS", ("within",), tone="good"),
}  # fmt: skip
