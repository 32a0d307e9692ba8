"""Few-shot VFL: which rows are chosen, what crosses, and when it is one-shot VFL."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from by_hand import assert_same, federation, flatten, trained

from vflsec.algorithms.fedcvt import attend
from vflsec.algorithms.fewshot import FewShot, selection
from vflsec.algorithms.oneshot import OneShot
from vflsec.config.scenario import load_scenario
from vflsec.core.federation import Federation
from vflsec.core.rng import generator
from vflsec.engine.dry_run import make_plan
from vflsec.errors import ConfigError
from vflsec.testing import small_stack
from vflsec.train.loop import run_phases

SMALL: dict[str, Any] = {
    "hidden": (7,), "cut": 3, "top": (5,), "batch_size": 32, "epochs": 2, "local_epochs": 2,
    "patience": 0, "starts": 2, "local_held_out": 0.0,
}  # fmt: skip
FEW: dict[str, Any] = SMALL | {"infer_epochs": 4}
NEXT_TO_ONE = math.nextafter(1.0, 0.0)


def until(algorithm: OneShot, fed: Federation, name: str) -> Federation:
    for phase in run_phases(algorithm, fed):
        if phase.name == name:
            break
    return fed


def test_bytes_are_those_of_the_algorithm() -> None:
    """4 N_o d + N_k d + N_k numbers a client; the paper's table leaves two of them out."""
    stack = small_stack([0], torch.float32, unaligned=50)
    aligned, own, d = 144, 50, 16
    ledger = trained(FewShot(**FEW | {"cut": d}), stack).channel.ledger.of(0)
    crossed = [r for r in ledger if r["phase"] != "predict" and r["kind"] != "ids"]
    assert [(r["phase"], r["kind"], r["name"], r["messages"], r["elements"]) for r in crossed] == [
        ("exchange", "embedding", "initial", 1, aligned * d),
        ("exchange", "gradient", "", 1, aligned * d),
        ("exchange", "signal", "classes", 1, 1),
        ("infer", "embedding", "trained", 1, aligned * d),
        ("infer", "embedding", "unaligned", 1, own * d),
        ("relabel", "signal", "selection", 1, own),
        ("classifier", "embedding", "trained", 1, aligned * d),
    ]
    total = sum(r["bytes"] for r in crossed if r["name"] != "classes")
    assert total == (4 * aligned * d + own * d + own) * 4


def test_confidence_next_to_one_is_one_shot_with_one_more_local_round() -> None:
    stack = small_stack([0, 1], unaligned=40)
    few = FewShot(**FEW | {"confidence": NEXT_TO_ONE})
    fed = until(few, federation(few, stack, [0, 1]), "relabel")
    assert not bool(fed.extra["chosen.passive1"].any())
    assert not bool(fed.extra["chosen.active"].any())
    one = OneShot(**SMALL)
    other = until(one, federation(one, stack, [0, 1]), "local")
    (phase,) = one._local_phases(other, "relabel")
    other.phase, other.steps = "relabel", 0
    one.restart(other)
    for _ in range(phase.epochs):
        for rows in other.batches(phase):
            phase.step(rows)
    for party in ("active", "passive1"):
        for part in ("bottom", "head"):
            a, b = (f.parties[party].modules[part].state() for f in (fed, other))
            assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.slow
def test_chosen_rows_are_learnt_as_labelled() -> None:
    stack = small_stack([0, 1], unaligned=60, signal=6.0)
    settings = FEW | {"infer_epochs": 40, "lr": 1e-2, "local_epochs": 6}
    few = FewShot(**settings, confidence=0.5)
    fed = until(few, federation(few, stack, [0, 1]), "relabel")
    own = stack.unaligned("passive1")
    chosen = fed.extra["chosen.passive1"]
    assert 20 <= int(chosen[0].sum()) < 60
    assert not bool(chosen[0, stack.rows("aligned")[0]].any())
    assert bool(chosen.gather(1, own).any(1).all())
    none = FewShot(**settings, confidence=NEXT_TO_ONE)
    other = until(none, federation(none, stack, [0, 1]), "relabel")
    a, b = (f.parties["passive1"].modules["bottom"].state()["1.weight"] for f in (fed, other))
    assert not torch.equal(a, b)


def test_the_classifier_starts_again_from_its_initial_weights() -> None:
    stack = small_stack([0, 1], unaligned=40)
    few = FewShot(**FEW)
    fed = federation(few, stack, [0, 1])
    initial = fed.active.modules["top"].state()
    until(few, fed, "infer")
    moved = fed.active.modules["top"].state()
    assert all(not torch.equal(initial[k], moved[k]) for k in initial)
    phases = few.phases(fed)
    phases[3].before()  # type: ignore[misc]
    back = fed.active.modules["top"].state()
    assert all(torch.equal(initial[k], back[k]) for k in initial)


