"""RRWithPrior, LP-MST, ALIBI, GradPerturb and CoAE: mechanisms, accountants, hooks and limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from bench import make, owner
from by_hand import trained as train_by_hand
from sampled import sampled
from scipy import stats
from torch import Tensor

from vflsec.core import accountants
from vflsec.core.federation import Federation
from vflsec.core.policy import Own
from vflsec.core.privacy_usage import RunFacts, Uses
from vflsec.defenses.alibi import posterior
from vflsec.defenses.label_dp import keep_probability
from vflsec.defenses.rr_prior import draw, matrix, top
from vflsec.errors import ConfigError, PolicyError
from vflsec.plugins import registry
from vflsec.testing import small_stack


def shares(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


LABEL_DP = ["rr_prior", "lp_mst", "alibi"]


@pytest.mark.parametrize("name", LABEL_DP)
def test_one_release_whatever_the_epochs(name: str) -> None:
    found = make(name).guarantee(0.5, RunFacts(epochs=500, uses=Uses(1)))
    assert (found.epsilon, found.releases, found.protects) == (2.0, 1, "label")
    assert "features predict" in found.sentence()


# RRWithPrior

PRIORS = [
    shares(0.5, 0.5), shares(0.9, 0.1), shares(0.4, 0.3, 0.2, 0.1), shares(0.97, 0.01, 0.01, 0.01),
    torch.full((10,), 0.1, dtype=torch.float64),
]  # fmt: skip


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("prior", PRIORS)
def test_no_ratio_of_the_enumerated_matrix_exceeds_epsilon(
    prior: torch.Tensor, epsilon: float
) -> None:
    """Over all (y, y', o); an outcome is possible under every label or under none."""
    m = matrix(prior, epsilon)
    assert torch.allclose(m.sum(1), torch.ones(len(m)).double())
    possible = m > 0
    assert bool((possible == possible[:1]).all())
    kept = m[:, possible[0]]
    ratio = (kept.unsqueeze(1) / kept.unsqueeze(0)).log().max().item()
    assert ratio <= epsilon + 1e-12


def test_uniform_prior_gives_randomised_response() -> None:
    m = matrix(PRIORS[-1], 2.0)
    q = float(keep_probability(2.0, 10))
    plain = torch.full((10, 10), (1 - q) / 9, dtype=torch.float64).fill_diagonal_(q)
    assert torch.allclose(m, plain)


def test_k_star_maximises_the_chance_of_a_right_label() -> None:
    """Brute force over all k: expected accuracy of the release is largest at k*."""
    for prior in PRIORS:
        for epsilon in (0.3, 1.0, 2.5):
            order = prior.sort(descending=True).values
            right = [
                math.exp(epsilon) / (math.exp(epsilon) + k - 1) * float(order[:k].sum())
                for k in range(1, len(prior) + 1)
            ]
            kept = top(prior, epsilon)
            assert max(right) == pytest.approx(right[len(kept) - 1])
            released = float((prior * matrix(prior, epsilon).diagonal()).sum())
            assert released == pytest.approx(max(right))


def test_frequencies_follow_the_matrix() -> None:
    prior = shares(0.4, 0.3, 0.2, 0.1)
    policy = make("rr_prior", prior=[0.4, 0.3, 0.2, 0.1])
    n = 20_000
    for y in range(4):
        out = policy.labels(torch.full((1, n), y), owner(policy, [1.0], classes=4))[0]
        counts = torch.bincount(out, minlength=4)
        for o, p in enumerate(matrix(prior, 1.0)[y].tolist()):
            if p == 0:
                assert counts[o] == 0
            else:
                assert stats.binomtest(int(counts[o]), n, p).pvalue > 1e-6


def test_draw_never_leaves_the_possible_outcomes() -> None:
    m = matrix(shares(0.7, 0.2, 0.1), 1.0).unsqueeze(0)
    last = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0)).double()
    for u in (0.0, 0.5, float(last)):
        y = torch.tensor([[0, 1, 2]])
        out = draw(m, y, torch.full((1, 3), u, dtype=torch.float64))
        assert bool((m[0][y[0], out[0]] > 0).all())


