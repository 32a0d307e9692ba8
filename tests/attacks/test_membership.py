"""Membership: memorised rows are found, permuted bits and test rows on both sides are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from sampled import sampled
from scipy import stats
from torch import Tensor

from vflsec.attacks.membership import Membership, likelihood_ratio
from vflsec.audit.truth import choose_goal
from vflsec.core.rng import generator
from vflsec.core.view import Facts, Known, References, Table, View
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.engine.membership_queries import (
    asked_rows,
    compare_within,
    reference_task,
    tasks_without,
)
from vflsec.errors import ThreatModelError
from vflsec.plugins import registry
from vflsec.specs import LEFT_OUT, AttackSpec, CellSpec, DefenseSpec, Measure, left_out
from vflsec.testing import small_task

FACTS = Facts("splitnn", "train", "active", ("active", "passive1"), 2)


def view(shares: Tensor, y: Tensor, made: References | None = None, **tables: Table) -> View:
    """Of one who asked about rows 0..n-1 and got log shares (n, 2)."""
    rows, zero = torch.arange(len(y)), torch.zeros(len(y), dtype=torch.int64)
    last = Table(shares, rows, zero, zero)
    return View(
        adversary=("passive1",), columns=MappingProxyType({}), present=MappingProxyType({}),
        schema=MappingProxyType({}), models=MappingProxyType({}), facts=FACTS,
        tables=MappingProxyType({("received", "prediction", "last", "passive1"): last}),
        targets=MappingProxyType({"train": rows}), known=Known(rows, y), references=made,
    )  # fmt: skip


def answers(phi: Tensor, y: Tensor) -> Tensor:
    """Log shares (..., n, 2) whose log odds of the right class are `phi`."""
    two = torch.stack([torch.nn.functional.logsigmoid(phi), torch.nn.functional.logsigmoid(-phi)])
    return torch.where(y.bool().unsqueeze(-1), two.flip(0).movedim(0, -1), two.movedim(0, -1))


def auc(scores: np.ndarray, member: Tensor) -> float:
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(member.numpy(), scores))


def infer(attack: Membership, v: View) -> np.ndarray:
    return attack.infer(v, generator(0, "t")).scores


def test_threshold_forms_rank_by_the_loss_of_the_label() -> None:
    y = torch.tensor([0, 1, 1, 0])
    phi = torch.tensor([3.0, -1.0, 0.5, 0.0], dtype=torch.float64)
    shares = answers(phi, y)
    loss = infer(Membership(), view(shares, y))
    assert loss == pytest.approx(-np.log1p(np.exp(-phi.numpy())))
    slope = infer(Membership("gradient"), view(shares, y))
    assert slope == pytest.approx(-np.sqrt(2) / (1 + np.exp(phi.numpy())))
    assert np.array_equal(np.argsort(loss), np.argsort(slope))  # the same signal for two classes


def test_confidence_reads_no_label() -> None:
    y = torch.tensor([0, 1, 1, 0])
    shares = answers(torch.tensor([3.0, -1.0, 0.5, 0.0], dtype=torch.float64), y)
    sure = infer(Membership("confidence"), view(shares, y))
    assert sure == pytest.approx(-np.log1p(np.exp(-np.array([3.0, 1.0, 0.5, 0.0]))))
    assert sure == pytest.approx(infer(Membership("confidence"), view(shares, 1 - y)))


def test_the_trajectory_is_a_mean_over_moments_whatever_their_order() -> None:
    y = torch.tensor([0, 1, 1])
    phi = torch.tensor([[0.0, 1.0, 2.0], [1.0, 1.0, -2.0]], dtype=torch.float64)
    shares = answers(phi, y)
    rows, when = torch.arange(3).repeat(2), torch.arange(2).repeat_interleave(3)
    order = torch.tensor([5, 0, 3, 2, 4, 1])
    table = Table(shares.flatten(0, 1)[order], rows[order], when[order], when[order])
    v = view(shares[-1], y)
    v = replace(v, tables=MappingProxyType({("received", "prediction", "all", "passive1"): table}))
    found = infer(Membership("trajectory"), v)
    assert found == pytest.approx(-np.log1p(np.exp(-phi.numpy())).mean(0))


def test_the_ratio_is_that_of_two_normals_and_beats_the_threshold_where_rows_differ() -> None:
    """Records of different difficulty (sd 3), membership moves phi by 1 (sd 0.5).

    Known difficulty: AUC Phi(1 / (0.5 sqrt 2)) = 0.921; the threshold sees Phi(1 / (sqrt 2 3.04)).
    """
    g = generator(0, "lira")
    n, k = 4000, 32

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    y, hard = (drawn(n) > 0).long(), 3 * drawn(n)
    member, trained = drawn(n) > 0, drawn(k, n) > 0
    seen = hard + trained.double() + 0.5 * drawn(k, n)
    phi = hard + member.double() + 0.5 * drawn(n)
    made = References(torch.arange(n), answers(seen, y).unsqueeze(1), trained)
    v = view(answers(phi, y), y, made)
    found = auc(infer(Membership(references=k), v), member)
    assert found == pytest.approx(stats.norm.cdf(1 / (0.5 * 2**0.5)), abs=0.02)
    plain = auc(infer(Membership(), v), member)
    assert plain == pytest.approx(stats.norm.cdf(1 / (3.04 * 2**0.5)), abs=0.03)
    mixed = member[torch.randperm(n, generator=g)]
    assert auc(infer(Membership(references=k), v), mixed) == pytest.approx(0.5, abs=0.03)


def test_a_record_that_no_reference_held_takes_part_all_the_same() -> None:
    trained = torch.tensor([[True, True], [True, False], [True, True], [True, False]])
    seen = torch.tensor([[1.0, 2.0], [1.1, 0.0], [0.9, 2.1], [1.0, 0.1]]).double()
    value = torch.tensor([1.0, 2.0], dtype=torch.float64)
    found = likelihood_ratio(value, seen, trained)
    assert bool(torch.isfinite(found).all())
    assert found[1] > 0


def test_what_it_may_not_see_and_bad_parameters() -> None:
    y = torch.tensor([0, 1])
    v = view(answers(torch.zeros(2).double(), y), y)
    with pytest.raises(ThreatModelError, match="no references"):
        infer(Membership(references=4), v)
    with pytest.raises(ThreatModelError, match="labels of the records"):
        infer(Membership(), replace(v, known=Known(torch.tensor([0]), y[:1])))
    with pytest.raises(ThreatModelError):
        infer(Membership(), replace(v, tables=MappingProxyType({})))


def test_records_are_as_many_of_each_side_and_references_hold_another_half() -> None:
    task = small_task(0, n=400)
    rows = asked_rows(task, 5, 50)
    inside = torch.isin(rows, task.sets["labelled"])
    assert (len(rows), int(inside.sum())) == (100, 50)
    assert bool((torch.isin(rows, task.sets["test"]) ^ inside).all())
    assert abs(int(inside[:50].sum()) - 25) < 18  # mixed: 7 standard deviations
    made, chosen = reference_task(task, rows, 9)
    assert int(chosen.sum()) == 50
    assert torch.equal(torch.isin(rows, made.sets["labelled"]), chosen)
    assert torch.equal(torch.isin(rows, made.sets["test"]), ~chosen)
    assert 10 < int((chosen & inside).sum()) < 40
    for name, of in task.sets.items():
        assert len(made.sets[name]) == len(of), name
    goal = choose_goal(Membership(), AttackSpec("membership", adversary=("passive1",)), task)
    assert np.array_equal(goal.truth.values[rows.numpy()], inside.long().numpy())


def audited(
    params: dict[str, Any], *, epochs: int, shuffle: bool = False, returns: bool = True,
    seeds: int = 3, defense: tuple[DefenseSpec, ...] = (), rows: int = 160, fixed: bool = False,
    wrong: dict[str, float] | None = None, columns: int = 100,
) -> list[list[Measure]]:  # fmt: skip
    """Measures of `membership` on a world of noise labels or of a plain rule, by seed.

    Test rows are `fixed` by the data, or drawn; a share of the labels of row sets is `wrong`.
    """
    sizes = {"rows": rows, "test_rows": 160, "validation_rows": 60, "d_passive": columns}
    world = registry.datasets.create("control_gaussian", sizes)
    tasks = {s: make_task(world.load(s), s, shuffle_labels=shuffle) for s in range(seeds)}
    training = {
        "epochs": epochs, "patience": 0, "select": False, "lr": 0.01, "batch_size": 32,
        "returns_predictions": returns,
    }  # fmt: skip
    for s, task in tasks.items():
        for name, share in (wrong or {}).items():
            of = task.sets[name]
            of = of[torch.rand(len(of), generator=generator(s, "wrong")) < share]
            task.y[of] = 1 - task.y[of]
        tasks[s] = replace(task, fixed=frozenset({"test"} if fixed else {}))
    cells = [CellSpec({"name": "w"}, "splitnn", training, defense, s) for s in range(seeds)]
    spec = AttackSpec("membership", params, adversary=("passive",))
    spec = replace(spec, adversary=(tasks[0].passive[0],))
    return [r.measures for r in run_cohort(cells, [spec], tasks, device="cpu", main=False)]


def values(found: list[list[Measure]], metric: str = "auc") -> list[float]:
    return [float(m.value or 0.0) for one in found for m in one if m.metric == metric]


def test_memorised_labels_are_found_and_an_untrained_system_tells_nothing() -> None:
    """Labels of no rule, 40 epochs: only what was trained on is answered rightly."""
    loud = audited({}, epochs=40, shuffle=True)
    assert min(values(loud)) > 0.85
    few = values(loud, "tpr_at_1pct_fpr")  # rows that are guessed rightly look the same
    assert max(few) < 0.2
    assert all(a <= b for a, b in zip(values(loud, "tpr_at_01pct_fpr"), few, strict=True))
    (one,) = [m for m in loud[0] if m.metric == "auc"]
    assert one.controls == {"majority": {"value": 0.5, "cv": 0.5}}
    assert (one.target, one.split, one.n) == ("membership", "train", 320)
    quiet = [m for one in audited({}, epochs=0) for m in one if m.metric == "auc"]
    assert sum(not (m.low or 0) <= 0.5 <= (m.high or 1) for m in quiet) <= 1


def gains(found: list[list[Measure]]) -> list[float]:
    """AUC above that of the best control, by seed."""
    return [
        float(m.value or 0.0) - max(float(c["value"] or 0.0) for c in m.controls.values())
        for one in found for m in one if m.metric == "auc"
    ]  # fmt: skip


KINDS = sampled([{}, {"references": 4}, {"signal": "trajectory"}])


@pytest.mark.slow
@pytest.mark.parametrize("params", KINDS)
def test_test_rows_of_another_kind_are_no_membership(params: dict[str, Any]) -> None:
    """Four in ten labels of test rows are wrong: an AUC of 0.7 that training has no part in.

    What it learns of rows by heart is found all the same, and no more of it than without.
    """
    plain: dict[str, Any] = {"epochs": 3, "rows": 800, "fixed": True}
    harder = {"wrong": {"test": 0.4}}
    said = audited(params, **plain | harder | {"fixed": False})
    found = audited(params, **plain | harder)
    assert values(found) == values(said)
    assert {name for m in found[0] for name in m.controls} == {LEFT_OUT}
    known = np.mean(gains(audited(params, **plain)))
    assert known - 0.06 < np.mean(gains(found)) < known + 0.02
    if not params:
        assert np.mean(gains(said)) > known + 0.15
    loud = audited(params, epochs=30, shuffle=True, fixed=True, seeds=2)
    assert min(gains(loud)) > 0.25


@pytest.mark.slow
def test_test_rows_that_are_easier_hide_no_membership() -> None:
    """Three in ten labels of training rows are wrong and kept by heart: test rows, which have none,
    are answered about as surely, and an AUC beside 0.5 tells half of it.
    """
    easier: dict[str, Any] = {"epochs": 5, "rows": 1200, "columns": 30}
    easier |= {"wrong": {"labelled": 0.3}}
    hidden, found = audited({}, **easier), audited({}, **easier, fixed=True)
    assert np.mean(gains(found)) > np.mean(gains(hidden)) + 0.05
    assert min(gains(found)) > 0.05


@pytest.mark.parametrize("params", KINDS)
def test_rows_of_another_kind_that_are_not_kept_give_nothing(params: dict[str, Any]) -> None:
    """An untrained system cannot know a row, whatever its kind: the mean is 0 within its error."""
    null: dict[str, Any] = {"epochs": 0, "rows": 400, "seeds": 8, "fixed": True}
    for wrong in ({}, {"test": 0.4}):
        found = np.array(gains(audited(params, **null, wrong=wrong)))
        assert abs(found.mean()) < stats.t.isf(0.001, 7) * found.std(ddof=1) / 8**0.5


@pytest.mark.parametrize(("most", "parts"), [(100, 2), (35, 2)])
def test_every_row_is_answered_by_a_system_that_leaves_it_out(most: int, parts: int) -> None:
    """And that trains on as many rows of each class, as another seed would deal them out."""
    task = small_task(0, n=400)  # 240 to train on, 100 to test, 60 to validate
    rows = asked_rows(task, 5, most)
    inside = torch.isin(rows, task.sets["labelled"])
    made, gone = tasks_without(task, rows, 7)
    asked, spare = (task.y[of].bincount() for of in (rows[inside], task.sets["validation"]))
    lost = ((asked + parts - 1) // parts - spare).clamp_min(0)  # classes differ in their shares
    assert gone.shape == (parts, len(rows))
    assert int(lost.sum()) < 5
    assert torch.equal(gone.any(0), inside)
    for one, out in zip(made, gone, strict=True):
        assert not torch.isin(rows[out], one.sets["labelled"]).any()
        assert torch.equal(one.sets["test"], task.sets["test"])
        assert torch.isin(one.active_labelled, one.sets["labelled"]).all()
        for name in ("labelled", "validation"):
            known, now = (task.y[t.sets[name]].bincount() for t in (task, one))
            assert torch.equal(known - now, lost if name == "labelled" else 0 * lost), name
        both = torch.cat([one.sets["labelled"], one.sets["validation"]])
        known = torch.cat([task.sets["labelled"], task.sets["validation"]])
        assert bool(torch.isin(both, known).all())
        assert len(both.unique()) == len(both)


def test_validation_rows_that_the_data_name_are_not_trained_on() -> None:
    task = replace(small_task(0, n=400), fixed=frozenset({"test", "validation"}))
    made, gone = tasks_without(task, asked_rows(task, 5, 100), 7)
    assert len(made) == left_out(100, 0) == 10
    for one, out in zip(made, gone, strict=True):
        assert len(one.sets["labelled"]) == 240 - int(out.sum())
        assert 10 <= int(out.sum()) <= 11  # a tenth of each of two classes
        assert torch.equal(one.sets["validation"], task.sets["validation"])


def test_rows_are_compared_with_test_rows_by_one_system_alone() -> None:
    """Systems of different levels: compared with each other, an AUC of 1 would seem one of 0.75."""
    g = generator(0, "within")
    n, test = 400, np.arange(400) >= 200
    gone = np.stack([np.arange(n) < 100, (np.arange(n) >= 100) & ~test])
    kind = torch.randn(n, generator=g, dtype=torch.float64).numpy() + 1.0 * ~test
    scores = np.stack([kind, 50 + 3 * kind])
    found = compare_within(scores, gone, test)
    one = [auc(np.r_[s[o], s[test]], torch.tensor([1] * 100 + [0] * 200))
           for s, o in zip(scores, gone, strict=True)]  # fmt: skip
    assert auc(found, torch.from_numpy(~test)) == pytest.approx(np.mean(one), abs=1e-12)
    own = np.where(gone[0] | (np.arange(n) % 2 == 0), scores[0], scores[1])
    assert abs(auc(own, torch.from_numpy(~test)) - np.mean(one)) > 0.05
    tied = compare_within(np.zeros((2, n)), gone, test)
    assert auc(tied, torch.from_numpy(~test)) == 0.5
    assert np.isnan(compare_within(np.where(scores > 52, np.inf, scores), gone, test)).all()


def test_worlds_are_drawn_alike_and_tables_with_a_split_are_not() -> None:
    world = registry.datasets.create("control_gaussian", {}).load(0)
    assert (world.split is None, world.fixed, make_task(world, 0).fixed) == (
        False, frozenset(), frozenset(),
    )  # fmt: skip
    table = replace(world, drawn=False)
    assert make_task(table, 0).fixed == {"test", "validation"}
    assert replace(table, split=None).fixed == frozenset()


def test_references_and_trajectories_find_it_too() -> None:
    """Eight references on their halves; and the answers after each of ten epochs."""
    ratio = audited({"references": 8}, epochs=12, seeds=2)
    plain = audited({}, epochs=12, seeds=2)
    assert np.mean(values(ratio)) > np.mean(values(plain)) - 0.02
    assert min(values(ratio)) > 0.6
    path = audited({"signal": "trajectory"}, epochs=12, seeds=2, shuffle=True)
    assert min(values(path)) > 0.7


def test_the_estimate_knows_of_references_and_the_attack_has_a_training_of_its_own() -> None:
    from vflsec.config.scenario import load_scenario
    from vflsec.engine.dry_run import make_plan

    def plan(**params: Any) -> Any:
        return make_plan(
            load_scenario(
                {
                    "data": {"name": "leaky"},
                    "algorithm": {"name": "splitnn", "epochs": 5, "returns_predictions": True},
                    "attack": [{"name": "norm"}, {"name": "membership", **params}],
                    "audit": {"seeds": 2, "references": []},
                },
                [],
            ),
            try_out=False,
        )

    none, some = plan(), plan(references=8)
    assert [(g.main, [a.name for a in g.attacks]) for g in none.groups] == [
        (True, ["norm"]), (False, ["membership"]),
    ]  # fmt: skip
    assert some.cost.steps == pytest.approx(none.cost.steps * 10 / 2)


def test_where_nothing_is_returned_it_cannot_ask() -> None:
    (one,) = audited({}, epochs=1, returns=False, seeds=1)
    assert [m.status for m in one] == ["not-observable"]


def test_label_dp_hides_the_label_that_was_trained_on_but_not_that_a_row_was() -> None:
    """At a small epsilon the asked label was rarely the trained one, so the loss says less."""
    strong = audited({}, epochs=40, shuffle=True)
    dp = (DefenseSpec("label_dp", strength=2.0),)
    weak = audited({}, epochs=40, shuffle=True, defense=dp)
    assert np.mean(values(weak)) < np.mean(values(strong)) - 0.15


def test_rows_trained_on_under_labels_that_tell_nothing_are_answered_more_surely() -> None:
    """At epsilon 0.1 the loss of the true label is that of chance, and membership passed a gate."""
    dp = (DefenseSpec("label_dp", strength=10.0),)
    blind, sure = (
        values(audited({"signal": s}, epochs=40, defense=dp)) for s in ("loss", "confidence")
    )
    assert abs(np.mean(blind) - 0.5) < 0.06
    assert np.mean(sure) > 0.6
    assert np.mean(sure) > np.mean(blind) + 0.1


@pytest.mark.parametrize("references", [0, 4])
@pytest.mark.parametrize("column", ["part", ""])
def test_a_split_by_a_column_and_changed_labels_are_said(
    references: int, column: str, tmp_path: Path
) -> None:
    """Test rows with other labels (a later year) are harder: that is no membership."""
    plan = planned(tmp_path, references, column, [{"name": "label_dp", "strength": [0, 1]}])
    assert len([n for n in plan.notes if f"({LEFT_OUT})" in n]) == bool(column)
    assert len([n for n in plan.notes if "label_dp changes labels" in n]) == 1


def test_the_estimate_knows_of_trainings_without_the_rows(tmp_path: Path) -> None:
    """34 rows are trained on, 6 validate and 20 are asked for: 4 trainings for each."""
    known = {}
    for column, spare in (("part", 6), ("", None)):
        few, many = (planned(tmp_path, k, column, []) for k in (0, 4))
        assert {g.data.spare for g in few.groups if g.role == "audit"} == {spare}
        known[column] = 4 * few.cost.steps / (many.cost.steps - few.cost.steps)
    assert known["part"] - known[""] == pytest.approx(left_out(20, 6)) == 4


def planned(tmp_path: Path, references: int, column: str, defenses: list[dict[str, Any]]) -> Any:
    """The plan of an audit of tables, whose `column` says which rows are for training."""
    from vflsec.config.scenario import load_scenario
    from vflsec.engine.dry_run import make_plan

    part = ["train"] * 40 + ["test"] * 20
    lines = [f"{i},{i % 7},{i % 5},{i % 2},{p}" for i, p in enumerate(part)]
    (tmp_path / "t.csv").write_text("id,x1,x2,y,part\n" + "\n".join(lines) + "\n")
    sections = {
        "data": {"file": str(tmp_path / "t.csv"), "label": "y", "id": "id", "active": "a",
                 **({"split": column} if column else {"drop": ["part"]}),
                 "columns": {"a": ["x1"], "b": ["x2"]}},
        "algorithm": {"name": "splitnn", "epochs": 1, "returns_predictions": True},
        "defense": defenses,
        "attack": [{"name": "membership", "references": references}],
        "audit": {"seeds": 2, "references": []},
    }  # fmt: skip
    return make_plan(load_scenario(sections, []), try_out=False)


@pytest.mark.parametrize("count", [2, 3, 6, 7, 11, 13, 40])
def test_parts_that_are_left_out_are_of_one_size_and_hold_who_is_asked(count: int) -> None:
    """Of 11 trained rows they had 3, 3, 3, 2 and 3 and could not be stacked: the attack failed."""
    task = small_task(0, n=800)
    labelled = task.sets["labelled"][:count]
    sets = {k: labelled if k in ("labelled", "aligned") else v for k, v in task.sets.items()}
    task = replace(task, sets=sets, active_labelled=labelled)
    rows = asked_rows(task, 0, 1000)
    made, gone = tasks_without(task, rows, 7)
    assert len({len(t.sets["labelled"]) for t in made}) == 1
    for one, out in zip(made, gone, strict=True):
        assert not torch.isin(rows[out], one.sets["labelled"]).any()
    left = [set(labelled.tolist()) - set(t.sets["labelled"].tolist()) for t in made]
    assert set.union(*left) == set(labelled.tolist())
    assert all(left)
