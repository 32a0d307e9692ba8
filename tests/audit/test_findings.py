"""Sentences follow the intervals: the same words never cover two different findings."""

import re
from dataclasses import replace
from typing import Any

import gate_rows
import pytest
from gate_rows import STEADY, at, points_of, task

from vflsec.audit.findings import Finding, build_findings
from vflsec.audit.gate import Gate
from vflsec.audit.judge import judge
from vflsec.audit.result_row import ResultRow


def rows(
    value: float, control: float = 0.5, name: str = "majority", noise: Any = STEADY, **extra: Any
) -> list[ResultRow]:
    """Of an attack beside one control."""
    beside = {name: {"value": control, "cv": None if name == "majority" else control}}
    return gate_rows.rows(value - 0.5, noise, **{"controls": beside, **extra})


def told(records: list[ResultRow], *gates: Gate) -> list[str]:
    return [f.text for f in found(records, *gates)]


def found(records: list[ResultRow], *gates: Gate) -> list[Finding]:
    points = points_of(records)
    return build_findings(points, judge(points, gates, at(points)))


def figures(text: str) -> list[float]:
    """The figures of a sentence, in order."""
    return [float(x) for x in re.findall(r"[+-]?\d+\.\d+", text)]


def test_a_leak() -> None:
    (said,) = found(rows(0.99, 0.55, "own columns"))
    assert said.kind == "leak"
    assert figures(said.text) == [0.99, 0.55, 0.44, 0.43, 0.45]
    assert "direction by bank" in said.text


def test_a_leak_of_rows_that_were_trained_on_alone() -> None:
    """Where test rows leak nothing: that the attack is not shown to beat guessing was all that was
    said.
    """
    train = rows(0.99, 0.55, "own columns", split="train")
    (said,) = found([*train, *rows(0.5)])
    assert (said.kind, said.place.split) == ("leak", "train")
    assert figures(said.text)[:3] == [0.99, 0.55, 0.44]
    (usual,) = found([*train, *rows(0.8)])
    assert (usual.kind, usual.place.split, figures(usual.text)[0]) == ("leak", "test", 0.8)
    assert f"{usual.place.split} rows" in usual.text


def test_the_attackers_own_columns_predict_the_label() -> None:
    (said,) = found(rows(0.97, 0.97, "own columns"))
    assert (said.kind, figures(said.text)) == ("baseline_predicts", [0.97, 0.97, 0.0, -0.01, 0.01])
    (worse,) = found(rows(0.92, 0.97, "own columns"))
    assert figures(worse.text)[:3] == [0.92, 0.97, -0.05]


def test_nothing_found() -> None:
    (said,) = found(rows(0.5))
    assert (said.kind, figures(said.text)) == ("at_chance", [0.5, 0.0, -0.01, 0.01])


@pytest.mark.parametrize("own", [0.02, 0.38])
def test_a_small_error_is_better_than_guessing(own: float) -> None:
    """0.02 beside a chance of 0.38 was called guessing, for larger was taken for better."""
    of = {"metric": "share_error", "target": "property", "chance": 0.38, "attack": "property"}
    (said,) = found(rows(0.02, own, "sample", (-0.01, 0.03, 0.01, -0.02, 0.5), **of))
    assert (said.kind == "at_chance") == (own == 0.38)
    (said,) = found(rows(0.03, 0.02, "sample", **of))
    assert (said.kind, figures(said.text)[:3]) == ("baseline_predicts", [0.03, 0.02, -0.01])


def test_one_seed_concludes_nothing() -> None:
    (said,) = found(rows(0.99, noise=(0.0,)))
    assert (said.kind, said.interval, figures(said.text)[-1]) == ("single_seed", None, 0.49)


def test_what_stands_beside_nothing_is_no_leak() -> None:
    (said,) = found(rows(0.9, controls={}, chance=None))
    assert said.kind == "no_baseline"


