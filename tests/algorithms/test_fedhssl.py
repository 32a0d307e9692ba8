"""The FedHSSL family: reductions bit for bit in float64, aggregation, frozen towers."""

from __future__ import annotations

import pytest
import torch
from sampled import sampled
from ssl_runs import METHODS, make, same, start, tensors, trained
from torch import Tensor, nn

from vflsec.algorithms._pretraining import Pretraining
from vflsec.core.federation import Federation
from vflsec.core.view import Schema
from vflsec.nn.encoders import build_towers, mlp_encoder
from vflsec.plugins import registry
from vflsec.train.loop import predict, run_phases

# Reductions


@pytest.mark.parametrize("ssl", sampled(METHODS[::-1]))
def test_without_aggregation_it_is_fedgssl(ssl: str) -> None:
    plain = trained("fedgssl", ssl=ssl)[2]
    off = trained("fedhssl", ssl=ssl, average=())[2]
    on = trained("fedhssl", ssl=ssl)[2]
    for phase in ("pretrain", "finetune"):
        assert same(tensors(off[phase]), tensors(plain[phase]))
    assert not same(tensors(on["pretrain"]), tensors(plain["pretrain"]))


@pytest.mark.slow
@pytest.mark.parametrize("ssl", sampled(METHODS[::-1]))
def test_gamma_zero_makes_the_local_step_fedlocal_ssl(ssl: str) -> None:
    alone = tensors(trained("fedlocal_ssl", ssl=ssl)[2]["pretrain"], "local")
    guided = trained("fedgssl", ssl=ssl, gamma=0.0)[2]["pretrain"]
    assert same(alone, tensors(guided, "local"))
    with_gamma = tensors(trained("fedgssl", ssl=ssl, rescale_lr=False)[2]["pretrain"], "local")
    assert not same(alone, with_gamma)


