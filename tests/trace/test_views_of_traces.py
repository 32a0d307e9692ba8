"""Views from traces: the guesses of a live run, epochs by passes, and factors of gradients."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sampled import sampled
from simulated import Live, attack_of, guess_of, simulate
from torch import Tensor, nn
from trace_audits import audit, record

from vflsec.core.view import Table
from vflsec.engine.trace_attacks import infer, score
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, DefenseSpec
from vflsec.trace.limits import TRUSTED
from vflsec.trace.reader import Trace
from vflsec.trace.record_api import Recording
from vflsec.trace.truth import write_truth
from vflsec.trace.views import Evidence, find_lack, number_passes

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
    return AttackSpec(name, dict(registry.attacks.get(name).quick), adversary, **grants)  # type: ignore[attr-defined]


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
        {"defenses": (DefenseSpec("he_embedding", {"out": 8, "processes": False}, "passive1"),),
         "params": {"hidden": (8,), "cut": 6, "top": (8,), "patience": 0}, "dtype": "float64"},
    ),
    "a coalition": (
        [spec(n, ("passive1", "passive2")) for n in ("norm", "cluster", "model_completion")],
        {"widths": (4, 6, 3)},
    ),
    "noise in double precision": (
        [spec("norm"), spec("direction"), AttackSpec("norm", {"accumulate": "scaled"}, P)],
        {"defenses": (DefenseSpec("iso", strength=1.0),), "dtype": "float64"},
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
        for i, s in enumerate(specs):
            evidence = Evidence(trace, [(s, attack_of(s))], phase)
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
    assert not [n for n in trace.notes if "carries no pass" in n or "unseen by attacks" in n]


OF_TREES = {  # tests/trace/test_leaves.py, tests/attacks/test_tree_columns.py
    "bin_sums", "gradient_pair", "leaf_columns", "leaf_counts", "leaf_graph", "leaf_vote",
    "leaf_weight", "sample_list",
}  # fmt: skip
OF_LISTS = {"psi_membership"}
OF_REGRESSIONS = {"glm_gradient", "reverse_multiplication", "woe_inversion"}


def test_every_attack_that_needs_no_retraining_is_here() -> None:
    tried = {s.name for specs, _ in WORLDS.values() for s in specs}
    others = RETRAINING | QUANTITIES | LABELLED | OF_TREES | OF_REGRESSIONS | OF_LISTS
    assert tried == set(registry.attacks.names()) - others


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


N, EPOCHS, BATCH = 200, 6, 25


def table(*passes: list[int], batch: int = 2, steps: bool = True) -> Table:
    """Messages of the rows of passes, without epochs."""
    rows = torch.tensor([r for one in passes for r in one])
    of = [i // batch + 100 * k for k, one in enumerate(passes) for i in range(len(one))]
    return Table(torch.zeros(len(rows), 1), rows, torch.zeros_like(rows), torch.tensor(of))


def test_whole_passes_are_epochs() -> None:
    found = number_passes(table([0, 1, 2, 3], [3, 2, 0, 1], [1, 0, 3, 2]))
    assert found.epoch.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    left = number_passes(
        table([0, 1, 2, 3], [4, 2, 0, 1], [1, 4, 3, 2])
    )  # the last batch is left out
    assert left.epoch.tolist() == [0] * 4 + [1] * 4 + [2] * 4


@pytest.mark.parametrize(
    "passes",
    [
        ([0, 1, 2, 3],),
        ([0, 1, 2, 3, 4, 5], [0, 1, 2]),  # training ended in the middle of one
        ([0, 1, 2, 3, 4, 5], [0, 1, 0, 2, 3, 3]),  # rows are drawn, some of them twice
    ],
)
def test_what_is_no_whole_pass_is_left_as_it_is(passes: tuple[list[int], ...]) -> None:
    given = table(*passes)
    assert number_passes(given) is given


def test_epochs_that_are_told_stay() -> None:
    given = table([0, 1], [0, 1])
    told = Table(given.tensor, given.rows, torch.tensor([0, 0, 7, 7]), given.step)
    assert number_passes(told) is told


def by_step(rec: Recording, x: Tensor, rows: Tensor, step: int) -> None:
    rec.tell("embedding", x, rows, sent=True, step=step)
    rec.tell("gradient", x, rows, sent=False, step=step)


def bare(rec: Recording, x: Tensor, rows: Tensor, step: int) -> None:
    rec.tell("embedding", x, rows, sent=True)
    rec.tell("gradient", x, rows, sent=False)


def cut(rec: Recording, x: Tensor, rows: Tensor, step: int) -> None:
    rec.cut(x.clone().requires_grad_() * 1, rows).backward(x)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("told", "plant"),
    sampled(
        [(told, plant) for plant in ("order", "place", "nothing") for told in (by_step, bare, cut)],
        every=8,
    ),
)
def test_one_epoch_in_the_order_of_labels_is_found(
    told: Callable[..., None], plant: str, tmp_path: Path
) -> None:
    """Rows of one class come first, in the epoch or in its batches, in the third of six."""
    traces = []
    for seed in range(3):
        g = torch.Generator().manual_seed(seed)
        y = torch.arange(N) % 2
        with record(tmp_path / f"t{seed}", y, np.arange(20), run={"seed": seed}) as rec:
            for epoch in range(EPOCHS):
                rows = torch.randperm(N, generator=g)
                if epoch == 2 and plant == "order":
                    rows = rows[y[rows].argsort(stable=True)]
                for step, part in enumerate(rows.split(BATCH)):
                    if epoch == 2 and plant == "place":
                        part = part[y[part].argsort(stable=True)]
                    told(rec, torch.randn(len(part), 3, generator=g), part, 8 * epoch + step)
        write_truth(tmp_path / f"t{seed}", np.arange(N), y)
        traces.append(tmp_path / f"t{seed}")
    infer(traces, tmp_path / "g", attacks=("zero_pattern",), limits=TRUSTED)
    result = score(tmp_path / "g", traces, tmp_path / "o", gates=[{"max": 0.1}])
    (verdict,) = result.verdicts
    if plant == "nothing":
        assert verdict.verdict == "INCONCLUSIVE"
        assert "nothing" in verdict.reason.lower() or "declin" in verdict.reason.lower()
        assert verdict.value is None
    else:
        assert verdict.verdict == "FAIL"
        assert verdict.value is not None
        assert verdict.value > 0.4


D = 3


def leaky(folder: Path, grad_scale: float | None) -> tuple[dict[str, float], list[str]]:
    """AUC by attack, and the notes, of a loop whose loss has a weight by batch that nobody tells.

    The gradient of a row of the rare class is three times as long as that of another.
    """
    g = torch.Generator().manual_seed(0)
    y = np.arange(300) % 10 < 3
    how = {"prior": (0.7, 0.3), "grad_scale": grad_scale}
    with record(folder / "t", y.astype(int), np.arange(20), **how) as rec:
        for epoch in range(2):
            rec.epoch(epoch)
            for k, rows in enumerate(torch.randperm(300, generator=g).split(30)):
                z = rec.cut(torch.randn(30, D, generator=g).requires_grad_(), rows)
                unit = nn.functional.normalize(torch.randn(30, D, generator=g), dim=1)
                z.backward(unit * (1 + 2.0 * torch.from_numpy(y)[rows, None]) * 10.0 ** (k % 4))
    result = audit(folder, [folder / "t"], ("norm", "hints"), y.astype(int))
    found = result.results.query("metric == 'auc'")
    return dict(zip(found.attack, found.value, strict=True)), result.summary["notes"]


def test_what_nobody_said_of_the_scale_is_read_both_ways(tmp_path: Path) -> None:
    """A factor that changed from batch to batch hid lengths, without a word."""
    found, notes = leaky(tmp_path, None)
    assert found["norm"] < 0.75
    assert found["norm(accumulate=scaled)"] > 0.9
    assert set(found) == {"norm", "norm(accumulate=scaled)", "hints"}
    (said,) = [n for n in notes if n.startswith("grad_scale is")]
    assert "and again with every batch" in said
    assert "Record with grad_scale=1 where there is no factor" in said


def test_what_was_said_of_the_scale_is_taken_at_its_word(tmp_path: Path) -> None:
    found, notes = leaky(tmp_path, 1.0)
    assert set(found) == {"norm", "hints"}
    assert not [n for n in notes if "grad_scale or loss" in n]