def test_what_could_not_be_scored_is_no_figure() -> None:
    """Of a rare label all ones may be among the known rows."""
    records = [replace(r, value=None, controls={}) for r in rows(0.9)]
    after = [replace(r, defense="iso", strength=5.0) for r in records]
    kinds = [f.kind for f in found(records + after)]
    assert kinds == ["not_scored", "defense_undecided"]


@pytest.mark.parametrize(
    ("values", "kind", "strength", "gain"),
    [((0.99, 0.98), "not_stopped", 5.0, 0.48), ((0.99, 0.50), "stopped", 5.0, 0.0),
     ((0.50, 0.50), "stopped", 1.0, 0.0), ((0.50, 0.90), "stopped", 1.0, 0.0)],
)  # fmt: skip
def test_defenses(values: tuple[float, float], kind: str, strength: float, gain: float) -> None:
    records = [*rows(0.99), *task(0.9)]
    for k, v in zip((1.0, 5.0), values, strict=True):
        at = {"defense": "iso", "strength": k}
        records += [*rows(v, **at), *task(0.9 - 0.01 * k, **at)]
    _, said = found(records)
    assert (said.kind, said.place.strength) == (kind, strength)
    cost = 0.01 if values[0] == 0.5 else 0.05
    assert figures(said.text)[0] == gain
    assert figures(said.text)[-3:] == [cost] * 3


def test_a_cost_that_is_not_shown_and_one_not_measured() -> None:
    at = {"defense": "iso", "strength": 5.0}
    noise = (0.02, -0.02, 0.0, 0.01, -0.01)
    _, said = found([*rows(0.99), *task(0.9), *rows(0.5, **at), *task(0.9, noise, **at)])
    cost, low, high = figures(said.text)[-3:]
    assert cost == 0.0
    assert low < 0 < high
    _, unknown = found([*rows(0.99), *rows(0.5, **at)])
    assert "utility_drop" not in unknown.values


def test_a_defense_with_nothing_to_stop_is_not_talked_about() -> None:
    at = {"defense": "iso", "strength": 5.0}
    said = found([*rows(0.5), *task(0.9), *rows(0.5, **at), *task(0.8, **at)])
    assert [f.kind for f in said] == ["at_chance"]


def test_verdicts_and_gaps_are_told() -> None:
    gaps = [
        *rows(0.9),
        *rows(0, attack="norm", status="not-observable", reason="no gradients"),
        *rows(0, noise=(0.0,), attack="direction", seed=7, status="error", reason="diverged"),
    ]
    said = found(gaps, Gate(max=0.05, name="no leak"))
    assert [f.kind for f in said] == ["leak", "verdict", "failed", "not_measured"]
    assert all(f.place.dataset == "toy" and f.place.defense == "none" for f in said)
    texts = [f.text for f in said]
    assert texts[1].startswith("FAIL: no leak")
    assert "diverged" in texts[2]
    assert "no gradients" in texts[3]


def test_a_finding_holds_what_its_sentence_says() -> None:
    gate = Gate(max=0.05)
    leak, verdict = found(rows(0.99, 0.55, "own columns"), gate)
    at = leak.place
    assert (at.adversary, at.target, at.attack, at.metric) == ("bank", "label", "direction", "auc")
    assert verdict.place == at
    assert leak.values == pytest.approx({"value": 0.99, "control_value": 0.55, "advantage": 0.44})
    assert leak.interval == pytest.approx((0.4312, 0.4488), abs=1e-4)
    assert verdict.values == pytest.approx({"value": 0.44, "threshold": 0.05})
    assert verdict.text.startswith(f"FAIL: {gate.label}")


def test_nothing_to_tell() -> None:
    assert told([]) == []


def test_sentences_name_the_training_where_there_are_several() -> None:
    iso: dict[str, Any] = {"defense": "iso", "strength": 5.0, "cell": "iso"}
    records = []
    for algorithm in ("splitnn", "oneshot"):
        for r in rows(0.9) + rows(0.8, **iso):
            records.append(replace(r, algorithm=algorithm, cell=algorithm + r.cell))
    said = found(records)
    for algorithm in ("splitnn", "oneshot"):
        mine = [f for f in said if f.place.algorithm == algorithm]
        assert [f.kind for f in mine] == ["leak", "not_stopped"]
        assert all(algorithm in f.text for f in mine)


