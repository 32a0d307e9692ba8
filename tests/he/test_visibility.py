"""The table of what stays visible says what the views of a trained run hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from vflsec import registry
from vflsec.attack import Attack
from vflsec.channel import Recorder
from vflsec.engine.observe import refusal
from vflsec.engine.plan import DataInfo
from vflsec.engine.spec import AttackSpec, CellSpec, DefenseSpec
from vflsec.engine.views import make_view
from vflsec.errors import ThreatModelError
from vflsec.he.visibility import markdown, sees, sentence, visibility
from vflsec.testing import small_stack, train
from vflsec.view import Need

CASES = [
    (),
    (DefenseSpec("he_embedding", {"mode": "clear"}),),
    (DefenseSpec("he_embedding", {}),),
    (DefenseSpec("he_embedding", {"weights": "shared"}),),
    (DefenseSpec("he_gradient", {}),),
]
KINDS = ("embedding", "activation", "gradient", "weights", "weight_gradient", "output_gradient")


@pytest.mark.parametrize("defenses", CASES, ids=lambda d: str([x.params for x in d]))
def test_the_table_is_what_the_views_hold(defenses: tuple[DefenseSpec, ...]) -> None:
    algorithm = registry.algorithms.create("splitnn", {"epochs": 1, "batch_size": 48})
    off = torch.zeros(2, dtype=torch.float64)
    made = [(registry.defenses.create(d.name, d.params), off) for d in defenses]
    parties = {"active": "active", "passive": "passive1"}
    wanted = [
        key
        for party in parties.values()
        for kind in KINDS
        for what in (kind, f"sent.{kind}")
        if (key := Recorder.wants(party, Need.parse(f"{what}:all"))) is not None
    ]
    trained = train(algorithm, small_stack([0, 0]), [0, 0], {"passive1": made}, sorted(wanted))
    lines = visibility(defenses)
    for role, party in parties.items():
        spec = AttackSpec("norm", adversary=(party,))
        view = make_view(trained.algorithm, trained.fed, trained.initial, spec, 0)
        for kind in KINDS:
            held = False
            for way in (view.received, view.sent):
                try:
                    held = held or len(way(kind, "all")) > 0
                except ThreatModelError:
                    continue
            stated = sees(Need(kind), role, lines)
            own = (kind, role) in (("embedding", "passive"), ("gradient", "active"))  # made there
            assert stated == held or (stated and own), f"{kind} at {role}: {stated}, held {held}"


@dataclass(frozen=True)
class Raw(Attack):
    needs = frozenset({"embedding:last"})
    target = "feature"


@pytest.mark.parametrize(
    ("params", "status"),
    [({"mode": "clear"}, ""), ({}, "not-observable"), ({"mode": "real"}, "not-observable"),
     ({"weights": "shared"}, "not-observable")],
)  # fmt: skip
def test_raw_embedding_inversion_is_not_observable(params: dict[str, Any], status: str) -> None:
    info = DataInfo("small", {}, ("active", "passive1"), 2, 240, "")
    cell = CellSpec({}, "splitnn", {}, (DefenseSpec("he_embedding", params),))
    spec = AttackSpec("raw", adversary=("active",))
    found, reason = refusal(Raw(), spec, info, cell)
    assert found == status
    assert not status or "splitnn with he_embedding" in reason
    for name in ("linear_inversion", "norm", "model_completion"):
        role = "active" if name == "linear_inversion" else "passive1"
        attack = registry.attacks.create(name)
        assert refusal(attack, AttackSpec(name, adversary=(role,)), info, cell) == ("", "")


def test_gradient_attacks_are_not_observable_under_summed_gradients() -> None:
    info = DataInfo("small", {}, ("active", "passive1"), 2, 240, "")
    cell = CellSpec({}, "splitnn", {}, (DefenseSpec("he_gradient"),))
    attack = registry.attacks.create("norm")
    assert refusal(attack, AttackSpec("norm", adversary=("passive1",)), info, cell)[0] == (
        "not-observable"
    )


def test_one_sentence() -> None:
    assert "32 equations for 16 unknowns" in sentence({"out": 32}, 16)
    assert "8 of 16 output columns" in sentence({"out": 8}, 16)
    assert "not from a decoder" in sentence({"weights": "shared"}, 16)
    assert sentence({"mode": "clear"}, 16).startswith("Embeddings crossed in the clear")
    table = markdown(visibility([DefenseSpec("he_embedding")])).splitlines()
    assert table[0].count("|") == table[2].count("|") == 6
