"""dCor, MID, embedding noise, mixup and DP-SGD: formulas, hooks, promises and limits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from bench import make, message, owner
from by_hand import rank_rows, trained
from torch import Tensor

from vflsec.core.algorithm import Algorithm
from vflsec.core.federation import Federation
from vflsec.core.privacy_usage import Batches, RunFacts, Uses
from vflsec.defenses.dcor import distance_correlation
from vflsec.defenses.mid import divergence
from vflsec.errors import ConfigError, PolicyError
from vflsec.plugins import registry
from vflsec.testing import small_stack
from vflsec.train.loop import run_phases


def normal(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64)


def train(
    policies: dict[str, list[tuple[Any, list[float]]]], replicas: int = 2, **params: Any
) -> tuple[Algorithm, Federation]:
    settings = {"epochs": 4, "batch_size": 32, "lr": 0.01, **params}
    algorithm = registry.algorithms.create("splitnn", settings)
    bound = {
        party: [(p, torch.tensor(s, dtype=torch.float64)) for p, s in of]
        for party, of in policies.items()
    }
    fed = Federation.create(
        small_stack([0] * replicas), [0] * replicas, bound, None, RunFacts(epochs=4)
    )
    algorithm.build(fed)
    for _ in run_phases(algorithm, fed):
        pass
    return algorithm, fed


# dCor


def test_dcor_of_itself_rotated_scaled_and_of_labels_is_one() -> None:
    z = normal(1, 60, 5)
    q, _ = torch.linalg.qr(normal(5, 5, seed=1))
    hot = torch.nn.functional.one_hot(torch.arange(60) % 3, 3).double().unsqueeze(0)
    for a, b in ((z, z), (z, 3.0 * z @ q + 1.0), (hot, hot)):
        assert distance_correlation(a, b).item() == pytest.approx(1.0, abs=1e-9)


def test_dcor_is_what_the_definition_gives() -> None:
    a, b = normal(2, 20, 3), normal(2, 20, 2, seed=1)

    def centre(x: Tensor) -> Tensor:
        d = (x.unsqueeze(0) - x.unsqueeze(1)).norm(dim=2)
        h = torch.eye(20, dtype=torch.float64) - 1 / 20
        return h @ d @ h

    for r in range(2):
        one, two = centre(a[r]), centre(b[r])
        squared = (one * two).mean() / ((one * one).mean() * (two * two).mean()).sqrt()
        assert distance_correlation(a, b)[r].item() == pytest.approx(squared.sqrt().item())


@pytest.mark.parametrize(("n", "squared"), [(32, 0.54), (256, 0.22), (1024, 0.076)])
def test_dcor_is_biased_for_independent_data(n: int, squared: float) -> None:
    """Falls with n; the level depends on the dimensions, so only its order is held."""
    found = distance_correlation(normal(1, n, 16), normal(1, n, 8, seed=1)).item() ** 2
    assert squared / 3 < found < squared * 1.5


def test_dcor_gradient_is_finite_with_duplicates_and_constants() -> None:
    z = normal(1, 12, 3)
    z[0, 1] = z[0, 0]
    z.requires_grad_()
    (slope,) = torch.autograd.grad(distance_correlation(z, normal(1, 12, 2)).log().sum(), z)
    assert bool(torch.isfinite(slope).all())
    alone = torch.ones(1, 12, 2, dtype=torch.float64)
    assert distance_correlation(z, alone).item() == 1.0


def test_dcor_label_form_lowers_the_dependence_of_what_is_sent() -> None:
    _, fed = train({"active": [(make("dcor"), [0.0, 3.0])]}, epochs=15)
    rows = fed.stack.rows("labelled")
    z = fed.parties["passive1"].modules["bottom"](fed.columns("passive1", rows)).detach()
    y = torch.nn.functional.one_hot(fed.targets(rows), 2).double()
    off, on = distance_correlation(z, y).tolist()
    assert on < off - 0.1


def test_dcor_forms_and_parameters() -> None:
    assert make("dcor").owner == "active"
    assert make("dcor", form="feature").owner == "passive"
    with pytest.raises(PolicyError, match="belongs to the active party"):
        make("dcor").penalty(normal(1, 4, 2), {}, None, owner(make("dcor"), [1.0]))
    x, z = normal(1, 30, 4), normal(1, 30, 3, seed=1)
    feature = make("dcor", form="feature", log=False)
    term = feature.penalty(x, {"passive1": z}, None, owner(feature, [0.3]))
    assert term.item() == pytest.approx(0.3 * distance_correlation(z, x).item())


def test_dcor_does_not_stop_gradients_from_telling_classes_apart() -> None:
    """It changes embeddings; cut gradients of a batch still rank rows by class."""
    algorithm, fed = train({"active": [(make("dcor"), [0.3, 0.3])]})
    rows = fed.stack.rows("labelled")[:, :64]
    batch = algorithm.up(fed, rows)  # type: ignore[attr-defined]
    _, (cut,) = algorithm.differentiate(fed, batch)  # type: ignore[attr-defined]
    y = fed.targets(rows)[0]
    direction = cut[0][y == 1].mean(0)
    assert rank_rows((cut[0] @ direction).numpy(), y.numpy() == 1) > 0.7


# MID


def test_mid_divergence() -> None:
    zero, one = torch.zeros(3, 4), torch.ones(3, 4)
    assert divergence(zero, one).tolist() == [0.0] * 3
    other = torch.distributions.Normal(0.7 * one, 0.4 * one)
    standard = torch.distributions.Normal(zero, one)
    expected = torch.distributions.kl_divergence(other, standard).sum(1)
    assert torch.allclose(divergence(0.7 * one, 0.4 * one), expected)


@pytest.mark.slow
def test_mid_off_is_no_bottleneck_bit_for_bit_and_pressure_hides_the_input() -> None:
    """At a tiny weight the label still passes; at a large one the divergence goes to zero."""
    policy = make("mid")
    algorithm, fed = train({"active": [(policy, [0.0, 1e-12, 100.0])]}, 3, epochs=20, patience=0)
    _, plain = train({}, 3, epochs=20, patience=0)
    rows = fed.stack.rows("test")
    found, without = algorithm.predict(fed, rows), algorithm.predict(plain, rows)
    assert torch.equal(found[0], without[0])
    assert not torch.equal(found[1], without[1])
    algorithm.step(fed, fed.stack.rows("labelled"))  # type: ignore[attr-defined]
    left = fed.active.bindings[0].own.memory["shared"].divergence
    assert left[2].item() < 0.1 < left[1].item()


def test_mid_treats_what_others_send_only() -> None:
    _, fed = train({"active": [(make("mid"), [1.0, 1.0])]})
    top = fed.active.modules["top"].template
    assert top.slices == [(32, 64)]  # the active party's own 32 columns come first
    _, fed = train({"active": [(make("mid"), [1.0, 1.0])]}, aggregation="sum")
    assert fed.active.modules["top"].template.slices == [(0, 32)]


def test_mid_needs_a_top_model() -> None:
    with pytest.raises(PolicyError, match="needs a top model"):
        train({"active": [(make("mid"), [1.0, 0.0])]}, top=[], linear_top=False, aggregation="sum")


def test_mid_alone_as_in_company() -> None:
    algorithm, both = train({"active": [(make("mid"), [0.1, 1e-3])]})
    _, alone = train({"active": [(make("mid"), [0.1])]}, 1)
    rows = both.stack.rows("test")
    assert torch.equal(algorithm.predict(both, rows)[0], algorithm.predict(alone, rows[:1])[0])


# embedding noise


def test_embedding_noise_clips_and_scales() -> None:
    policy = make("embedding_noise", clip_norm=2.0)
    z = normal(1, 30_000, 4) * 5
    z[0, 0] = 0.01
    out = policy.outgoing(message(z, "embedding"), owner(policy, [1e-9]))
    assert out.norm(dim=2).max().item() == pytest.approx(2.0, rel=1e-6)
    assert torch.allclose(out[0, 0], z[0, 0], atol=1e-6)
    loud = policy.outgoing(message(0 * z, "embedding"), owner(policy, [3.0]))
    assert loud.std().item() == pytest.approx(6.0, rel=0.02)


def test_embedding_noise_guarantee_counts_epochs_and_predictions() -> None:
    policy = make("embedding_noise", predictions=20)
    found = policy.guarantee(8.0, RunFacts(uses=Uses(80)))
    assert (found.epsilon, found.releases) == (pytest.approx(13.2067, abs=1e-3), 100)
    assert "those weights" in found.sentence()


def test_laplace_embeddings_are_clipped_in_the_1_norm_and_any_replacement_moves_them_by_2_c() -> (
    None
):
    policy = make("embedding_noise", clip_norm=2.0, distribution="laplace")
    z = normal(1, 30_000, 4) * 5
    out = policy.outgoing(message(z, "embedding"), owner(policy, [1e-9]))
    assert out.abs().sum(2).max().item() == pytest.approx(2.0, rel=1e-6)
    apart = (out - policy.outgoing(message(-z, "embedding"), owner(policy, [1e-9]))).abs().sum(2)
    assert apart.max().item() == pytest.approx(4.0, rel=1e-6)
    loud = policy.outgoing(message(0 * z, "embedding"), owner(policy, [3.0]))
    assert loud.abs().mean().item() == pytest.approx(6.0, rel=0.02)  # E |Laplace(3 C)|


@pytest.mark.parametrize(("strength", "messages"), [(8.0, 1), (8.0, 100), (1.0, 3)])
def test_laplace_embeddings_claim_pure_composition_or_the_renyi_bound(
    strength: float, messages: int
) -> None:
    policy = make("embedding_noise", distribution="laplace")
    found = policy.guarantee(strength, RunFacts(uses=Uses(messages)))
    assert found.epsilon <= messages * 2 / strength
    assert (found.delta > 0) == (found.epsilon < messages * 2 / strength)
    assert "whoever receives them" in found.sentence()


def test_zeroing_columns_out_is_no_smaller_change_than_replacing_them() -> None:
    """A bottom with a bias sends a row of full length for zeros, as far away as any other."""
    policy = make("embedding_noise")
    bottom = torch.nn.Linear(3, 4, dtype=torch.float64)
    with torch.no_grad():
        bottom.bias.copy_(torch.tensor([5.0, 0, 0, 0]))
        bottom.weight.copy_(torch.tensor([[-10.0, 0, 0]] + [[0.0] * 3] * 3))
    x = torch.stack([torch.zeros(3), torch.ones(3)]).double()
    with torch.no_grad():
        sent = policy.outgoing(message(bottom(x)[None], "embedding"), owner(policy, [1e-9]))
    assert (sent[0, 0] - sent[0, 1]).norm().item() == pytest.approx(2.0, rel=1e-6)


def test_embedding_noise_is_drawn_for_predictions_too_and_does_not_hide_labels_from_its_owner() -> (
    None
):
    """Gradients come back as they are: their direction still separates the classes."""
    algorithm, fed = train({"passive1": [(make("embedding_noise"), [0.0, 1.0])]})
    rows = fed.stack.rows("test")
    first, again = algorithm.predict(fed, rows), algorithm.predict(fed, rows)
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[1], again[1])
    batch = algorithm.up(fed, fed.stack.rows("labelled"))  # type: ignore[attr-defined]
    _, (cut,) = algorithm.differentiate(fed, batch)  # type: ignore[attr-defined]
    y = batch.y[1]
    direction = cut[1][y == 1].mean(0)
    assert ((cut[1] @ direction > 0).long() == y).double().mean().item() > 0.95


# mixup


def test_mixup_mixes_rows_with_their_mirror_and_keeps_categories() -> None:
    from vflsec.core.view import Schema

    policy = make("mixup")
    x = normal(2, 5, 3)
    x[..., 1] = 2.0
    x[:, 0, 1] = 1.0
    own = owner(policy, [0.0, 0.25])
    own.context = {"schema": Schema(("a", "b", "c"), (0, 3, 0), (3,))}
    out = policy.columns(x, own)
    assert torch.equal(out[0], x[0])
    assert torch.allclose(out[1, 0, 0], 0.75 * x[1, 0, 0] + 0.25 * x[1, 4, 0])
    assert torch.equal(out[1, :, 1], x[1, :, 1])


def test_mixup_loss_mixes_labels_in_training_only() -> None:
    policy = make("mixup")
    logits, y = normal(1, 4, 2), torch.tensor([[0, 1, 1, 0]])
    own = owner(policy, [0.5])
    own.context = {"train": True}
    log_p = torch.log_softmax(logits, -1)
    expected = -0.5 * (log_p.gather(2, y.unsqueeze(2)) + log_p.gather(2, y.flip(1).unsqueeze(2)))
    assert torch.allclose(policy.loss(logits, y, own), expected.squeeze(2))
    own.context = {"train": False}
    assert policy.loss(logits, y, own) is None
    with pytest.raises(ConfigError, match=r"number in \[0, 0.5\]"):
        policy.check_strength(0.6)


def test_mixup_leaves_the_own_label_on_top() -> None:
    policy = make("mixup")
    logits = torch.zeros(1, 4, 2, dtype=torch.float64, requires_grad=True)
    own = owner(policy, [0.3])
    own.context = {"train": True}
    y = torch.tensor([[0, 1, 0, 1]])
    (slope,) = torch.autograd.grad(policy.loss(logits, y, own).sum(), logits)
    assert torch.equal(slope.argmin(2), y)


# DP-SGD


def one_step(
    strengths: list[float], party: str, clip_norm: float = 1.0, rows: int = 8, **params: Any
) -> tuple[Federation, Any, list[Tensor]]:
    """One SGD step at rate 1 of the party's weights; returns what was subtracted from them."""
    policy = make("dpsgd", clip_norm=clip_norm)
    settings = {"optimizer": "sgd", "lr": 1.0, "epochs": 1, "hidden": [5], "cut": 4, "top": []}
    algorithm = registry.algorithms.create("splitnn", {**settings, **params})
    bound = {party: [(policy, torch.tensor(strengths, dtype=torch.float64))]}
    n = len(strengths)
    fed = Federation.create(small_stack([0] * n), [0] * n, bound)
    algorithm.build(fed)
    before = [p.detach().clone() for p in fed.parties[party].parameters()]
    algorithm.phases(fed)
    algorithm.step(fed, fed.stack.rows("labelled")[:, :rows])
    moved = [b - p.detach() for b, p in zip(before, fed.parties[party].parameters(), strict=True)]
    return fed, algorithm, moved


