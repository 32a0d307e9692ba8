"""Who is exposed to whom, said in people."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from vflsec.audit.controls import Against, Leakage
from vflsec.audit.exposed import ClassCount, Counts, Exposed
from vflsec.audit.facts import DatasetFacts
from vflsec.audit.gate import Gate, Verdict
from vflsec.audit.leakage_claims import Quantity
from vflsec.audit.point import Estimate, Point
from vflsec.audit.summary import Summary
from vflsec.report.first_screen import LEAKS, MUCH, WHO, build_answer
from vflsec.report.statement import _INFERS, _SINGLE, build_receivers


def point(named: float, **keys: str | float) -> Point:
    """5 trainings of 900 rows, of which luck names 2 each, and class 1 has most of the named."""
    counts = Counts(named, 10.0, 4500, 10.0, 5)
    half: dict[str, Any] = {"rows": 450, "luck": 1.0, "own_sure": {"chance": 0.5}, "people": 900}
    seed = [ClassCount(0, named / 20, **half), ClassCount(1, 3 * named / 20, **half)]
    against = Against("logistic", 10 / 4500, counts.share, 0.001, 5, counts)
    at = {"dataset": "toy", "algorithm": "splitnn", "defense": "none", "strength": 0.0,
          "adversary": "shop", "attack": "norm", "target": "label", "victim": "bank",
          "split": "train", "metric": "exposed", "phase": "train"}  # fmt: skip
    return Point(
        **{**at, **keys}, leakage=Leakage((against,), "logistic"),
        exposed=Exposed.of("exposed", "logistic", counts, [seed] * 5, 0.95),
    )  # fmt: skip


def said(*points: Point, judged: str = "") -> list[str]:
    """The sentences on exposed rows, of which none is said where nobody is."""
    return [line for line in who(*points, judged=judged) if " names " in line]


def who(*points: Point, judged: str = "") -> list[str]:
    """Those, and the sentences on what is not significant."""
    gates = (Verdict("toy", "splitnn", judged, 5.0, gate=Gate(max=0.1)),) if judged else ()
    summary = Summary(points=(*points, *map(mean_of, points)), gates=gates)
    lines = next(a.lines for a in build_answer(summary)["toy"] if a.question == WHO)
    return [line for line in lines if "of 1,000 rows" in line]


def mean_of(p: Point) -> Point:
    """The same answer's AUC, which shows no leak."""
    control = Against("logistic", 0.6, 0.01, 0.03, 5)
    return Point(
        **p.identity.as_dict() | {"metric": "auc"}, primary="auc", value=Estimate(0.61), n=900,
        leakage=Leakage((control,), "logistic"), advantage=Estimate(0.01, low=-0.02, high=0.04),
    )  # fmt: skip


def test_a_bound_below_nothing_leaves_none_open() -> None:
    """It read "Up to -388 more of 1,000 rows are not excluded"."""
    own = Against("logistic", 0.5, -0.4, 0.01, 5)
    (line,) = who(replace(point(0.0), leakage=Leakage((own,), "logistic")))
    assert re.findall(r"-?\d+", line) == ["0", "1", "000"]


def test_it_says_how_many_of_a_thousand_to_whom_and_the_worst_class() -> None:
    first, *_ = said(point(235.0))
    assert first.startswith("Without a defense, shop names 50 [40, 60] more of 1,000 rows")
    assert "its baseline, which names 2 (labels of bank, by norm" in first
    summary = Summary(points=(point(235.0), mean_of(point(235.0))))
    (lines,) = (a.lines for a in build_answer(summary)["toy"] if a.question == WHO)
    assert lines[-1] == "Most exposed are rows of class '1': 76 more of 1,000."
    named = replace(summary, parties={"toy": DatasetFacts(class_names=("kept", "lost"))})
    (lines,) = (a.lines for a in build_answer(named)["toy"] if a.question == WHO)
    assert "'lost': 76" in lines[-1]
    assert said(point(12.0)) == []


def test_each_attacker_victim_and_target_has_its_own_sentence() -> None:
    lines = said(
        point(235.0), point(300.0, attack="direction"), point(100.0, adversary="telco"),
        point(150.0, victim="shop2"), point(90.0, target="attribute"),
    )  # fmt: skip
    named = [line.split(" names ")[1].split()[0] for line in lines]
    assert named == ["64", "20", "31", "18"]
    assert "by direction" in lines[0]
    assert "labels of shop2" in lines[2]
    assert "values of one column of bank" in lines[3]


def test_tries_are_corrected_for_and_only_judged_points_are_told() -> None:
    """Alone 36 rows are more than luck, among 60 attacks they are not."""
    assert len(said(point(36.0))) == 1
    assert said(*(point(36.0, attack=f"a{i}") for i in range(60))) == []
    defended = replace(point(235.0), defense="iso", strength=5.0)
    assert said(defended) == []
    assert said(defended, judged="iso")[0].startswith("With iso 5, shop names 50 [40, 60] more")


def among(scored: int, people: int) -> Summary:
    """The point, of 900 rows that can be named, and so many that are scored."""
    few = replace(point(235.0), n=900, primary="auc")
    counts = few.leakage.least.counts  # type: ignore[union-attr]
    assert counts is not None
    seed = [ClassCount(0, 47.0, 900, 1.0, people=people)]
    exposed = Exposed.of("exposed", "logistic", counts, [seed] * 5, 0.95)
    parties = {"toy": DatasetFacts(("bank", "shop"))}
    few = replace(few, exposed=exposed)
    return Summary(points=(few, replace(mean_of(few), n=scored)), parties=parties)


