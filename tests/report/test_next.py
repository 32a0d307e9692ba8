"""What to do next: commands that name what was judged, to the last digit, and a step for each gate
that stays open."""

from __future__ import annotations

import copy
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from audited import LEAKY, SCENARIO, SEALED, Planted, audited, gate
from first_screens import LIMIT, NONE
from generated import make_point, make_summary
from printed import next_steps

from vflsec.audit.gate import INCONCLUSIVE, Gate, Rule
from vflsec.audit.leakage_claims import Quantity
from vflsec.audit.point import Estimate
from vflsec.audit.record import Acting, Command
from vflsec.audit.rounding import show_exact
from vflsec.audit.strength_grid import GridRow
from vflsec.audit.summary import Cells, Summary, read_summary
from vflsec.cli import main
from vflsec.cli.arguments import find_given
from vflsec.config.scenario import load_scenario
from vflsec.config.sections import Gate as GateSection
from vflsec.engine.audit_record import find_runnable
from vflsec.engine.run import run_audit
from vflsec.engine.tune_advice import list_acting
from vflsec.plan.planner import make_plan
from vflsec.report import advice, coverage
from vflsec.report.first_screen import describe_cheapest, describe_scope
from vflsec.report.steps import find_step
from vflsec.report.tree import StepKind

THIRD = 1 / 3  # what `epsilon = [3]` is as a strength


@pytest.mark.parametrize("x", [0.1, 5.0, 25.0, THIRD, 0.1234567, 1e-9, 123456.7, 1e22])
def test_a_number_in_a_command_is_that_number(x: float) -> None:
    assert float(show_exact(x)) == x
    assert len(show_exact(x)) <= len(repr(x))