def test_membership_tells_its_hits_at_few_false_alarms_leak_or_not() -> None:
    """The AUC finds nothing, and yet one row in nine is certain; a defense takes it to two."""
    what = {"target": "membership", "adversary": "outsider", "attack": "membership"}
    few = {**what, "metric": "tpr_at_1pct_fpr", "chance": 0.01, "primary": "auc"}
    fewer = {**what, "metric": "tpr_at_01pct_fpr", "chance": 0.001, "primary": "auc"}
    noise = (-0.001, 0.0, 0.001, 0.0, 0.0)
    dp = {"defense": "dpsgd", "strength": 2.0}
    said = found(
        rows(0.5, **what) + rows(0.112, noise=noise, **few) + rows(0.034, noise=noise, **fewer)
        + rows(0.5, **what, **dp) + rows(0.021, noise=noise, **few, **dp)
        + rows(0.002, noise=noise, **fewer, **dp)
    )  # fmt: skip
    (hits,) = [f for f in said if f.kind == "membership"]
    assert figures(hits.text) == [11.2, 3.4, 0.1, 2.1, 0.2, 0.1, 1.0, 0.1]
    assert "membership" not in {f.kind for f in found(rows(0.5))}


def test_the_largest_leak_comes_first() -> None:
    records = [
        *rows(0.7, 0.55, "own columns", attack="norm"),
        *rows(0.5, attack="hints"),
        *rows(0.99, 0.55, "own columns"),
    ]
    said = found(records)
    assert [f.place.attack for f in said] == ["direction", "norm", "hints"]
    assert [f.kind for f in said] == ["leak", "leak", "at_chance"]


def test_a_finding_is_corrected_as_every_other_claim() -> None:
    """Alone it leaks; of twenty attacks of one attacker it is one that chance explains."""
    noise = (0.05, -0.01, 0.0, 0.03, 0.02)
    one = rows(0.53, noise=noise)
    assert [f.kind for f in found(one)] == ["leak"]
    others = [r for i in range(19) for r in rows(0.5, attack=f"a{i}")]
    assert "leak" not in {f.kind for f in found([*one, *others])}
    assert [f.kind for f in found([*one, *others], Gate(max=0.01, attack="direction"))][:1] == (
        ["leak"]
    ), "what a gate shows to be above its limit leaks"


def test_what_prints_as_nothing_is_not_called_a_leak() -> None:
    """R2 of 0.601 against 0.60, however sure; and an interval from -0.02 to 0.00."""
    exact = (0.0001, 0.0, -0.0001, 0.0, 0.0)
    r2 = {"metric": "r2", "chance": 0.0, "target": "feature"}
    for value in (0.603, 0.599):
        (said,) = found(rows(value, 0.6, "linear", noise=exact, **r2))
        assert said.kind == "baseline_predicts"
    (said,) = found(rows(0.59, 0.6, "linear", noise=(0.006, -0.01, 0.0, 0.006, -0.002), **r2))
    assert figures(said.text)[-2] == -0.02
    assert said.kind == "baseline_predicts"


def test_an_answer_in_reverse_is_said_to_be_one() -> None:
    (said,) = found(rows(0.01, 0.62, "logistic"))
    assert said.kind == "reversed_ranking"
    assert figures(said.text)[0] == 0.37


def test_a_defense_that_turns_the_answer_round_stops_nothing() -> None:
    open_ = rows(0.99, 0.62, "logistic")
    turned = rows(0.01, 0.62, "logistic", defense="coae", strength=0.1)
    said = found([*open_, *turned])[-1]
    assert (said.kind, said.place.strength) == ("reversed_ranking", 0.1)
    assert figures(said.text)[1] == 0.37
