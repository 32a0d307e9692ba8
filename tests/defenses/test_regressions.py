"""Defenses of regressions do what they say, and do not stop what they say they do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from vflsec.core.message import Message
from vflsec.core.rng import numpy_generator
from vflsec.core.task import Stack, Task
from vflsec.defenses.masked_gradient import FRACTION, MaskedGradient
from vflsec.errors import PolicyError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import small_task, train
from vflsec.testing.worlds import Trained
from vflsec.train.loop import predict
from vflsec.train.views import make_view

FORMS = [("passive1", "received", kind, "all") for kind in ("model_gradient", "ids")]


def defended(task: Task, policies: dict[str, Any], **params: Any) -> Trained:
    """Trained with the policies off in replica 0, and on in replica 1."""
    algorithm = registry.algorithms.create("vertical_glm", {"epochs": 2, **params})
    return train(algorithm, Stack.build({0: task}, [0, 0]), [0, 0], policies, wanted=FORMS)


def masked(*parties: str) -> dict[str, Any]:
    strengths = torch.tensor([0.0, 1.0], dtype=torch.float64)
    return {p: [(registry.defenses.create("masked_gradient"), strengths)] for p in parties}


def at_least(strength: float) -> dict[str, Any]:
    strengths = torch.tensor([0.0, strength], dtype=torch.float64)
    return {"active": [(registry.defenses.create("min_batch"), strengths)]}


def guess(trained: Trained, r: int) -> tuple[float, np.ndarray]:
    """AUC and scores of glm_gradient in one replica."""
    spec = AttackSpec("glm_gradient", adversary=("passive1",))
    view = make_view(trained.algorithm, trained.fed, {}, spec, r)
    found = registry.attacks.create("glm_gradient").infer(view, torch.Generator())
    y = trained.fed.stack.tasks[0].y[torch.from_numpy(found.rows)]
    return float(roc_auc_score(y, found.scores)), found.scores


def with_noise(rows: int = 2000) -> Task:
    """passive1's columns say nothing of the label."""
    task = small_task(0, n=rows)
    noise = torch.randn(rows, 6, generator=torch.Generator().manual_seed(1))
    return replace(task, x={**task.x, "passive1": noise})


def test_a_mask_changes_what_the_coordinator_gets_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not the coefficients, and not what the party reads from its own gradient."""
    sent: list[Message] = []
    from vflsec.core.channel import Channel

    deliver = Channel.send

    def watched(self: Channel, message: Message, *args: Any, **context: Any) -> torch.Tensor:
        if bool(self.alive[1]) and not bool(self.alive[0]):
            sent.append(message)
        return deliver(self, message, *args, **context)

    monkeypatch.setattr(Channel, "send", watched)
    trained = defended(small_task(0), masked("active", "passive1"), batch_size=16)
    to = {m.kind for m in sent if m.receiver == "coordinator"}
    assert to == {"masked_sum", "signal", "loss"}
    rows = trained.fed.stack.rows("test")
    answers = predict(trained.algorithm, trained.fed, rows)
    assert torch.equal(answers[0], answers[1])
    bare, hidden = guess(trained, 0), guess(trained, 1)
    assert bare[0] > 0.9
    assert np.array_equal(bare[1], hidden[1])
    kinds = [{(r["kind"], r["receiver"]) for r in trained.fed.channel.ledger.of(k) if r["messages"]}
             for k in (0, 1)]  # fmt: skip
    assert ("model_gradient", "coordinator") in kinds[0]
    assert not [k for k in kinds[1] if k[0] == "model_gradient"]


def test_without_the_others_mask_the_coordinator_reads_theirs() -> None:
    trained = defended(small_task(0), masked("passive1"))
    of = {(r["kind"], r["sender"]) for r in trained.fed.channel.ledger.of(1)
          if r["messages"] and r["receiver"] == "coordinator"}  # fmt: skip
    told = {("signal", "active"), ("loss", "active")}
    assert of == {("masked_sum", "passive1"), ("model_gradient", "active"), *told}


def test_what_is_masked_is_uniform_and_comes_off_exactly() -> None:
    g = np.random.default_rng(0).normal(size=(4000, 1)) * 1e-3
    own: Any = None
    m = MaskedGradient().mask(g, numpy_generator(0, "a"), own)
    drawn = MaskedGradient().mask(np.zeros_like(g), numpy_generator(0, "a"), own)
    with np.errstate(over="ignore"):
        back = (m - drawn) / FRACTION
    assert np.abs(back - g).max() <= 0.5 / FRACTION
    share = np.sort(m.ravel().astype(float)) / 2.0**64 + 0.5
    assert np.abs(share - np.arange(4000) / 4000).max() < 1.63 / np.sqrt(4000)  # 1 % of KS tests
    assert abs(np.corrcoef(m.ravel().astype(float), g.ravel())[0, 1]) < 4 / np.sqrt(4000)


def test_a_minimum_batch_hides_what_own_columns_do_not_say() -> None:
    trained = defended(with_noise(), at_least(40.0), batch_size=6)
    assert guess(trained, 0)[0] > 0.999
    assert guess(trained, 1)[0] < 0.65
    sizes = trained.fed.extra["learners"][(1,)].batches
    assert min(map(len, sizes)) >= 240
    assert sorted(np.concatenate(sizes)) == list(range(1200))


def test_a_minimum_batch_does_not_hide_what_they_say() -> None:
    trained = defended(small_task(0, n=2000, signal=4.0), at_least(100.0), batch_size=6)
    found = guess(trained, 1)[0]
    assert len(trained.fed.extra["learners"][(1,)].batches) == 2
    assert found > 0.95


def test_more_rows_than_there_are_is_refused() -> None:
    with pytest.raises(PolicyError, match="min_batch: batches must be at most the"):
        defended(small_task(0), at_least(100.0))