def test_an_advised_command_asks_all_that_a_gate_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Phase, algorithm and confidence were left out, so that another gate was judged."""
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(
        "vflsec.cli.gate._find_limit", lambda given, _: asked.append(find_given("Gate", given))
    )
    strings = {"metric": "advantage", "of": "accuracy", "target": "label"}
    for limit in ({"max": 0.1, "detect": 0.05}, {"min": -0.5}):
        section = {k: strings.get(k, "x y") for k, f in GateSection.model_fields.items()
                   if isinstance(f.default, str)}  # fmt: skip
        section |= {"strength": THIRD, "confidence": 0.99} | limit
        summary = Summary(command=Command(folder="out"))
        command = advice._judge(Gate(**section), summary, {"dataset": "bank"})
        main.main(shlex.split(command)[1:])
        rest = {k: v for k, v in section.items() if k not in ("metric", "name")}
        assert asked.pop() == rest | {"dataset": "bank"}


def test_commands_name_the_strength_and_the_limits_to_the_last_digit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At epsilon 3 the step was `--strength 0.333333`, which no audit has: it ended with 2, and
    `--max=0.123457` asks for less than the gate did."""
    gates = gate(max=0.1234567, strength=0) + gate(metric="utility_drop", max=0.0654321)
    grid = f"defense.0.strength=[0, {THIRD!r}]"
    found = audited(tmp_path, Planted(LEAKY, SEALED), gates, set=[grid])
    step = next_steps(found.summary)[0]
    words = shlex.split(step.command)
    assert f"--strength={THIRD!r}" in words
    assert "--max=0.1234567" in words
    assert f"use iso {THIRD!r} with" in step.text
    assert main.main(words[1:]) == 0
    none = copy.deepcopy(found.summary)
    for row in none["grid"]:
        row |= {"passed": 0, "cheapest": False}
    sought = next_steps(none)[0].command
    assert "--leak=0.1234567 --drop=0.0654321" in sought
    assert shlex.split(sought)[3:5] == ["--set", grid]  # else the scenario is another one
    idle = {"kind": "defense_idle", "place": {"dataset": "breast_cancer", "defense": "iso"}}
    none["findings"].append(idle)  # which no strength of it changes
    other = next_steps(none)[0]
    assert other.kind is StepKind.OTHER_DEFENSES
    assert "--defense iso" not in other.command
    assert "--leak=0.1234567 --drop=0.0654321" in other.command
    for limit, said in (("error_removed", "--leak=0.1234567 --drop=0.0654321 --of error_removed"),
                        ("", "--leak=0.1234567 --drop=0.0654321")):  # fmt: skip
        asked = copy.deepcopy(none)
        added = copy.deepcopy(asked["gates"][0])
        asked["gates"][0]["gate"]["of"] = limit
        added["gate"] |= {"of": "accuracy", "max": 0.01}
        asked["gates"].append(added)
        assert next_steps(asked)[0].command.endswith(said)
    capsys.readouterr()
    where = ["gate", str(found.folder), "--max", "0.1", "--defense", "iso", "--strength"]
    assert main.main([*where, "0.333333"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"one of 0, {THIRD!r}, got 0.333333." in said
    assert main.main([*where, repr(THIRD)]) == 0


def test_a_failing_attack_has_a_step(tmp_path: Path) -> None:
    """Nothing was advised where an attack that fails keeps a gate open."""
    found = audited(tmp_path, Planted(SEALED, SEALED, fails=("norm",)), gate(max=0.2))
    assert {v["verdict"] for v in found.summary["gates"]} == {"INCONCLUSIVE"}
    step = next_steps(found.summary)[0]
    assert {v["rule"] for v in found.summary["gates"]} == {step.kind} == {"failed_runs"}
    (v, *_) = found.summary["gates"]
    assert "5 seeds of norm failed (it broke)" in v["reason"]
    assert (v["label"] in step.text, v["reason"] in step.text) == (True, False)
    assert shlex.split(step.command)[:2] == ["vflsec", "audit"]


@pytest.mark.parametrize(
    ("lost", "target", "command"),
    [
        ({"status": "error", "failed": 5}, "label", "vflsec audit case.toml"),
        ({"unscored": 5}, "label", "vflsec show gate"),
        ({"status": "not-observable"}, "label", "vflsec show direction"),
        ({"status": "not-observable"}, "membership", "vflsec show gate"),
    ],
)
def test_what_lacks_a_figure_is_mended_by_its_cause(
    monkeypatch: pytest.MonkeyPatch, lost: dict[str, Any], target: str, command: str
) -> None:
    """Another attack was advised where nobody gets what such an attack reads, and for any cause."""
    monkeypatch.setattr(advice, "find_uncovered", lambda _: ["embedding_inversion", "direction"])
    point = make_point(NONE, "norm", target, 0.1)
    bare = {"value": Estimate(), "advantage": Estimate(), "leakage": None, "exposed": None}
    found = make_summary([replace(point, **bare, **lost)], [replace(LIMIT, target=target)])
    (step, *_) = next_steps(found)
    assert (step.kind, step.command.split()[:3]) == (StepKind.FAILED_RUNS, command.split())


def test_a_ranking_in_reverse_has_a_step(tmp_path: Path) -> None:
    """An AUC of 0.05 is a leak to whoever knows which way round it is, and nothing was advised."""
    found = audited(
        tmp_path, Planted(LEAKY, {"norm": -0.5, "model_completion": 0.0}), gate(max=0.1, strength=5)
    )
    (verdict,) = found.summary["gates"]
    assert (verdict["verdict"], verdict["rule"]) == ("INCONCLUSIVE", "reversed_ranking")
    step = next_steps(found.summary)[0]
    assert step.kind is StepKind.REVERSED_RANKING
    words = shlex.split(step.command)
    assert words[:2] == ["vflsec", "tune"]
    assert words[words.index("--high") + 1] == "100"


@pytest.mark.parametrize(("spread", "shown"), [(0.01, True), (0.4, False)])
def test_a_ranking_in_reverse_that_is_not_significant_may_leak(spread: float, shown: bool) -> None:
    point = make_point(NONE, "norm", "label", -0.5, spread)
    found = make_summary([point], [LIMIT])
    (v,) = found.gates
    found = replace(found, gates=(replace(v, rule=Rule.REVERSED_RANKING, more_seeds=None),))
    text = advice.next_steps(found)[0].text
    assert (text.startswith("norm leaks"), text.startswith("norm may leak")) == (shown, not shown)


def test_seeds_are_not_advised_as_if_they_passed_a_gate_that_is_stuck() -> None:
    """Of three gates two were stuck: 150 seeds were advised, and no gate of the two was named."""
    found = make_summary([make_point(NONE, "norm", "label", 0.1, 0.2)], [LIMIT])
    (v,) = found.gates
    stuck = [replace(v, stuck=True, more_seeds=None, rule=Rule.UNDECIDED, label=x) for x in "ab"]
    both = (replace(v, more_seeds=150, stuck=False, label="c"), *stuck)
    steps = advice.next_steps(replace(found, gates=both))
    assert [s.kind for s in steps[:2]] == [StepKind.STUCK, StepKind.MORE_SEEDS]
    assert [f"'{x}'" in steps[0].text for x in "abc"] == [True, True, False]
    assert " 150 more" in steps[1].text
    assert "--until-decided" in steps[1].command
    (alone, *_) = advice.next_steps(replace(found, gates=both[:1]))
    assert len(alone.text) < len(steps[1].text)
    assert alone.command == steps[1].command


@pytest.mark.parametrize(("more", "other"), [(3, False), (20, False), (187, True)])
def test_beside_many_seeds_another_way_is_named(more: int, other: bool) -> None:
    """`--until-decided 192` was all that was said, after five trainings."""
    found = make_summary([make_point(NONE, "norm", "label", 0.1, 0.2)], [LIMIT])
    (v,) = found.gates
    open_ = replace(v, more_seeds=more, stuck=False, rule=Rule.UNDECIDED)
    (step, *_) = advice.next_steps(replace(found, gates=(open_,)))
    assert step.kind is StepKind.MORE_SEEDS
    assert (f" {more} more" in step.text, "known_rows" in step.text) == (True, other)


@pytest.mark.parametrize(("seeds", "said"), [
    ([0, 1, 2], "3"), (range(3), "3"), ((2, 0, 1), "[2, 0, 1]"), ([1, 2], "[1, 2]"), (3, "3"),
])  # fmt: skip
def test_seeds_are_advised_as_a_count_where_they_are_one(
    tmp_path: Path, seeds: Any, said: str
) -> None:
    path = tmp_path / "case.toml"
    path.write_text(SCENARIO)
    found = run_audit(path, tmp_path / "out", seeds=seeds, backend=Planted(SEALED).backend())
    words = shlex.split(advice.format_command(read_summary(found.summary), "audit"))
    assert words[-2:] == ["--set", f"audit.seeds={said}"]


@pytest.mark.parametrize(("gain", "spread", "seeds", "opened", "asks"), [
    (0.4, 0.2, 3, True, True), (0.0, 0.2, 3, True, True), (0.3, 0.1, 1, True, True),
    (0.0, 0.01, 5, False, False), (0.4, 0.01, 5, False, False),
])  # fmt: skip
def test_too_few_seeds_to_show_anything_ask_for_more(
    gain: float, spread: float, seeds: int, opened: bool, asks: bool
) -> None:
    """An AUC of 1.00 that is not significant read "No significant leak", and nothing was advised
    where no gate asks.
    """
    found = make_summary([make_point(NONE, "norm", "label", gain, spread, seeds=seeds)], [])
    (c,) = (c for c in found.claims if c.quantity is Quantity.LEAKAGE)
    steps = advice.next_steps(found)
    assert c.is_open is opened
    assert [s.kind for s in steps][: 1 + asks] == [StepKind.MORE_SEEDS, StepKind.SET_LIMIT][
        not asks :
    ]
    if asks and seeds > 1:
        words = shlex.split(steps[0].command)
        count = seeds + (c.more_seeds or 0)
        assert int(words[words.index("--until-decided") + 1]) == max(seeds + 5, count)
        for n, still in ((count, False), (count - 1, True)):
            point = make_point(NONE, "norm", "label", gain, spread, seeds=n)
            (c,) = (c for c in make_summary([point], []).claims if c.quantity is Quantity.LEAKAGE)
            assert c.is_open is still


def test_beside_a_baseline_that_leaves_little_nothing_is_open() -> None:
    """All that is left is less than gates usually allow: no seeds are asked for to exclude it."""
    point = make_point(NONE, "norm", "label", 0.0, 0.2, seeds=3)
    full = replace(point, value=replace(point.value, mean=0.95))
    assert next(c.is_open for c in make_summary([point], []).claims) is True
    assert next(c.is_open for c in make_summary([full], []).claims) is False


@pytest.mark.parametrize(("more", "kinds"), [
    ((4, 7), [StepKind.VALIDATE_BY_SEEDS]), ((None, 21), [StepKind.NOT_VALIDATED]),
    ((4, None), [StepKind.NOT_VALIDATED, StepKind.VALIDATE_BY_SEEDS]),
])  # fmt: skip
def test_seeds_are_advised_where_they_would_validate(more: Any, kinds: list[StepKind]) -> None:
    """More labelled rows were to be granted where a few seeds were missing."""
    points = [make_point(NONE, name, "label", 0.01) for name in ("norm", "cluster")]
    found = make_summary(points, [LIMIT], validated=False)
    of = {p.attack: (p.place, n) for p, n in zip(points, more, strict=True)}
    shown = {k: replace(a, place=of[k][0], more_seeds=of[k][1]) for k, a in found.alive.items()}
    found = replace(found, alive=shown)
    steps = [s for s in advice.next_steps(found) if s.kind in kinds]
    assert sorted(s.kind for s in steps) == kinds
    for s in steps:
        if s.kind is StepKind.VALIDATE_BY_SEEDS:
            words = shlex.split(s.command)
            budget = int(words[words.index("--until-decided") + 1])
            assert budget == 5 + max(5, *(x for x in more if x))
            assert "cluster" in s.text or more[1] is None


def test_a_leak_that_an_auc_cannot_reach_is_not_detectable() -> None:
    """0.55 was given as the smallest detectable leak; no AUC is more than 0.5 above chance."""
    found = make_summary([make_point(NONE, "norm", "label", 0.1, 0.2)], [LIMIT])
    (v,) = found.gates
    said = []
    for least in (0.49, 0.55):
        limits = replace(v, detectable={"norm": least}, units={"norm": "auc"})
        text = describe_scope(replace(found, gates=(limits,)))
        said.append(("0.49" in text, "0.55" in text))
    assert said == [(True, False), (False, False)]
    sizes = {"norm": 0.2, "direction": 0.1, "hints": 0.3}
    units = {"norm": "auc", "direction": "auc", "hints": "exposed"}
    text = describe_scope(replace(found, gates=(replace(v, detectable=sizes, units=units),)))
    assert "0.2 of AUC and 300 of 1,000 rows named with certainty" in text


def test_seeds_for_a_typed_gate_are_judged_by_it_again() -> None:
    """`--until-decided` asks the scenario's gates, which may be decided, and adds none."""
    found = make_summary([make_point(NONE, "norm", "label", 0.1, 0.2)], [LIMIT])
    (v,) = found.gates
    v = replace(v, stuck=False, more_seeds=6, rule=Rule.UNDECIDED)
    command = Command("a.toml", (), "out/a", gate=True)
    (step, *_) = advice.next_steps(replace(found, gates=(v,), command=command))
    audit, _, gate = step.command.partition(" && ")
    assert shlex.split(audit)[1:3] == ["audit", "a.toml"]
    assert int(shlex.split(audit)[-1]) == v.n + 6
    assert shlex.split(gate)[:3] == ["vflsec", "gate", "out/a"]
    assert float(gate.rpartition("--max=")[2]) == v.gate.max


def test_seeds_with_nothing_to_score_are_counted_and_lack_nothing() -> None:
    """Of ten trainings five had no row of a rare class: as many seeds are advised twice over."""
    point = make_point(NONE, "norm", "label", 0.08, 0.05)
    assert point.leakage is not None
    more = point.leakage.seeds_until(LIMIT.threshold, 0.05, 0.05)
    half = {"planned": 10, "unscored": 5, "leakage": replace(point.leakage, trainings=2.0)}
    rare = replace(point, **half)
    found = make_summary([rare], [LIMIT])
    assert found.gates[0].more_seeds == 2 * more
    (step, *_) = advice.next_steps(replace(found, command=Command("a.toml", (), "out/a")))
    assert int(shlex.split(step.command)[-1]) == 10 + 2 * more
    sure = replace(rare, leakage=make_point(NONE, "norm", "label", 0.0).leakage)
    assert make_summary([sure], [LIMIT]).gates[0].verdict == "PASS"
    lost = make_summary([replace(sure, unscored=0)], [LIMIT]).gates[0]
    assert lost.rule is Rule.UNDERPOWERED


@pytest.mark.parametrize(("target", "rows"), [
    ("label", "known_rows"), ("attribute", "aux_rows"), ("membership", "test rows"),
])  # fmt: skip
def test_more_rows_are_those_that_the_attack_takes(target: str, rows: str) -> None:
    found = make_summary([make_point(NONE, "norm", "label", 0.1, 0.2)], [LIMIT])
    (v,) = found.gates
    v = replace(v, stuck=True, more_seeds=None, rule=Rule.UNDECIDED, target=target)
    assert f"more {rows}," in advice.next_steps(replace(found, gates=(v,)))[0].text


def test_no_seeds_are_advised_beside_a_failed_gate(tmp_path: Path) -> None:
    """`--until-decided` ends at a FAIL: the step added no seed, and was advised again."""
    gates = gate(max=0.2) + gate(metric="utility_drop", max=0.1)
    found = audited(tmp_path, Planted(LEAKY, SEALED), gates).summary
    for v in found["gates"]:
        v |= {"verdict": "INCONCLUSIVE", "more_seeds": 3, "rule": "undecided", "dead": ()}
    assert "--until-decided" in next_steps(found)[0].command
    found["gates"][0]["verdict"] = "FAIL"
    assert not [s for s in next_steps(found) if "--until-decided" in s.command]


def test_a_limit_on_exposed_people_is_no_limit_of_averages(tmp_path: Path) -> None:
    """`tune` takes that one from the gate itself."""
    found = audited(tmp_path, Planted(LEAKY, LEAKY), gate(max=0.1) + gate(max=0.2)).summary
    average = next_steps(found)[0]
    for v in found["gates"]:
        v["gate"]["of"] = "exposed" if v["gate"]["max"] == 0.1 else ""
    people = next_steps(found)[0]
    assert shlex.split(people.command)[:2] == ["vflsec", "tune"]
    assert people.text == average.text
    assert "--leak=0.1" in shlex.split(average.command)
    assert "--leak=0.2" in shlex.split(people.command)


def test_a_search_has_the_seeds_that_a_gate_asks_for(tmp_path: Path) -> None:
    """It trained on two seeds, as the audit had, and then said that nothing passes on those."""
    found = audited(tmp_path, Planted(LEAKY, LEAKY), gate(max=0.1)).summary
    assert "--seeds" not in shlex.split(next_steps(found)[0].command)
    few = read_summary(found)
    few = replace(few, points=tuple(replace(p, seeds=2) for p in few.points))
    words = shlex.split(advice.next_steps(few)[0].command)
    assert words[:2] == ["vflsec", "tune"]
    assert words[words.index("--seeds") + 1] == "5"


@pytest.mark.parametrize("rule", [r for r in Rule if r.verdict == INCONCLUSIVE])
@pytest.mark.parametrize("stuck", [True, False])
def test_whatever_keeps_a_gate_open_has_a_step(rule: Rule, stuck: bool) -> None:
    """It had none where another gate was open for a reason of its own."""
    found = make_summary([make_point(NONE, "norm", "label", 0.1, 0.2)], [LIMIT])
    (v,) = found.gates
    open_ = replace(v, rule=rule, stuck=stuck, more_seeds=None, label="aha", reason="Xyz.")
    asked = (replace(v, more_seeds=3, stuck=False, label="b"), open_)
    steps = advice.next_steps(replace(found, gates=asked))
    kinds = [find_step(v) for v in asked]
    assert kinds[0] is StepKind.MORE_SEEDS is not kinds[1]
    assert {*kinds} <= {s.kind for s in steps}
    (step,) = (s for s in steps if s.kind is kinds[1])
    of_attack = kinds[1] in (StepKind.NOT_VALIDATED, StepKind.REVERSED_RANKING)
    assert (v.attack if of_attack else "'aha'") in step.text
    assert open_.reason not in step.text  # it stands beside the gate


@pytest.mark.parametrize(("swept", "kind"), [
    ("iso", StepKind.STRONGER), ("embedding_noise", StepKind.OTHER_DEFENSES),
    ("unknown", StepKind.STRONGER),
])  # fmt: skip
def test_no_search_is_advised_of_what_acts_on_other_messages(swept: str, kind: StepKind) -> None:
    """Embeddings were to be noised more and more against an attack that reads gradients."""
    acting = {"gradient": Acting(("iso",)), "embedding": Acting(("embedding_noise",))}
    at = replace(NONE, defense=swept, strength=5.0)
    found = make_summary([make_point(at, "norm", "label", 0.3)], [LIMIT], acting=acting)
    rows = (GridRow(at.dataset, at.algorithm, swept, 5.0, gates=1, passed=0),)
    step = advice.next_steps(replace(found, grid=rows))[0]
    words = step.command.split()
    assert step.kind is kind
    other = "iso" if kind is StepKind.OTHER_DEFENSES else swept
    assert words[words.index("--defense") + 1] == other


@pytest.mark.parametrize(("target", "kind"), [
    ("label", StepKind.STRONGER), ("feature", StepKind.OTHER_DEFENSES),
])  # fmt: skip
def test_no_other_labels_are_advised_against_a_leak_of_columns(target: str, kind: StepKind) -> None:
    """Splits of trees change with the labels, and reveal columns as before."""
    by_labels = [n for n, of in list_acting().items() if "label_dp" in of.by_labels]
    assert {"partition", "embedding"} & {*by_labels} == {"partition"}
    acting = {"gradient": Acting(("label_dp", "coae", "iso"), (), ("label_dp", "coae"))}
    at = replace(NONE, defense="label_dp", strength=5.0)
    found = make_summary([make_point(at, "norm", target, 0.3)], [replace(LIMIT, target=target)],
                         acting=acting)  # fmt: skip
    facts = {k: replace(a, target=target) for k, a in found.attacks.items()}
    row = GridRow(at.dataset, at.algorithm, "label_dp", 5.0, gates=1, passed=0)
    step = advice.next_steps(replace(found, grid=(row,), attacks=facts))[0]
    named = step.command.split()[step.command.split().index("--defense") + 1]
    assert (step.kind, named) == (kind, "label_dp" if target == "label" else "iso")
    assert ("coae" in step.text) is False


@pytest.mark.parametrize("failed", [0, 1])
def test_seeds_are_advised_where_no_gate_fails(failed: int) -> None:
    """A stronger noise alone was advised, where few seeds left the strongest open."""
    at = replace(NONE, defense="iso", strength=5.0)
    found = make_summary([make_point(at, "norm", "label", 0.3)], [LIMIT])
    row = GridRow(**at.as_dict(), gates=3, passed=2, failed=failed, left=("aha",))
    found = replace(found, grid=(row,))
    assert ("--until-decided" in advice.next_steps(found)[0].text) == (not failed)
    (said,) = describe_cheapest(found, at.dataset)
    assert ("inconclusive" in said) == (not failed)


def test_a_defense_that_is_there_is_not_to_be_added() -> None:
    """Of a stack, and of those without a strength, the names were advised again."""
    acting = {"gradient": Acting(("iso", "noise", "discrete"), ("clip", "sign"))}
    at = replace(NONE, defense="clip + discrete(strength=1) + iso", strength=5.0)
    found = make_summary([make_point(at, "norm", "label", 0.3)], [LIMIT], acting=acting)
    step = advice.next_steps(found)[0]
    assert step.kind is StepKind.OTHER_DEFENSES
    named = [name for name in ("iso", "noise", "discrete") if name in step.text]
    assert named == ["noise"]
    less = replace(found, acting={"gradient": Acting(("iso",), ("clip", "sign"))})
    step = advice.next_steps(less)[0]
    assert (step.kind, step.command) == (StepKind.FIXED_DEFENSES, "vflsec show sign")


def test_only_an_attack_that_could_run_is_named(tmp_path: Path) -> None:
    """One of each family that reads what was sent, unless the plan knows that it cannot run."""
    found = audited(tmp_path, Planted(SEALED, SEALED), gate(max=0.2)).summary
    names = coverage.find_uncovered(read_summary(found))
    assert {*names} <= {*found["runnable"]}
    assert "batch_inference" not in found["runnable"]  # reads batches that are averaged
    every = found | {"runnable": None}
    assert "batch_inference" in coverage.find_uncovered(read_summary(every))
    assert coverage.find_uncovered(read_summary(found | {"runnable": [names[0]]})) == [names[0]]


def test_what_could_run_is_asked_of_the_plan() -> None:
    """Against the first exchange of a scorecard: no sums of bins, for there are no trees."""
    runnable = find_runnable(make_plan(load_scenario("scorecard_credit")))
    assert {"glm_gradient", "woe_inversion"} <= {*runnable}
    assert not {"bin_sums", "leaf_vote", "direction"} & {*runnable}


@pytest.mark.parametrize(("algorithm", "name"), [
    ({"name": "falsevfl"}, "exploit"), ({"name": "secureboost"}, "leaf_weight"),
])  # fmt: skip
def test_what_settings_rule_out_is_not_named(algorithm: dict[str, str], name: str) -> None:
    """It was named, and ended in an error or was set aside when it was added."""
    plan = make_plan(load_scenario({"data": {"name": "control_gaussian"}, "algorithm": algorithm}))
    found = find_runnable(plan)
    assert len(found) > 2
    assert name not in found
    if name == "leaf_weight":
        asked = {"data": {"name": "control_gaussian"},
                 "algorithm": algorithm | {"profile": "xgboost-open"}}  # fmt: skip
        assert name in find_runnable(make_plan(load_scenario(asked)))


def test_gates_without_room_have_a_step_for_each_figure_that_would_decide() -> None:
    (v,) = make_summary([make_point(NONE, "norm", "label", 0.1, 0.2)], [LIMIT]).gates
    asked = tuple(
        replace(v, rule=Rule.NO_ROOM, stuck=True, more_seeds=None, label=label, detail=detail)
        for label, detail in (("a1", ""), ("a2", ""), ("b1", "exposed"), ("c1", "error_removed"))
    )
    found = make_summary([make_point(NONE, "norm", "label", 0.1, 0.2)], [LIMIT])
    steps = advice.next_steps(replace(found, gates=asked))
    said = [s.text for s in steps if s.kind is StepKind.NO_ROOM]
    named = [{label for label in ("a1", "a2", "b1", "c1") if f"'{label}'" in t} for t in said]
    assert named == [{"a1", "a2"}, {"b1"}, {"c1"}]


def test_after_recordings_that_fail_the_defenses_of_what_is_read_are_named() -> None:
    """And no command that needs a scenario."""
    acting = {"gradient": Acting(("n1", "n2"), ("n3",)), "embedding": Acting(("n4",))}
    points = [make_point(NONE, "norm", "label", 0.3)]
    recorded = {"scenario": "", "scenario_file": "", "command": Command(), "acting": acting}
    found = make_summary(points, [LIMIT], **recorded)
    step = advice.next_steps(found)[0]
    assert [n in step.text for n in ("n1", "n2", "n3", "n4")] == [True, True, True, False]
    assert (step.kind, step.command) == (StepKind.OTHER_DEFENSES, "")
    ungated = make_summary(points, [Gate(max=0.1, target="feature")], **recorded)
    assert not [
        s.command for s in advice.next_steps(ungated) if s.command.startswith("vflsec tune")
    ]


def test_a_shard_is_resumed_as_that_shard_and_merged_when_it_is_done() -> None:
    usual = replace(make_summary([], []), complete=False, shard="1/2")
    usual = replace(usual, command=Command("case.toml", folder="out"))
    for done, kind, words in (
        (3, StepKind.RESUME, ["audit", "--shard", "1/2"]), (4, StepKind.MERGE, ["merge"])
    ):  # fmt: skip
        (step,) = advice.next_steps(replace(usual, cells=Cells(4, done)))
        assert step.kind is kind
        assert set(words) <= set(shlex.split(step.command))
