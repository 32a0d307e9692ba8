"""FPD: a frozen teacher, one last upload, then silence; and what it is without its teacher."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from by_hand import assert_same, federation, flatten, trained
from torch import Tensor, nn

from vflsec.algorithms.fpd import FPD
from vflsec.algorithms.local import Local
from vflsec.algorithms.splitnn import SplitNN
from vflsec.core.federation import Federation
from vflsec.core.task import Stack
from vflsec.engine.cohort import run_cohort
from vflsec.errors import ConfigError
from vflsec.inference.distillation import kl
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec
from vflsec.testing import small_stack, small_task
from vflsec.train.loop import predict, run_phases

SMALL: dict[str, Any] = {
    "hidden": (7,), "cut": 3, "top": (5,), "batch_size": 32, "epochs": 2, "patience": 0,
    "lr": 1e-2,
}  # fmt: skip
FED: dict[str, Any] = SMALL | {"student_epochs": 3}


def world(**more: Any) -> Stack:
    return small_stack([0, 1], **{"unaligned": 60, **more})


def start(algorithm: FPD, stack: Stack) -> Federation:
    """A federation whose teacher is trained and whose student is about to be."""
    fed = federation(algorithm, stack, [0, 1])
    phases = algorithm.phases(fed)
    next(run_phases(algorithm, fed))
    fed.phase, fed.epoch, fed.steps = "student", 0, 0
    phases[1].before()  # type: ignore[misc]
    return fed


def test_without_teacher_and_own_rows_it_is_local_bit_for_bit() -> None:
    """alpha = 1, beta = 0."""
    stack = world()
    algorithm = FPD(**FED, alpha=1.0, beta=0.0)
    fed = start(algorithm, stack)
    local = Local(**SMALL | {"epochs": 3})
    alone = federation(local, stack, [0, 1])
    for mine, theirs in (("student", "bottom"), ("student_top", "top")):
        alone.active.modules[theirs].load(fed.active.modules[mine].state())
    for _ in run_phases(local, alone):
        pass
    whole = trained(algorithm, stack, [0, 1])
    for mine, theirs in (("student", "bottom"), ("student_top", "top")):
        a, b = whole.active.modules[mine].state(), alone.active.modules[theirs].state()
        assert all(torch.equal(a[k], b[k]) for k in a)
    rows = stack.rows("test")
    assert torch.equal(predict(algorithm, whole, rows), predict(local, alone, rows))


def test_alpha_and_beta_one_is_standalone_training_on_both_sets() -> None:
    """In plain torch, each set averaged; the teacher has no say."""
    stack = world()
    algorithm = FPD(**FED, alpha=1.0, beta=1.0)
    fed = start(algorithm, stack)
    model = nn.Sequential(*(fed.active.modules[p].one(1) for p in algorithm.student_parts)).train()
    for weight in model.parameters():
        weight.requires_grad_()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    task = stack.tasks[1]
    x, y = task.x["active"].double(), task.y
    seen: list[tuple[Tensor, Tensor]] = []
    original = FPD.student_loss

    def watched(self: FPD, fed: Federation, aligned: Tensor, own: Tensor | None) -> Tensor:
        assert own is not None
        seen.append((aligned[1], own[1]))
        return original(self, fed, aligned, own)

    FPD.student_loss = watched  # type: ignore[method-assign]
    try:
        for rows in fed.batches(algorithm.phases(fed)[1]):
            algorithm.student_step(fed, rows)
    finally:
        FPD.student_loss = original  # type: ignore[method-assign]
    assert len(seen) == 5  # 144 aligned rows in batches of 32: the larger set is passed once
    assert torch.equal(torch.cat([a for a, _ in seen]).sort().values, task.sets["labelled"])
    assert torch.isin(torch.cat([o for _, o in seen]), stack.unaligned_labelled()[1]).all()
    for aligned, own in seen:
        loss = sum(nn.functional.cross_entropy(model(x[r]), y[r]) for r in (aligned, own))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[union-attr]
        optimizer.step()
    for i, part in enumerate(algorithm.student_parts):
        for key, value in model[i].named_parameters():
            assert torch.allclose(fed.active.modules[part].params[key][1], value, atol=1e-12)


def test_the_larger_set_sets_the_pace() -> None:
    stack = world(unaligned=200)
    algorithm = FPD(**FED)
    fed = start(algorithm, stack)
    batches = list(fed.batches(algorithm.phases(fed)[1]))
    assert torch.equal(torch.cat(batches, dim=1).sort().values, stack.unaligned_labelled())


def test_auto_is_the_ratio_of_the_two_sets() -> None:
    """60 rows of its own against 144 aligned ones; bit for bit what the number gives."""
    stack = world()
    sizes = stack.unaligned_labelled().shape[1], stack.rows("labelled").shape[1]
    fed = trained(FPD(**FED), stack, [0, 1])
    assert FPD(**FED).own_weight(fed) == sizes[0] / sizes[1]
    other = trained(FPD(**FED, beta=sizes[0] / sizes[1]), stack, [0, 1])
    for part in FPD(**FED).student_parts:
        mine, theirs = fed.active.modules[part].state(), other.active.modules[part].state()
        assert all(torch.equal(mine[k], theirs[k]) for k in mine)


@pytest.mark.parametrize(
    ("unaligned", "size", "expected"),
    [(60, 0, (32, 32)), (60, 8, (32, 8)), (200, 0, (32, 32)), (200, 8, (32, 8)), (60, 5, (32, 5))],
)
def test_batches_of_their_own_size(unaligned: int, size: int, expected: tuple[int, int]) -> None:
    """The set with more batches is walked; the other gives as many rows as was asked for."""
    stack = world(unaligned=unaligned)
    algorithm = FPD(**FED, own_batch_size=size)
    fed = start(algorithm, stack)
    seen: list[tuple[int, int]] = []
    phase = algorithm.phases(fed)[1]
    walked, drawn = (unaligned, 144) if phase.rows.shape[1] == unaligned else (144, unaligned)
    with pytest.MonkeyPatch.context() as patch:
        original = FPD.student_loss

        def watched(self: FPD, fed: Federation, aligned: Tensor, own: Tensor | None) -> Tensor:
            assert own is not None
            seen.append((aligned.shape[1], own.shape[1]))
            return original(self, fed, aligned, own)

        patch.setattr(FPD, "student_loss", watched)
        for rows in fed.batches(phase):
            algorithm.student_step(fed, rows)
    batches = {144: -(-144 // 32), unaligned: -(-unaligned // (size or 32))}
    assert len(seen) == batches[walked] >= batches[drawn]
    assert seen[0] == expected


def test_pure_distillation_is_at_rest_when_the_student_agrees() -> None:
    """alpha = 0 and beta = 0: no loss and no gradient where student and teacher agree."""
    stack = world()
    algorithm = FPD(**FED, alpha=0.0, beta=0.0)
    fed = start(algorithm, stack)
    rows = stack.rows("labelled")[:, :20]
    answer = algorithm.student(fed, stack.rows("labelled"), train=True).detach()
    fed.extra["teacher"] = answer
    loss = algorithm.student_loss(fed, rows, None)
    grads = torch.autograd.grad(loss.sum(), fed.active.parameters(algorithm.student_parts))
    assert float(loss.detach().abs().max()) < 1e-15
    assert max(float(g.abs().max()) for g in grads) < 1e-15
    fed.extra["teacher"] = answer + torch.tensor([1.0, 0.0])
    assert float(algorithm.student_loss(fed, rows, None).detach().min()) > 0.01


def test_the_teacher_starts_as_fedsplitnn_and_does_not_move_afterwards() -> None:
    stack = world()
    algorithm = FPD(**FED)
    fed = federation(algorithm, stack, [0, 1])
    states = {phase.name: fed.state() for phase in run_phases(algorithm, fed)}
    assert list(states) == ["teacher", "student"]
    after = flatten(states["student"])
    assert all(torch.equal(v, after[name]) for name, v in flatten(states["teacher"]).items())
    mine = federation(algorithm, stack, [0, 1]).state()
    theirs = federation(SplitNN(**SMALL), stack, [0, 1]).state()
    assert_same(mine, theirs)


def test_after_the_teacher_one_embedding_crosses_and_predictions_cost_nothing() -> None:
    stack = small_stack([0], widths=(4, 6, 5), unaligned=60)
    algorithm = FPD(**FED | {"patience": 2})
    fed = federation(algorithm, stack)
    before = {}
    for phase in run_phases(algorithm, fed):
        before[phase.name] = [r for r in fed.channel.ledger.of(0) if r["phase"] == "predict"]
    ledger = fed.channel.ledger.of(0)
    student = [r for r in ledger if r["phase"] == "student"]
    assert [(r["kind"], r["name"], r["sender"], r["messages"], r["elements"]) for r in student] == [
        ("embedding", "cache", p, 1, 144 * 3) for p in ("passive1", "passive2")
    ]
    predict(algorithm, fed, stack.rows("test"))
    after = [r for r in fed.channel.ledger.of(0) if r["phase"] == "predict"]
    assert after == before["student"] == before["teacher"]
    assert {r["phase"] for r in ledger if r["kind"] == "gradient"} == {"teacher"}


def test_kl_is_the_divergence() -> None:
    p = torch.tensor([[[0.3, -1.0, 2.0], [0.0, 0.0, 0.0]]], dtype=torch.float64)
    q = torch.tensor([[[1.0, 0.5, 0.0], [0.1, 0.2, 0.3]]], dtype=torch.float64)
    a, b = torch.distributions.Categorical(logits=p), torch.distributions.Categorical(logits=q)
    assert torch.allclose(kl(p, q), torch.distributions.kl_divergence(a, b).mean(1))


def test_own_labelled_rows_are_needed_unless_beta_is_zero() -> None:
    with pytest.raises(ConfigError, match="needs linear_top"):
        FPD(top=(), linear_top=False, aggregation="sum")
    with pytest.raises(ConfigError, match="fpd: needs labelled rows of the active party"):
        federation(FPD(), small_stack([0]))
    federation(FPD(beta=0.0), small_stack([0]))


def test_gradient_attacks_have_nothing_to_look_at_after_the_teacher() -> None:
    """Labels can leak in stage ``teacher``; afterwards the passive party receives no message."""
    tasks = {s: small_task(s, unaligned=60) for s in (0, 1)}
    cells = [CellSpec({"name": "small"}, "fpd", FED, seed=s) for s in (0, 1)]
    attack = AttackSpec("direction", adversary=("passive1",), known_rows=4)
    for result in run_cohort(cells, [attack], tasks, device="cpu"):
        found = {(m.phase, m.status) for m in result.measures if m.attack}
        assert found == {("teacher", "ok"), ("student", "not-observable")}
        (silent,) = [m for m in result.measures if m.status == "not-observable"]
        assert silent.reason == (
            "direction needs 'gradient' messages; passive1 received none in phase 'student'."
        )


@pytest.mark.parametrize("name", ["fpd", "jpl"])
def test_behind_an_encrypted_layer_no_embedding_passes_in_the_clear(name: str) -> None:
    """The student then learns from what the layer gives the active party."""
    tasks = {s: small_task(s, unaligned=60) for s in (0, 1)}
    hidden = (DefenseSpec("he_embedding", {"mode": "emulated"}),)
    cells = [CellSpec({"name": "small"}, name, FED, hidden, seed=s) for s in (0, 1)]
    for result in run_cohort(cells, [], tasks, device="cpu"):
        kinds = {(x.phase, x.kind, x.receiver) for x in result.ledger}
        assert "embedding" not in {kind for _, kind, _ in kinds}
        assert {phase for phase, kind, _ in kinds if kind == "gradient"} == {"teacher"}
        assert ("student", "ciphertext", "active") in kinds
        assert [m.phase for m in result.measures if m.metric == "auc"][-1] == "student"
