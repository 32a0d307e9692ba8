"""The audit of self-supervised VFL: phases, own-encoder control, iso in pre-training, towers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sampled import sampled

from vflsec.core.federation import Federation
from vflsec.core.message import Message
from vflsec.core.policy import Own
from vflsec.core.rng import Streams
from vflsec.engine.cohort import run_cohort
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellResult, CellSpec, Measure
from vflsec.testing import small_stack, small_task
from vflsec.train.loop import run_phases

SMALL = {
    "hidden": [16], "cut": 16, "projector_hidden": 16, "projector_out": 16,
    "predictor_hidden": 8, "pretrain_iterations": 2, "pretrain_batch_size": 32,
    "batch_size": 32, "epochs": 3, "queue": 64,
}  # fmt: skip
QUICK = {"variants": ["logistic", "finetune"], "steps": 20}


def audit(
    name: str,
    part: str = "bottom",
    **change: Any,
) -> list[CellResult]:
    tasks = {s: small_task(s, unaligned=30) for s in (0, 1)}
    cells = [
        CellSpec({"name": "small"}, name, SMALL | change, seed=s, dtype="float64") for s in (0, 1)
    ]
    attacks = [AttackSpec("model_completion", QUICK | {"part": part}, ("passive1",), known_rows=40)]
    return run_cohort(cells, attacks, tasks, device="cpu")


def attacked(result: CellResult, phase: str) -> Measure:
    (m,) = [
        m for m in result.measures
        if m.phase == phase and m.attack and m.metric == "auc" and m.split == "test"
    ]  # fmt: skip
    return m


def test_both_phases_are_attacked_and_only_the_last_predicts() -> None:
    for result in audit("fedhssl"):
        assert {m.phase for m in result.measures if m.attack} == {"pretrain", "finetune"}
        assert {m.phase for m in result.measures if not m.attack} == {"finetune"}
        assert all(m.status == "ok" for m in result.measures)
        before, after = (attacked(result, p) for p in ("pretrain", "finetune"))
        assert {"majority", "logistic", "trees", "scratch", "alone", "untrained"} <= set(
            before.controls
        )
        assert before.controls == after.controls  # once a seed, whatever the phase


def test_the_own_encoder_is_fedlocal_ssl_of_that_party_bit_for_bit() -> None:
    algorithm = registry.algorithms.create("fedlocal_ssl", SMALL)
    stack = small_stack([0, 1], unaligned=30)
    fed, lone = (Federation.create(stack, [0, 1]) for _ in range(2))
    algorithm.build(fed)
    next(iter(run_phases(algorithm, fed)))
    alone = algorithm.local_training("passive1")
    alone.build(lone)
    assert [p.name for p in run_phases(alone, lone)] == ["pretrain"]
    assert not lone.channel.ledger.entries
    got, want = (f.parties["passive1"].modules["bottom"].state() for f in (lone, fed))
    assert all(torch.equal(v, want[k]) for k, v in got.items())
    other = lone.parties["active"].modules["bottom"].state()["local.top.0.weight"]
    trained = fed.parties["active"].modules["bottom"].state()["local.top.0.weight"]
    assert not torch.equal(other, trained)  # the other party is not there


def test_the_own_encoder_of_cross_methods_uses_the_same_settings() -> None:
    for name, ssl in (("fedcssl", "moco"), ("fedhssl", "byol")):
        params = {k: v for k, v in SMALL.items() if k != "queue" or name != "fedcssl"}
        alone = registry.algorithms.create(name, params | {"ssl": ssl}).local_training("passive1")
        assert (alone.ssl, alone.hidden, alone.pretrain_iterations) == (ssl, (16,), 2)
        assert alone.average == ()
    off = registry.algorithms.create("fedhssl", SMALL | {"own_control": False})
    assert off.local_training("passive1") is None
    assert registry.algorithms.create("splitnn", {}).local_training("passive1") is None


@pytest.mark.slow
def test_single_towers_can_be_attacked() -> None:
    values = {
        part: attacked(audit("fedhssl", part=part, own_control=False)[0], "pretrain").value
        for part in ("bottom", "bottom.cross", "bottom.local")
    }
    assert len(set(values.values())) == 3
    assert all(v is not None and 0 <= v <= 1 for v in values.values())


@pytest.mark.slow
@pytest.mark.parametrize("on", sampled(["embedding", "state"]))
def test_iso_in_pretraining_changes_the_passive_bottom_and_zero_does_not(on: str) -> None:
    algorithm = registry.algorithms.create("fedhssl", SMALL | {"server": "third"})
    policy = registry.defenses.create("iso", {"on": on, "phase": "pretrain"})
    states = {}
    for strength in (None, 0.0, 1.0):
        noise = {} if strength is None else {"active": [(policy, torch.full((2,), strength))]}
        fed = Federation.create(small_stack([0, 1]), [0, 1], noise)
        algorithm.build(fed)
        next(iter(run_phases(algorithm, fed)))
        states[strength] = fed.parties["passive1"].modules["bottom"].state()
    assert all(torch.equal(v, states[None][k]) for k, v in states[0.0].items())
    changed = {k for k, v in states[1.0].items() if not torch.equal(v, states[None][k])}
    tower = "cross" if on == "embedding" else "local.top"
    assert f"{tower}.{'bottom.1' if on == 'embedding' else '0'}.weight" in changed
    assert all(bool(torch.isfinite(v).all()) for v in states[1.0].values())


@pytest.mark.slow
def test_an_attack_on_gradients_is_not_observable_in_pretraining() -> None:
    tasks = {s: small_task(s) for s in (0, 1)}
    params = SMALL | {"own_control": False}
    cells = [CellSpec({"name": "small"}, "fedhssl", params, seed=s) for s in (0, 1)]
    for result in run_cohort(cells, [AttackSpec("norm", {}, ("passive1",))], tasks, device="cpu"):
        status = {(m.phase, m.status) for m in result.measures if m.attack}
        assert status == {("pretrain", "not-observable"), ("finetune", "ok")}


def message(kind: str, phase: str, name: str) -> Message:
    x = torch.randn(2, 8, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return Message(kind, "active", "passive1", x, phase=phase, name=name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "phase", "name", "touched"),
    [
        ("embedding", "pretrain", "cross", True),
        ("embedding", "finetune", "", False),
        ("embedding", "predict", "", False),
        ("state", "pretrain", "parameters", True),
        ("state", "pretrain", "buffers", False),
    ],
)
def test_iso_by_phase_and_name(kind: str, phase: str, name: str, touched: bool) -> None:
    policy = registry.defenses.create("iso", {"on": kind, "phase": "pretrain"})
    own = Own(
        "active", torch.tensor([1.0, 0.0], dtype=torch.float64),
        Streams([0, 1], "iso", dtype=torch.float64),
    )  # fmt: skip
    sent = message(kind, phase, name)
    out = policy.outgoing(sent, own)
    assert torch.equal(out[1], sent.tensor[1])
    assert torch.equal(out[0], sent.tensor[0]) != touched
    everything = registry.defenses.create("iso", {"on": kind, "spare": []})
    assert not torch.equal(everything.outgoing(sent, own)[0], sent.tensor[0])


def test_noise_on_shared_parameters_has_the_stated_scale() -> None:
    policy = registry.defenses.create("iso", {"on": "state"})
    weight = torch.randn(1, 300, 200, dtype=torch.float64)
    own = Own("active", torch.tensor([0.4]), Streams([0], "iso", dtype=torch.float64))
    out = policy.outgoing(Message("state", "active", "passive1", weight, name="parameters"), own)
    sigma = 0.4 * float(weight[0].norm(dim=1).max()) / 200**0.5
    assert float((out - weight).std()) == pytest.approx(sigma, rel=5 * (1 / 120_000) ** 0.5)


def test_a_tower_that_is_not_there_cannot_be_attacked() -> None:
    result = audit("fedlocal_ssl", part="bottom.cross")[0]
    wrong = [m for m in result.measures if m.attack]
    assert wrong
    assert all("no own 'bottom.cross' model" in m.reason for m in wrong)
    assert all(m.status == "error" and m.value is None for m in wrong)
