"""Labels by swapped embeddings: the timetable, the policy, and what gradients then tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_views import make_view, measure, null_band, rng
from cohorts import cohort
from sampled import sampled

from vflsec.attacks.swap_probe import Swap, SwapProbe, donors
from vflsec.core.message import Message
from vflsec.core.policy import Own
from vflsec.core.rng import Streams
from vflsec.core.view import Known
from vflsec.specs import AttackSpec, DefenseSpec
from vflsec.testing import small_task

EPOCHS = 7


def test_every_row_has_one_turn_in_a_period_and_known_rows_none() -> None:
    rows, known = torch.arange(2000), Known(torch.tensor([3, 8, 11]), torch.tensor([0, 1, 2]))
    turns = torch.stack([donors(rows, e, known, 2, 5) for e in range(2 + 15)])
    assert bool((turns[:2] == -1).all())
    others = turns[2:, ~torch.isin(rows, known.rows)]
    for cycle in others.split(5):
        assert bool(((cycle >= 0).sum(0) == 1).all())
    for c in range(3):
        assert bool((others == c).any(0).all()), "every class has its turn with every row"
    assert bool((turns[:, known.rows] == -1).all())


def lengths(y: torch.Tensor, *, swap: bool = True, known: int = 2) -> list[torch.Tensor]:
    """Gradients of the top sigma(a z) with a z = -5 or +5 for donors and near 0 for others."""
    grant = make_view(y, gradients=[torch.zeros(len(y), 3)], known=known).require_known()
    own, out = 0.2 * torch.randn(len(y), generator=rng(4)), []
    for e in range(EPOCHS):
        donor = donors(torch.arange(len(y)), e, grant, 1, 3)
        score = torch.where(donor >= 0, 10.0 * donor - 5, own) if swap else own
        out.append((torch.sigmoid(score) - y).unsqueeze(1) * torch.tensor([[0.6, 0.0, 0.8]]) / 64)
    return out


@pytest.mark.parametrize("known", [2, 8])
def test_a_confident_donor_tells_every_label(known: int) -> None:
    y = (torch.rand(600, generator=rng(1)) < 0.5).long()
    view = make_view(y, gradients=lengths(y, known=known), known=known)
    guess = SwapProbe(start=1, period=3).infer(view, rng())
    assert measure(guess, y) == 1.0
    assert guess.notes["probed"] == 1.0
    assert not set(guess.rows.tolist()) & set(view.require_known().rows.tolist())


def test_without_a_swap_balanced_lengths_tell_nothing() -> None:
    y = (torch.rand(2000, generator=rng(1)) < 0.5).long()
    view = make_view(y, gradients=lengths(y, swap=False), known=2)
    guess = SwapProbe(start=1, period=3).infer(view, rng())
    low, high = null_band(y, torch.from_numpy(guess.rows))
    assert low < measure(guess, y) < high


def test_only_swapped_rows_change_and_nothing_is_learnt_from_them() -> None:
    known = Known(torch.tensor([0, 1, 2]), torch.tensor([1, 1, 0]))
    own = Own("passive1", torch.ones(1), Streams([0], "x"), memory={"known": [known]})
    policy, rows = Swap(1, 2), torch.arange(40).unsqueeze(0)
    z = torch.randn(1, 40, 4, generator=rng(2))

    def message(x: torch.Tensor, epoch: int, kind: Any = "embedding", phase: str = "t") -> Message:
        return Message(kind, "passive1", "active", x, rows, phase, epoch, epoch)

    assert torch.equal(policy.outgoing(message(z, 0), own), z)
    means = {1: z[0, :2].mean(0), 0: z[0, 2]}
    later = z + 1
    sent = policy.outgoing(message(later, 1), own)
    donor = donors(rows[0], 1, known, 1, 2)
    assert set(donor.tolist()) == {-1, 0, 1}
    for i, c in enumerate(donor.tolist()):
        assert torch.equal(sent[0, i], later[0, i] if c < 0 else means[c])
    g = policy.incoming(message(z, 1, "gradient"), own)
    assert torch.equal(g[0], torch.where((donor < 0).unsqueeze(1), z[0], torch.zeros(4)))
    assert torch.equal(policy.outgoing(message(z, 1, phase="predict"), own), z)


def values(name: str, metric: str = "auc", classes: int = 2, defense: Any = ()) -> list[float]:
    tasks = {s: small_task(s, n=600, classes=classes) for s in (0, 1)}
    attack = AttackSpec(name, {}, ("passive1",))
    out = []
    for result in cohort(attack, tasks, defense, epochs=16, batch_size=32, patience=0):
        (found,) = [m.value for m in result.measures if m.metric == metric]
        assert found is not None
        out.append(found)
    return out


@pytest.mark.slow
def test_it_reads_balanced_labels_where_the_length_alone_cannot() -> None:
    assert min(values("swap_probe")) > 0.97
    assert max(values("norm")) < 0.65


@pytest.mark.slow
def test_it_reads_three_classes() -> None:
    assert min(values("swap_probe", "accuracy", classes=3)) > 0.85


@pytest.mark.slow
@pytest.mark.parametrize(
    "defense", sampled([DefenseSpec("iso", {}, "", 5.0), DefenseSpec("max_norm", {}, "", 1.0)])
)
def test_defenses_that_level_lengths_stop_it(defense: DefenseSpec) -> None:
    assert max(values("swap_probe", defense=(defense,))) < 0.65


@pytest.mark.slow
def test_randomised_labels_lower_it_but_do_not_stop_it() -> None:
    """At epsilon 1 a released label tells e / (1 + e) = 0.731; the other party's columns add."""
    found = values("swap_probe", defense=(DefenseSpec("label_dp", {}, "", 1.0),))
    assert min(found) > 0.65
    assert max(found) < 0.9