def test_finetune_of_no_batches_is_few_shot() -> None:
    stack = small_stack([0, 1], unaligned=40)
    plain = trained(FewShot(**FEW), stack, [0, 1]).state()
    none = trained(FewShot(**FEW, finetune=True, finetune_epochs=0), stack, [0, 1]).state()
    some = trained(FewShot(**FEW, finetune=True, finetune_epochs=1), stack, [0, 1])
    for party in plain:
        for part in ("head", "top_active", "top_passive1"):
            plain[party].pop(part, None)
    assert_same(plain, none)
    kept = flatten(plain)
    assert not any(torch.equal(v, kept[name]) for name, v in flatten(some.state()).items())
    assert {r["phase"] for r in some.channel.ledger.of(0) if r["kind"] == "gradient"} == {
        "exchange", "finetune",
    }  # fmt: skip


def test_selection_probabilities() -> None:
    g = generator(0, "logits")
    alone, joint = (torch.randn(2, 500, 3, generator=g, dtype=torch.float64) * 2 for _ in range(2))
    p = selection(alone, joint, 0.6)
    assert bool(((p == 0) | ((p > 0.6) & (p <= 1))).all())
    agree = alone.argmax(-1) == joint.argmax(-1)
    sure = (alone.softmax(-1).amax(-1) > 0.6) & (joint.softmax(-1).amax(-1) > 0.6)
    assert torch.equal(p > 0, agree & sure)
    assert 0 < int((p > 0).sum()) < int(agree.sum())
    assert torch.equal(p[p > 0], joint.softmax(-1).amax(-1)[p > 0])
    assert bool((selection(alone, joint, 1.0) == 0).all())
    # a joint classifier that ignores the others: all rows agree
    own = alone.softmax(-1).amax(-1)
    assert torch.equal(selection(alone, alone, 0.6), torch.where(own > 0.6, own, 0.0))


def test_a_joint_classifier_blind_to_the_others_agrees_with_the_clients_own() -> None:
    stack = small_stack([0, 1], unaligned=40)
    few = FewShot(**FEW | {"top": (), "confidence": 0.55})
    fed = until(few, federation(few, stack, [0, 1]), "infer")
    top, own = fed.active.modules["top"], fed.active.modules["top_passive1"]
    with torch.no_grad():
        top.params["0.weight"].zero_()
        top.params["0.weight"][:, :, 3:] = own.params["0.weight"]
        top.params["0.bias"].copy_(own.params["0.bias"])
    found = few.probabilities(fed, fed.parties["passive1"])
    best = own(fed.extra["unaligned.passive1"], train=False).softmax(-1).amax(-1)
    assert torch.allclose(found, torch.where(best > 0.55, best, 0.0), atol=1e-12)
    assert found.shape == (2, 40)
    assert bool((found > 0).any())


def test_estimates_by_attention() -> None:
    g = generator(0, "attention")
    q, k, v = (torch.randn(2, n, 5, generator=g, dtype=torch.float64) for n in (7, 4, 4))
    assert torch.allclose(attend(q, k[:, :1], v[:, :1]), v[:, :1].expand(-1, 7, -1))
    same = k[:, :1].expand(-1, 4, -1)
    assert torch.allclose(attend(q, same, v), v.mean(1, keepdim=True).expand(-1, 7, -1))
    by_hand = torch.stack(
        [
            sum(w * v[0, j] for j, w in enumerate(torch.softmax((k[0] @ row) / 5**0.5, 0)))
            for row in q[0]
        ]
    )
    assert torch.allclose(attend(q, k, v)[0], by_hand)


def test_unaligned_rows_are_needed() -> None:
    with pytest.raises(ConfigError, match="fewshot: needs unaligned rows"):
        federation(FewShot(), small_stack([0]))


def test_the_positive_control_has_unaligned_rows_too() -> None:
    scenario = load_scenario(
        {
            "data": {"name": "breast_cancer", "aligned": 100},
            "algorithm": [{"name": "fewshot"}, {"name": "oneshot"}],
            "attack": [{"name": "cluster"}],
            "gate": [{"max": 0.1}],
        }
    )
    found = {
        (g.cells[0].algorithm, g.data.section.get("aligned"))
        for g in make_plan(scenario).groups
        if g.role == "control"
    }
    assert found == {("fewshot", 0.5), ("oneshot", None)}