def test_a_prior_of_the_wrong_length_or_sum_is_refused() -> None:
    with pytest.raises(ConfigError, match="sum to 1"):
        make("rr_prior", prior=[0.5, 0.6])
    policy = make("rr_prior", prior=[0.5, 0.5])
    policy.check_task(2)
    with pytest.raises(ConfigError, match="prior must be a list of 3 shares, got"):
        policy.check_task(3)


def test_skewed_classes_at_small_epsilon_leave_one_label() -> None:
    policy = make("rr_prior")
    out = policy.labels(torch.arange(50).unsqueeze(0) % 2, owner(policy, [1.0], prior=[0.9, 0.1]))
    assert out.unique().tolist() == [0]


# LP-MST


def trained(policy: Any, strengths: list[float], seeds: list[int]) -> Federation:
    algorithm = registry.algorithms.create("splitnn", {"epochs": 4, "batch_size": 32, "lr": 0.01})
    strength = torch.tensor(strengths, dtype=torch.float64)
    return train_by_hand(
        algorithm, small_stack(seeds, n=400), seeds, {"active": [(policy, strength)]}
    )


def test_lp_mst_releases_every_training_label_once_at_its_epsilon() -> None:
    """Stage 1 at plain RR; stage 2 is right more often, as its prior already says much."""
    seeds = [0, 1, 2]
    fed = trained(make("lp_mst"), [0.0, 1.0, 1.0], seeds)
    truth, rows = fed.stack.labels(), fed.stack.rows("labelled")
    known = fed.targets(rows)
    assert bool((known >= 0).all())
    assert torch.equal(known[0], truth[0][rows[0]])
    own = fed.active.bindings[0].own
    second = own.memory["parts"][1]
    assert second.shape[1] == round(0.4 * rows.shape[1])
    right = (known == truth.gather(1, rows)).double()
    later = torch.stack([torch.isin(rows[r], second[r]) for r in range(3)])
    assert right[1:][~later[1:]].mean().item() == pytest.approx(0.731, abs=0.09)
    assert right[1:][later[1:]].mean().item() > 0.75


def test_lp_mst_holds_the_second_part_back_in_stage_one() -> None:
    policy = make("lp_mst", first=0.25, stages=4)
    out = policy.labels(torch.ones(2, 100, dtype=torch.int64), owner(policy, [0.0, 1.0]))
    assert int((out[0] == -1).sum()) == 0
    assert int((out[1] == -1).sum()) == 75
    assert policy.trainings == 4


def test_lp_mst_off_trains_as_if_it_were_not_there_beside_one_that_is_on() -> None:
    """The same weights, batches and noise of other policies, and nothing extra is counted."""
    noise = make("noise")
    both = {
        "active": [
            (make("lp_mst"), torch.tensor([0.0, 1.0], dtype=torch.float64)),
            (noise, torch.tensor([0.01, 0.01], dtype=torch.float64)),
        ]
    }
    without = {"active": [both["active"][1]]}
    algorithm = registry.algorithms.create("splitnn", {"epochs": 3, "batch_size": 32})
    states, bytes_ = [], []
    for policies in (both, without):
        policies = {"active": [(p, s) for p, s in policies["active"]]}
        if policies["active"][0][0].name == "noise":  # the stream is named by its place
            policies["active"].insert(0, (make("lp_mst"), torch.zeros(2, dtype=torch.float64)))
        fed = train_by_hand(algorithm, small_stack([0, 0]), [0, 0], policies)
        states.append(fed.parties["passive1"].modules["bottom"].state())
        bytes_.append({e["kind"]: e["bytes"] for e in fed.channel.ledger.of(0)})
    for key, value in states[0].items():
        assert torch.equal(value[0], states[1][key][0])
        assert not torch.equal(value[1], states[1][key][1])
    assert bytes_[0] == bytes_[1]


