"""Sentences follow the intervals: the same words never cover two different findings."""

from typing import Any

import pytest

from vflsec.audit.findings import Finding, build_findings
from vflsec.audit.gate import Gate
from vflsec.audit.judge import judge
from vflsec.audit.leakage import results_frame, summarise
from vflsec.audit.validated import Validation

NOISE = (-0.01, 0.0, 0.01, 0.0, 0.0)


def rows(
    value: float, control: float = 0.5, name: str = "majority", noise: Any = NOISE, **extra: Any
) -> list[dict[str, Any]]:
    return [
        {
            "cell": f"{s}", "dataset": "toy", "algorithm": "splitnn", "seed": s, "split": "test",
            "adversary": "bank", "attack": "direction", "target": "label", "metric": "auc",
            "value": value + e, "n": 500, "chance": 0.5,
            "controls": {name: {"value": control, "cv": None if name == "majority" else control}},
        } | extra
        for s, e in enumerate(noise)
    ]  # fmt: skip


def task(value: float, noise: Any = NOISE, **extra: Any) -> list[dict[str, Any]]:
    gone = {"attack": "", "adversary": "", "target": "", "controls": {}}
    return rows(value, noise=noise, **{**gone, **extra})


def told(records: list[dict[str, Any]], *gates: Gate) -> list[str]:
    return [f.text for f in found(records, *gates)]


def found(records: list[dict[str, Any]], *gates: Gate) -> list[Finding]:
    summary = summarise(results_frame(records))
    shown = {p.place: Validation(True, "") for p in summary if p.attack}
    verdicts = judge(summary, gates, shown)
    return build_findings(summary, verdicts)


def test_a_leak() -> None:
    assert told(rows(0.99, 0.55, "own columns")) == [
        "On toy, the federation leaks to bank: direction reaches AUC 0.99 against 0.55 for its "
        "baseline (own columns) (+0.44, 95 % interval 0.43 to 0.45)."
    ]


def test_a_leak_of_rows_that_were_trained_on_alone() -> None:
    """Where test rows leak nothing: that the attack is not shown to beat guessing was all that was
    said.
    """
    train = rows(0.99, 0.55, "own columns", split="train")
    assert told([*train, *rows(0.5)]) == [
        "On toy, on train rows alone, the federation leaks to bank: direction reaches AUC 0.99 "
        "against 0.55 for its baseline (own columns) (+0.44, 95 % interval 0.43 to 0.45)."
    ]
    (usual,) = told([*train, *rows(0.8)])
    assert usual.startswith("On toy, the federation leaks to bank: direction reaches AUC 0.80")


def test_the_attackers_own_columns_tell_the_label() -> None:
    assert told(rows(0.97, 0.97, "own columns")) == [
        "On toy, what bank has already predicts the label (own columns: AUC 0.97); direction is "
        "not shown to add to that (+0.00, 95 % interval -0.01 to 0.01)."
    ]
    assert "direction does worse than that (-0.05" in told(rows(0.92, 0.97, "own columns"))[0]


def test_nothing_found() -> None:
    assert told(rows(0.5)) == [
        "On toy, direction by bank is not significantly better than guessing (AUC 0.50, chance "
        "0.50; advantage +0.00, 95 % interval -0.01 to 0.01)."
    ]


@pytest.mark.parametrize("own", [0.02, 0.38])
def test_a_small_error_is_better_than_guessing(own: float) -> None:
    """0.02 beside a chance of 0.38 was called guessing, for larger was taken for better."""
    of = {"metric": "share_error", "target": "property", "chance": 0.38, "attack": "property"}
    (text,) = told(rows(0.02, own, "sample", (-0.01, 0.03, 0.01, -0.02, 0.5), **of))
    assert ("guessing" in text) == (own == 0.38)
    (text,) = told(rows(0.03, 0.02, "sample", **of))
    assert text.startswith(
        "On toy, what bank has already predicts the property (sample: error of the share 0.02); "
        "property is not shown to add to that (-0.01"
    )


def test_one_seed_concludes_nothing() -> None:
    (text,) = told(rows(0.99, noise=(0.0,)))
    assert text.endswith("(+0.49); one seed gives no interval, so nothing is concluded.")


def test_what_could_not_be_scored_is_no_figure() -> None:
    """Of a rare label all ones may be among the known rows."""
    records = [r | {"value": None, "controls": {}} for r in rows(0.9)]
    after = [r | {"defense": "iso", "strength": 5.0} for r in records]
    assert told(records + after) == [
        "On toy, direction by bank has no AUC, so nothing is concluded; rows that are all of one "
        "class give none.",
        "On toy, iso against direction by bank: there is no figure.",
    ]


