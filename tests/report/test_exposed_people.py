"""Who is exposed to whom, said in people."""

from __future__ import annotations

from dataclasses import replace

from vflsec.audit.controls import Against, Leakage
from vflsec.audit.exposed import ClassCount, Counts, Exposed
from vflsec.audit.gate import Gate, Verdict
from vflsec.audit.point import Point
from vflsec.report.exposed_people import find_exposed, format_exposed
from vflsec.report.summary import Summary


def point(named: float, **keys: str | float) -> Point:
    """5 trainings of 900 rows, of which luck names 2 each, and class 1 has most of the named."""
    counts = Counts(named, 10.0, 4500, 10.0, 5)
    seed = [ClassCount(0, named / 20, 450, 1.0), ClassCount(1, 3 * named / 20, 450, 1.0)]
    against = Against("logistic", 10 / 4500, counts.share, 0.001, 5, counts)
    at = {"dataset": "toy", "algorithm": "splitnn", "defense": "none", "strength": 0.0,
          "adversary": "shop", "attack": "norm", "target": "label", "victim": "bank",
          "split": "train", "metric": "exposed", "phase": "train"}  # fmt: skip
    return Point(
        **{**at, **keys}, leakage=Leakage((against,), "logistic"),
        exposed=Exposed.of("exposed", "logistic", counts, [seed] * 5, 0.95),
    )  # fmt: skip


def said(*points: Point, judged: str = "") -> list[str]:
    gates = (Verdict("toy", "splitnn", judged, 5.0, gate=Gate(max=0.1)),) if judged else ()
    return format_exposed("toy", find_exposed(Summary(points=points, gates=gates)))


def test_it_says_how_many_of_a_thousand_to_whom_and_the_worst_class() -> None:
    (line,) = said(point(235.0))
    assert line.startswith(
        "toy, without a defense: of 1,000 people 50 are exposed with certainty to shop, [4"
    )
    assert "beyond the 2 that its baseline (logistic) would name" in line
    assert line.endswith("by norm on train rows; of class 1, the worst, 76 of 1,000.")
    assert said(point(12.0)) == []


def test_each_attacker_victim_and_target_has_its_own_sentence() -> None:
    lines = said(
        point(235.0), point(300.0, attack="direction"), point(100.0, adversary="telco"),
        point(150.0, victim="shop2"), point(90.0, target="attribute"),
    )  # fmt: skip
    assert [line.split(" people ")[1].split()[0] for line in lines] == ["64", "20", "31", "18"]
    assert "by direction on train rows" in lines[0]
    assert "labels of shop2" in lines[2]
    assert "values of one column of bank" in lines[3]


def test_tries_are_corrected_for_and_only_judged_points_are_told() -> None:
    """Alone 36 rows are more than luck, among 60 attacks they are not."""
    assert len(said(point(36.0))) == 1
    assert said(*(point(36.0, attack=f"a{i}") for i in range(60))) == []
    defended = replace(point(235.0), defense="iso", strength=5.0)
    assert said(defended) == []
    assert said(defended, judged="iso")[0].startswith("toy, with iso 5: of 1,000 people 50 are")
