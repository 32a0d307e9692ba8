"""What the engine holds every claim to, whoever wrote the policy, and which seed's is told."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from audited import Planted, audited, quick
from broken_claims import registered
from sampled import sampled
from torch import Tensor

from vflsec.audit.intervals import clopper_pearson
from vflsec.core.message import Message
from vflsec.core.policy import Guarantee, Own, Policy
from vflsec.core.privacy_usage import RunFacts, Uses
from vflsec.core.rng import Streams
from vflsec.defenses.dpsgd import DPSGD
from vflsec.defenses.embedding_noise import EmbeddingNoise
from vflsec.defenses.label_dp import LabelDP
from vflsec.defenses.rr_prior import RRPrior
from vflsec.engine.cohort import run_cohort
from vflsec.engine.run import run_audit
from vflsec.specs import CellResult, CellSpec, DefenseSpec
from vflsec.testing import small_task
from vflsec.train.cohort import Training
from vflsec.train.mechanism_counts import check_guarantee

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

    def guarantee(self, strength: float, facts: RunFacts) -> Guarantee:
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
    made = check_guarantee(policy, strength, RunFacts(uses=uses))
    assert made.epsilon is None
    assert reason in made.reason
    whole = check_guarantee(Says(), 1.0, RunFacts(uses=Uses(counted=3)))
    assert whole.epsilon == 0.5


@pytest.mark.parametrize(("delta", "claims"), [(9e-4, True), (1e-3, False), (0.5, False)])
def test_a_delta_of_one_in_so_many_rows_is_no_claim(delta: float, claims: bool) -> None:
    """Of 1000 rows epsilon 0 was claimed at delta 0.5, which publishing 500 of them keeps."""
    policy = EmbeddingNoise(delta=delta)
    facts = RunFacts(uses=Uses(counted=4), labelled=1000)
    assert policy.guarantee(8.0, facts).epsilon == (0.0 if delta == 0.5 else pytest.approx(1, 0.5))
    made = check_guarantee(policy, 8.0, facts)
    assert (made.epsilon is not None) == claims
    said = f"a delta of {delta:g} allows that one row of 1000 is published in full. Set delta well"
    assert claims or made.reason == f"{said} below 0.001"


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
    assert [r.guarantees[0].epsilon for r in results] == [None] * 4
    assert not [m for r in results for m in r.measures if m.metric == "epsilon_lower"]


@pytest.mark.parametrize(
    ("algorithm", "defense", "idle"),
    sampled([("oneshot", "dcor", True), ("splitnn", "dcor", False), ("fewshot", "dcor", True),
             ("oneshot", "iso", False), ("splitnn", "mid", False)], 2),
)  # fmt: skip
def test_a_defense_that_does_nothing_under_an_algorithm_is_said_to(
    tmp_path: Path, algorithm: str, defense: str, idle: bool
) -> None:
    """Messages and weights were those without it, bit for bit, and the report had it at 1."""
    data = {"name": "breast_cancer", "aligned": 0.5}
    short = {"name": algorithm, "epochs": 1, **FEW.get(algorithm, {})}
    on, audit = {"name": defense, "strength": [0.0, 1.0]}, {"seeds": 1, "canaries": False}
    made = run_audit(quick(on, data=data, algorithm=short, audit=audit), tmp_path)
    said = [f["place"] for f in made.summary["findings"] if f["kind"] == "defense_idle"]
    assert [place["defense"] for place in said] == [defense] * idle
    points = [g for p in made.summary["cost"]["points"] for g in p["guarantees"]]
    marked = {g["strength"]: g["idle"] for g in points}
    assert marked == {0.0: False, 1.0: idle}
    text = (tmp_path / "report.html").read_text()
    assert (f"None of its hooks did anything under {algorithm}." in text) == idle


class BySeed(Planted):
    """Claims an epsilon that grows with the seed; from `none` on, none."""

    none: float = math.inf

    def _cell(self, cell: CellSpec, attacks: Any) -> CellResult:
        out = super()._cell(cell, attacks)
        epsilon = 1.0 + cell.seed if cell.seed < self.none else None
        out.guarantees = [replace(g, epsilon=epsilon) for g in out.guarantees]
        return out


@pytest.mark.parametrize(("none", "told"), [(math.inf, "last"), (1, None)])
def test_a_point_promises_what_all_its_seeds_do(tmp_path: Path, none: float, told: Any) -> None:
    """It showed the first seed's: 9.61 for four trainings of which one composed to 10.0."""
    world = BySeed({"norm": 0.2, "model_completion": 0.2}, epsilon=1.0)
    world.none = none
    made = audited(tmp_path, world)
    (claim,) = [g for p in made.summary["cost"]["points"] for g in p["guarantees"]]
    assert claim["epsilon"] == (5.0 if told else None)


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("rr_prior", "label_dp", (4.0, None)),
        ("label_dp", "rr_prior", (4.0, 1.0)),
        ("label_dp", "label_dp", (4.0, 1.0)),
    ],
)
def test_labels_that_another_policy_made_of_all_labels(
    first: str, second: str, kept: tuple[float | None, ...]
) -> None:
    """Which classes rr_prior's answers come from is told by all labels together, so what label_dp
    answers for other rows tells a row's label at rr_prior's epsilon, not at its own.
    """
    tasks = {0: small_task(0)}
    params = {"epochs": 1, "patience": 0, "hidden": [], "cut": 2}
    on = (DefenseSpec(first, {}, "", 0.25), DefenseSpec(second, {}, "", 1.0))
    cell = CellSpec({"name": "w"}, "splitnn", params, on, 0, untested=True)
    (made,) = run_cohort([cell], [], tasks, device="cpu")
    assert tuple(g.epsilon for g in made.guarantees) == kept
    if kept[1] is None:
        assert "rr_prior before it computes labels of other rows" in made.guarantees[1].says