@pytest.mark.parametrize("party", ["active", "passive1"])
def test_dpsgd_rows_add_up_and_are_clipped(party: str) -> None:
    """No row clipped, next to no noise: the plain step. Clipped: what single rows give."""
    _, _, moved = one_step([0.0, 1e-12], party, clip_norm=1e6)
    for m in moved:
        assert torch.allclose(m[1], m[0], atol=1e-5)
    clip = 0.05
    _, _, small = one_step([0.0, 1e-12], party, clip_norm=clip)
    length = math.sqrt(sum(float(m[1].square().sum()) for m in small))
    assert 0.2 * clip < length <= clip + 1e-9
    singles = []
    for i in range(8):  # each row alone: the slow reference
        policy_free = registry.algorithms.create(
            "splitnn",
            {"optimizer": "sgd", "lr": 1.0, "epochs": 1, "hidden": [5], "cut": 4, "top": []},
        )
        fed = Federation.create(small_stack([0, 0]), [0, 0])
        policy_free.build(fed)
        before = [p.detach().clone() for p in fed.parties[party].parameters()]
        policy_free.phases(fed)
        policy_free.step(fed, fed.stack.rows("labelled")[:, i : i + 1])
        after = fed.parties[party].parameters()
        row = torch.cat([(b - p.detach())[0].flatten() for b, p in zip(before, after, strict=True)])
        singles.append(row * min(1.0, clip / float(row.norm())))
    found = torch.cat([m[1].flatten() for m in small])
    assert torch.allclose(found, torch.stack(singles).mean(0), atol=1e-9)