@pytest.mark.parametrize("ssl", sampled(METHODS[::-1]))
def test_without_the_local_step_fedgssl_is_fedcssl(
    ssl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cross = tensors(trained("fedcssl", ssl=ssl)[2]["pretrain"], "cross")
    monkeypatch.setattr(Pretraining, "local_step", lambda *_: None)
    skipped = trained("fedgssl", ssl=ssl, pooling="cross", rescale_lr=False)[2]
    assert same(cross, tensors(skipped["pretrain"], "cross"))


@pytest.mark.parametrize("ssl", sampled(METHODS[::-1]))
def test_the_cross_towers_do_not_depend_on_the_local_ones(ssl: str) -> None:
    cross = tensors(trained("fedcssl", ssl=ssl)[2]["pretrain"], "cross")
    both = trained("fedhssl", ssl=ssl, rescale_lr=False)[2]["pretrain"]
    assert same(cross, tensors(both, "cross"))


def test_one_local_update_is_the_plain_step_and_more_are_not() -> None:
    plain = trained("fedcssl")[2]["pretrain"]
    assert same(tensors(trained("fedcssl", local_updates=1)[2]["pretrain"]), tensors(plain))
    assert not same(tensors(trained("fedcssl", local_updates=4)[2]["pretrain"]), tensors(plain))


def cross_encoder(schema: Schema, out: int) -> nn.Module:
    return build_towers("cross", lambda: mlp_encoder(schema, (16,), out, embedding=32))


def mean_encoders(schema: Schema, out: int) -> nn.Module:
    return build_towers("mean", lambda: mlp_encoder(schema, (16,), out, embedding=32))


@pytest.mark.parametrize(
    ("name", "factory"), [("fedcssl", "cross_encoder"), ("fedhssl", "mean_encoders")]
)
def test_no_pretraining_is_fedsplitnn_with_the_same_encoders(name: str, factory: str) -> None:
    module = {"module": f"{__name__}:{factory}"}
    fine = {"cut": 16, "top": (), "optimizer": "sgd", "lr": 0.01, "weight_decay": 3e-5,
            "batch_size": 32, "epochs": 3, "patience": 20}  # fmt: skip
    split = registry.algorithms.create(
        "splitnn", fine | {"parties": {"active": module, "passive1": module}}
    )
    reference = start(split)
    list(run_phases(split, reference))
    algorithm, fed, states = trained(name, pretrain_iterations=0)
    assert list(states) == ["finetune"]
    assert same(tensors(fed.state()), tensors(reference.state()))
    rows = fed.stack.rows("test")
    assert torch.equal(predict(algorithm, fed, rows), predict(split, reference, rows))


@pytest.mark.parametrize("name", sampled(["fedlocal_ssl", "fedgssl"]))
def test_byol_with_momentum_zero_is_simsiam(name: str) -> None:
    simsiam = trained(name)[2]["pretrain"]
    byol = trained(name, ssl="byol", byol_ema=0.0)[2]["pretrain"]
    keep = {k: v for k, v in tensors(simsiam).items() if "running" not in k and "num_b" not in k}
    assert same(keep, {k: v for k, v in tensors(byol).items() if k in keep})
    moving = tensors(trained(name, ssl="byol")[2]["pretrain"])
    assert not same(keep, {k: v for k, v in moving.items() if k in keep})


def test_fedlocal_ssl_has_no_messages_before_fine_tuning_and_the_others_do() -> None:
    _, fed, _ = trained("fedlocal_ssl")
    assert not [row for row in fed.channel.ledger.of(0) if row["phase"] == "pretrain"]
    _, fed, _ = trained("fedcssl")
    kinds = {row["kind"] for row in fed.channel.ledger.of(0) if row["phase"] == "pretrain"}
    assert kinds == {"ids", "embedding"}


# Aggregation


def shared_states(fed: Federation) -> dict[str, dict[str, Tensor]]:
    work: Pretraining = fed.extra["pretraining"]
    return {
        m.party.name: {
            f"{part}.{k}": v.clone()
            for part, stack in work._shared(m).items()
            for k, v in {**stack.params, **stack.buffers}.items()
        }
        for m in work.members
    }


@pytest.mark.parametrize("parties", [2, 4])
def test_averaging_identical_states_is_the_identity(parties: int) -> None:
    fed = start(make("fedhssl"), widths=(5,) * parties)
    work: Pretraining = fed.extra["pretraining"]
    fed.phase = "pretrain"
    first = work._shared(work.members[0])
    for m in work.members[1:]:
        for part, stack in work._shared(m).items():
            stack.load(first[part].state())
    before = shared_states(fed)
    work.aggregate()
    for party, state in shared_states(fed).items():
        assert same(state, before[party])


def test_averaging_three_identical_states_is_the_identity_to_rounding() -> None:
    fed = start(make("fedhssl"), widths=(5, 5, 5))
    work: Pretraining = fed.extra["pretraining"]
    first = work._shared(work.members[0])
    for m in work.members[1:]:
        for part, stack in work._shared(m).items():
            stack.load(first[part].state())
    before = shared_states(fed)["active"]
    work.aggregate()
    for key, value in shared_states(fed)["passive2"].items():
        torch.testing.assert_close(value, before[key], rtol=1e-15, atol=0)


@pytest.mark.parametrize("server", ["active", "third"])
def test_aggregation_gives_all_parties_the_mean_and_keeps_bottoms(server: str) -> None:
    fed = start(make("fedhssl", server=server), widths=(4, 6, 5))
    work: Pretraining = fed.extra["pretraining"]
    fed.phase = "pretrain"
    for m in work.members:
        work.local_step(m, fed.stack.rows(f"local:{m.party.name}")[:, :32])
    work.local_step(work.members[0], fed.stack.rows("local:active")[:, :16])
    before, state = shared_states(fed), fed.state()
    work.aggregate()
    after = shared_states(fed)
    assert same(after["active"], after["passive1"])
    assert same(after["active"], after["passive2"])
    for key, value in after["active"].items():
        total = sum(before[p][key].double() for p in before) / 3
        want = total.round() if not value.is_floating_point() else total
        torch.testing.assert_close(value.double(), want.double(), rtol=1e-12, atol=1e-15)
    counters = [v for k, v in after["active"].items() if "num_batches" in k]
    assert counters
    assert all(not c.is_floating_point() for c in counters)
    kept = {k: v for k, v in tensors(state).items() if ".local." in k and "local.bottom" in k}
    assert same(kept, {k: v for k, v in tensors(fed.state()).items() if k in kept})
    again = shared_states(fed)
    work.aggregate()  # idempotent up to the rounding of a third
    for key, value in shared_states(fed)["active"].items():
        torch.testing.assert_close(
            value.double(), again["active"][key].double(), rtol=1e-14, atol=0
        )


def test_averaging_options_for_targets_and_momentum() -> None:
    for option, moved in (("average_ema", True), ("reset_momentum", False)):
        fed = start(make("fedhssl", ssl="byol", **{option: True}))
        work: Pretraining = fed.extra["pretraining"]
        fed.phase = "pretrain"
        for m in work.members:
            work.local_step(m, fed.stack.rows(f"local:{m.party.name}")[:, :32])
        m = work.members[0]
        assert m.local is not None
        assert m.target is not None
        before = {k: v.clone() for k, v in m.target.encoder.params.items()}
        work.aggregate()
        top = m.local.encoder.sub("top")
        target = m.target.encoder.sub("top")
        assert torch.equal(target.params["0.weight"], top.params["0.weight"]) == moved
        bottom = [k for k in before if k.startswith("bottom")]
        assert all(torch.equal(m.target.encoder.params[k], before[k]) for k in bottom)
        states = [
            "momentum_buffer" in made.state[p]
            for made, params in m.local.optimizers
            for p in params
            if p is top.params["0.weight"]
        ]
        assert states == [option != "reset_momentum"]


# Stop-gradients and frozen towers


@pytest.mark.parametrize("ssl", sampled(METHODS[::-1]))
def test_the_local_loss_has_no_gradient_in_cross_or_target_towers(ssl: str) -> None:
    fed = start(make("fedgssl", ssl=ssl))
    work: Pretraining = fed.extra["pretraining"]
    m = work.members[1]
    assert m.local is not None
    assert m.cross is not None
    assert m.augment is not None
    x = fed.columns(m.party.name, fed.stack.rows("aligned")[:, :32])
    loss = work.local_loss(m, (x, m.augment(x))).sum()
    own = torch.autograd.grad(loss, m.local.params, retain_graph=True)
    assert all(float(g.abs().sum()) > 0 for g in own[: len(m.local.encoder.parameters())])
    frozen = list(m.cross.params)
    if m.target is not None:
        assert not any(p.requires_grad for p in m.target.params)
        assert not any(p.requires_grad for p in m.target.encoder.params.values())
    grads = torch.autograd.grad(loss, frozen, allow_unused=True)
    assert grads == (None,) * len(frozen)


@pytest.mark.parametrize("mode", ["eval", "train"])
def test_the_local_step_leaves_cross_towers_as_they_are(mode: str) -> None:
    fed = start(make("fedgssl", guide_mode=mode, pretrain_weight_decay=0.1))
    work: Pretraining = fed.extra["pretraining"]
    for _ in range(2):  # momentum of the cross optimizer must not move anything either
        work.cross_step(fed.stack.rows("aligned")[:, :32])
    before = tensors(fed.state(), "cross")
    for m in work.members:
        work.local_step(m, fed.stack.rows(f"local:{m.party.name}")[:, :32])
    after = tensors(fed.state(), "cross")
    weights = {k: v for k, v in before.items() if "running" not in k and "num_b" not in k}
    assert same(weights, {k: v for k, v in after.items() if k in weights})
    statistics = {k: v for k, v in before.items() if "running" in k}
    unmoved = same(statistics, {k: v for k, v in after.items() if k in statistics})
    assert unmoved == (mode == "eval")


def test_no_party_has_a_gradient_from_anothers_cross_loss() -> None:
    fed = start(make("fedcssl"), widths=(4, 6, 5))
    work: Pretraining = fed.extra["pretraining"]
    rows = fed.stack.rows("aligned")[:, :32]
    towers_ = {m.party.name: m.cross for m in work.members}
    own = {}
    for name, tower in towers_.items():
        assert tower is not None
        own[name] = tower.project(fed.columns(name, rows))
    received = [fed.send("embedding", p, "active", own[p], rows) for p in ("passive1", "passive2")]
    tower = towers_["active"]
    assert tower is not None
    loss = work.cross_loss(tower, own["active"], received)
    p = tower.predict(own["active"])
    want = sum(work.similarity(p, z) for z in received) / 2
    torch.testing.assert_close(loss, want)
    others = [q for n in ("passive1", "passive2") for q in towers_[n].params]  # type: ignore[union-attr]
    assert torch.autograd.grad(loss.sum(), others, allow_unused=True) == (None,) * len(others)


def test_identical_parties_with_identity_predictors_reach_minus_one() -> None:
    fed = start(make("fedcssl"))
    work: Pretraining = fed.extra["pretraining"]
    tower = work.members[0].cross
    assert tower is not None
    tower.predictor = None
    z = tower.project(fed.columns("active", fed.stack.rows("aligned")[:, :32]))
    loss = work.cross_loss(tower, z, [z])
    torch.testing.assert_close(loss, torch.full_like(loss, -1.0), rtol=0, atol=1e-12)


@pytest.mark.parametrize("ssl", sampled(METHODS[::-1]))
def test_swapping_the_views_leaves_the_local_loss(ssl: str) -> None:
    losses = []
    for swap in (False, True):
        fed = start(make("fedgssl", ssl=ssl, guidance_queue="shared"))
        work: Pretraining = fed.extra["pretraining"]
        m = work.members[1]
        assert m.augment is not None
        x = fed.columns(m.party.name, fed.stack.rows("aligned")[:, :32])
        views = (x, m.augment(x))
        if swap and m.queues is not None:
            m.queues = (m.queues[1], m.queues[0])
        losses.append(work.local_loss(m, views[::-1] if swap else views))
    torch.testing.assert_close(losses[0], losses[1], rtol=0, atol=1e-12)


def test_guidance_adds_gamma_times_its_terms() -> None:
    values = {}
    for gamma in (0.0, 0.5, 2.0):
        fed = start(make("fedgssl", gamma=gamma))
        work: Pretraining = fed.extra["pretraining"]
        m = work.members[1]
        assert m.augment is not None
        x = fed.columns(m.party.name, fed.stack.rows("aligned")[:, :32])
        values[gamma] = work.local_loss(m, (x, m.augment(x))).detach()
    slope = (values[0.5] - values[0.0]) / 0.5
    torch.testing.assert_close(values[2.0], values[0.0] + 2.0 * slope)
    assert float(slope.abs().min()) > 1e-3