@pytest.mark.parametrize(
    ("values", "start"),
    [
        ((0.99, 0.98), "On toy, iso at strengths 1, 5 does not stop direction by bank (AUC 0.98 "
         "against 0.50 by guessing at 5)."),
        ((0.99, 0.50), "On toy, iso at strength 1 does not stop direction by bank "
         "(AUC 0.99 against 0.50 by guessing); at strength 5 it leaves no "
         "advantage that 5 seeds can show (+0.00, "
         "95 % interval -0.01 to 0.01)."),
        ((0.50, 0.50), "On toy, iso at strength 1 leaves direction by bank no advantage that 5 "
         "seeds can show (+0.00, 95 % interval -0.01 to 0.01)."),
        ((0.50, 0.90), "On toy, iso at strength 5 does not stop direction by bank "
         "(AUC 0.90 against 0.50 by guessing); at strength 1 it leaves no "
         "advantage that 5 seeds can show (+0.00, "
         "95 % interval -0.01 to 0.01)."),
    ],
)  # fmt: skip
def test_defenses(values: tuple[float, float], start: str) -> None:
    records = [*rows(0.99), *task(0.9)]
    for k, v in zip((1.0, 5.0), values, strict=True):
        at = {"defense": "iso", "strength": k}
        records += [*rows(v, **at), *task(0.9 - 0.01 * k, **at)]
    found = told(records)
    assert len(found) == 2
    assert found[1].startswith(start)
    cost = 0.01 if values[0] == 0.5 else 0.05
    assert f"costs {cost:.2f} of utility (AUC, 95 % interval {cost:.2f} to {cost:.2f})." in found[1]


def test_a_cost_that_is_not_shown_and_one_not_measured() -> None:
    at = {"defense": "iso", "strength": 5.0}
    noise = (0.02, -0.02, 0.0, 0.01, -0.01)
    found = told([*rows(0.99), *task(0.9), *rows(0.5, **at), *task(0.9, noise, **at)])[1]
    assert "At strength 5 it has no cost in utility that the seeds can show (0.00; AUC" in found
    assert "utility was not measured" in told([*rows(0.99), *rows(0.5, **at)])[1]


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
    assert texts[1].startswith("FAIL: no leak on toy with defense none. The advantage")
    assert texts[2:] == [
        "direction by bank on toy with defense none failed on 1 seed: diverged.",
        "norm by bank on toy with defense none was not measured (not-observable: no gradients).",
    ]


def test_a_finding_holds_what_its_sentence_says() -> None:
    gate = Gate(max=0.05)
    leak, verdict = found(rows(0.99, 0.55, "own columns"), gate)
    assert (leak.attacker, leak.target, leak.attack, leak.metric) == (
        "bank", "label", "direction", "auc",
    )  # fmt: skip
    assert leak.values == pytest.approx({"value": 0.99, "control_value": 0.55, "advantage": 0.44})
    assert leak.interval == pytest.approx((0.4312, 0.4488), abs=1e-4)
    assert verdict.values == pytest.approx({"value": 0.44, "threshold": 0.05})
    assert verdict.text.startswith(f"FAIL: {gate.label} on toy with defense none. ")


@pytest.mark.parametrize(
    ("records", "kind"),
    [
        (rows(0.99, 0.55, "own columns"), "leak"),
        (rows(0.97, 0.97, "own columns"), "baseline_predicts"),
        (rows(0.92, 0.97, "own columns"), "baseline_predicts"),
        (rows(0.5), "at_chance"),
        (rows(0.99, noise=(0.0,)), "single_seed"),
        (rows(0.01, 0.62, "logistic"), "reversed_ranking"),
        ([r | {"value": None, "controls": {}} for r in rows(0.9)], "not_scored"),
        ([r | {"controls": {}, "chance": None} for r in rows(0.9)], "no_baseline"),
    ],
)
def test_the_kind_of_what_is_found_without_a_defense(
    records: list[dict[str, Any]], kind: str
) -> None:
    (said,) = found(records)
    assert said.kind == kind


@pytest.mark.parametrize(
    ("values", "kind"),
    [((0.99, 0.98), "not_stopped"), ((0.99, 0.5), "stopped"), ((0.5, 0.5), "stopped"),
     ((0.01, 0.01), "reversed_ranking")],
)  # fmt: skip
def test_the_kind_of_what_a_defense_does(values: tuple[float, float], kind: str) -> None:
    records = rows(0.99)
    for k, v in zip((1.0, 5.0), values, strict=True):
        records += rows(v, defense="iso", strength=k)
    assert [f.kind for f in found(records)] == ["leak", kind]


def test_nothing_to_tell() -> None:
    assert told([]) == []