def test_dpsgd_noise_has_the_stated_scale_and_zero_is_plain() -> None:
    _, _, moved = one_step([0.0, 3.0], "active", clip_norm=2.0, hidden=[400])
    found = torch.cat([m[1].flatten() for m in moved])
    assert found.std().item() == pytest.approx(3.0 * 2.0 / 8, rel=0.05)
    _, _, plain = one_step([0.0, 0.0], "active", hidden=[400])
    for a, b in zip(moved, plain, strict=True):
        assert torch.equal(a[0], b[0])


def test_dpsgd_refuses_what_has_no_rows_of_its_own() -> None:
    with pytest.raises(PolicyError, match="Dropout"):
        one_step([1.0, 1.0], "passive1", dropout=0.3)
    with pytest.raises(PolicyError, match="changes the loss of a batch"):
        train({"active": [(make("dpsgd"), [1.0, 1.0]), (make("mixup"), [0.2, 0.2])]})
    algorithm = registry.algorithms.create("fedbcd", {"epochs": 1, "proximal": 1.0})
    bound = {"active": [(make("dpsgd"), torch.ones(2, dtype=torch.float64))]}
    with pytest.raises(PolicyError, match="cannot be split into rows"):
        trained(algorithm, small_stack([0, 0]), [0, 0], bound)


