"""A simulation's own trace gives attacks what the live run gave: the same guesses, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from simulated import Live, attack_of, guess_of, simulate

from vflsec.plugins import registry
from vflsec.specs import AttackSpec, DefenseSpec
from vflsec.trace.reader import Trace
from vflsec.trace.views import Evidence, find_lack

P, A = ("passive1",), ("active",)
SUMMED = {"top": (), "linear_top": False, "aggregation": "sum", "hidden": ()}
RETRAINING = {
    "active_completion", "fsha", "gradient_replacement", "membership", "replay", "swap_probe",
    "villain",
}  # fmt: skip
"""They act during training or ask its system, which a finished trace cannot answer."""
QUANTITIES = {"residual", "value_completion"}
"""They guess labels that are quantities, of which no trace is recorded."""
LABELLED = {"sdar"}
"""They use the label party's own labels, which no trace holds."""


def spec(name: str, adversary: tuple[str, ...] = P, **grants: Any) -> AttackSpec:
    return AttackSpec(name, adversary=adversary, **grants)


WORLDS: dict[str, tuple[list[AttackSpec], dict[str, Any]]] = {
    "labels from gradients": (
        [spec(n) for n in ("norm", "direction", "cluster", "similarity", "hints", "exploit", "lea")]
        + [AttackSpec("norm", {"accumulate": False, "epoch": e}, P) for e in ("first", "last")],
        {},
    ),
    "own model": (
        [spec(n) for n in ("model_completion", "spectral", "gradient_completion",
                           "joint_completion")],
        {"categorical": True},
    ),
    "features": (
        [spec(n, A, aux_rows=40) for n in ("embedding_inversion", "attribute", "property")],
        {"categorical": True},
    ),
    "white box": (
        [spec(n, A, peer_model=True) for n in ("grn", "equation_solving", "unsplit_input")],
        {"params": SUMMED},
    ),
    "logits": (
        [spec(n) for n in ("direct", "batch_inference", "zero_pattern", "message_completion",
                           "dictionary")],
        {"params": SUMMED},
    ),
    "predictions": (
        [spec("output"), spec("joint_completion")], {"params": {"returns_predictions": True}},
    ),
    "a frozen split": ([spec("unsplit")], {"params": {"top": ()}}),
    "encrypted": (
        [AttackSpec("linear_inversion", {"use": u}, A) for u in ("output", "joint")],
        {"defenses": [(DefenseSpec("he_embedding", {"out": 8, "processes": False}), "passive1")],
         "params": {"hidden": (8,), "cut": 6, "top": (8,), "patience": 0}, "dtype": torch.float64},
    ),
    "a coalition": (
        [spec(n, ("passive1", "passive2")) for n in ("norm", "cluster", "model_completion")],
        {"widths": (4, 6, 3)},
    ),
    "noise in double precision": (
        [spec("norm"), spec("direction"), AttackSpec("norm", {"accumulate": "scaled"}, P)],
        {"defenses": [(DefenseSpec("iso", strength=1.0), "active")], "dtype": torch.float64},
    ),
    "phases": (
        [spec("norm"), AttackSpec("model_completion", {"variants": ("logistic",)}, P)],
        {"algorithm": "fedhssl", "params": {"hidden": (8,), "cut": 8, "pretrain_iterations": 1},
         "unaligned": 20, "n": 120},
    ),
}  # fmt: skip


@pytest.fixture(scope="module", params=WORLDS, ids=lambda n: n.replace(" ", "-"))
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Live, list[AttackSpec]]:
    specs, settings = WORLDS[request.param]
    folder = tmp_path_factory.mktemp("simulated") / "trace"
    return folder, simulate(folder, specs, **settings), specs


def test_the_same_guesses_bit_for_bit(world: tuple[Path, Live, list[AttackSpec]]) -> None:
    folder, live, specs = world
    trace = Trace.open(folder)
    assert trace.notes == []
    assert live.guesses
    for phase in dict.fromkeys(p for _, p in live.guesses):
        evidence = Evidence(trace, [(s, attack_of(s)) for s in specs], phase)
        for i, s in enumerate(specs):
            view = evidence.view(s)
            ours, theirs = live.views[i, phase], view
            for key in theirs.tables:
                a, b = ours.tables[key], theirs.tables[key]
                assert a.tensor.dtype == b.tensor.dtype
                for name in ("tensor", "rows", "epoch", "step"):
                    assert torch.equal(getattr(a, name), getattr(b, name)), (key, name)
            expected = live.guesses[i, phase]
            if isinstance(expected, str):
                status, _ = find_lack(evidence, s, attack_of(s), view)
                assert status == "not-observable"
                continue
            assert find_lack(evidence, s, attack_of(s), view) == ("", "")
            found = guess_of(s, view, phase)
            assert np.array_equal(found.rows, expected.rows)
            assert np.array_equal(found.scores, expected.scores)
            assert found.notes == expected.notes
    assert not [n for n in trace.notes if "carries no pass" in n or "no attack looked" in n]


def test_every_attack_that_needs_no_retraining_is_here() -> None:
    tried = {s.name for specs, _ in WORLDS.values() for s in specs}
    assert tried == set(registry.attacks.names()) - RETRAINING - QUANTITIES - LABELLED


def test_a_trace_of_one_seed_is_not_that_of_another(tmp_path: Path) -> None:
    """The comparison above can fail: other messages give other guesses."""
    specs = [spec("direction")]
    live = simulate(tmp_path / "a", specs)
    simulate(tmp_path / "b", specs, seed=1)
    evidence = Evidence(Trace.open(tmp_path / "b"), [(s, attack_of(s)) for s in specs])
    found = guess_of(specs[0], evidence.view(specs[0]), "train")
    assert not np.array_equal(found.scores, live.guesses[0, "train"].scores)


def test_an_attack_that_uses_own_labels_is_not_observable_on_a_trace(tmp_path: Path) -> None:
    specs = [AttackSpec("sdar", {"steps": 5}, A, aux_rows=20)]
    simulate(tmp_path / "t", specs)
    evidence = Evidence(Trace.open(tmp_path / "t"), [(s, attack_of(s)) for s in specs])
    status, why = find_lack(evidence, specs[0], attack_of(specs[0]), evidence.view(specs[0]))
    assert status == "not-observable"
    assert "labels of its own" in why
