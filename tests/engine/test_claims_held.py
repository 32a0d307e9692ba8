"""What the engine holds every claim to, whoever wrote the policy, and which seed's is told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from audited import Planted, audited
from torch import Tensor

from vflsec.cell import CellResult, CellSpec, DefenseSpec
from vflsec.counts import Uses
from vflsec.engine.cohort import run_cohort
from vflsec.engine.run import run_audit
from vflsec.message import Message
from vflsec.policy import Guarantee, Own, Policy
from vflsec.testing import small_task
from vflsec.testing.broken import registered
from vflsec.train.claims import promised

FEW = {
    "oneshot": {"local_epochs": 1}, "fewshot": {"local_epochs": 1, "infer_epochs": 1},
}  # fmt: skip


@dataclass(frozen=True)
class Says(Policy):
    """Adds next to nothing to gradients and claims what it was made with."""

    epsilon: float = 0.5
    delta: float = 0.0
    releases: int = 3
    protects: str = "label"
    hook: str = "outgoing"
    name: ClassVar[str] = "broken"
    strengths: ClassVar[str] = "nothing"
    covers = frozenset({"gradient"})

    @property
    def counted(self) -> str:  # type: ignore[override]
        return self.hook

    def outgoing(self, message: Message, own: Own) -> Tensor:
        return own.choose(message.tensor + 1e-12, message.tensor)

    def guarantee(self, strength: float, facts: dict[str, Any]) -> Guarantee:
        return Guarantee(
            self.protects, self.epsilon, self.delta, "its own word", self.releases,
            "the label of a row", "its replacement", "all", reason="",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "strength", "uses", "reason"),
    [
        (Says(), 0.0, Uses(counted=3), "switched off"),
        (Says(hook=""), 1.0, Uses(counted=3), "no hook whose uses"),
        (Says(), 1.0, Uses(), "nothing was counted"),
        (Says(), 1.0, Uses(counted=3, past=("labels go past it",)), "labels go past it"),
        (Says(protects="none"), 1.0, Uses(counted=3), "a label or a row"),
        (Says(epsilon=math.nan), 1.0, Uses(counted=3), "no guarantee"),
        (Says(epsilon=-1.0), 1.0, Uses(counted=3), "no guarantee"),
        (Says(delta=1.0), 1.0, Uses(counted=3), "no guarantee"),
        (Says(), 1.0, Uses(counted=3, stopped=4), "over 3 uses of a row, and 7 were counted"),
    ],
)
def test_a_claim_that_the_counts_do_not_carry_is_dropped(
    policy: Policy, strength: float, uses: Uses, reason: str
) -> None:
    """Epsilon 0.5 was stored and reported, at strength 0 too; NaN was contradicted by nothing."""
    made = promised(policy, strength, {"uses": uses})
    assert made.epsilon is None
    assert reason in made.reason
    whole = promised(Says(), 1.0, {"uses": Uses(counted=3)})
    assert whole.epsilon == 0.5


@pytest.mark.parametrize("protects", ["label", "row"])
def test_a_policy_that_names_no_hook_claims_nothing(protects: str) -> None:
    """As a row's it was measured on rows, and an audit passed it: gradients as they were."""
    tasks = {s: small_task(s) for s in (0, 1)}
    params = {"epochs": 1, "patience": 0, "hidden": [], "cut": 2}
    on = [
        CellSpec({"name": "w"}, "splitnn", params, (DefenseSpec("broken", {}, "", s),), seed)
        for s in (0.0, 1.0)
        for seed in tasks
    ]
    with registered(Says(hook="", protects=protects)):
        results = run_cohort(on, [], tasks, device="cpu")
    assert [r.guarantees[0]["epsilon"] for r in results] == [None] * 4
    assert not [m for r in results for m in r.measures if m.metric == "epsilon_lower"]


@pytest.mark.parametrize(
    ("algorithm", "defense", "idle"),
    [("oneshot", "dcor", True), ("fewshot", "dcor", True), ("local", "iso", True),
     ("oneshot", "iso", False), ("splitnn", "dcor", False), ("splitnn", "mid", False)],
)  # fmt: skip
def test_a_defense_that_does_nothing_under_an_algorithm_is_said_to(
    tmp_path: Path, algorithm: str, defense: str, idle: bool
) -> None:
    """Messages and weights were those without it, bit for bit, and the report had it at 1."""
    made = run_audit(
        {
            "data": {"name": "breast_cancer", **({} if algorithm == "local" else {"aligned": 0.5})},
            "algorithm": {"name": algorithm, "epochs": 1, **FEW.get(algorithm, {})},
            "defense": [{"name": defense, "strength": [0.0, 1.0]}],
            "attack": [{"name": "norm"}],
            "audit": {"seeds": 1, "references": [], "canaries": False},
        },
        tmp_path,
    )
    said = [f for f in made.summary["findings"] if f.startswith(f"{defense} did nothing on")]
    assert bool(said) == idle
    points = [g for p in made.summary["cost"]["points"] for g in p["guarantees"]]
    marked = {g["strength"]: g.get("idle", False) for g in points}
    assert marked == {0.0: False, 1.0: idle}
    text = (tmp_path / "report.html").read_text()
    assert (f"None of its hooks did anything under {algorithm}." in text) == idle


class BySeed(Planted):
    """Claims an epsilon that grows with the seed; from `none` on, none."""

    none: float = math.inf

    def _cell(self, cell: CellSpec, attacks: Any) -> CellResult:
        out = super()._cell(cell, attacks)
        for g in out.guarantees:
            g["epsilon"] = 1.0 + cell.seed if cell.seed < self.none else None
        return out


@pytest.mark.parametrize(("none", "told"), [(math.inf, "last"), (1, None)])
def test_a_point_promises_what_all_its_seeds_do(tmp_path: Path, none: float, told: Any) -> None:
    """It showed the first seed's: 9.61 for four trainings of which one composed to 10.0."""
    world = BySeed({"norm": 0.2, "model_completion": 0.2}, epsilon=1.0)
    world.none = none
    made = audited(tmp_path, world)
    (claim,) = [g for p in made.summary["cost"]["points"] for g in p["guarantees"]]
    assert claim["epsilon"] == (5.0 if told else None)