def test_dpsgd_guarantee_by_accountant() -> None:
    """Alone in training, with a peer of the same noise, and with one that has none."""
    from vflsec.core import accountants

    ten = Uses(counted=10, phases={"train": 10})
    alone = make("dpsgd").guarantee(1.0, RunFacts(uses=ten))
    assert (alone.epsilon, alone.releases) == (
        pytest.approx(accountants.gaussian(1.0, 10, 1e-5).epsilon), 10,
    )  # fmt: skip
    both = make("dpsgd").guarantee(1.0, RunFacts(uses=replace(ten, peers={"passive1": (1.0, ten)})))
    assert both.epsilon == pytest.approx(accountants.gaussian(1.0, 20, 1e-5).epsilon)
    assert both.neighbours == "zeroing it out"
    bare = make("dpsgd").guarantee(1.0, RunFacts(uses=replace(ten, peers={"passive1": None})))
    assert bare.epsilon is None
    assert "with the other models given" in bare.reason
    pytest.importorskip("opacus")
    batches = Batches("train", 0.01, 1000, 1, 0.0)
    seen = Uses(counted=14, phases={"train": 14}, batches=(batches,))
    poisson = make("dpsgd", accountant="rdp").guarantee(1.0, RunFacts(uses=seen))
    assert poisson.epsilon == pytest.approx(2.1014, abs=1e-4)
    assert poisson.accountant == "Opacus RDP"
    assert "1000 at rate 0.01" in poisson.over
    assert "single rows" in alone.provided
    cut = make("dpsgd", accountant="rdp").guarantee(
        1.0, RunFacts(uses=replace(seen, batches=(replace(batches, cut=1e-08),)))
    )
    assert cut.epsilon is None


def test_dpsgd_does_not_touch_what_is_sent() -> None:
    """The gradients that the passive party receives are those of an undefended step."""
    sent = []
    for strengths in ([5.0, 5.0], [0.0, 0.0]):
        policy = make("dpsgd")
        algorithm = registry.algorithms.create("splitnn", {"epochs": 1})
        bound = {"active": [(policy, torch.tensor(strengths, dtype=torch.float64))]}
        fed = Federation.create(small_stack([0, 0]), [0, 0], bound)
        algorithm.build(fed)
        batch = algorithm.up(fed, fed.stack.rows("labelled"))
        sent.append(algorithm.differentiate(fed, batch)[1][0])
    assert torch.equal(*sent)
