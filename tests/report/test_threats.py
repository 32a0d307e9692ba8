"""The threat model names attacks that gave a figure, by what was sent to who made them."""

from __future__ import annotations

from dataclasses import replace

from generated import make_point, make_summary

from vflsec.audit.facts import PointCost
from vflsec.audit.point import Training
from vflsec.audit.record import AttackFacts
from vflsec.audit.summary import Cost, Summary
from vflsec.report.threat_model import build_threats, describe_assumed, describe_threats
from vflsec.specs import LedgerRow

AT = Training("loans", "splitnn", "none")


def made(status: str = "ok") -> Summary:
    """Two attacks, the second with this status; gradients came to who made both."""
    one, two = make_point(AT, "norm", "label", 0.0), make_point(AT, "bin_sums", "feature", 0.0)
    points = [one, replace(two, status=status)]
    sent = (LedgerRow("train", "gradient", "", "bank", "shop", 1, 1, 1, 1),
            LedgerRow("train", "prediction", "", "shop", "bank", 1, 1, 1, 1))  # fmt: skip
    cost = Cost(points=(PointCost(**AT.as_dict(), role="audit", traffic=sent),))
    shop = AttackFacts("norm", "norm", adversary=("shop",), target="label")
    needs = ("gradient:all", "prediction:all", "state:all", "sent.embedding", "known_rows", "model")
    attacks = {
        one.attack_key: replace(shop, needs=needs),
        two.attack_key: replace(shop, name="bin_sums", label="bin_sums", needs=("histogram:all",),
                                aux_rows=60, active=True),
    }  # fmt: skip
    return make_summary(points, [], attacks=attacks, cost=cost)


def test_an_attack_that_was_never_made_is_in_no_threat_model() -> None:
    """The page to sign of a trace listed attacks that could not be made, and what they assume."""
    assert [label for label, _ in describe_threats(made())] == ["norm", "bin_sums"]
    summary = made("not-observable")
    assert [label for label, _ in describe_threats(summary)] == ["norm"]
    (rows,) = (b.rows for b in build_threats(summary).blocks if getattr(b, "rows", ()))
    assert len(rows) == 1
    for status, further, active in (("ok", "60", "bin_sums"), ("not-observable", "", "none")):
        means = {m: assumed for m, assumed, _ in describe_assumed(made(status))}
        assert ("60" in means["further knowledge"]) == bool(further)
        assert means["departures from the protocol"] == active


def test_an_attacker_sees_only_what_was_sent_to_it() -> None:
    """`joint_completion` was said to use predictions and states that nobody had sent to it."""
    summary = made("not-observable")
    seen = "the gradients it receives and its own model"
    assert f"uses {seen} and was granted" in dict(describe_threats(summary))["norm"]
    assert {m: a for m, a, _ in describe_assumed(summary)}["what is seen"] == (
        "its own model and the gradients it receives"
    )


def test_labelled_rows_are_those_of_who_was_granted_some() -> None:
    """Who holds the labels is granted none, whatever its attack could take, nor who asks about
    membership.
    """
    before = made()
    one, two = (p.attack_key for p in before.points)
    first = replace(before.attacks[one], known_rows=15)
    for adversary, target, said in (("bank", "feature", "15"), ("shop", "membership", "15"),
                                    ("shop", "label", "20")):  # fmt: skip
        other = replace(before.attacks[two], adversary=(adversary,), target=target, known_rows=20)
        summary = replace(before, attacks={one: first, two: other})
        means = {m: assumed for m, assumed, _ in describe_assumed(summary)}
        assert means["known labels"].split()[0] == said
