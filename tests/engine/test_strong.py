"""The strong attacker: what it may see, what it chooses, and what that finds.

The choice is made on drawn worlds; trainers here are fakes whose figures are planted, but for the
two audits at the end, which train.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from printed import html, markdown_summary, statement

from vflsec import load_scenario
from vflsec.audit.result import Audit
from vflsec.cli.main import main
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.data.source import PartyData, Source
from vflsec.engine.dry_run import make_plan
from vflsec.engine.run import run_audit
from vflsec.engine.strong_attacker import choose_settings
from vflsec.engine.work import Backend
from vflsec.errors import ConfigError, VflsecError
from vflsec.plan.strong import SEEDS, WORLDS, describe_shape, list_alternatives
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellResult, CellSpec, Measure

pytestmark = pytest.mark.usefixtures("no_reports")

SECTIONS: dict[str, Any] = {
    "name": "case",
    "data": {"name": "digits"},
    "algorithm": {"name": "splitnn", "epochs": 2},
    "defense": [{"name": "iso", "strength": [0, 4]}],
    "attack": [{"name": "norm"}, {"name": "direction"}],
    "audit": {"seeds": 3, "references": [], "attacker": "strong"},
}


def table(labels: np.ndarray) -> Source:
    """120 rows of two parties; the passive one has a number and a column of three categories."""
    rows = np.arange(120)
    rng = np.random.default_rng(0)
    codes = np.stack([rng.normal(size=120), rng.integers(1, 4, 120)], axis=1)
    parties = {
        "bank": PartyData(rng.normal(size=(120, 2)), rows, ("a", "b"), (None, None)),
        "shop": PartyData(codes, rows, ("c", "d"), (None, ("x", "y", "z"))),
    }
    return Source("digits", parties, "bank", labels, ("no", "yes"), digest=f"{labels.sum()}")


LABELS = np.arange(120) % 4 // 3


class Planted:
    """A data layer and a trainer: advantages by the label of the attack, on worlds and beyond.

    Args:
        worlds: {label: advantage} under the defense on drawn worlds; 0.1 where nothing is said.
        labels: of the audited table.
        spread: how much figures of a setting that is not written differ from world to world.
    """

    def __init__(
        self, worlds: Mapping[str, float], labels: np.ndarray = LABELS, spread: float = 0.0
    ) -> None:
        self.worlds, self.labels, self.spread = worlds, labels, spread
        self.loaded: list[tuple[str, int]] = []
        self.calls: list[tuple[list[CellSpec], list[AttackSpec], Mapping[int, Any]]] = []

    def source(self, section: Mapping[str, Any], seed: int, base: Path) -> Source:
        self.loaded.append((section["name"], seed))
        return (
            table(self.labels) if section["name"] == "digits" else load_source(section, seed, base)
        )

    def run(
        self, cells: list[CellSpec], attacks: list[AttackSpec], tasks: Mapping[int, Any], **_: Any
    ) -> list[CellResult]:
        self.calls.append((cells, attacks, tasks))
        return [self._cell(c, attacks) for c in cells]

    def _cell(self, cell: CellSpec, attacks: Sequence[AttackSpec]) -> CellResult:
        out = CellResult(cell.key, cell, seconds=0.25)
        out.facts = {"parties": ["bank", "shop"], "classes": 2, "rows": {"test": 30}}
        drawn = cell.data["name"] == "alike"
        if not drawn:
            out.measures.append(Measure("train", "test", "auc", 0.8, 0.7, 0.9, 30, 0.5))
        for a in attacks:
            gain = 0.1
            if drawn and cell.defenses[0].strength:
                gain = self.worlds.get(a.label, 0.1)
            if drawn and a.params:
                gain += self.spread * (SEEDS.index(cell.seed) - 1)
            out.measures.append(
                Measure(
                    "train", "train", "auc", 0.55 + gain, 0.5, 0.9, 70, 0.5,
                    adversary="+".join(a.adversary), attack=a.label, attack_key=a.key,
                    target="label", controls={"scratch": {"value": 0.55, "cv": 0.55}},
                )
            )  # fmt: skip
        return out

    @property
    def searching(self) -> list[tuple[list[CellSpec], list[AttackSpec], Mapping[int, Any]]]:
        """Calls of the trainer on drawn worlds."""
        return [c for c in self.calls if c[0][0].data["name"] == "alike"]

    def audit(self, out: Path, **change: Any) -> Audit:
        backend = Backend(self.source, make_task, self.run)
        return run_audit({**SECTIONS, **change}, out, backend=backend)


BETTER = {"norm(accumulate=scaled)": 0.2, "norm(accumulate=False)": 0.15}


def taken(audit: Audit) -> set[str]:
    """Labels of the settings that joined."""
    return {r["chosen"] for r in audit.summary["attacker"]["choices"] if r["joins"]}


def attacked(audit: Audit) -> set[str]:
    return {p["attack"] for p in audit.summary["points"] if p["attack"]}


def test_the_best_setting_joins_what_is_written_at_every_point(tmp_path: Path) -> None:
    audit = Planted(BETTER).audit(tmp_path)
    assert taken(audit) == {"norm(accumulate=scaled)"}
    assert attacked(audit) == {"norm", "direction", "norm(accumulate=scaled)"}
    rows = {(r["attack"], r["strength"]): r for r in audit.summary["attacker"]["choices"]}
    assert len(rows) == 4
    best = rows["norm", 4.0]
    assert (best["written_advantage"], best["advantage"]) == pytest.approx((0.1, 0.2))
    assert not rows["norm", 0.0]["joins"]
    tried = audit.summary["attacker"]["tried"]["norm"]
    assert set(tried) == {"norm", *BETTER, "norm(accumulate=False, epoch=last)"}
    strengths = {p["strength"] for p in audit.summary["points"] if "scaled" in p["attack"]}
    assert strengths == {0.0, 4.0}


def test_ties_and_leads_within_what_worlds_differ_by_keep_what_is_written(tmp_path: Path) -> None:
    assert taken(Planted({}).audit(tmp_path / "ties")) == set()
    close = {"norm(accumulate=scaled)": 0.104}
    assert taken(Planted(close).audit(tmp_path / "close")) == set()
    noisy = {"norm(accumulate=scaled)": 0.12}
    assert taken(Planted(noisy, spread=0.05).audit(tmp_path / "noisy")) == set()  # error 0.029
    assert taken(Planted(noisy, spread=0.01).audit(tmp_path / "clear")) == {*noisy}


def test_no_audited_row_label_or_seed_is_within_reach_of_the_search(tmp_path: Path) -> None:
    planted = Planted(BETTER)
    planted.audit(tmp_path)
    assert planted.searching
    for cells, _, tasks in planted.searching:
        assert {c.seed for c in cells} == set(tasks) == set(SEEDS)
        for task in tasks.values():
            assert task.name == "alike"
            assert not np.array_equal(task.y.numpy(), LABELS)
            assert np.bincount(task.y.numpy()).tolist() == np.bincount(LABELS).tolist()
    assert {seed for name, seed in planted.loaded if name == "alike"} == set(SEEDS)
    assert min(SEEDS) > 2**62  # the largest seed that a scenario may name
    assert len(set(SEEDS)) == WORLDS


def test_other_audited_labels_and_seeds_leave_the_choice_as_it_is(tmp_path: Path) -> None:
    found = []
    for i, labels in enumerate((LABELS, LABELS[::-1].copy(), np.roll(LABELS, 1))):
        planted = Planted(BETTER, labels)
        audit = planted.audit(tmp_path / str(i), audit={**SECTIONS["audit"], "seeds": 3 + i})
        keys = [c.key for cells, *_ in planted.searching for c in cells]
        kept = {k: v for k, v in audit.summary["attacker"].items() if k != "seconds"}
        found.append(json.dumps([keys, kept]))
    assert len(set(found)) == 1


def test_a_resumed_audit_chooses_the_same_and_trains_nothing_again(tmp_path: Path) -> None:
    first = Planted(BETTER)
    before = first.audit(tmp_path)
    again = Planted({})  # would choose otherwise, were it asked
    after = again.audit(tmp_path)
    assert again.calls == []
    assert after.summary["attacker"] == before.summary["attacker"]
    more = Planted({})
    seeds = {**SECTIONS["audit"], "seeds": 4}
    assert attacked(more.audit(tmp_path, audit=seeds)) == attacked(before)
    assert more.searching == []
    assert {c.seed for cells, *_ in more.calls for c in cells} == {3}


def test_a_search_that_was_interrupted_goes_on(tmp_path: Path) -> None:
    class Stopped(Planted):
        def run(self, cells: Any, attacks: Any, tasks: Any, **how: Any) -> list[CellResult]:
            if self.calls:
                raise KeyboardInterrupt
            return super().run(cells, attacks, tasks, **how)

    other = [{"name": "iso", "strength": [4], "choice": "a"},
             {"name": "max_norm", "choice": "a"}]  # fmt: skip
    with pytest.raises(KeyboardInterrupt) as stop:
        Stopped(BETTER).audit(tmp_path, defense=other)
    assert (stop.value.done, stop.value.total) == (3, 12)  # type: ignore[attr-defined]
    rest = Planted(BETTER)
    rest.audit(tmp_path, defense=other)
    assert [c[0][0].defenses[0].name for c in rest.searching] == ["max_norm"]


def test_what_the_scenario_says_stays_and_holds_for_every_setting() -> None:
    assert {"accumulate": "scaled"} in list_alternatives("norm", {})
    for params in list_alternatives("hints", {"hints": 3}):
        assert params["hints"] == 3
    for params in list_alternatives("norm", {"accumulate": False}):
        assert params == {"accumulate": False, "epoch": "last"}
    assert list_alternatives("norm", {"accumulate": False, "epoch": "last"}) == []
    assert list_alternatives("lea", {}) == []


def test_every_setting_to_try_can_be_made_and_is_another_one() -> None:
    several = 0
    for name in registry.attacks.names():
        tries = registry.attacks.get(name).tries  # type: ignore[attr-defined]
        assert len(list_alternatives(name, {})) == len(tries), name
        several += bool(tries)
    assert several >= 8


def test_a_wrong_setting_to_try_is_refused() -> None:
    made = registry.attacks.create("norm")
    object.__setattr__(made, "tries", ({"epochs": 1},))
    with pytest.raises(VflsecError, match="attack norm: tries"):
        made.check_declared()


def test_the_plan_says_what_is_searched_and_what_it_costs() -> None:
    plan = make_plan(load_scenario(SECTIONS), load=Planted({}).source, try_out=False)
    (search,) = [g for g in plan.groups if g.role == "tuning"]
    assert len(search.cells) == 2 * WORLDS
    assert plan.cost.trainings == 6 + 2 * WORLDS
    assert {a.name for a in search.attacks} == {"norm", "direction"}
    assert any("drawn worlds (6 trainings)" in n for n in plan.notes)
    default = load_scenario(SECTIONS, ["audit.attacker=default"])
    plain = make_plan(default, load=Planted({}).source, try_out=False)
    assert all(g.role != "tuning" for g in plain.groups)


def test_the_attacker_is_named_in_the_scenario_or_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []

    def caught(*_: Any, attacker: str, **rest: Any) -> None:
        asked.append(attacker)
        raise ConfigError("seen")

    monkeypatch.setattr("vflsec.engine.until_decided.run_until_decided", caught)
    assert main(["audit", "quickstart", "--attacker", "strong", "--until-decided", "3"]) == 2
    assert asked == ["strong"]
    with pytest.raises(ConfigError, match=r"must be one of 'default' or 'strong', got 'weak'"):
        load_scenario(SECTIONS, ["audit.attacker=weak"])


def test_reports_say_which_attacker_it_was(tmp_path: Path) -> None:
    audit = Planted(BETTER).audit(tmp_path / "strong")
    said = "Attacker: strong. Settings of norm, direction were tried on 3 drawn worlds"
    for text in (html(audit.summary), statement(audit.summary)):
        assert said in text
        assert "norm(accumulate=scaled)" in text
    assert "Attacker: strong" in markdown_summary(audit.summary).replace("\\", "")
    kept = json.loads((tmp_path / "strong/summary.json").read_text())
    assert kept["attacker"]["name"] == "strong"
    plain = Planted({}).audit(tmp_path / "default", audit={"seeds": 3, "references": []})
    for text in (html(plain.summary), statement(plain.summary)):
        assert "Attacker: default." in text
    attacker = plain.summary["attacker"]
    assert (attacker["name"], attacker["choices"], attacker["seeds"]) == ("default", [], [])


def test_a_world_has_the_shape_of_the_table_and_nothing_else() -> None:
    source = table(LABELS)
    y = source.y.copy()
    y[:8] = -1
    part = replace(source.parties["shop"], values=source.parties["shop"].values[20:],
                   rows=np.arange(20, 120))  # fmt: skip
    side = np.array(["train", "test"])[np.arange(120) % 2]
    parties = {**source.parties, "shop": part}
    source = replace(source, y=y, parties=parties, split=side)
    world = registry.datasets.create("alike", describe_shape(source)).load(SEEDS[0])
    assert describe_shape(world) == describe_shape(source)
    assert "digits" not in json.dumps(describe_shape(source))
    assert not np.isin(world.parties["bank"].values, source.parties["bank"].values).any()
    quantity = replace(source, y=np.where(y < 0, -1, 0), class_names=("v",), values=y * 1.0)
    drawn = registry.datasets.create("alike", describe_shape(quantity)).load(0)
    assert describe_shape(drawn) == describe_shape(quantity)
    assert np.isfinite(drawn.values[drawn.y == 0]).all()


def test_a_shape_that_gives_no_world_is_said_and_attacks_run_as_written() -> None:
    rare = np.zeros(120, dtype=np.int64)
    rare[:4] = 1  # fewer than a split takes
    plan = make_plan(load_scenario(SECTIONS), load=Planted({}, rare).source, try_out=False)
    assert all(g.role != "tuning" for g in plan.groups)
    assert any("no world of the shape of digits can be drawn" in n for n in plan.notes)


def test_choosing_elsewhere_does_not_flatter_a_null() -> None:
    """Where every setting is at 0 and figures are noise, the best by truth is not, ours is."""
    sections = {**SECTIONS, "defense": [], "attack": [{"name": "direction"}]}
    plan = make_plan(load_scenario(sections), load=Planted({}).source, try_out=False)
    keys = [t.spec.key for t in plan.tried]
    (search,) = [g for g in plan.groups if g.role == "tuning"]
    by_us, by_truth = [], []
    for repeat in range(40):
        rng = np.random.default_rng(repeat)
        results = []
        for cell in search.cells:
            out = CellResult(cell.key, cell)
            for spec in search.attacks:
                out.measures.append(
                    Measure("train", "train", "auc", 0.5 + rng.normal(0, 0.05), chance=0.5,
                            attack=spec.label, attack_key=spec.key, target="label")
                )  # fmt: skip
            results.append(out)
        (row,) = choose_settings(plan.tried, results)
        best = next(t.spec.key for t in plan.tried if t.spec.label == row.chosen)
        audited = dict(zip(keys, rng.normal(0, 0.05 / np.sqrt(5), len(keys)), strict=True))
        by_us.append(audited[best])
        by_truth.append(max(audited.values()))
    error = 0.05 / np.sqrt(5 * 40)
    assert abs(np.mean(by_us)) < 3 * error
    assert np.mean(by_truth) > 6 * error


@cache
def _trained() -> Audit:
    """A leaky world and the same with permuted labels, gradient noise of 4 by batch."""
    import tempfile

    leaky = {"name": "leaky", "params": {"rows": 400, "d_passive": 20}}
    return run_audit(
        {
            "name": "case",
            "data": [leaky, {**leaky, "shuffle_labels": True}],
            "algorithm": {"name": "splitnn", "epochs": 6, "batch_size": 32},
            "defense": [{"name": "iso", "strength": [4]}],
            "attack": [{"name": "direction"}],
            "audit": {"seeds": 5, "references": []},
        },
        tempfile.mkdtemp(),
        attacker="strong",
    )


def figures(null: bool) -> dict[str, dict[str, Any]]:
    """Points of the trained audit by attack."""
    points = _trained().summary["points"]
    return {
        p["attack"]: p
        for p in points
        if p["attack"] and p["metric"] == p["primary"] and ("shuffle" in p["dataset"]) == null
    }


STRONG = "direction(accumulate=scaled, positives=5)"


@pytest.mark.slow
def test_strong_finds_what_the_default_misses() -> None:
    found = figures(null=False)
    assert taken(_trained()) == {STRONG}
    assert found[STRONG]["advantage"] > found["direction"]["advantage"] + 0.1
    assert found[STRONG]["advantage_low"] > 0 > found["direction"]["advantage_low"]


def test_a_null_world_stays_null_under_the_strong_attacker() -> None:
    """Chosen elsewhere, so the best of many is not the luckiest of many."""
    found = figures(null=True)
    assert STRONG in found
    for p in found.values():
        assert abs(p["value"] - 0.5) < 0.1
        assert p["value_low"] < 0.5 < p["value_high"]
        assert p["advantage_low"] <= 0
