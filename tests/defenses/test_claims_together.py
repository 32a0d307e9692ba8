"""Claims of defenses that stand together, and at the edges of strength: what goes past which."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from bench import owner
from sampled import sampled
from torch import Tensor

from vflsec.core import accountants
from vflsec.core.message import Message
from vflsec.core.policy import Guarantee, Policy
from vflsec.core.privacy_usage import RunFacts, Uses
from vflsec.errors import ConfigError
from vflsec.plugins import registry
from vflsec.testing import small_stack, train
from vflsec.testing.worlds import Trained
from vflsec.train.mechanism_counts import collect_uses

QUICK = {"epochs": 2, "batch_size": 32, "patience": 0, "hidden": [], "cut": 2}
Made = tuple[str, dict[str, Any], float | tuple[float, float], str]


def trained(*made: Made, **world: Any) -> tuple[Trained, list[tuple[Policy, Guarantee]]]:
    """A small training of two replicas of one seed under defenses, and what each claims in both."""
    bound: dict[str, list[tuple[Policy, Tensor]]] = {}
    policies = []
    for name, params, strength, party in made:
        policy: Policy = registry.defenses.create(name, params)
        on = torch.tensor(strength, dtype=torch.float64).expand(2).clone()
        for p in ("active", "passive1") if party == "all" else (party,):
            bound.setdefault(p, []).append((policy, on))
        policies.append((policy, on))
    run = train(
        registry.algorithms.create("splitnn", QUICK), small_stack([0, 0], **world), [0, 0], bound
    )
    claims = [
        (policy, policy.guarantee(float(on[r]), RunFacts(uses=collect_uses(run.fed, policy, r))))
        for policy, on in policies
        for r in range(2)
    ]
    return run, claims


def weights(run: Trained) -> Tensor:
    modules = run.fed.active.modules.values()
    return torch.cat([v[0].flatten() for m in modules for v in m.state().values()])


# Two policies of gradients


def test_of_two_policies_of_gradients_the_last_decides_so_none_claims() -> None:
    """Each starts from the rows' own gradients: the noise of the first is not in the weights."""
    strong, weak = ("dpsgd", {}, 20.0, "all"), ("dpsgd", {}, 1e-9, "all")
    both, claims = trained(strong, weak)
    bare, _ = trained(weak)
    assert torch.allclose(weights(both), weights(bare), atol=1e-6)
    assert not torch.allclose(weights(both), weights(trained(strong)[0]), atol=1e-3)
    for _, made in claims:
        assert made.epsilon is None
        assert "more than one policy of gradients" in made.reason
    (_, alone), _ = trained(strong)[1]
    assert alone.epsilon == pytest.approx(accountants.gaussian(20.0, 4, 1e-5).epsilon)


# Labels released in stages, twice


def test_a_second_release_in_stages_answers_from_the_true_labels() -> None:
    """At epsilon 8 and 0.001 beside it, the later part's labels come out as they are."""
    run, claims = trained(("lp_mst", {}, 1 / 8, "active"), ("lp_mst", {}, 1e3, "active"))
    first = claims[0][0]
    (binding, _) = run.fed.active.bindings
    later = binding.own.memory["parts"][1][0]
    truth = binding.own.memory["truth"][0, later]
    assert float((run.fed.labels[0, later] == truth).double().mean()) > 0.95
    for policy, made in claims:
        if policy is not first:
            assert made.epsilon is None
            assert "lp_mst beside it answers from the true labels" in made.reason


# Labels of other rows


COUPLING = [
    ("learned_prior", {}, True), ("rr_prior", {}, True), ("rr_prior", {"prior": (0.5, 0.5)}, False),
    ("label_dp", {}, False), ("coae", {"steps": 100}, False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "params", "couples"), COUPLING)
@pytest.mark.parametrize("claimant", sampled(["gradperturb", "dpsgd"]))
def test_labels_computed_over_rows_end_claims_of_single_rows(
    name: str, params: dict[str, Any], couples: bool, claimant: str
) -> None:
    """A prior that was bought with all labels carries one label into the other rows' losses."""
    beside = (claimant, {}, 1.0, "all" if claimant == "dpsgd" else "active")
    if (name, claimant) == ("label_dp", "dpsgd"):
        pytest.skip("its corrected loss ends the claim anyway")
    _, claims = trained((name, params, 0.05, "active"), beside)
    reasons = {made.reason for policy, made in claims if policy.name == claimant}
    ends = f"{name} beside it computes labels of other rows from a row's"
    assert reasons == {ends if couples else ""}


