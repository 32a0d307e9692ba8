"""FALSE-VFL: its bounds by hand, its step as one graph, who sends what, and what labels reach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from by_hand import assert_follows, federation, models, tapped, trained
from sampled import sampled
from torch import Tensor, nn
from torch.distributions import Categorical, Normal
from worlds import few_aligned, small_task, stack, with_category

from vflsec.algorithms.falsevfl import FLOOR, FalseVfl
from vflsec.core.federation import Federation
from vflsec.core.rng import Streams
from vflsec.core.task import Stack
from vflsec.engine.cohort import run_cohort
from vflsec.errors import ConfigError, PolicyError
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec
from vflsec.train.loop import predict, run_phases

SMALL: dict[str, Any] = {
    "hidden": (7,), "cut": 3, "top": (5,), "latent": 2, "samples": 4, "noise": 0.3,
    "batch_size": 16, "epochs": 2, "pretrain_epochs": 2, "patience": 0, "optimizer": "sgd",
    "lr": 0.1, "pretrain_lr": 0.02,
}  # fmt: skip
NAMES = ("active", "passive1", "passive2")
WIDTHS = (3, 4, 5)


def few(seeds: list[int]) -> Stack:
    """64 aligned rows, 48 of them labelled; each party has 80 more."""
    tasks = {s: few_aligned(small_task(s, widths=WIDTHS), 64, labelled=48) for s in set(seeds)}
    return Stack.build(tasks, seeds, dtype=torch.float64)


class Joint:
    """The same model in one place, from PyTorch's own layers and distributions."""

    def __init__(self, fed: Federation, algorithm: FalseVfl) -> None:
        self.fed, self.algorithm = fed, algorithm
        self.parts = {name: models(fed, name) for name in fed.parties}
        self.noise = Streams(fed.seeds, "falsevfl", "noise", dtype=torch.float64)

    def normal(self, out: Tensor) -> Normal:
        mean, raw = out.chunk(2, -1)
        return Normal(mean, (nn.functional.softplus(raw) + FLOOR).sqrt())

    def draw(self, q: Normal, shape: tuple[int, ...]) -> Tensor:
        return q.loc + q.scale * self.noise.normal(shape)[0]

    def columns(self, name: str, x: Tensor, h: Tensor) -> Tensor:
        """log p(x|h) (b, kappa)."""
        schema, out = self.fed.stack.first.schema[name], self.parts[name]["decoder"](h)
        numbers, found = len(schema.numeric), torch.zeros(h.shape[:2], dtype=h.dtype)
        for k, i in enumerate(schema.numeric):
            p = Normal(out[..., k], self.algorithm.noise)
            found = found + p.log_prob(x[:, i].unsqueeze(1))
        for i in schema.categorical:
            logits = out[..., numbers : numbers + schema.cardinalities[i]]
            numbers += schema.cardinalities[i]
            found = found + Categorical(logits=logits).log_prob(x[:, i].unsqueeze(1))
        return found

    def __call__(self, holders: Sequence[str], rows: Tensor) -> tuple[Tensor, Tensor]:
        """h (b, kappa, d) and log r (b, kappa) of rows (b,)."""
        task, active = self.fed.stack.first, self.parts["active"]
        x = {n: task.x[n][rows].double() for n in holders}
        each = [self.normal(self.parts[n]["bottom"](x[n])) for n in holders]
        precision = torch.stack([q.scale**-2 for q in each]).sum(0)
        mean = torch.stack([q.loc for q in each]).mean(0)
        q = Normal(mean.unsqueeze(1), precision.rsqrt().unsqueeze(1))
        b, kappa = len(rows), self.algorithm.samples
        h = self.draw(q, (b, kappa, mean.shape[1]))
        of_z = self.normal(active["encoder"](h))
        z = self.draw(of_z, (b, kappa, self.algorithm.latent))
        p = self.normal(active["generator"](z)).log_prob(h).sum(-1)
        p = p + Normal(0.0, 1.0).log_prob(z).sum(-1)
        p = p + torch.stack([self.columns(n, x[n], h) for n in holders]).sum(0)
        return h, p - q.log_prob(h).sum(-1) - of_z.log_prob(z).sum(-1)

    def bound(self, holders: Sequence[str], rows: Tensor) -> Tensor:
        return self(holders, rows)[1].exp().mean(1).log()

    def joint(self, rows: Tensor, holders: Sequence[str] = NAMES) -> Tensor:
        """log(mean of r_l p(y|h_l)), (b,)."""
        h, ratios = self(holders, rows)
        log_p = self.parts["active"]["top"](h).log_softmax(-1)
        y = self.fed.stack.first.y[rows]
        at = log_p.gather(2, y.reshape(-1, 1, 1).expand(-1, h.shape[1], 1)).squeeze(2)
        return (ratios.exp() * at.exp()).mean(1).log()

    def follow(self, trained: Mapping[str, Sequence[str]], lr: float) -> torch.optim.SGD:
        """SGD on these modules of these parties."""
        params = [p for n, of in trained.items() for m in of for p in self.parts[n][m].parameters()]
        return torch.optim.SGD(params, lr=lr, momentum=0.9)

    def compare(self) -> None:
        assert_follows(self.fed, self.parts, 1e-11)


