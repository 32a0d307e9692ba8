"""Which attacks are shown to work, and where: nothing is pooled over places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gate_rows import points_of, rows
from scipy import stats

from vflsec.audit.gate import Gate
from vflsec.audit.judge import judge
from vflsec.audit.leakage_claims import correct, find_claims
from vflsec.audit.point import Grants
from vflsec.audit.result_row import ResultRow
from vflsec.audit.validated import Validation, find_validated, name_places


def shown(records: list[ResultRow], *control: ResultRow, **kw: Any) -> Any:
    planted = points_of(control) if control else None
    return find_validated(points_of(records), planted, **kw)


def told(found: Any) -> dict[str, Any]:
    """What is shown of each place, by its name."""
    return {name: found[place] for name, place in name_places(found).items()}


def test_alive_on_own_data_or_in_the_positive_control() -> None:
    own = [*rows(0.3), *rows(0.0, attack="norm"), *rows(0.001, attack="weak")]
    plain = told(shown(own))
    assert {k: v.validated for k, v in plain.items()} == {
        "direction": True,
        "norm": False,
        "weak": False,
    }
    assert plain["direction"].code == "undefended"
    assert plain["direction"].text == "advantage +0.300 on the undefended run, lower bound +0.290"
    both = told(shown(own, *rows(0.2, attack="norm", dataset="planted")))
    assert {k: v.validated for k, v in both.items()} == {
        "direction": True,
        "norm": True,
        "weak": False,
    }
    assert both["norm"].code == "positive_control"
    (never,) = shown(rows(0.3, defense="iso", strength=1.0)).values()
    assert (never.validated, never.code) == (False, "never_undefended")

    def first(records: list[ResultRow]) -> bool:
        return bool(next(iter(shown(records).values())).validated)

    assert not first(rows(0.3, (0.0,)))
    assert first(rows(0.3, defense="iso", strength=0.0))


def test_what_cannot_be_made_is_not_silent() -> None:
    """A gate sets it aside and passes, and a search said that no gate passes beside it."""
    gone = [replace(r, status=s) for s in ("not-applicable", "not-observable", "error")
            for r in rows(0.0, attack=s)]  # fmt: skip
    half = [replace(r, status="ok" if r.seed else "not-applicable") for r in rows(0, attack="half")]
    found = told(shown([*rows(0.3), *gone, *half]))
    assert {k: v.validated for k, v in found.items()} == {
        "direction": True, "error": False, "half": False,
    }  # fmt: skip


def test_alive_is_told_of_one_place_and_never_pooled() -> None:
    """An attack alive on one algorithm, data set, adversary or budget passes no gate elsewhere."""
    gate = Gate(max=0.05)
    for other in (
        {"algorithm": "fedbcd"}, {"dataset": "bank"}, {"adversary": "shop"}, {"known_rows": 200},
        {"attack_key": "of another section"},
    ):  # fmt: skip
        loud = rows(0.3, **other)  # type: ignore[arg-type]
        records = [*loud, *rows(0.0, attack_key="b")]
        places = shown(records)
        assert [v.validated for v in places.values()] == [True, False]
        summary = points_of(records)
        bare = summary[-1]
        quiet = [p for p in summary if p.attack_key == "b"]
        (verdict,) = judge(quiet, [gate], places)
        assert (verdict.verdict, verdict.rule) == ("INCONCLUSIVE", "not_validated")
        pooled = {bare.place: Validation(True, "as the earlier rule had it")}
        assert judge(quiet, [gate], pooled)[0].verdict == "PASS"


@pytest.mark.parametrize("planted", [0, 1, 2])
def test_a_planted_leak_of_another_kind_of_label_shows_nothing(planted: int) -> None:
    """An attack that found planted classes was shown to work on quantities, and passed there."""
    own = [r for name in "abcd" for r in rows(0.0, dataset=name)]
    classes = {"a": 0, "b": 1, "c": 2, "d": 7, "planted": planted}
    found = shown(own, *rows(0.3, dataset="planted"), classes=classes)
    yes = {place.dataset for place, v in found.items() if v.validated}
    assert yes == ({"a"}, {"b"}, {"c", "d"})[planted]


def test_the_positive_control_is_of_the_same_algorithm_side_and_budget() -> None:
    own = rows(0.0, known_rows=20)
    planted = {"dataset": "planted", "adversary": "passive"}
    sides = {"toy": "owner", "planted": "active"}
    (place,) = shown(own)

    def yes(**extra: Any) -> bool:
        more = rows(0.3, **planted | {"known_rows": 20} | extra)
        return bool(shown(own, *more, active=sides)[place].validated)

    assert yes()
    assert yes(known_rows=None)  # it says nothing about a budget
    assert not yes(algorithm="fedbcd")
    assert not yes(known_rows=200)
    assert not yes(adversary="active")


def test_the_positive_control_is_of_the_same_grants() -> None:
    """A leak found with the victim's own model says nothing of the attack without it."""
    own = [*rows(0.0, attack_key="plain"), *rows(0.0, attack_key="white")]
    planted = {"dataset": "planted", "adversary": "passive"}
    more = [
        *rows(0.3, attack_key="planted white", **planted),
        *rows(0.0, attack_key="planted plain", **planted),
    ]
    grants = {
        "white": Grants(peer_model=True, victim="shop"), "planted white": Grants(peer_model=True),
    }  # fmt: skip
    found = shown(own, *more, grants=grants)
    assert [(p.section, v.validated) for p, v in found.items()] == [
        ("plain", False),
        ("white", True),
    ]
    assert list(name_places(found, grants)) == [
        "direction", "direction against shop with the others' models",
    ]  # fmt: skip
    assert list(name_places(found)) == ["direction", "direction [white]"]