def test_one_label_moves_the_labels_of_other_rows() -> None:
    """What the claim of `gradperturb` (epsilon 1 a use) would have left out, without a look at it.

    The same coins, one label replaced: under `learned_prior` most other rows' shares move.
    """
    y = torch.tensor([0, 1] * 500).unsqueeze(0)
    x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    other = y.clone()
    other[0, 0] = 1
    for name, moves in (("learned_prior", True), ("label_dp", False)):
        policy = registry.defenses.create(name)
        out = []
        for labels in (y, other):
            own = owner(policy, [1 / 20])
            own.context = {"design": lambda r: x}
            out.append(policy.labels(labels, own)[0].double())
        moved = (out[0] != out[1]).reshape(1000, -1).any(1)[1:]
        assert float(moved.double().mean()) > 0.9 if moves else not bool(moved.any())


# Labels after the noise


CLIPPED = ("noise", {"clip": 1.0, "distribution": "gaussian"}, 2.0, "active")


@pytest.mark.parametrize(
    ("order", "ends"),
    [(("noise", "marvell"), True), (("noise", "compression"), False), (("ppdl", "marvell"), True),
     (("noise", "gradient_average"), False)],
)  # fmt: skip
def test_a_policy_that_reads_labels_after_the_noise_ends_its_claim(
    order: tuple[str, str], ends: bool
) -> None:
    """What only works on the noised message is no more than the message."""
    made: dict[str, Made] = {
        "noise": CLIPPED, "ppdl": ("ppdl", {}, 1.0, "active"),
        "marvell": ("marvell", {}, 1.0, "active"),
        "compression": ("compression", {}, 0.5, "active"),
        "gradient_average": ("gradient_average", {}, 0.5, "active"),
    }  # fmt: skip
    _, claims = trained(*(made[name] for name in order))
    reasons = {c.reason for policy, c in claims if policy.counted}
    assert reasons == {"a policy after it computes with labels" if ends else ""}


@pytest.mark.parametrize("claimant", [CLIPPED, ("gradperturb", {}, 1.0, "active")])
def test_what_is_off_in_a_replica_ends_no_claim_there(claimant: Made) -> None:
    """A claim depends on its own cell's strengths, whatever trains beside it."""
    _, claims = trained(claimant, ("marvell", {}, (0.0, 1.0), "active"))
    mine = [made for policy, made in claims if policy.name == claimant[0]]
    assert [made.epsilon is None for made in mine] == [False, True]


class Tells(Policy):
    """Adds the label to every number that leaves."""

    name = "tells"
    covers = frozenset({"gradient"})

    def outgoing(self, message: Any, own: Any) -> Tensor:
        sent: Tensor = message.tensor + 1e3 * own.labels.unsqueeze(2)
        return sent


def test_what_goes_past_the_noise_by_a_label_is_the_label() -> None:
    """Noise of strength 1e3 claims epsilon 0.02 for 2 messages; every label is in its messages."""
    noise, tells = registry.defenses.create("noise", {"clip": 1e-3}), Tells()
    on = torch.full((2,), 1e3, dtype=torch.float64)
    run = train(
        registry.algorithms.create("splitnn", QUICK), small_stack([0, 0]), [0, 0],
        {"active": [(noise, on), (tells, on)]}, [("passive1", "received", "gradient", "first")],
    )  # fmt: skip
    table = run.fed.channel.recorder.tables(0, ("passive1",), "train")
    (seen,) = table.values()
    guess = (seen.tensor.flatten(1).mean(1) > seen.tensor.flatten(1).mean()).long()
    assert torch.equal(guess, run.fed.stack.first.y[seen.rows])
    uses = collect_uses(run.fed, noise, 0)
    assert noise.guarantee(1e3, RunFacts(uses=Uses(uses.most))).epsilon == pytest.approx(0.004)
    assert noise.guarantee(1e3, RunFacts(uses=uses)).epsilon is None


# Edges of strength