def _second_stage(n: int = 20000, **params: float | bool) -> tuple[Tensor, Tensor, Own]:
    """What stage 2 trains on, its true labels (1, n), with a model that says 1 at odds of 3."""
    policy = make("lp_mst", first=0.5, **params)
    own = owner(policy, [1.0])
    truth = torch.ones(1, n, dtype=torch.int64)
    first = policy.labels(truth, own)
    logits = torch.tensor([0.0, math.log(3.0)], dtype=torch.float64)
    second = policy.relabel(first, 1, lambda rows: logits.expand(1, rows.shape[1], 2), own)
    return first, second, own


def test_lp_mst_temperature_sharpens_the_prior() -> None:
    """At epsilon 1 odds of 3 beat e, and odds of sqrt(3) do not, so those use plain response."""
    for temperature, expected in ((1.0, 1.0), (2.0, math.e / (1 + math.e))):
        _, second, own = _second_stage(temperature=temperature)
        drawn = second[0, own.memory["parts"][1][0]].double()
        assert drawn.mean().item() == pytest.approx(expected, abs=0.02)  # 4.5 standard errors


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(["oneshot", "fewshot"]))
def test_lp_mst_holds_labels_back_from_who_judges_itself_at_home(name: str) -> None:
    """Rows held out at home are of those released, as many in company as alone."""

    def trained(seeds: list[int]) -> dict[str, Tensor]:
        algorithm = registry.algorithms.create(name, {"local_steps": 12, "epochs": 1})
        policies = {"active": [(make("lp_mst"), torch.ones(len(seeds), dtype=torch.float64))]}
        fed = train_by_hand(algorithm, small_stack(seeds, n=120, unaligned=20), seeds, policies)
        return fed.parties["active"].modules["bottom"].state()

    alone, company = trained([0]), trained([0, 1, 2])
    assert all(torch.allclose(company[k][0], v[0], atol=1e-6) for k, v in alone.items())


# ALIBI


def test_alibi_posterior_is_bayes_rule() -> None:
    g = torch.Generator().manual_seed(0)
    o = torch.randn(1, 50, 4, generator=g, dtype=torch.float64) * 2
    prior = torch.softmax(torch.randn(1, 50, 4, generator=g, dtype=torch.float64), -1)
    scale = torch.tensor(0.7, dtype=torch.float64)
    found = posterior(o, prior.log(), scale)
    eye = torch.eye(4, dtype=torch.float64)
    density = torch.exp(-(o.unsqueeze(2) - eye).abs().sum(3) / scale)
    assert torch.allclose(found, prior * density / (prior * density).sum(2, keepdim=True))
    assert torch.allclose(found.sum(2), torch.ones(1, 50).double())


def test_alibi_noise_has_scale_two_over_epsilon_in_every_coordinate() -> None:
    out = make("alibi").labels(
        torch.ones(1, 20_000, dtype=torch.int64), owner(make("alibi"), [0.5])
    )
    assert out.mean((0, 1)).tolist() == pytest.approx([0.0, 1.0], abs=0.05)
    spread = (out - shares(0.0, 1.0)).abs().mean((0, 1)).tolist()
    assert spread == pytest.approx([1.0, 1.0], rel=0.05)  # mean |Laplace(b)| = b = 2 / epsilon


