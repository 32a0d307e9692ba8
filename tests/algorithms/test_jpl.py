"""JPL: its losses one by one, its reductions, and its ledger."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from by_hand import federation, flatten, trained
from sampled import sampled
from torch import Tensor
from worlds import with_category

from vflsec.algorithms.fpd import FPD
from vflsec.algorithms.jpl import JPL
from vflsec.core.rng import generator
from vflsec.core.task import Stack
from vflsec.data.prepare import make_task
from vflsec.errors import ConfigError
from vflsec.inference.distillation import cross_matrix, csi, imitation, kl, order_matrix, prc
from vflsec.plugins import registry
from vflsec.testing import small_stack
from vflsec.train.loop import predict, run_phases

SMALL: dict[str, Any] = {
    "hidden": (7,), "cut": 3, "top": (5,), "batch_size": 32, "epochs": 2, "patience": 0,
    "student_epochs": 3, "lr": 1e-2,
}  # fmt: skip
ALONE: dict[str, Any] = {
    "imitate": 0.0, "equivalence": 0.0, "similarity": 0.0, "own_labels": 0.0, "ranking": 0.0,
    "a_own": 1.0, "fed_labels": 0.0, "fed_teacher": 0.0, "answer": "a",
}  # fmt: skip


def world(**more: Any) -> Stack:
    return small_stack([0, 1], **{"unaligned": 60, **more})


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator(0, "draw", shape), dtype=torch.float64)


@pytest.mark.parametrize("more", [{}, {"widths": (3, 4, 5)}])
def test_it_is_fpd_with_the_added_terms_alone(more: dict[str, Any]) -> None:
    """beta CE_A + alpha CE_A + (1 - alpha) KL(T || A), answered by the A head, bit for bit."""
    stack = world(**more)
    jpl = JPL(**SMALL, **ALONE, beta=0.7, a_labels=0.25, a_teacher=0.75)
    fpd = FPD(**SMALL, beta=0.7, alpha=0.25)
    a, b = trained(jpl, stack, [0, 1]), trained(fpd, stack, [0, 1])
    for part in fpd.student_parts:
        mine, theirs = a.active.modules[part].state(), b.active.modules[part].state()
        assert all(torch.equal(mine[k], theirs[k]) for k in mine)
    rows = stack.rows("test")
    assert torch.equal(predict(jpl, a, rows), predict(fpd, b, rows))


def test_beta_zero_never_looks_at_unaligned_rows() -> None:
    a = trained(JPL(**SMALL, beta=0.0), world(), [0, 1])
    tasks = {s: world().tasks[s] for s in (0, 1)}
    for task in tasks.values():
        held = torch.isin(torch.arange(len(task.y)), task.sets["aligned"])
        outside = ~held & task.present["active"]
        outside[task.sets["test"]] = outside[task.sets["validation"]] = False
        task.x["active"][outside] = torch.nan
    b = trained(JPL(**SMALL, beta=0.0), Stack.build(tasks, [0, 1], dtype=torch.float64), [0, 1])
    for part in ("student", "imitation", "joint_top"):
        mine, theirs = a.active.modules[part].state(), b.active.modules[part].state()
        assert all(torch.equal(mine[k], theirs[k]) for k in mine)


@pytest.mark.parametrize("more", sampled([{}, {"warm_start": True}, {"teacher_first": True}]))
def test_the_teacher_does_not_move_and_one_tensor_crosses(more: dict[str, Any]) -> None:
    stack = world()
    algorithm = JPL(**SMALL, **more)
    fed = federation(algorithm, stack, [0, 1])
    states = {phase.name: fed.state() for phase in run_phases(algorithm, fed)}
    after = flatten(states["student"])
    assert all(torch.equal(v, after[name]) for name, v in flatten(states["teacher"]).items())
    student = [r for r in fed.channel.ledger.of(0) if r["phase"] == "student"]
    assert [(r["kind"], r["messages"], r["elements"]) for r in student] == [
        ("embedding", 1, 144 * 3)
    ]
    for part in algorithm.student_parts:
        assert bool(
            torch.stack(
                [v.isfinite().all() for v in states["student"]["active"][part].values()]
            ).all()
        )


def test_every_part_of_the_student_learns_and_every_answer_differs() -> None:
    stack = world()
    algorithm = JPL(**SMALL)
    fed = trained(algorithm, stack, [0, 1])
    now = {p: fed.active.modules[p].state() for p in algorithm.student_parts}
    algorithm.add_student(fed)
    for part, weights in now.items():
        fresh = fed.active.modules[part].state()
        assert all(not torch.equal(fresh[k], v) for k, v in weights.items())
        fed.active.modules[part].load(weights)
    rows = stack.rows("test")
    found = {
        how: predict(JPL(**SMALL, answer=how), fed, rows)  # type: ignore[arg-type]
        for how in ("mean", "a", "fed")
    }
    assert torch.allclose(found["mean"], (found["a"] + found["fed"]) / 2)
    assert not torch.equal(found["a"], found["fed"])


def test_equal_representations_silence_imitation_and_both_divergences() -> None:
    h, y = draw(2, 12, 4), torch.arange(12).expand(2, -1) % 2
    assert float(cross_matrix(h, h).abs().max()) < 1e-15
    for form in ("cme", "bcme", "dcme"):
        assert float(imitation(h * 3, h, y, form).abs().max()) < 1e-15  # lengths do not count
        assert float(imitation(draw(2, 12, 4).flip(1), h, y, form).min()) > 0.01


def test_the_cme_family_against_loops() -> None:
    s, t = draw(1, 6, 3), draw(1, 6, 4)[:, :, :3]
    y = torch.tensor([[1, 0, 0, 1, 0, 0]])
    u = [v[0].numpy() / np.linalg.norm(v[0].numpy(), axis=1, keepdims=True) for v in (s, t)]
    c = u[0] @ u[1].T - u[1] @ u[1].T
    n = 6
    rows = [
        c[i, i] ** 2 + sum(c[i, j] ** 2 for j in range(n) if j != i) / (n - 1) for i in range(n)
    ]
    truth = y[0].numpy()
    expected = {
        "cme": (c**2).sum() / n**2,
        "bcme": np.mean(rows),
        "dcme": sum(np.mean([rows[i] for i in range(n) if truth[i] == k]) for k in (0, 1)),
    }
    for form, value in expected.items():
        assert float(imitation(s, t, y, form)) == pytest.approx(value, abs=1e-12)


def test_dcme_is_twice_bcme_when_balanced_and_bcme_for_one_class() -> None:
    s, t = draw(2, 10, 3), draw(2, 10, 5)[..., :3]
    even = torch.arange(10).expand(2, -1) % 2
    assert torch.allclose(imitation(s, t, even), 2 * imitation(s, t, even, "bcme"))
    one = torch.ones(2, 10)
    assert torch.allclose(imitation(s, t, one), imitation(s, t, one, "bcme"))


def test_bcme_is_cme_up_to_the_diagonal() -> None:
    """bCME = N/(N-1) CME + (1 - 1/(N-1)) mean(diagonal^2); without a diagonal N/(N-1) CME."""
    s, t, y = draw(2, 7, 3), draw(2, 7, 4)[..., :3], torch.zeros(2, 7)
    diagonal = cross_matrix(s, t).diagonal(dim1=1, dim2=2).square().mean(1)
    expected = 7 / 6 * imitation(s, t, y, "cme") + (1 - 1 / 6) * diagonal
    assert torch.allclose(imitation(s, t, y, "bcme"), expected)


def test_csi_vanishes_on_equal_similarities_and_moves_only_the_student() -> None:
    u, h = draw(2, 7, 3), draw(2, 5, 3)
    assert float(csi(u, h, u * 2, h, 0.5).abs().max()) < 1e-15
    inputs = [
        v.requires_grad_() for v in (draw(2, 7, 3), draw(2, 5, 3), draw(2, 7, 4), draw(2, 5, 4))
    ]
    grads = torch.autograd.grad(
        csi(*inputs, 0.5).sum(), inputs, allow_unused=True, materialize_grads=True
    )
    assert [bool((g != 0).any()) for g in grads] == [False, False, True, False]
    a, b = (torch.nn.functional.normalize(v[0], dim=-1) for v in inputs[:2])
    c, d = (torch.nn.functional.normalize(v[0], dim=-1) for v in inputs[2:])
    gap = torch.softmax(a @ b.T / 0.5, 1) - torch.softmax(c @ d.T / 0.5, 1)
    assert torch.allclose(csi(*inputs, 0.5)[0], gap.square().sum())
    assert torch.allclose(csi(*inputs, 0.5, "mean")[0], gap.square().sum() / 7)


def test_order_matrix_and_its_mirror_make_one() -> None:
    r = order_matrix(draw(2, 9))
    assert torch.allclose(r + r.transpose(1, 2), torch.ones_like(r))
    assert torch.equal(r.diagonal(dim1=1, dim2=2), torch.full((2, 9), 0.5, dtype=r.dtype))


def test_prc_follows_the_guide_up_to_a_constant() -> None:
    guide, y = draw(2, 8), torch.tensor([0, 1, 1, 0, 0, 1, 0, 0]).expand(2, -1)
    learner = (guide + 3).requires_grad_()
    theirs = guide.clone().requires_grad_()
    value = prc(learner, theirs, y)
    pairs = (y.unsqueeze(2) == 1) & (y.unsqueeze(1) == 0)
    apart = (order_matrix(guide) * pairs).flatten(1).norm(dim=1) / (3 * 5) ** 0.5
    assert torch.allclose(value, -apart, atol=1e-7)
    mine, other = torch.autograd.grad(
        value.sum(), [learner, theirs], allow_unused=True, materialize_grads=True
    )
    assert bool(mine.isfinite().all())
    assert not bool((other != 0).any())
    assert float(prc(guide, guide * 0.1, y).min()) > float(-apart.min())
    literal = prc(guide, guide, y, normalised=False)
    assert torch.allclose(literal, -apart * 15**0.5)
    one = torch.ones(2, 8)  # a class is absent
    assert torch.allclose(prc(guide, guide, one), torch.zeros(2, dtype=torch.float64))


LEAST_SHARE = 0.003
"""Least share of the gradient that a term of the loss must have to be worth its name."""


def shares(algorithm: JPL, stack: Stack) -> dict[str, float]:
    """Norm of each term's gradient of the student's weights over the sum of all norms, least over
    replicas, after the student's last epoch (none: at its start).
    """
    fed = trained(algorithm, stack, [0, 1])
    aligned, own = fed.extra["sides"]
    params = fed.active.parameters(algorithm.student_parts)
    norms = {}
    for name, (weight, loss) in algorithm.terms(fed, aligned[:, :128], own[:, :128]).items():
        grads = torch.autograd.grad(
            (weight * loss).sum(), params, allow_unused=True, retain_graph=True
        )
        squares = [g.flatten(1).square().sum(1) for g in grads if g is not None]
        norms[name] = torch.stack(squares).sum(0).sqrt()
    total = torch.stack(list(norms.values())).sum(0)
    return {k: float((v / total).min()) for k, v in norms.items()}


@pytest.mark.parametrize("student_epochs", sampled([0, 10]))
def test_every_term_has_a_share_of_the_gradient(student_epochs: int) -> None:
    """In the world `imitation`; CSI as a mean at temperature 1, which was the default, has none."""
    source = registry.datasets.create("imitation", {"test_rows": 50})
    tasks = {s: make_task(source.load(s), s, aligned=1200) for s in (0, 1)}
    stack = Stack.build(tasks, [0, 1])
    settings: dict[str, Any] = {
        "epochs": 20, "patience": 0, "student_epochs": student_epochs, "lr": 3e-3,
        "a_teacher": 1.0, "select": False, "ranking": 1.0,
    }  # fmt: skip
    found = shares(JPL(**settings), stack)
    assert len(found) == 11  # seven terms on aligned rows, four on unaligned ones
    assert min(found.values()) > LEAST_SHARE, found
    old = shares(JPL(**settings, tau=1.0, csi_reduction="mean"), stack)
    assert old["own.similarity"] < LEAST_SHARE / 10


def test_one_shared_table_serves_both_bottoms() -> None:
    stack = with_category(world())
    shared, own = (JPL(**SMALL, shared_embedding=e) for e in (True, False))
    a, b = trained(shared, stack, [0, 1]), trained(own, stack, [0, 1])
    tables = {
        kind: [
            f"{part}.{key}"
            for part in algorithm.student_parts
            for key in fed.active.modules[part].params
            if "tables" in key
        ]
        for kind, algorithm, fed in (("shared", shared, a), ("own", own, b))
    }
    assert tables == {
        "shared": ["embedding.tables.0.weight"],
        "own": ["student.0.tables.0.weight", "imitation.0.tables.0.weight"],
    }
    fresh = trained(JPL(**SMALL | {"student_epochs": 0}, shared_embedding=True), stack, [0, 1])
    weights = [f.active.modules["embedding"].params["tables.0.weight"] for f in (a, fresh)]
    assert not torch.equal(*weights)
    warm = trained(
        JPL(**SMALL | {"student_epochs": 0}, shared_embedding=True, warm_start=True), stack, [0, 1]
    )
    x = warm.columns("active", stack.rows("test"))
    mine, _ = shared.imagine(warm, stack.rows("test"), train=False)
    assert torch.equal(mine, warm.active.modules["bottom"](x, train=False))


def test_without_categories_a_shared_table_changes_nothing() -> None:
    stack = world()
    a, b = (
        predict(algorithm, trained(algorithm, stack, [0, 1]), stack.rows("test"))
        for algorithm in (JPL(**SMALL), JPL(**SMALL, shared_embedding=True))
    )
    assert torch.equal(a, b)


def test_a_bottom_of_ones_own_cannot_share_a_table() -> None:
    algorithm = JPL(**SMALL, shared_embedding=True, parties={"active": {"module": "a:b"}})
    with pytest.raises(ConfigError, match="shared_embedding needs a table"):
        federation(algorithm, world(), [0, 1])


@pytest.mark.parametrize("aggregation", ["concat", "mean"])
def test_several_partners_are_one_with_their_columns_side_by_side(aggregation: str) -> None:
    """Three parties: every term on [h_2, h_3], and one upload by each."""
    stack = world(widths=(3, 4, 5))
    algorithm = JPL(**{**SMALL, "top": (), "aggregation": aggregation}, cme="bcme")
    fed = trained(algorithm, stack, [0, 1])
    student = [r for r in fed.channel.ledger.of(0) if r["phase"] == "student"]
    assert [(r["kind"], r["sender"], r["messages"], r["elements"]) for r in student] == [
        ("embedding", p, 1, 144 * 3) for p in ("passive1", "passive2")
    ]
    rows = stack.rows("labelled")[:, :32]
    kept = []
    for p in ("active", "passive1", "passive2"):
        kept.append(fed.parties[p].modules["bottom"](fed.columns(p, rows), train=False).detach())
    _, h_b = algorithm.imagine(fed, rows, train=False)
    assert h_b.shape == (2, 32, 6)
    terms = {k: t for k, (_, t) in algorithm.terms(fed, rows, None).items()}
    both = torch.cat(kept[1:], dim=-1)
    y, head = fed.targets(rows), fed.active.modules["imitation_top"]
    torch.testing.assert_close(terms["imitate"], imitation(h_b, both, y, "bcme"))
    taught = algorithm.logits(fed, kept, train=False)
    imagined = algorithm.logits(fed, [kept[0], *h_b.split(3, dim=-1)], train=False)
    same = algorithm.alpha * kl(imagined, taught) + kl(head(both), head(h_b))
    same = same + fed.loss(head(both), y) + fed.loss(head(h_b), y)
    torch.testing.assert_close(terms["equivalence"], same)


def test_two_classes_own_rows() -> None:
    with pytest.raises(ConfigError, match="jpl: the number of parties must be at least 2, got 1"):
        federation(JPL(), small_stack([0], widths=(3,), unaligned=20))
    with pytest.raises(ConfigError, match="jpl: the number of classes must be 2, got 3"):
        federation(JPL(), small_stack([0], classes=3, unaligned=20))
    with pytest.raises(ConfigError, match="jpl: needs labelled rows"):
        federation(JPL(), small_stack([0]))