@pytest.mark.parametrize(
    ("name", "params", "each"),
    [
        ("gradperturb", {}, lambda s: 1 / s), ("ppdl", {}, lambda s: 1 / s),
        ("label_dp", {}, lambda s: 1 / s), ("alibi", {}, lambda s: 1 / s),
        ("noise", {"clip": 1.0}, lambda s: 2 / s),
        ("embedding_noise", {"distribution": "laplace"}, lambda s: 2 / s),
        ("embedding_noise", {}, lambda s: accountants.gaussian(s / 2, 1, 1e-5).epsilon),
    ],
)  # fmt: skip
def test_an_epsilon_that_noise_of_53_bits_cannot_have_is_not_claimed(
    name: str, params: dict[str, Any], each: Any
) -> None:
    """At strength 1e-9 the noise is all but none, and a number computed from it says nothing."""
    policy = registry.defenses.create(name, params)
    for strength in (1e-9, 0.02, 0.05, 0.3, 1.0, 1e9):
        made = policy.guarantee(strength, RunFacts(uses=Uses(3)))
        if each(strength) > accountants.FINEST:
            assert made.epsilon is None
            assert "finer than coins and noise" in made.reason
        else:
            assert made.epsilon is not None
            assert made.epsilon == pytest.approx(0, abs=1e-8) or strength < 1e9


def reached(out: Tensor, value: float, scale: float, grid: float) -> Tensor:
    """Whether a number of 53 bits makes noise that takes `value` to `out`, on that grid."""
    noise = (out - value) / scale
    u = 0.5 * torch.expm1(-noise.abs()).abs() * noise.sign()
    at = torch.round((u + 0.5) * 2.0**53)
    found = torch.zeros_like(out, dtype=torch.bool)
    for k in range(-3, 4):
        v = (at + k) * 2.0**-53 - 0.5
        made = -v.sign() * torch.log(1 - 2 * v.abs())
        again = torch.trunc(torch.tensor(value) / grid) + torch.round(scale * made / grid)
        found |= again * grid == out
    return found


@pytest.mark.parametrize("strength", [1.0, 1e3, 1e9])
def test_the_grid_is_as_coarse_as_the_noise_can_fill(strength: float) -> None:
    """On 2^-24 alone, noise of scale 2e9 leaves gaps: which one is hit tells the label."""
    policy = registry.defenses.create("alibi")
    y = torch.randint(2, (1, 4000), generator=torch.Generator().manual_seed(1))
    made = policy.labels(y, owner(policy, [strength]))[0, :, 1]
    size = 2 * strength
    grid = accountants.GRID * 2.0 ** torch.tensor(size).log2().ceil().clamp_min(0)
    told = reached(made, 0.0, size, float(grid)) != reached(made, 1.0, size, float(grid))
    assert float(told.double().mean()) < 0.001
    if strength < 1e9:
        return
    own = owner(policy, [strength])
    noise = own.rng.laplace((4000, 2), dtype=torch.float64)[0, :, 1]
    fine = (
        torch.round(size * noise / accountants.GRID) + y[0] / accountants.GRID
    ) * accountants.GRID
    told = reached(fine, 0.0, size, accountants.GRID) != reached(fine, 1.0, size, accountants.GRID)
    assert float(told.double().mean()) > 0.5


def test_a_prior_at_the_largest_strength_is_finite() -> None:
    policy = registry.defenses.create("learned_prior")
    y = torch.tensor([[0, 1, 1, 0, -1]])
    out = policy.labels(y, owner(policy, [1e17]))
    assert bool(torch.isfinite(out).all())
    assert out[0, :4].sum(1).tolist() == [1.0] * 4


def test_noise_of_dpsgd_is_drawn_in_53_bits_whatever_trains() -> None:
    """Drawn in float32 it never is beyond 5.8 deviations, and its last bits tell the sum."""
    policy = registry.defenses.create("dpsgd")
    parts = [torch.zeros(1, 4, 5000, dtype=torch.float64)]
    out = []
    for dtype in (torch.float32, torch.float64):
        rows = [p.to(dtype) for p in parts]
        own = owner(policy, [1.0], dtype=dtype)
        (made,) = policy.gradients([r.sum(1) for r in rows], lambda rows=rows: rows, own)
        out.append(made)
    assert torch.equal(out[0], out[1].float())


# A quantity instead of a class


CLIPPED_ANYWAY = {
    "noise": {"clip": 1.0}, "ppdl": {}, "dpsgd": {}, "embedding_noise": {},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(registry.defenses.entries()))
