"""Several parties as one adversary, and what an adversary knew after every epoch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attack_views import PARTY, iso, make_view, rng, tables
from cohorts import cohort
from torch import nn

from vflsec.core.view import Table
from vflsec.inference.adversary_model import Joint
from vflsec.nn.replicas import Replicas
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellResult, DefenseSpec, Measure
from vflsec.testing import small_stack, small_task, train


def auc(result: CellResult, adversary: str, split: str, attack: str = "") -> Measure:
    (found,) = [
        m for m in result.measures
        if m.adversary == adversary and m.split == split and m.metric == "auc"
        and m.attack.startswith(attack)
    ]  # fmt: skip
    return found


@pytest.mark.slow
def test_a_coalition_knows_more_than_its_members_and_so_does_its_control() -> None:
    """The label needs a column of each passive party."""
    tasks = {}
    for s in (0, 1):
        task = small_task(s, n=500, widths=(3, 4, 4))
        y = (task.x["passive1"][:, 0] + task.x["passive2"][:, 0] > 0).long()
        tasks[s] = replace(task, y=y)
    members = [("passive1",), ("passive2",), ("passive1", "passive2")]
    attacks = [
        AttackSpec("model_completion", {"variants": ("logistic", "finetune")}, m, known_rows=40)
        for m in members
    ]
    attacks += [AttackSpec("direction", {"positives": 2}, m) for m in members]
    gains, control_gains = [], []
    for result in cohort(attacks, tasks, epochs=10, cut=4):
        assert {m.status for m in result.measures} == {"ok"}
        both = auc(result, "passive1+passive2", "test", "model")
        alone = [auc(result, p, "test", "model") for (p,) in members[:2]]
        gains.append((both.value or 0) - max(a.value or 0 for a in alone))
        control_gains.append(
            (both.controls["logistic"]["value"] or 0)
            - max(a.controls["logistic"]["value"] or 0 for a in alone)
        )
        assert "scratch" in both.controls
        assert (auc(result, "passive1+passive2", "train", "direction").value or 0) > 0.9
    assert sum(gains) / len(gains) > 0.08
    assert sum(control_gains) / len(control_gains) > 0.08


def test_a_coalition_has_what_any_of_its_parties_received() -> None:
    """Embeddings come to the label party alone; beside it stands a party that sends its own."""
    tasks = {0: small_task(0, n=400, widths=(2, 3, 3))}
    names = ("embedding_inversion", "attribute", "property")
    both = [
        AttackSpec(n, {}, ("active", "passive1"), victim="passive2", aux_rows=120) for n in names
    ]
    alone = AttackSpec(names[0], {}, ("active",), victim="passive2", aux_rows=120)
    (result,) = cohort([*both, alone], tasks, epochs=3, cut=6)
    assert {m.status for m in result.measures} == {"ok"}
    told = {m.adversary: m.value for m in result.measures if m.metric == "r2"}
    assert told["active+passive1"] > 0.9
    assert told["active+passive1"] == pytest.approx(told["active"], abs=0.05)


def test_a_coalition_with_the_label_party_attacks_no_labels() -> None:
    """One of its parties receives gradients; the other has what they tell."""
    task = small_task(0, n=200, widths=(2, 3, 3))
    attacks = [
        AttackSpec("direction", {"positives": 2}, ("active", "passive1")),
        AttackSpec("direction", {"positives": 2}, ("passive1", "passive2")),
    ]
    (result,) = cohort(attacks, {0: task}, epochs=1, cut=4)
    own, others = (
        {m.status for m in result.measures if m.adversary == "+".join(a.adversary)} for a in attacks
    )
    assert (own, others) == ({"not-applicable"}, {"ok"})


def test_joint_bottoms_compute_each_party_on_its_own_columns() -> None:
    torch.manual_seed(0)
    f, g = nn.Linear(2, 3), nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    joint = Joint([f, g], [(2,), (1, 2, 2)])
    x = torch.randn(5, 6, generator=rng())
    expected = torch.cat([f(x[:, :2]), g(x[:, 2:].reshape(5, 1, 2, 2))], 1)
    assert torch.equal(joint(x), expected)
    stack = Replicas([joint, joint])
    assert stack.path == "stacked"
    assert torch.allclose(stack(torch.stack([x, x]))[1], expected)


def test_copies_of_a_gradient_average_noise_out_for_a_coalition() -> None:
    """Behind summed logits all parties get the same gradient, each with noise of its own."""
    y = torch.arange(1500) % 10
    p = torch.randn(1500, 10, generator=rng()).softmax(1)
    g = p - nn.functional.one_hot(y, 10)
    attack = registry.attacks.create("direct", {})

    def right(parties: int) -> float:
        view = make_view(y)
        names = [f"passive{k}" for k in range(parties)]
        held = {}
        for k, name in enumerate(names):
            for key, t in tables([iso(g, 2.0, k)]).items():
                held[*key[:3], name] = t
        view = replace(view, adversary=tuple(names), tables=held)
        return float((attack.infer(view, rng()).scores.argmax(1) == y.numpy()).mean())

    assert right(4) > right(1) + 0.2


def test_folding_all_messages_gives_the_other_forms() -> None:
    epochs = [torch.randn(50, 3, generator=rng(s)) for s in range(4)]
    found = tables(epochs)
    whole = found["received", "gradient", "all", PARTY]
    shuffled = whole.take(torch.randperm(len(whole), generator=rng(9)))
    for form in ("mean", "first", "last"):
        expected, folded = found["received", "gradient", form, PARTY], shuffled.folded(form)
        assert torch.equal(folded.rows, expected.rows)
        assert folded.tensor == pytest.approx(expected.tensor, abs=1e-6)
        assert torch.equal(folded.epoch, expected.epoch)


def test_the_curve_over_epochs_ends_at_the_figure_and_rises_under_noise() -> None:
    tasks = {s: small_task(s, n=500, positive_rate=0.2) for s in (0, 1)}
    spec = AttackSpec("direction", {"positives": 3}, ("passive1",), over_time=True)
    iso = [DefenseSpec("iso", strength=2.0)]
    for result in cohort(spec, tasks, iso, epochs=8, patience=0, cut=4):
        curve = {m.phase: m for m in result.measures if m.metric == "auc" and m.split == "train"}
        assert list(curve) == ["train", *(f"train@{e}" for e in range(8))]
        assert [curve[f"train@{e}"].notes["epoch"] for e in range(8)] == list(range(8))
        assert curve["train@7"].value == pytest.approx(curve["train"].value, abs=1e-3)
        assert (curve["train"].value or 0) > (curve["train@0"].value or 1) + 0.03
        assert curve["train@0"].controls == curve["train"].controls


def test_attacks_on_the_trained_model_have_no_curve() -> None:
    (result,) = cohort(AttackSpec("spectral", {}, ("passive1",), over_time=True), epochs=2)
    assert {m.phase for m in result.measures} == {"train"}


def test_gradients_scaled_as_they_pass_equal_those_scaled_afterwards() -> None:
    """The recorder's fold against all messages, divided by their batches by hand."""
    stack = small_stack([0, 1], n=100)
    party = stack.first.passive[0]
    wanted = [(party, "received", "gradient", form) for form in ("all", "scaled", "mean")]
    algorithm = registry.algorithms.create("splitnn", {"epochs": 3, "batch_size": 25})
    held = train(algorithm, stack, [0, 1], wanted=wanted).fed.channel.recorder
    for r in (0, 1):
        found = held.tables(r, (party,), "train")
        whole = found["received", "gradient", "all", party]
        folded = found["received", "gradient", "scaled", party]
        total = torch.zeros(len(folded), whole.tensor.shape[1], dtype=torch.float64)
        for step in whole.step.unique():
            batch = whole.take(whole.step == step)
            size = batch.tensor.norm(dim=1).square().mean().sqrt()
            total[torch.searchsorted(folded.rows, batch.rows)] += batch.tensor / size
        times = (whole.rows.unsqueeze(0) == folded.rows.unsqueeze(1)).sum(1, keepdim=True)
        assert folded.tensor == pytest.approx(total / times, abs=1e-12)
        assert whole.folded("scaled").tensor == pytest.approx(total / times, abs=1e-12)
        mean = found["received", "gradient", "mean", party]
        assert not torch.allclose(mean.tensor, folded.tensor, rtol=0.5)


def test_a_batch_of_zeros_stays_zero_when_scaled() -> None:
    rows = torch.arange(4)
    table = Table(torch.zeros(4, 2), rows, rows * 0, rows // 2)
    assert torch.equal(table.scaled().tensor, table.tensor)