def test_alibi_uses_the_model_as_prior_in_training_only_and_is_plain_where_off() -> None:
    policy = make("alibi")
    own = owner(policy, [0.0, 1.0])
    y = policy.labels(torch.tensor([[0, 1], [0, 1]]), own)
    logits = torch.tensor([[[2.0, -1.0], [0.5, 0.0]]] * 2, dtype=torch.float64, requires_grad=True)
    own.context = {"train": True}
    loss = policy.loss(logits, y, own)
    plain = -torch.log_softmax(logits, -1)
    assert torch.equal(loss[0], torch.stack([plain[0, 0, 0], plain[0, 1, 1]]))
    target = posterior(y[1:], torch.log_softmax(logits[1:], -1), torch.tensor(2.0).double())
    (slope,) = torch.autograd.grad(loss[1].sum(), logits)
    expected = (torch.softmax(logits[1], -1) - target[0]).detach()
    assert torch.allclose(slope[1], expected)
    own.context = {"train": False}
    flat = posterior(y[1:], torch.zeros(1, 2, 2).double(), torch.tensor(2.0).double())
    assert torch.allclose(policy.loss(logits, y, own)[1], (flat * plain[1:]).sum(2)[0])


# GradPerturb


def weights(strength: float, n: int, classes: int = 3, y: int = 1) -> torch.Tensor:
    """The class weights (n, C) that the loss uses, read off its gradient at equal logits."""
    policy = make("gradperturb")
    logits = torch.zeros(1, n, classes, dtype=torch.float64, requires_grad=True)
    own = owner(policy, [strength], classes=classes)
    loss = policy.loss(logits, torch.full((1, n), y), own)
    (slope,) = torch.autograd.grad(loss.sum(), logits)  # p sum(w) - w, with p = 1 / C
    total = loss.detach()[0] / math.log(classes)  # -sum w log(1/C)
    return total.unsqueeze(1) / classes - slope[0]


def test_gradperturb_is_unbiased_and_has_laplace_noise() -> None:
    w = weights(0.5, 100_000)
    error = 5 * math.sqrt(2) / math.sqrt(100_000)
    assert w.mean(0).tolist() == pytest.approx([0.0, 1.0, 0.0], abs=error)
    assert w.var(0).tolist() == pytest.approx([2.0, 2.0, 2.0], rel=0.05)  # 2 b^2, b = 1
    assert torch.equal(weights(0.0, 5), shares(0, 1, 0).expand(5, 3))


def test_gradperturb_rows_of_a_plain_sum_top_sum_to_zero() -> None:
    """With w = e_y + u the released row is p sum(w) - w, whatever u is, and adds up to 0."""
    policy = make("gradperturb")
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 40, 4, generator=g, dtype=torch.float64, requires_grad=True)
    loss = policy.loss(logits, torch.zeros(1, 40, dtype=torch.int64), owner(policy, [1.0]))
    (slope,) = torch.autograd.grad(loss.sum(), logits)
    assert slope.sum(2).abs().max().item() < 1e-12
    plain = torch.softmax(logits, -1) - torch.nn.functional.one_hot(torch.tensor(0), 4)
    assert (slope - plain).abs().mean().item() > 1.0


def test_gradperturb_is_fresh_in_every_step_and_its_epochs_add_up() -> None:
    policy = make("gradperturb")
    own = owner(policy, [1.0])
    logits, y = torch.zeros(1, 4, 2, dtype=torch.float64), torch.zeros(1, 4, dtype=torch.int64)
    assert not torch.equal(policy.loss(logits, y, own), policy.loss(logits, y, own))
    found = policy.guarantee(0.5, RunFacts(uses=Uses(30)))
    assert (found.epsilon, found.releases) == (pytest.approx(60.0), 30)
    composed = make("gradperturb", delta=1e-5).guarantee(10.0, RunFacts(uses=Uses(300)))
    assert composed.epsilon < 0.5 * 30.0
    assert composed.epsilon == accountants.laplace(0.05, 600, 1e-5).epsilon


@pytest.mark.parametrize(
    ("epsilon", "right"), [(0.1, 0.106), (1, 0.160), (2, 0.247), (4, 0.476), (8, 0.837)]
)
def test_what_one_release_of_gradperturb_gives_away(epsilon: float, right: float) -> None:
    """Ten classes, plain-sum top, logits N(0, 1): the smallest entry of the gradient is guessed."""
    policy = make("gradperturb")
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(1, 20_000, 10, generator=g, dtype=torch.float64, requires_grad=True)
    y = torch.full((1, 20_000), 3)
    loss = policy.loss(logits, y, owner(policy, [1 / epsilon], classes=10))
    (slope,) = torch.autograd.grad(loss.sum(), logits)
    assert (slope[0].argmin(1) == 3).double().mean().item() == pytest.approx(right, abs=0.014)