def test_sentences_name_the_training_where_there_are_several() -> None:
    iso: dict[str, Any] = {"defense": "iso", "strength": 5.0, "cell": "iso"}
    records = []
    for algorithm in ("splitnn", "oneshot"):
        for r in rows(0.9) + rows(0.8, **iso):
            records.append({**r, "algorithm": algorithm, "cell": algorithm + r["cell"]})
    found = told(records)
    for algorithm in ("splitnn", "oneshot"):
        start = f"On toy trained by {algorithm}, "
        assert sum(f.startswith(start + "the federation leaks") for f in found) == 1
        assert sum(f.startswith(start + "iso at strength 5 does not stop") for f in found) == 1


def test_membership_tells_its_hits_at_few_false_alarms_leak_or_not() -> None:
    """The AUC finds nothing, and yet one row in nine is certain; a defense takes it to two."""
    what = {"target": "membership", "adversary": "outsider", "attack": "membership"}
    few = {**what, "metric": "tpr_at_1pct_fpr", "chance": 0.01, "primary": "auc"}
    fewer = {**what, "metric": "tpr_at_01pct_fpr", "chance": 0.001, "primary": "auc"}
    noise = (-0.001, 0.0, 0.001, 0.0, 0.0)
    dp = {"defense": "dpsgd", "strength": 2.0}
    found = told(
        rows(0.5, **what) + rows(0.112, noise=noise, **few) + rows(0.034, noise=noise, **fewer)
        + rows(0.5, **what, **dp) + rows(0.021, noise=noise, **few, **dp)
        + rows(0.002, noise=noise, **fewer, **dp)
    )  # fmt: skip
    (hits,) = [s for s in found if "trained on" in s]
    assert hits == (
        "On toy, of the rows that were trained on membership by outsider names 11.2 % at 1 % false "
        "alarms and 3.4 % at 0.1 % false alarms; under dpsgd at strength 2: 2.1 % at 1 % false "
        "alarms and 0.2 % at 0.1 % false alarms; guessing would name 1.0 % and 0.1 %."
    )
    assert not any("trained on" in s for s in told(rows(0.5)))


def test_the_largest_leak_comes_first_and_is_told_in_people() -> None:
    """Of 100 who default, how many each could name, at the same false alarms."""
    found_at = {"metric": "tpr_at_1pct_fpr", "chance": 0.01, "primary": "auc"}
    records = [
        *rows(0.7, 0.55, "own columns", attack="norm"),
        *rows(0.5, attack="hints"),
        *rows(0.99, 0.55, "own columns"),
        *rows(0.63, 0.12, "own columns", **found_at),
    ]
    found = told(records)
    assert [f.split(":")[-1].split()[0] for f in found] == ["direction", "norm", "On"]
    assert found[0].endswith(
        " Of 100 rows of class 1 bank could name 63, against 12 without the "
        "federation, at one false alarm among 100 others."
    )
    assert "Of 100" not in found[1]


def test_what_prints_as_nothing_is_not_called_a_leak() -> None:
    """R2 of 0.601 against 0.60, however sure; and an interval from -0.02 to 0.00."""
    exact = (0.0001, 0.0, -0.0001, 0.0, 0.0)
    r2 = {"metric": "r2", "chance": 0.0, "target": "feature"}
    for value in (0.603, 0.599):
        (text,) = told(rows(value, 0.6, "linear", noise=exact, **r2))
        assert "leaks" not in text
        assert "is not shown to add to that" in text
    (text,) = told(rows(0.59, 0.6, "linear", noise=(0.006, -0.01, 0.0, 0.006, -0.002), **r2))
    assert "95 % interval -0.02 to -0.00" in text or "95 % interval -0.02 to 0.00" in text
    assert "leaks" not in text


def test_an_answer_in_reverse_is_said_to_be_one() -> None:
    (text,) = told(rows(0.01, 0.62, "logistic"))
    assert text == (
        "On toy, direction by bank ranks in reverse (AUC 0.01): with labels flipped it is 0.99 "
        "against 0.62 for its baseline (logistic), so whoever knows which way round it is has the "
        "labels."
    )


def test_a_defense_that_turns_the_answer_round_stops_nothing() -> None:
    open_ = rows(0.99, 0.62, "logistic")
    turned = rows(0.01, 0.62, "logistic", defense="coae", strength=0.1)
    text = next(t for t in told([*open_, *turned]) if "coae" in t)
    assert text == (
        "On toy, under coae at strength 0.1 direction by bank ranks in reverse (AUC 0.01): with "
        "labels flipped it is 0.99 against 0.62 for its baseline (logistic), so whoever knows "
        "which way round it is has the labels."
    )