@pytest.mark.slow
def test_what_such_a_stack_gives_away() -> None:
    """400 labels of which one is turned, answered at epsilon 10 with a bought prior and then at 1:
    6,000 draws of each, and one look at the share of ones, bound epsilon from below at 99 %.
    """
    draws, n = 6000, 400

    def beyond(ones: int, seed: int) -> int:
        y = torch.zeros(draws, n, dtype=torch.int64)
        y[:, :ones] = 1
        for policy, strength in ((RRPrior(share=0.9), 0.1), (LabelDP(), 1.0)):
            rng = Streams(range(seed, seed + draws), policy.name)
            y = policy.labels(y, Own("a", torch.full((draws,), strength).double(), rng, classes=2))
        return int(((y == 1).double().mean(1) > 0.36).sum())

    few, many = beyond(106, 0), beyond(107, draws)
    low = clopper_pearson(many, draws, 0.995, "lower").low
    high = clopper_pearson(few, draws, 0.995, "upper").high
    assert low is not None
    assert high is not None
    assert math.log(low / high) > 2  # label_dp alone would make it 1 at most


def test_weights_that_were_started_from_may_know_the_rows() -> None:
    """A bottom that was trained on these rows before, without noise, kept epsilon 4 of them."""
    uses = Uses(counted=3)
    plain = RunFacts(uses=uses)
    given = RunFacts(uses=uses, weights=("bank.safetensors",))
    said = "the weights that were started from (bank.safetensors) know none of these rows"
    for policy in (DPSGD(), LabelDP()):
        made = check_guarantee(policy, 2.0, given)
        assert made.epsilon == check_guarantee(policy, 2.0, plain).epsilon is not None
        assert said in made.provided
        assert said in made.sentence()
        assert said not in check_guarantee(policy, 2.0, plain).sentence()
    assert check_guarantee(DPSGD(), 2.0, given).provided.startswith("nobody sees single rows")
    assert check_guarantee(EmbeddingNoise(), 2.0, given) == check_guarantee(
        EmbeddingNoise(), 2.0, plain
    )


def test_a_training_tells_which_files_it_starts_from() -> None:
    parties = {"passive1": {"module": "m:f", "weights": "b.safetensors"}, "active": {"cut": 4}}
    cell = CellSpec({"name": "w"}, "splitnn", {"parties": parties, "epochs": 1}, (), 0)
    task = small_task(0)
    made = Training([cell, cell], [], {0: task}, torch.device("cpu"))
    assert made.facts.weights == ("b.safetensors",)