def descend(optimizer: torch.optim.SGD, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize("samples", [1, 4])
@pytest.mark.parametrize("holders", [NAMES, ("active",), ("passive2",), ("active", "passive1")])
def test_the_bound_is_the_written_one(holders: tuple[str, ...], samples: int) -> None:
    """With one sample the ELBO, log p(x, h, z) - log q(h, z|x); with more the log of a mean."""
    algorithm = FalseVfl(**SMALL | {"samples": samples})
    fed = federation(algorithm, with_category(stack([0], widths=WIDTHS)))
    rows, by_hand = fed.stack.rows("aligned")[:, :16], Joint(fed, algorithm)
    made = algorithm.sample(fed, [fed.parties[n] for n in holders], rows, graph=True)
    h, ratios = by_hand(holders, rows[0])
    torch.testing.assert_close(made.h[0], h, rtol=0, atol=1e-12)
    torch.testing.assert_close(made.ratios[0], ratios, rtol=0, atol=1e-11)
    torch.testing.assert_close(made.bound()[0], ratios.exp().mean(1).log(), rtol=0, atol=1e-11)
    if samples == 1:
        torch.testing.assert_close(made.bound()[0], ratios[:, 0], rtol=0, atol=1e-12)


def test_many_samples_give_the_likelihood() -> None:
    """Of a decoder that does not look at h, whose log p(x) is known; from below."""
    algorithm = FalseVfl(**SMALL | {"samples": 20000, "noise": 0.8})
    fed = federation(algorithm, stack([0], widths=WIDTHS))
    params, rows = fed.active.modules["decoder"].params, fed.stack.rows("aligned")[:, :5]
    with torch.no_grad():
        params["2.weight"].zero_()
        many = algorithm.sample(fed, [fed.active], rows, graph=False)
    p, x = Normal(params["2.bias"][0].detach(), 0.8), fed.stack.columns("active", rows)[0]
    truth = p.log_prob(x).sum(-1)
    torch.testing.assert_close(many.bound()[0], truth, rtol=0, atol=0.1)
    tighter = [many.ratios.unflatten(2, (-1, k)).logsumexp(3) - math.log(k) for k in (1, 5, 50)]
    means = [float(t.mean()) for t in tighter]
    assert means[0] < means[1] < means[2] < float(truth.mean()) + 0.01


@pytest.mark.parametrize("holders", [NAMES, ("active",), ("passive1",)])
def test_a_step_of_pretraining_is_that_of_one_graph(holders: tuple[str, ...]) -> None:
    """The messages carry the whole gradient: against autograd and SGD on the model in one place."""
    algorithm = FalseVfl(**SMALL)
    fed = federation(algorithm, stack([0], widths=WIDTHS))
    rows, joint = fed.stack.rows("aligned")[:, :16], Joint(fed, algorithm)
    parts = {n: ["bottom", "decoder"] for n in holders}
    parts["active"] = [*parts.get("active", ()), "encoder", "generator"]
    optimizer = joint.follow(parts, 0.02)
    for _ in range(3):
        algorithm.explain(fed, [fed.parties[n] for n in holders], rows)
        descend(optimizer, -joint.bound(holders, rows[0]).mean())
    joint.compare()


@pytest.mark.parametrize("tune", [False, True])
def test_a_step_of_training_is_that_of_the_joint_bound(tune: bool) -> None:
    """log(mean of r_l p(y|h_l)) over the top, or over the encoders too; the rest is frozen."""
    algorithm = FalseVfl(**SMALL | {"tune_encoders": tune})
    fed = federation(algorithm, few([0]))
    (_, train) = algorithm.phases(fed)
    assert train.before is not None
    train.before()
    rows, joint = fed.stack.rows("labelled")[:, :16], Joint(fed, algorithm)
    parts = {"active": ["top"]}
    if tune:
        parts = {n: ["bottom"] for n in NAMES} | {"active": ["bottom", "encoder", "top"]}
    optimizer = joint.follow(parts, 0.1)
    for _ in range(3):
        algorithm.step(fed, rows)
        descend(optimizer, -joint.joint(rows[0]).mean())
        algorithm.own_step(fed, rows)
        descend(optimizer, -joint.joint(rows[0], ("active",)).mean())
    joint.compare()


def test_answers_are_self_normalised_and_of_the_row_alone() -> None:
    """The share of a class is sum of r_l p(y|h_l) / sum of r_l, whatever stands beside the row."""
    algorithm = FalseVfl(**SMALL)
    fed = trained(algorithm, few([0]))
    rows = fed.stack.rows("test")
    whole = predict(algorithm, fed, rows)
    torch.testing.assert_close(whole.exp().sum(2), torch.ones(whole.shape[:2]).double())
    parts = [predict(algorithm, fed, r) for r in (rows[:, :1], rows[:, 1:])]
    torch.testing.assert_close(whole, torch.cat(parts, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("tune", [False, True])
def test_the_ledger_is_exact(tune: bool) -> None:
    """Of 64 aligned rows (48 labelled), 80 of each party alone, 12 of them in a last batch."""
    fed = trained(FalseVfl(**SMALL | {"tune_encoders": tune}), few([0]))
    d, k = 3, 4
    found = {
        (r["phase"], r["kind"], r["name"], r["sender"]): (r["messages"], r["elements"])
        for r in fed.channel.ledger.of(0)
        if "passive1" in (r["sender"], r["receiver"]) and r["phase"] != "predict"
    }
    up, down = ("passive1", "active")

    def step(phase: str, messages: int, rows: int, *, back: bool) -> dict[Any, tuple[int, int]]:
        out = {
            (phase, "embedding", "", up): (messages, rows * 2 * d),
            (phase, "embedding", "latent", down): (messages, rows * k * d),
            (phase, "score", "", up): (messages, rows * k),
        }
        if back:
            out |= {
                (phase, "gradient", "", down): (messages, rows * 2 * d),
                (phase, "gradient", "latent", up): (messages, rows * k * d),
                (phase, "gradient", "score", down): (messages, rows * k),
            }
        return out

    expected = step("pretrain", 2 * (4 + 5), 2 * (64 + 80), back=True)
    expected |= step("train", 2 * 3, 2 * 48, back=tune)
    expected |= {
        ("train", "ids", "intersection", down): (1, 64),
        ("pretrain", "ids", "batch", down): (8, 128),
        ("train", "ids", "batch", down): (6, 96),
    }
    assert found == expected


@pytest.mark.parametrize("tune", sampled([False, True]))
def test_no_message_of_a_row_depends_on_labels(tune: bool) -> None:
    """Bit for bit, with every label turned round; with `tune_encoders` in pre-training alone."""
    heard: list[dict[str, list[Tensor]]] = []
    for turned in (False, True):
        task = few_aligned(small_task(0, widths=WIDTHS), 64)
        task = replace(task, y=1 - task.y) if turned else task
        fed = federation(
            FalseVfl(**SMALL | {"tune_encoders": tune}),
            Stack.build({0: task}, [0], dtype=torch.float64),
        )
        by_phase: dict[str, list[Tensor]] = {}
        with tapped(fed) as passed:
            for _ in run_phases(FalseVfl(**SMALL | {"tune_encoders": tune}), fed):
                pass
        for message, got in passed:
            by_phase.setdefault(message.phase, []).append(got)
        heard.append(by_phase)
    same = {
        phase: all(map(torch.equal, heard[0][phase], heard[1][phase]))
        for phase in ("pretrain", "train")
    }
    assert same == {"pretrain": True, "train": not tune}


def test_absent_parties_send_nothing_and_do_not_count() -> None:
    fed = trained(FalseVfl(**SMALL), few([0]))
    rows, answers = fed.stack.rows("test")[:, :9], {}
    for absent in [(), ("passive2",), ("passive1", "passive2"), ("active",)]:
        with tapped(fed) as passed:
            answers[absent] = FalseVfl(**SMALL, absent=absent).predict(fed, rows)
        got = [(m.sender, m.receiver) for m, _ in passed if m.kind == "embedding"]
        there = [n for n in NAMES[1:] if n not in absent]
        assert sorted(got) == sorted([*((n, "active") for n in there),
                                      *(("active", n) for n in there)])  # fmt: skip
    assert len({tuple(v.flatten().tolist()) for v in answers.values()}) == 4


def test_a_party_with_labels_only_has_no_block() -> None:
    fed = trained(FalseVfl(**SMALL), stack([0], widths=(0, 4, 5)))
    assert sorted(fed.active.modules) == ["encoder", "generator", "top"]
    rows = fed.stack.rows("test")
    assert FalseVfl(**SMALL).predict(fed, rows).shape == (1, rows.shape[1], 2)


def bound(party: str, name: str, strength: float, **params: Any) -> dict[str, Any]:
    policy = registry.defenses.create(name, params)
    return {party: [(policy, torch.full((1,), strength, dtype=torch.float64))]}


@pytest.mark.parametrize(("party", "name", "kinds"), [
    ("active", "iso", {"gradient"}), ("passive1", "embedding_noise", {"embedding"}),
])  # fmt: skip
def test_defenses_of_messages_act_in_pretraining(party: str, name: str, kinds: set[str]) -> None:
    algorithm = FalseVfl(**SMALL)
    fed = federation(algorithm, few([0]), policies=bound(party, name, 1.0))
    with tapped(fed) as passed:
        algorithm.pretrain_step(fed, fed.stack.rows("aligned")[:, :16])
    changed = {m.kind for m, got in passed if m.sender == party and not torch.equal(m.tensor, got)}
    assert changed == kinds


@pytest.mark.parametrize(("party", "name"), [
    ("active", "marvell"), ("passive1", "dpsgd"), ("passive1", "he_embedding"),
    ("passive1", "he_gradient"), ("active", "mid"),
])  # fmt: skip
def test_what_has_nothing_to_act_on_is_refused(party: str, name: str) -> None:
    """A label in a gradient, a gradient by row, means in the clear, a trained embedding."""
    with pytest.raises(PolicyError):
        trained(FalseVfl(**SMALL), few([0]), policies=bound(party, name, 1.0))


@pytest.mark.parametrize("wrong", [
    {"absent": ("bank",)}, {"absent": NAMES}, {"aggregation": "sum"}, {"noise": 0.0},
    {"samples": 0}, {"parties": {"active": {"cut": 2}}}, {"top_module": "a:B"},
])  # fmt: skip
def test_what_does_not_go_together_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        federation(FalseVfl(**{**SMALL, **wrong}), stack([0], widths=WIDTHS))


INVERSION = AttackSpec(
    "embedding_inversion", {"variants": ["linear"]}, adversary=("passive1",), aux_rows=50
)
ON_LABELS = [
    AttackSpec("norm", adversary=("passive1",)),
    AttackSpec("direction", adversary=("passive1",), known_rows=8),
    AttackSpec("model_completion", {"variants": ["logistic"]}, adversary=("passive1",),
               known_rows=16),
]  # fmt: skip


def attacked(
    specs: list[AttackSpec], *defenses: DefenseSpec, **params: Any
) -> dict[tuple[str, str], Any]:
    """What attacks of a passive party reach on training rows, by phase and attack."""
    settings = SMALL | {
        "optimizer": "adam",
        "cut": 8,
        "top": (),
        "epochs": 8,
        "pretrain_epochs": 8,
        "lr": 1e-2,
        "pretrain_lr": 1e-2,
        "noise": 0.3,
    }
    cell = CellSpec({"name": "small"}, "falsevfl", settings | params, defenses)  # fmt: skip
    tasks = {0: small_task(0, n=600, widths=(4, 6), positive_rate=0.3)}
    (result,) = run_cohort([cell], specs, tasks, device="cpu")
    return {
        (m.phase, m.attack): m.value
        for m in result.measures
        if m.attack and m.split == "train" and m.metric in ("auc", "r2", "")
    }


NORM, DIRECTION, COMPLETION = "norm", "direction", "model_completion(variants=['logistic'])"


@pytest.mark.slow
def test_labels_reach_no_bottom_that_is_frozen() -> None:
    """Training has no gradient to read, and completion finds what pre-training left."""
    found = attacked(ON_LABELS)
    assert found.keys() == {
        ("pretrain", NORM), ("pretrain", DIRECTION), ("pretrain", COMPLETION),
        ("train", COMPLETION),
    }  # fmt: skip
    assert found["train", COMPLETION] == found["pretrain", COMPLETION]


def test_attacks_that_replay_a_model_say_why_they_cannot() -> None:
    """Two gradients stand side by side, and the top does not look at embeddings."""
    cell = CellSpec({"name": "small"}, "falsevfl", SMALL)
    specs = [
        AttackSpec("exploit", adversary=("passive1",)),
        AttackSpec("sdar", adversary=("active",), aux_rows=30),
    ]
    (result,) = run_cohort([cell], specs, {0: small_task(0, n=300)}, device="cpu")
    of = {(m.attack, m.phase): m for m in result.measures if m.attack}
    assert {(*k, m.status) for k, m in of.items()} == {
        ("exploit", "pretrain", "not-applicable"), ("exploit", "train", "not-observable"),
        ("sdar", "pretrain", "error"), ("sdar", "train", "error"),
    }  # fmt: skip
    assert not any("Error" in m.reason for m in of.values())


@pytest.mark.slow
@pytest.mark.long
def test_tuned_encoders_leak_like_those_of_split_training() -> None:
    """Less under noise on gradients and under randomised labels."""
    plain, before = attacked(ON_LABELS, tune_encoders=True), attacked(ON_LABELS)
    assert ("train", NORM) in plain
    assert plain["train", DIRECTION] > 0.56
    assert plain["train", COMPLETION] > before["train", COMPLETION] + 0.04
    iso = DefenseSpec("iso", party="active", strength=25.0)
    noisy = attacked(ON_LABELS, iso, tune_encoders=True)
    assert noisy["train", DIRECTION] < plain["train", DIRECTION] - 0.03
    assert noisy["train", COMPLETION] < plain["train", COMPLETION] - 0.05
    label_dp = DefenseSpec("label_dp", party="active", strength=5.0)
    flipped = attacked(ON_LABELS, label_dp, tune_encoders=True)
    assert flipped["pretrain", COMPLETION] == plain["pretrain", COMPLETION]
    assert flipped["train", COMPLETION] < plain["train", COMPLETION] - 0.05


@pytest.mark.slow
def test_samples_tell_a_passive_party_the_columns_of_others() -> None:
    """Nearly all of them, unless the active party's embeddings are noised."""
    params: dict[str, Any] = {"hidden": (32,), "pretrain_epochs": 20, "noise": 0.1}
    plain = attacked([INVERSION], **params)
    noise = DefenseSpec("embedding_noise", party="active", strength=1.0)
    noised = attacked([INVERSION], noise, **params)
    assert [phase for phase, _ in plain] == [phase for phase, _ in noised] == ["pretrain", "train"]
    assert min(plain.values()) > 0.8
    assert max(noised.values()) < 0.2