def test_claims_whose_formulas_count_classes_are_refused_where_there_are_none(name: str) -> None:
    """What limits a message or a gradient does so whatever the label is, and claims as much."""
    policy: Policy = registry.defenses.create(name, CLIPPED_ANYWAY.get(name))
    if not policy.counted:
        return
    if name not in CLIPPED_ANYWAY:
        with pytest.raises(ConfigError, match=f"^{name}: the label must be a class, got 'a qua"):
            policy.check_label(1)
        return
    said = {}
    for classes in (2, 1, 0):
        policy.check_label(classes)
        made = policy.guarantee(1.0, RunFacts(uses=Uses(1), classes=classes))
        said[classes] = made.sentence()
        assert made.epsilon == policy.guarantee(1.0, RunFacts(uses=Uses(1))).epsilon is not None
    assert said[2] == policy.guarantee(1.0, RunFacts(uses=Uses(1))).sentence()
    assert ("scale of the values" in said[1]) == (name in ("noise", "ppdl"))
    assert ("another value" in said[1]) == ("other labels" in said[0]) == (name == "noise")
    assert ("columns and values" in said[1]) == (name == "dpsgd")


# Messages of other rows of the batch


CARRIES = [
    ("gradient_average", {}, True), ("compression", {}, True), ("iso", {}, True),
    ("discrete", {}, True), ("discrete", {"bound": 0.1}, False),
    ("marvell", {}, True), ("dcor", {}, True), ("mid", {}, False), ("label_dp", {}, False),
]  # fmt: skip


@pytest.mark.parametrize("claimant", sampled(["noise", "ppdl"]))
@pytest.mark.parametrize(("name", "params", "carries"), CARRIES)
def test_what_mixes_the_rows_of_a_batch_before_noise_ends_its_claim(
    name: str, params: dict[str, Any], carries: bool, claimant: str
) -> None:
    """Its epsilon is of a row's own messages, and its label left with all of the batch."""
    noise = (claimant, {"clip": 1.0} if claimant == "noise" else {}, 2.0, "active")
    beside = (name, params, 0.5, "active")
    found = {}
    for order in ((beside, noise), (noise, beside)):
        _, claims = trained(*order)
        found[order[0][0]] = {made.reason for p, made in claims if p.name == claimant}
    assert found[name] == {
        f"{name} before it may carry a row into other rows' messages" if carries else ""
    }
    if name in ("gradient_average", "compression", "iso"):  # afterwards it is only processing
        assert found[claimant] == {""}


def test_a_batch_of_means_tells_the_label_that_one_message_hides() -> None:
    """64 messages of one mean with noise of their own, each at epsilon 4.4, tell it every time."""
    noise = registry.defenses.create("noise", {"clip": 1.0, "distribution": "gaussian"})
    mean = registry.defenses.create("gradient_average")
    rows = torch.arange(64).unsqueeze(0)
    says = []
    for label in (-1.0, 1.0):
        for seed in range(50):
            g = torch.zeros(1, 64, 1)
            g[0, 0, 0] = 64 * label
            message = Message("gradient", "active", "passive1", g, rows)
            for policy, strength in ((mean, 1.0), (noise, 2.0)):
                own = owner(policy, [strength], seeds=[seed])
                message = message.with_tensor(policy.outgoing(message, own), policy.name)
            says.append(float(message.tensor.mean()) * label)
    assert noise.guarantee(2.0, RunFacts(uses=Uses(counted=1))).epsilon < 4.4
    assert min(says) > 0


def test_what_goes_past_a_policy_at_one_party_ends_the_claim_of_all() -> None:
    """Of two parties with as many uses the first was asked: what the other told was lost."""
    policy = registry.defenses.create("embedding_noise")
    on = torch.ones(2, dtype=torch.float64)
    stack = small_stack([0, 0], widths=(4, 3, 3))
    run = train(
        registry.algorithms.create("splitnn", QUICK), stack, [0, 0],
        {p: [(policy, on)] for p in ("passive1", "passive2")},
    )  # fmt: skip
    assert collect_uses(run.fed, policy, 0).past == ()
    for party in ("passive1", "passive2"):
        (bound,) = run.fed.parties[party].bindings
        assert bound.own.uses is not None
        bound.own.uses.passed(f"something of {party}")
        assert f"something of {party}" in collect_uses(run.fed, policy, 0).past
