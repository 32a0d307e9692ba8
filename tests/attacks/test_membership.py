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
from vflsec.engine.membership_queries import asked_rows, reference_task, tasks_without
from vflsec.errors import ThreatModelError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec, Measure
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
    seeds: int = 3, defense: tuple[DefenseSpec, ...] = (), rows: int = 160, column: str = "",
    harder: float = 0.0,
) -> list[list[Measure]]:  # fmt: skip
    """Measures of `membership` on a world of noise labels or of a plain rule, by seed.

    A `column` says which rows are for training; labels of a share of test rows are `harder`: wrong.
    """
    world = registry.datasets.create(
        "control_gaussian", {"rows": rows, "test_rows": 160, "validation_rows": 60}
    )
    tasks = {s: make_task(world.load(s), s, shuffle_labels=shuffle) for s in range(seeds)}
    training = {
        "epochs": epochs, "patience": 0, "select": False, "lr": 0.01, "batch_size": 32,
        "returns_predictions": returns,
    }  # fmt: skip
    for s, task in tasks.items():
        wrong = task.sets["test"][torch.rand(160, generator=generator(s, "wrong")) < harder]
        task.y[wrong] = 1 - task.y[wrong]
    data = {"name": "w", **({"split": column} if column else {})}
    cells = [CellSpec(data, "splitnn", training, defense, s) for s in range(seeds)]
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


@pytest.mark.parametrize("signal", sampled(["loss", "trajectory"]))
def test_test_rows_of_another_kind_are_no_membership(signal: str) -> None:
    """Four in ten labels of test rows are wrong: an AUC of 0.7 that training has no part in.

    What it learns of rows by heart is found all the same, and no more of it than without.
    """
    plain: dict[str, Any] = {"epochs": 4, "rows": 1200, "column": "year"}
    said = audited({"signal": signal}, **plain | {"harder": 0.4, "column": ""})
    found = audited({"signal": signal}, **plain | {"harder": 0.4})
    assert values(found) == values(said)
    assert set(found[0][0].controls) == {"majority", "left out"}
    known = np.mean(gains(audited({"signal": signal}, **plain)))
    assert np.mean(gains(said)) > known + 0.15
    assert known - 0.05 < np.mean(gains(found)) < known + 0.02
    loud = audited({"signal": signal}, epochs=40, shuffle=True, column="year")
    assert min(gains(loud)) > 0.25


@pytest.mark.parametrize(("most", "parts", "size"), [(100, 3, 34), (35, 2, 18), (240, 3, 34)])
def test_every_row_is_answered_by_a_system_that_leaves_it_out(
    most: int, parts: int, size: int
) -> None:
    task = small_task(0, n=400)  # 240 to train on, 100 to test
    rows = asked_rows(task, 5, most)
    inside = torch.isin(rows, task.sets["labelled"])
    made, asked = tasks_without(task, rows)
    assert len(made) == parts
    for k, one in enumerate(made):
        assert not torch.isin(rows[inside & (asked == k)], one.sets["labelled"]).any()
        assert len(one.sets["labelled"]) == 240 - size
        assert torch.equal(one.sets["test"], task.sets["test"])
        assert torch.isin(one.active_labelled, task.active_labelled).all()
    assert int(asked[~inside].bincount().min()) > 0.5 * inside.sum() / parts


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


@pytest.mark.parametrize(("references", "said"), [(0, 1), (4, 0)])
def test_a_split_by_a_column_and_changed_labels_are_said(
    references: int, said: int, tmp_path: Path
) -> None:
    """Test rows with other labels (a later year) are harder: a threshold calls that membership."""
    from vflsec.config.scenario import load_scenario
    from vflsec.engine.dry_run import make_plan

    part = ["train"] * 40 + ["test"] * 20
    lines = [f"{i},{i % 7},{i % 5},{i % 2},{p}" for i, p in enumerate(part)]
    (tmp_path / "t.csv").write_text("id,x1,x2,y,part\n" + "\n".join(lines) + "\n")
    sections = {
        "data": {"file": str(tmp_path / "t.csv"), "label": "y", "id": "id", "active": "a",
                 "split": "part", "columns": {"a": ["x1"], "b": ["x2"]}},
        "algorithm": {"name": "splitnn", "epochs": 1, "returns_predictions": True},
        "defense": [{"name": "label_dp", "strength": [0, 1]}],
        "attack": [{"name": "membership", "references": references}],
        "audit": {"seeds": 2, "references": []},
    }  # fmt: skip
    notes = make_plan(load_scenario(sections, []), try_out=False).notes
    assert len([n for n in notes if "(left out)" in n]) == said
    assert len([n for n in notes if "label_dp changes labels" in n]) == 1


@pytest.mark.parametrize("count", [2, 3, 6, 7, 11, 13, 40])
def test_parts_that_are_left_out_are_of_one_size_and_hold_who_is_asked(count: int) -> None:
    """Of 11 trained rows they had 3, 3, 3, 2 and 3 and could not be stacked: the attack failed."""
    task = small_task(0, n=800)
    labelled = task.sets["labelled"][:count]
    sets = {k: labelled if k in ("labelled", "aligned") else v for k, v in task.sets.items()}
    task = replace(task, sets=sets, active_labelled=labelled)
    rows = asked_rows(task, 0, 1000)
    made, asked = tasks_without(task, rows)
    assert len({len(t.sets["labelled"]) for t in made}) == 1
    for row, part in zip(rows.tolist(), asked.tolist(), strict=True):
        assert row not in made[part].sets["labelled"].tolist()
    left = [set(labelled.tolist()) - set(t.sets["labelled"].tolist()) for t in made]
    assert set.union(*left) == set(labelled.tolist())
    assert all(left)
