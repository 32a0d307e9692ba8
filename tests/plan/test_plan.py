"""What will run, what cannot and why."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_fakes import SCENARIO, source

from vflsec import load_scenario
from vflsec.audit.point import Grants
from vflsec.cli.main import main
from vflsec.config.problems import ScenarioError
from vflsec.config.scenario import Scenario
from vflsec.data import prepare
from vflsec.engine.audit_record import make_record
from vflsec.engine.dry_run import make_plan
from vflsec.plan import planner, room
from vflsec.plan.values import Plan, split_chunks
from vflsec.plugins import registry
from vflsec.plugins.registry import Registry
from vflsec.train import cohort as train_cohort

PASSIVE = ("passive1", "passive2")


CONTROLLED: dict[str, Any] = {"gate": [{"max": 0.1}], "audit": {"positive_control": True}}


def scenario(change: dict[str, Any] | None = None, sets: Sequence[str] = ()) -> Scenario:
    return load_scenario(tomllib.loads(SCENARIO) | (change or {}), sets)


def plan(
    change: dict[str, Any] | None = None, sets: Sequence[str] = (), load: Any = source
) -> Plan:
    return make_plan(scenario(change, sets), load=load, try_out=False)


def two_worlds(section: Any, seed: int, base: Path) -> Any:
    found = source(section, seed, base)
    name = "control_gaussian" if section["name"] == "control_gaussian" else found.name
    return replace(found, name=name)


def test_cells_are_data_times_strengths_times_seeds_plus_references() -> None:
    found = plan()
    assert [(g.role, g.cells[0].algorithm, len(g.cells)) for g in found.groups] == [
        ("audit", "splitnn", 6),
        ("reference", "local", 3),
    ]
    audit = found.groups[0]
    assert {(c.seed, c.defenses[0].strength) for c in audit.cells} == {
        (seed, strength) for seed in range(3) for strength in (0.0, 5.0)
    }
    assert len({c.key for c in audit.cells}) == 6
    assert len({c.cohort for c in audit.cells}) == 1
    assert found.cost.trainings == 9
    assert found.cost.attacks == 6 * 4


def test_grids_of_several_defenses_and_data_sets_multiply() -> None:
    data = [{"name": "breast_cancer"}, {"name": "digits", "labelled": 40}]
    defense = [
        {"name": "iso", "strength": [0, 1, 2]},
        {"name": "iso", "on": "embedding", "strength": [0, 1]},
    ]
    found = plan({"data": data, "defense": defense})
    audit = [g for g in found.groups if g.role == "audit"]
    assert [(g.data.name, len(g.cells)) for g in audit] == [("breast_cancer", 18), ("digits", 18)]
    assert audit[1].data.split == {"labelled": 40}
    assert audit[1].data.source == {"name": "digits"}


def test_data_sets_of_one_name_are_told_apart() -> None:
    data = [{"name": "breast_cancer"}, {"name": "breast_cancer", "labelled": 40}]
    names = {g.data.name for g in plan({"data": data}).groups}
    assert names == {"breast_cancer", "breast_cancer(labelled=40)"}


def test_algorithms_of_one_name_are_told_apart_by_what_differs() -> None:
    """In results too: their seeds must not count as seeds of one algorithm."""
    sections = [
        {"name": "splitnn", "epochs": 3},
        {"name": "splitnn", "epochs": 3, "lr": 0.1},
        {"name": "fedbcd", "epochs": 3},
        {"name": "local", "epochs": 3, "own_labels": True},
    ]
    groups = plan({"algorithm": sections}).groups
    assert [g.title for g in groups if g.role == "audit"] == [
        "splitnn", "splitnn(lr=0.1)", "fedbcd", "local(own_labels=True)",
    ]  # fmt: skip
    assert [g.title for g in groups if g.role == "reference"] == ["local"]
    assert len({c.key for g in groups for c in g.cells}) == sum(len(g.cells) for g in groups)


def test_a_baseline_that_nothing_trains_is_refused() -> None:
    assert plan(sets=["audit.baseline=local"]).groups
    with pytest.raises(ScenarioError) as caught:
        plan(sets=["audit.baseline=splitmm"])
    (problem,) = caught.value.problems
    assert (problem.path, problem.value) == ("audit.baseline", "splitmm")
    assert "splitnn" in problem.rule


@pytest.mark.parametrize("name", ["local", "secureboost", "vertical_glm"])
def test_who_does_not_train_has_no_model_to_attack_with(name: str) -> None:
    attack = [{"name": "model_completion"}]
    found = plan({"algorithm": [{"name": name}], "attack": attack, "defense": []})
    assert {(r.status, r.reason) for r in found.refused} == {
        ("not-observable",
         f"model_completion needs an own model; {p} trains none under {name}.")
        for p in PASSIVE
    }  # fmt: skip
    assert all(not g.attacks for g in found.groups)


def test_every_passive_party_attacks_unless_it_is_said_otherwise() -> None:
    specs = plan().groups[0].attacks
    assert [(a.name, a.adversary) for a in specs] == [
        (name, (party,)) for name in ("norm", "model_completion") for party in PASSIVE
    ]
    attack = [
        {"name": "norm", "adversary": "passive2"},
        {"name": "norm", "adversary": ["passive1", "passive2"]},
        {"name": "norm", "adversary": ["passive"]},
    ]
    specs = plan({"attack": attack}).groups[0].attacks
    assert [a.adversary for a in specs] == [("passive2",), PASSIVE]  # the third is the second


@pytest.mark.parametrize(("algorithm", "attack", "whom"), [
    ("splitnn", {"name": "embedding_inversion"}, {"active"}),
    ("splitnn", {"name": "sdar"}, {"active"}),
    ("splitnn", {"name": "embedding_inversion", "adversary": "passive"}, {*PASSIVE}),
    ("splitnn", {"name": "norm"}, {*PASSIVE}),
    ("local", {"name": "model_completion"}, {*PASSIVE}),  # nobody holds it: said of them
    ("ushaped", {"name": "embedding_inversion"}, {*PASSIVE}),  # embeddings go both ways
    ("secureboost", {"name": "bin_sums"}, {"active"}),
    ("secureboost", {"name": "leaf_vote"}, {*PASSIVE}),
])  # fmt: skip
def test_who_receives_what_is_read_attacks_where_nobody_is_named(
    algorithm: str, attack: dict[str, Any], whom: set[str]
) -> None:
    sections = {"algorithm": [{"name": algorithm}], "defense": [], "gate": []}
    found = plan(sections | {"attack": [{"aux_rows": 9, **attack}]})
    made = [a.adversary for g in found.groups if g.role == "audit" for a in g.attacks]
    refused = [r for r in found.refused if r.role == "audit"]
    assert {*made, *(r.attack.adversary for r in refused)} == {(w,) for w in whom}
    unseen = any(r.status == "not-observable" for r in refused)
    assert unseen is (algorithm == "local" or attack.get("adversary") == "passive")


def test_a_server_attacks_where_there_is_one() -> None:
    """A coalition with the key reads derivatives; neither of the two does alone."""
    name = "reverse_multiplication"
    both = {"name": name, "adversary": ["coordinator", "passive1"]}
    sections = {
        "algorithm": [{"name": "splitnn"}, {"name": "vertical_glm"}],
        "attack": [both, {"name": name, "adversary": "coordinator"}, {"name": name},
                   {"name": "glm_gradient", "adversary": "coordinator"}],
        "defense": [], "gate": [],
    }  # fmt: skip
    found = plan(sections)
    made = {g.cells[0].algorithm: [a.adversary for a in g.attacks] for g in found.groups[:2]}
    assert made == {"splitnn": [], "vertical_glm": [("coordinator", "passive1")]}
    why = {(r.attack.name, r.attack.adversary): r for r in found.refused
           if r.cells[0] in {c.key for c in found.groups[1].cells}}  # fmt: skip
    assert {of.status for of in why.values()} == {"not-observable"}
    alone = why[name, ("coordinator",)].reason
    assert "'derivative'; coordinator receives none" in alone
    assert "'ids'" in why["glm_gradient", ("coordinator",)].reason
    named = sections | {"algorithm": [{"name": "splitnn"}]}
    with pytest.raises(ScenarioError, match="must name a party"):
        plan(named)


@pytest.mark.parametrize("adversary", [[""], ["passive", ""]])
def test_nobody_is_no_member_of_a_coalition(adversary: list[str]) -> None:
    with pytest.raises(ScenarioError, match="must name a party"):
        plan({"attack": [{"name": "norm", "adversary": adversary}]})


def test_a_coalition_as_reports_print_it_is_answered_with_its_list() -> None:
    with pytest.raises(ScenarioError) as error:
        plan({"attack": [{"name": "norm", "adversary": "passive+active"}]})
    assert '["passive", "active"]' in str(error.value)


def test_aliases_and_defaults_do_not_make_another_attack() -> None:
    attack = [{"name": "norm"}, {"name": "ns"}]
    assert len(plan({"attack": attack}).groups[0].attacks) == 2  # one for each passive party


def test_what_cannot_be_observed_is_refused_with_both_sides_named() -> None:
    attack = [
        {"name": "norm", "adversary": "active"},
        {"name": "model_completion", "known_rows": 0, "adversary": "passive1"},
        {"name": "norm", "adversary": "passive1"},
    ]
    found = plan({"attack": attack})
    assert [(r.attack.name, r.status) for r in found.refused] == [
        ("norm", "not-observable"),
        ("model_completion", "not-applicable"),
    ]
    assert "'gradient'" in found.refused[0].reason
    assert "active receives none under splitnn" in found.refused[0].reason
    assert "known_rows" in found.refused[1].reason
    assert len(found.refused[0].cells) == 6
    assert [a.name for a in found.groups[0].attacks] == ["norm"]


def test_an_attack_without_meaning_under_the_public_facts_is_refused() -> None:
    found = plan({"attack": [{"name": "direct", "adversary": "passive1"}]})
    assert [r.status for r in found.refused] == ["not-applicable"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"attack": [{"name": "norm", "adversary": "bureau"}]}, "attack.0.adversary"),
        ({"defense": [{"name": "iso", "party": "bureau"}]}, "defense.0.party"),
        ({"parties": {"bureau": {"cut": 3}}}, "parties.bureau"),
    ],
)
def test_parties_that_are_not_there_are_refused(change: dict[str, Any], path: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        plan(change)
    (problem,) = caught.value.problems
    assert problem.path == path
    assert "active, passive1, passive2" in problem.rule
    assert problem.value == "bureau"


def test_a_column_that_is_not_there_is_found_before_training() -> None:
    attack = {"name": "attribute", "adversary": "active", "aux_rows": 9, "column": "B"}
    with pytest.raises(ScenarioError) as caught:
        plan({"attack": [attack]})
    (problem,) = caught.value.problems
    assert (problem.path, problem.value) == ("attack.0.column", "B")
    assert problem.rule == "must be a column, got 'B'. Did you mean 'b'? There are: a, b."
    assert plan({"attack": [attack | {"column": "b"}]}).groups


def test_settings_of_parties_reach_the_cells() -> None:
    found = plan({"parties": {"passive1": {"hidden": [8], "cut": 3}}})
    assert found.groups[0].cells[0].params["parties"] == {"passive1": {"hidden": [8], "cut": 3}}
    assert found.groups[0].cells[0].key != plan().groups[0].cells[0].key


def test_the_positive_control_runs_undefended_where_a_gate_asks() -> None:
    gate = {"gate": CONTROLLED["gate"]}
    assert all(g.role != "control" for g in plan(gate).groups)
    found = plan(gate, ["audit.positive_control=true", "algorithm.epochs=2"])
    control = [g for g in found.groups if g.role == "control"]
    assert [g.data.name for g in control] == [
        "control_gaussian",
        "control_gaussian(positive_rate=0.15)",
    ]
    for g in control:
        assert [c.seed for c in g.cells] == [0, 1, 2, 3, 4]
        assert all(c.defenses == () and c.params == {"epochs": 2} for c in g.cells)
        assert {a.label for a in g.attacks} == {a.label for a in found.groups[0].attacks}
    assert all(
        g.role != "control" for g in plan(None, ["audit.positive_control=true"]).groups
    )  # no gate


def test_a_rare_class_is_planted_for_guesses_of_labels_alone() -> None:
    leaky = CONTROLLED | {"data": [{"name": "leaky"}]}
    inversion = {"name": "embedding_inversion", "adversary": "active", "aux_rows": 20}
    for attacks, rare in (([{"name": "norm"}, inversion], [["norm"]]), ([inversion], [])):
        found = plan(leaky | {"attack": attacks}, load=None)
        planted = [g for g in found.groups if g.role == "control"]
        assert [a.label for a in planted[0].attacks] == [a["name"] for a in attacks]
        assert [[a.label for a in g.attacks] for g in planted[1:]] == rare


@pytest.mark.parametrize("name", ["gradient_replacement", "swap_probe", "fsha", "norm"])
def test_every_planted_training_has_its_main_task(name: str) -> None:
    found = plan(CONTROLLED | {"data": [{"name": "leaky"}], "attack": [{"name": name}]}, load=None)
    every = {c.key for g in found.groups for c in g.cells}
    assert every == {c.key for g in found.groups if g.main for c in g.cells}


def test_every_kind_of_label_has_a_control_of_its_kind() -> None:
    names = ["quantity_gaussian", "several_gaussian", "leaky", "digits"]
    asked = scenario(CONTROLLED | {
        "data": [{"name": n} for n in names], "attack": [{"name": "message_completion"}],
    })  # fmt: skip
    found = make_plan(asked, try_out=False)
    controls = {g.data.name: g for g in found.groups if g.role == "control"}
    kinds = {name.partition("(")[0]: g.data.classes for name, g in controls.items()}
    assert kinds == {"quantity_gaussian": 1, "several_gaussian": 0, "control_gaussian": 2}
    assert len(controls) == 5  # classes and several labels balanced and rare
    assert all(g.attacks for g in controls.values())
    told = make_record(asked, found, "cpu", 1, Path()).classes
    assert [told[n] for n in names] == [1, 0, 2, 10]


def test_a_party_stands_for_its_role_on_the_control() -> None:
    def two_parties(section: Any, seed: int, base: Path) -> Any:
        found = source(section, seed, base)
        if section["name"] != "control_gaussian":
            return found
        parties = {"active": found.parties["active"], "passive": found.parties["passive1"]}
        return type(found)("control_gaussian", parties, "active", found.y, found.class_names)

    attack = [{"name": "norm", "adversary": ["passive1", "passive2"]}]
    found = plan(CONTROLLED | {"attack": attack}, load=two_parties)
    control = next(g for g in found.groups if g.role == "control")
    assert [a.adversary for a in control.attacks] == [("passive",)]


def test_the_positive_control_is_not_asked_for_a_column_of_the_tables(tmp_path: Path) -> None:
    grant = {"adversary": "active", "aux_rows": 9, "column": "b"}
    attack = [{"name": "attribute"} | grant, {"name": "property", "value": 3} | grant]
    asked = scenario(CONTROLLED | {"attack": attack})
    found = make_plan(asked, load=two_worlds, try_out=False)
    by = {g.role: list(g.attacks) for g in found.groups}
    assert [a.label for a in by["audit"]] == [
        "attribute(column=b)", "property(column=b, value=3)",
    ]  # fmt: skip
    assert [a.label for a in by["control"]] == ["attribute", "property"]
    told = make_record(asked, found, "cpu", 1, tmp_path).planted_as
    assert [told.get(a.key) for a in by["audit"]] == ["attribute", "property"]


_ON_COLUMNS = {"name": "embedding_inversion", "adversary": "active", "aux_rows": 9}
_WANTED: dict[str, tuple[list[str], list[dict[str, Any]], bool]] = {
    "none is refused": (["splitnn"], [{"name": "norm"}], False),
    "one beside another": (["splitnn"], [{"name": "norm"}, {"name": "direct"}], True),
    "the one on the labels": (["splitnn"], [{"name": "direct"}, _ON_COLUMNS], True),
    "the only one": (["splitnn"], [{"name": "direct"}], True),
    "each at one of two trainings": (
        ["splitnn", "psi"], [{"name": "norm"}, {"name": "psi_membership"}], True,
    ),
    "all of a training": (["splitnn", "psi"], [{"name": "psi_membership"}], True),
}  # fmt: skip


@pytest.mark.parametrize("name", _WANTED)
@pytest.mark.parametrize("control", [False, True])
def test_what_is_wanted_are_the_cells_of_the_groups(
    tmp_path: Path, name: str, control: bool
) -> None:
    """And of refused attacks those at such a cell: what is in no group is never trained."""
    algorithms, attacks, refuses = _WANTED[name]
    sections = {
        "algorithm": [{"name": a} for a in algorithms], "attack": attacks, "defense": [],
        "gate": [{"metric": "utility", "min": 0.1}], "audit": {"positive_control": control},
    }  # fmt: skip
    found = plan(sections)
    asked: dict[str, set[str]] = {}
    for group in found.groups:
        for cell in group.cells:
            asked.setdefault(cell.key, set()).update(a.key for a in group.attacks)
    for refused in found.refused:
        for key in asked.keys() & {*refused.cells}:
            asked[key].add(refused.attack.key)
    wanted = make_record(scenario(sections), found, "cpu", 1, tmp_path).wanted
    assert {cell: {*keys} for cell, keys in wanted.items()} == asked
    assert len(wanted) == found.cost.trainings
    assert bool(found.refused) == refuses


def test_the_record_says_what_each_section_grants(tmp_path: Path) -> None:
    """Of the positive control too: an attack is shown to work section by section."""
    attack = [{"name": "norm", "adversary": "passive1"}, _ON_COLUMNS | {"victim": "passive1"},
              _ON_COLUMNS | {"prior": False}]  # fmt: skip
    asked = scenario(CONTROLLED | {"attack": attack})
    found = make_plan(asked, load=two_worlds, try_out=False)
    told = make_record(asked, found, "cpu", 1, tmp_path).grants
    by_role = {
        role: [told.get(a.key) for g in found.groups if g.role == role for a in g.attacks]
        for role in ("audit", "control")
    }
    assert by_role["audit"][:3] == [
        None, Grants(victim="passive1", aux_rows=9), Grants(aux_rows=9, prior=False),
    ]  # fmt: skip
    assert by_role["control"][:3] == [None, Grants(aux_rows=9), Grants(aux_rows=9, prior=False)]


def test_a_defense_without_a_grid_runs_at_zero_and_says_so() -> None:
    found = plan({"defense": [{"name": "iso"}]})
    assert {d.strength for g in found.groups for c in g.cells for d in c.defenses} == {0.0}
    assert any("has no strength" in n for n in found.notes)


def test_active_attackers_train_by_themselves(install: Any, monkeypatch: Any) -> None:
    install(
        {"vflsec.attacks": {"meddler": "meddler"}},
        meddler='''"""Meddles."""
from dataclasses import dataclass
from vflsec.plugins import registry
from vflsec.core.attack import Attack
from vflsec.core.policy import Policy

class Push(Policy):
    pass

@registry.attack
@dataclass(frozen=True)
class Meddler(Attack):
    needs = frozenset({"model"})
    def infer(self, view, rng): raise NotImplementedError
    def policy(self): return Push()
''',
    )
    found = plan({"attack": [{"name": "norm"}, {"name": "meddler"}]})
    audit = [g for g in found.groups if g.role == "audit"]
    assert [(len(g.attacks), g.main) for g in audit] == [(2, True), (1, False), (1, False)]
    assert {c.key for c in audit[0].cells} == {c.key for c in audit[1].cells}


def test_the_plan_is_plain_json() -> None:
    text = json.dumps(plan().to_json())
    groups = json.loads(text)["groups"]
    assert groups[0]["strengths"] == [[0.0], [5.0]]
    assert groups[0]["seeds"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("n", "size", "lengths"), [(10, 4, [3, 4, 3]), (8, 8, [8]), (3, 1, [1] * 3)]
)
def test_chunks_are_even_and_complete(n: int, size: int, lengths: list[int]) -> None:
    cells: Any = [SimpleNamespace(seed=i) for i in range(n)]
    parts = split_chunks(cells, size)
    assert sorted(len(p) for p in parts) == sorted(lengths)
    assert [c for p in parts for c in p] == cells


def test_a_seed_is_in_as_few_chunks_as_can_be() -> None:
    """Controls are made for each seed, by whoever has it."""
    cells: Any = [SimpleNamespace(seed=s, strength=x) for x in range(4) for s in (7, 3, 5)]
    assert [c.seed for p in split_chunks(cells, 12) for c in p] == [7, 3, 5] * 4
    parts = split_chunks(cells, 4)
    assert [[(c.seed, c.strength) for c in p] for p in parts] == [
        [(seed, x) for x in range(4)] for seed in (7, 3, 5)
    ]


def test_a_defense_that_cannot_protect_a_data_set_is_an_error_before_anything_runs() -> None:
    data = [{"name": "breast_cancer"}, {"name": "digits"}]
    rules = "marvell", "rr_prior"
    defense: list[dict[str, Any]] = [{"name": "marvell", "strength": [1]}]
    defense += [{"name": "rr_prior", "prior": [0.5, 0.5], "epsilon": [1]}]
    with pytest.raises(ScenarioError) as caught:
        make_plan(scenario({"data": data, "defense": defense}))
    found = [(p.path, p.rule) for p in caught.value.problems]
    assert [path for path, _ in found] == ["defense.0", "defense.1"]
    for (_, rule), name in zip(found, rules, strict=True):
        assert rule.startswith(f"cannot be put on data digits: {name}")


def test_what_cannot_be_set_up_is_an_error_of_the_plan() -> None:
    algorithm = {"name": "splitnn", "top": [], "linear_top": False, "aggregation": "sum"}
    defense = [{"name": "mid", "strength": [0, 1]}]
    asked = scenario({"algorithm": algorithm, "defense": defense})
    with pytest.raises(ScenarioError) as caught:
        make_plan(asked)
    (problem,) = caught.value.problems
    assert problem.path == "algorithm"
    assert problem.rule.startswith("cannot be trained (splitnn")
    assert "mid: needs a top model" in problem.rule
    assert len(make_plan(asked, try_out=False).groups) == 2


@pytest.mark.parametrize("canaries", [True, False])
def test_what_is_read_trained_and_looked_up_does_not_grow_with_the_grid(
    canaries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        real = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *a, **k: (calls.update([name]), real(*a, **k))[1]
        )  # fmt: skip

    def made(strengths: int) -> dict[str, int]:
        calls.clear()
        sections = tomllib.loads(SCENARIO) | {
            "defense": [
                {"name": "iso", "strength": list(range(strengths))},
                {"name": "dpsgd", "strength": [0, 1]},
            ],
            "gate": [{"max": 0.49}],
        }
        sections["audit"] |= {"canaries": canaries}
        found = make_plan(load_scenario(sections, []))
        assert found.cost.trainings == 2 * 3 * strengths + 3
        return dict(calls)

    for owner, name in [
        (Registry, "_claims"), (Registry, "create"), (planner, "load_source"),
        (train_cohort, "first_step"), (prepare, "make_task"), (room, "make_task"),
        (registry, "distributions"),
    ]:  # fmt: skip
        counted(owner, name)
    made(2)  # fills what is looked up once a process
    few, many = made(2), made(60)
    assert few == many
    assert few["first_step"] == 1
    assert "distributions" not in few


@pytest.mark.parametrize(
    ("defense", "group", "said"),
    [
        ("label_dp", "person", "of a group (up to 3 rows)"),
        ("label_dp", "", ""),
        ("iso", "person", ""),
    ],
)
def test_an_epsilon_of_rows_is_none_of_persons(
    tmp_path: Path, defense: str, group: str, said: str
) -> None:
    """`group` says that rows are of one person, whose epsilon is that of all of them together."""
    bank = ["id,person,age,y", *(f"{i},{i // 3},{i % 17},{i % 2}" for i in range(300))]
    shop = ["id,spent,visits", *(f"{i},{i % 13},{i % 5}" for i in range(300))]
    (tmp_path / "bank.csv").write_text("\n".join(bank))
    (tmp_path / "shop.csv").write_text("\n".join(shop))
    (tmp_path / "s.toml").write_text(
        '[[data]]\nname = "d"\nid = "id"\nlabel = "y"\nfiles = {bank = "bank.csv", '
        'shop = "shop.csv"}\n'
        + (f'group = "{group}"\n' if group else 'drop = ["person"]\n')
        + '[algorithm]\nname = "splitnn"\nepochs = 1\n'
        f'[[defense]]\nname = "{defense}"\nstrength = [0, 1]\n[[attack]]\nname = "norm"\n'
    )
    notes = make_plan(load_scenario(tmp_path / "s.toml"), try_out=False).notes
    found = [n for n in notes if "of a group" in n]
    assert len(found) == bool(said)
    assert all(said in n and "up to 3 times that" in n for n in found)


@pytest.mark.parametrize(("algorithm", "defense", "fits"), [
    ("secureboost", "iso", False), ("vertical_glm", "marvell", False), ("splitnn", "iso", True),
    ("secureboost", "k_anonymous", True), ("vertical_glm", "min_batch", True),
])  # fmt: skip
def test_a_defense_that_no_algorithm_calls_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str, defense: str, fits: bool
) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        f'[data]\nname = "leaky"\n[algorithm]\nname = "{algorithm}"\n[[defense]]\nname = '
        f'"{defense}"\nstrength = [0, 1]\n[audit]\nseeds = 2\n', encoding="utf-8",
    )  # fmt: skip
    assert main(["check", str(path)]) == (0 if fits else 2)
    said = capsys.readouterr().err
    assert fits or f"{defense}: does nothing under {algorithm}" in said