def test_an_attack_on_a_named_column_is_shown_to_work_on_another() -> None:
    """No column of the planted world is called so: there it ended in an error, and never passed."""
    own = rows(0.0, attack="attribute(column=zip)", attack_key="zip")
    more = rows(0.3, attack="attribute", attack_key="any", dataset="planted", adversary="passive")
    assert [v.validated for v in shown(own, *more).values()] == [False]
    renamed = {"planted_as": {"zip": "attribute"}}
    assert [v.validated for v in shown(own, *more, **renamed).values()] == [True]


def test_places_are_named_by_what_tells_them_apart() -> None:
    records = [*rows(0.3), *rows(0.3, attack="norm"), *rows(0.3, attack="norm", algorithm="fedbcd")]
    assert list(name_places(shown(records))) == [
        "direction", "norm trained by splitnn", "norm trained by fedbcd",
    ]  # fmt: skip


def test_alive_corrects_for_many_looks() -> None:
    noise = np.array([-0.02, 0.0, 0.02, 0.01, -0.01])
    shift = float(stats.t.isf(0.04, 4)) * noise.std(ddof=1) / np.sqrt(5)
    assert told(shown(rows(shift, noise)))["direction"].validated
    looks = [r for i in range(5) for r in rows(shift, noise, phase=f"p{i}")]
    assert not told(shown(looks))["direction"].validated


@pytest.mark.parametrize(("p", "yes"), [(0.024, True), (0.026, False)])
def test_a_look_at_a_positive_control_takes_half_of_the_error(p: float, yes: bool) -> None:
    """It took three quarters: a place that was shown at 0.024 of 0.05 was not."""
    noise = np.array([-0.02, 0.0, 0.02, 0.01, -0.01])
    shift = float(stats.t.isf(p, 4)) * noise.std(ddof=1) / np.sqrt(5)
    idle = rows(0.0, noise, dataset="planted")
    assert next(iter(shown(rows(shift, noise), *idle).values())).validated is yes


def test_a_place_says_how_many_seeds_would_show_that_an_attack_works() -> None:
    """Corrected for the places beside it: as many show it, and one fewer does not."""
    noise = (-0.06, 0.0, 0.06)

    def first(n: int, beside: int) -> Validation:
        spread = [float(x) for x in np.resize(noise, n) * np.std(noise, ddof=1)
                  / np.std(np.resize(noise, n), ddof=1)]  # fmt: skip
        idle = [r for i in range(beside) for r in rows(0.0, [0.0] * n, attack=f"a{i}")]
        shift = 0.05 - float(np.mean(spread))
        found = shown([*rows(shift, spread), *idle])
        return next(v for p, v in found.items() if p.attack == "direction")

    counts = []
    for beside in (0, 7):
        open_ = first(3, beside)
        assert not open_.validated
        assert open_.more_seeds is not None
        counts.append(open_.more_seeds)
        assert first(3 + open_.more_seeds, beside).validated
        assert not first(2 + open_.more_seeds, beside).validated
    assert counts[0] < counts[1]
    assert told(shown(rows(0.3)))["direction"].more_seeds is None
    assert told(shown(rows(-0.1)))["direction"].more_seeds is None
    assert told(shown(rows(0.0), *rows(0.01, noise, dataset="p")))["direction"].more_seeds is None


def test_no_attack_is_shown_to_work_by_luck_at_one_of_many_places() -> None:
    """At the level for one place of eight at chance each is by luck in 5 %, one of them in 34 %.

    Beside others that work a true one is judged as if alone; of another data set, attacker or
    target none counts.
    """
    noise = np.array([-0.02, 0.0, 0.02, 0.01, -0.01])
    shift = float(stats.t.isf(0.04, 4)) * noise.std(ddof=1) / np.sqrt(5)
    lucky, names = rows(shift, noise), [f"a{i}" for i in range(7)]
    idle = [r for name in names for r in rows(0.0, attack=name)]
    assert not told(shown([*lucky, *idle]))["direction"].validated
    loud = [r for name in names for r in rows(0.3, attack=name)]
    assert told(shown([*lucky, *loud]))["direction"].validated
    for other in ({"dataset": "other"}, {"adversary": "shop"}, {"target": "feature"}):
        assert told(shown([*lucky, *(replace(r, **other) for r in idle)]))["direction"].validated
    rng = np.random.default_rng(0)
    wrong = 0
    for _ in range(60):
        common = 0.02 * rng.standard_normal(5)
        null = [
            r
            for k in range(8)
            for r in rows(0.0, common + 0.02 * rng.standard_normal(5), attack=f"a{k}")
        ]
        wrong += any(v.validated for v in shown(null).values())
    assert wrong <= stats.binom.ppf(0.999, 60, 0.05)


def test_what_leaks_significantly_is_shown_to_work() -> None:
    """It was corrected for the attacks on other targets too: a report called an attack's leak
    significant, and said beside it that nothing shows it to work.
    """
    rng, leaks = np.random.default_rng(0), 0
    for _ in range(40):
        own = [
            r
            for k, (who, target) in enumerate([("shop", "label")] * 4 + [("bank", "feature")])
            for phase in ("", "late")[: 1 + k % 2]
            for r in rows(0.02 * k, 0.05 * rng.standard_normal(5), attack=f"a{k}", adversary=who,
                          target=target, phase=phase)
        ]  # fmt: skip
        idle = [replace(r, value=0.5, dataset="planted") for r in own]
        points = points_of(own)
        works = {p.attack for p, v in shown(own, *idle).items() if v.validated}
        found = {c.attack for c in find_claims(correct(points)) if c.is_leak}
        assert found <= works
        leaks += len(found)
    assert leaks > 20
