"""Matching of lists: what each party learns, exactly; what withholding and dummies do not stop."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from vflsec.core.task import Stack, Task
from vflsec.engine.cohort import run_cohort
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec
from vflsec.testing import small_task, train
from vflsec.testing.worlds import Trained
from vflsec.train.views import make_view

KINDS = ("match:last", "match_count:all", "ids:last")
FIRST, LAST = (100, 160), (160, 180, 200)
"""Shared rows that are trained on; validation and test rows."""


def lists() -> Task:
    """passive1 has rows 0 to 199 and active 100 to 299: 100 of each list are on the other."""
    task, of = small_task(0, n=300), torch.arange
    i = of(300)
    shared = of(*FIRST)
    return replace(
        task, present={"active": i >= 100, "passive1": i < 200},
        sets={
            **task.sets, "labelled": shared, "aligned": shared,
            "validation": of(*LAST[:2]), "test": of(*LAST[1:]),
            "local:active": torch.cat([shared, of(200, 300)]), "local:passive1": of(160),
        },
        active_labelled=torch.cat([shared, of(200, 300)]),
    )  # fmt: skip


def match(name: str = "psi", **params: Any) -> Trained:
    algorithm = registry.algorithms.create(name, params)
    wanted = [(p, "received", *kind.split(":")) for p in ("active", "passive1") for kind in KINDS]
    stack = Stack.build({0: lists()}, [0, 0])
    return train(algorithm, stack, [0, 0], wanted=wanted)  # type: ignore[arg-type]


def guess(trained: Trained, party: str, reads: str) -> tuple[np.ndarray, np.ndarray]:
    """Which ids are guessed on (n,), whether the other has them (n,) as scores."""
    spec = AttackSpec("psi_membership", {"reads": reads}, adversary=(party,))
    view = make_view(trained.algorithm, trained.fed, {}, spec, 0)
    attack = registry.attacks.create("psi_membership", {"reads": reads})
    assert not attack.declines(view)
    found = attack.infer(view, torch.Generator())
    return found.rows, found.scores


def is_shared(rows: np.ndarray) -> np.ndarray:
    return (rows >= 100) & (rows < 200)


@pytest.mark.parametrize("party", ["active", "passive1"])
@pytest.mark.parametrize("padding", [0, 40])
def test_the_list_says_who_is_a_customer_of_the_other(party: str, padding: int) -> None:
    """Exactly, of every own id; dummies change nothing of that. The null: ids permuted."""
    rows, scores = guess(match(padding=padding), party, "list")
    assert len(rows) == 160
    assert np.array_equal(scores, is_shared(rows))
    rng = np.random.default_rng(0)
    null = np.mean([roc_auc_score(rng.permutation(is_shared(rows)), scores) for _ in range(40)])
    assert null == pytest.approx(0.5, abs=0.02)


def test_group_elements_are_charged_to_whom_they_are_sent() -> None:
    """n each way once to blind and once more for whoever learns, 32 bytes each, with dummies."""
    for to, more in (("both", (200, 200)), ("active", (0, 200)), ("passive", (200, 0))):
        ledger = match(to=to, padding=7).fed.channel.ledger.of(0)
        sent = {(r["sender"], r["name"]): r["bytes"] for r in ledger}
        assert {r["kind"] for r in ledger} == {"ciphertext"}
        want = {("active", "blinded"): 207, ("passive1", "blinded"): 207}
        names = (("active", "blinded_twice"), ("passive1", "blinded_twice"))
        want |= {at: n + 7 for at, n in zip(names, more, strict=True) if n}
        assert sent == {at: 32 * n for at, n in want.items()}


@pytest.mark.parametrize(("to", "blind"), [("active", "passive1"), ("passive", "active")])
def test_a_withheld_result_is_not_seen_until_training_names_rows(to: str, blind: str) -> None:
    made = match(to=to)
    spec = AttackSpec("psi_membership", adversary=(blind,))
    assert ("received", "match", "last", blind) not in make_view(
        made.algorithm, made.fed, {}, spec, 0
    ).tables
    other = "active" if blind == "passive1" else "passive1"
    assert guess(made, other, "list")[1].sum() == 60
    if blind == "passive1":  # what is trained on tells it
        rows, scores = guess(match("vertical_glm", epochs=1), blind, "ids")
        assert np.array_equal(scores, is_shared(rows))


def test_two_sizes_differ_by_one_where_the_other_has_the_id() -> None:
    """|PSI(S + {x})| - |PSI(S)| = 1 iff x is on the other's list, of every id that came."""
    made = match(reveals="size", runs=40)
    rows, scores = guess(made, "passive1", "size")
    assert len(set(rows)) == 39
    assert np.array_equal(scores, is_shared(rows))
    assert 0 < scores.mean() < 1
    spec = AttackSpec("psi_membership", adversary=("passive1",))
    view = make_view(made.algorithm, made.fed, {}, spec, 0)
    counts = view.received("match_count", "all").tensor.flatten()
    assert int(counts[-1]) == 100  # nobody is missing in the last run
    assert ("received", "match", "last", "passive1") not in view.tables


def test_one_size_says_nothing_of_an_id() -> None:
    made = match(reveals="size")
    spec = AttackSpec("psi_membership", {"reads": "size"}, adversary=("passive1",))
    view = make_view(made.algorithm, made.fed, {}, spec, 0)
    assert view.received("match_count", "all").tensor.tolist() == [[100.0]]
    attack = registry.attacks.create("psi_membership", {"reads": "size"})
    assert "two runs" in attack.declines(view)


def test_dummies_blur_sizes() -> None:
    """The variance of what matches of D of 2 D dummies is about D / 8, twice in a difference."""
    auc = {}
    for d in (0, 2, 400):
        rows, scores = guess(match(reveals="size", runs=120, padding=d), "passive1", "size")
        auc[d] = roc_auc_score(is_shared(rows), scores)
        if d:
            error = scores - is_shared(rows)
            want = 2 * d**4 / ((2 * d) ** 2 * (2 * d - 1))
            assert error.var() == pytest.approx(want, rel=0.5)
    assert auc[0] == 1.0 > auc[2] > 0.7
    assert abs(auc[400] - 0.5) < 0.15


def test_an_audit_scores_it_and_has_no_task_of_its_own() -> None:
    cell = CellSpec({"name": "lists", "digest": ""}, "psi", {}, (), 0)
    attacks = [AttackSpec("psi_membership", adversary=(p,)) for p in ("active", "passive1")]
    (result,) = run_cohort([cell], attacks, {0: lists()}, device="cpu")
    found = {(m.adversary, m.victim, m.metric): m.value for m in result.measures}
    assert found["passive1", "active", "auc"] == found["active", "passive1", "auc"] == 1.0
    assert {(m.target, m.phase, m.n) for m in result.measures} == {("presence", "align", 160)}
    assert {name for m in result.measures for name in m.controls} == {"majority"}