def test_people_of_a_class_that_is_left_out_are_no_part_of_the_thousand() -> None:
    """Of 9,000 people who were scored 900 could be named: 50 of 1,000 of these are 5 of all.

    Where 900 people have 9,000 rows, nobody is left out, and it is said whose rows they are.
    """
    for scored, people, is_part in ((900, 900, False), (9000, 9000, True), (9000, 900, False)):
        summary = among(scored, people)
        (exposed,) = (p.exposed for p in summary.points if p.exposed)
        assert (exposed.people, exposed.is_part) == (people, is_part)
        assert [c.is_part for c in summary.claims if c.quantity is Quantity.EXPOSED] == [is_part]
        answers = {a.question: a.lines for a in build_answer(summary)["toy"]}
        (table, *_) = build_receivers(summary).blocks
        cell = str(table.rows[0][2].text)  # type: ignore[union-attr]
        for text in (answers[LEAKS][0], answers[MUCH][0], answers[WHO][0], cell):
            assert ("outside the largest class" in text) == is_part
        counted = [line for line in answers[WHO] if "900 groups, which have 9,000 rows" in line]
        assert len(counted) == (people < scored)


def test_rows_that_are_not_significant_are_said_where_a_gate_judges() -> None:
    """4 of 1,000 rows stood for no defense, and nothing for 90 with one, on which a gate was open.

    Nor does a small leak that is significant hide a larger one that is not.
    """
    loud = point(405.0, defense="iso", strength=5.0)
    wide = replace(loud, leakage=Leakage((Against("logistic", 0.002, 0.088, 0.1, 5),), "logistic"))
    swept = replace(wide, strength=1.0)
    lines = who(point(36.0), wide, swept, judged="iso")
    assert [re.findall(r"\d+", line.split(" more")[0]) for line in lines] == [
        ["6", "1", "11"], ["5", "183"],
    ]  # fmt: skip
    both = who(point(36.0), replace(wide, defense="none", strength=0.0, attack="direction"))
    assert [int(k) for k in re.findall(r"Up to (\d+)", " ".join(both))] == [183]
    vague = replace(loud, leakage=Leakage((Against("logistic", 0.002, 2.0, 2.2, 5),), "logistic"))
    assert len(who(point(36.0), vague, judged="iso")) == 1
    single = replace(
        wide,
        adversary="bureau",
        leakage=Leakage((Against("logistic", 0.0, 0.0, 0.1, 1),), "logistic"),
    )
    assert len(who(point(36.0), wide, single, judged="iso")) == 1  # nothing bounds what it learns


def test_no_page_says_that_nothing_leaks_beside_people_who_are_exposed() -> None:
    """Exposed rows move an average too little to be shown."""
    people, facts = point(235.0, primary="auc"), {"toy": DatasetFacts(("bank", "shop"))}
    for points, exposed in (((mean_of(people),), False), ((mean_of(people), people), True)):
        summary = Summary(points=points, parties=facts, versions={"vflsec": "1"})
        (table, *_) = build_receivers(summary).blocks
        cell = table.rows[0][2]  # type: ignore[union-attr]
        assert isinstance(cell, str) != exposed  # a leak has a tone
        leak = next(a.lines[0] for a in build_answer(summary)["toy"] if a.question == LEAKS)
        assert ("50 more of 1,000" in leak) == exposed


def test_the_first_lines_say_how_many_are_named() -> None:
    """987 of 1,000 were single rows."""
    many = point(4450.0, primary="auc")
    summary = Summary(points=(mean_of(many), many), parties={"toy": DatasetFacts(("bank", "shop"))})
    lines = {a.question: a.lines for a in build_answer(summary)["toy"]}
    assert "shop names 987 more of 1,000" in lines[LEAKS][0]
    assert "987 more of 1,000" in lines[MUCH][0]
    cells = []
    for p in (many, point(235.0, primary="auc")):
        parties = {"toy": DatasetFacts(("bank", "shop"))}
        (table, *_) = build_receivers(Summary(points=(mean_of(p), p), parties=parties)).blocks
        cells.append(str(table.rows[0][2].text).split(";")[0])  # type: ignore[union-attr]
    assert cells == [_INFERS, _SINGLE]


def test_whether_it_leaks_counts_exposed_rows_beside_leaks_elsewhere() -> None:
    """A leak on average under one defense hid the rows that were exposed under others.

    "No significant leak without a defense" stood above "shop names 50 of 1,000 rows" there.
    """
    undefended, weak = point(235.0), point(235.0, defense="iso", strength=1.0)
    loud = mean_of(point(235.0, defense="iso", strength=5.0))
    control = Against("logistic", 0.6, 0.3, 0.01, 5)
    loud = replace(loud, leakage=Leakage((control,), "logistic"), advantage=Estimate(0.3))
    quiet = mean_of(point(235.0, defense="iso", strength=25.0))
    summary = Summary(points=(undefended, mean_of(undefended), weak, mean_of(weak), loud, quiet))
    leak = next(a.lines[0] for a in build_answer(summary)["toy"] if a.question == LEAKS)
    leaking, single, rest = leak.split(". ")
    assert "iso 5" in leaking
    assert {"without a defense", "with iso 1:"} == {
        at for at in ("without a defense", "with iso 1:", "with iso 5", "iso 25") if at in single
    }
    assert "iso 25" in rest
    assert [part.startswith("Yes") for part in (leaking, single, rest)] == [True, True, False]