def test_gradperturb_does_not_stop_a_direct_attack_that_adds_up_epochs() -> None:
    once = weights(1.0, 4000, classes=2)
    policy = make("gradperturb")
    own = owner(policy, [1.0])
    logits = torch.zeros(1, 4000, 2, dtype=torch.float64, requires_grad=True)
    total = torch.zeros(4000, 2, dtype=torch.float64)
    for _ in range(60):
        loss = policy.loss(logits, torch.ones(1, 4000, dtype=torch.int64), own)
        total -= torch.autograd.grad(loss.sum(), logits)[0][0]
    assert (once.argmax(1) == 1).double().mean().item() < 0.75
    assert (total.argmax(1) == 1).double().mean().item() > 0.95


# CoAE


@pytest.mark.parametrize("classes", sampled([2, 4]))
def test_coae_codes_are_decodable_and_never_the_class_itself(classes: int) -> None:
    policy = make("coae")
    own = owner(policy, [0.0, 1e-9, 1.0], classes=classes, dtype=torch.float32)
    y = torch.arange(classes).expand(3, -1)
    out = policy.labels(y, own)
    assert torch.equal(out[0], torch.eye(classes))
    for r in (1, 2):
        assert torch.allclose(out[r].sum(1), torch.ones(classes), atol=1e-5)
        assert bool((out[r].argmax(1) != y[r]).all())
        assert out[r].diagonal().mean().item() < 0.05
    decoded = policy.decode(torch.log(out + 1e-9), own)
    assert torch.equal(decoded[1:].argmax(2), y[1:])


def test_coae_swaps_two_classes_so_argmax_reads_what_argmin_read() -> None:
    """Direct attack on g = p - code: the naive rule is always wrong, its flip always right."""
    policy = make("coae")
    own = owner(policy, [1.0], dtype=torch.float32)
    y = torch.arange(200).unsqueeze(0) % 2
    gradient = 0.5 - policy.labels(y, own)
    naive = (gradient.argmin(2) == y).double().mean().item()
    adaptive = (gradient.argmax(2) == y).double().mean().item()
    assert (naive, adaptive) == (0.0, 1.0)


def test_coae_refuses_to_start_without_an_exact_decoder() -> None:
    policy = make("coae", steps=1)
    with pytest.raises(PolicyError, match="1 steps do not recover every class"):
        policy.labels(torch.arange(5).unsqueeze(0), owner(policy, [1.0], classes=5))


def test_coae_predictions_are_decoded_in_the_main_task() -> None:
    fed = trained(make("coae"), [0.0, 1.0], [0, 0])
    algorithm = registry.algorithms.create("splitnn", {"epochs": 4, "batch_size": 32, "lr": 0.01})
    from vflsec.train.loop import predict

    rows = fed.stack.rows("test")
    raw = predict(algorithm, fed, rows)
    truth = fed.stack.labels().gather(1, rows)
    right = (fed.decode(raw).argmax(2) == truth).double().mean(1)
    assert right.min().item() > 0.75
    assert (raw[1].argmax(1) == truth[1]).double().mean().item() < 0.3


def test_alibi_leaves_classes_that_a_model_named_to_the_plain_loss() -> None:
    """Pseudo-labels are no released vectors; fedcvt trains on both."""
    policy = registry.defenses.create("alibi")
    own = owner(policy, [1.0, 1.0])
    logits = torch.zeros(2, 3, 2, dtype=torch.float64)
    assert policy.loss(logits, torch.zeros(2, 3, dtype=torch.int64), own) is None
    assert policy.loss(logits, torch.ones(2, 3, 2, dtype=torch.float64), own).shape == (2, 3)
