"""The FedHSSL family: reductions bit for bit in float64, frozen towers, exact ledgers, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vflsec import registry
from vflsec.algorithms._pretraining import Pretraining
from vflsec.engine.train import predict, run_phases
from vflsec.errors import ConfigError
from vflsec.federation import Federation
from vflsec.nn.encoders import mlp_encoder, towers
from vflsec.nn.replicas import Replicas
from vflsec.task import Stack, Task
from vflsec.testing import small_stack, small_task
from vflsec.view import Schema

SEEDS = [0, 1]
SMALL = {
    "hidden": (16,), "cut": 16, "projector_hidden": 16, "projector_out": 16,
    "predictor_hidden": 8, "pretrain_iterations": 2, "pretrain_batch_size": 32,
    "batch_size": 32, "epochs": 3, "own_control": False,
}  # fmt: skip
WORLD: dict[str, Any] = {"widths": (4, 6), "unaligned": 30}
METHODS = ("simsiam", "byol", "moco")


def make(name: str, **change: Any) -> Any:
    settings = SMALL | ({"queue": 64} if name != "fedcssl" else {})
    return registry.algorithms.create(name, settings | change)


def start(algorithm: Any, seeds: list[int] = SEEDS, **world: Any) -> Federation:
    fed = Federation.create(small_stack(seeds, **(WORLD | world)), seeds)
    algorithm.build(fed)
    return fed


def trained(name: str, world: dict[str, Any] | None = None, **change: Any) -> Any:
    """(federation, state after each phase) of a run."""
    algorithm = make(name, **change)
    fed = start(algorithm, **(world or {}))
    states = {phase.name: fed.state() for phase in run_phases(algorithm, fed)}
    return algorithm, fed, states


def tensors(state: Any, keep: str = "") -> dict[str, Tensor]:
    """All tensors of a state whose dotted name contains `keep`."""
    flat = {
        f"{party}.{part}.{key}": value
        for party, parts in state.items()
        for part, weights in parts.items()
        for key, value in weights.items()
    }
    return {k: v for k, v in flat.items() if keep in k}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    assert a
    assert a.keys() == b.keys()
    return all(torch.equal(v, b[k]) for k, v in a.items())


# Reductions


@pytest.mark.parametrize("ssl", METHODS)
def test_without_aggregation_it_is_fedgssl(ssl: str) -> None:
    plain = trained("fedgssl", ssl=ssl)[2]
    off = trained("fedhssl", ssl=ssl, average=())[2]
    on = trained("fedhssl", ssl=ssl)[2]
    for phase in ("pretrain", "finetune"):
        assert same(tensors(off[phase]), tensors(plain[phase]))
    assert not same(tensors(on["pretrain"]), tensors(plain["pretrain"]))


@pytest.mark.parametrize("ssl", METHODS)
def test_gamma_zero_makes_the_local_step_fedlocal_ssl(ssl: str) -> None:
    alone = tensors(trained("fedlocal_ssl", ssl=ssl)[2]["pretrain"], "local")
    guided = trained("fedgssl", ssl=ssl, gamma=0.0)[2]["pretrain"]
    assert same(alone, tensors(guided, "local"))
    with_gamma = tensors(trained("fedgssl", ssl=ssl, rescale_lr=False)[2]["pretrain"], "local")
    assert not same(alone, with_gamma)


@pytest.mark.parametrize("ssl", METHODS)
def test_without_the_local_step_fedgssl_is_fedcssl(
    ssl: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cross = tensors(trained("fedcssl", ssl=ssl)[2]["pretrain"], "cross")
    monkeypatch.setattr(Pretraining, "local_step", lambda *_: None)
    skipped = trained("fedgssl", ssl=ssl, pooling="cross", rescale_lr=False)[2]
    assert same(cross, tensors(skipped["pretrain"], "cross"))


@pytest.mark.parametrize("ssl", METHODS)
def test_the_cross_towers_do_not_depend_on_the_local_ones(ssl: str) -> None:
    cross = tensors(trained("fedcssl", ssl=ssl)[2]["pretrain"], "cross")
    both = trained("fedhssl", ssl=ssl, rescale_lr=False)[2]["pretrain"]
    assert same(cross, tensors(both, "cross"))


def test_one_local_update_is_the_plain_step_and_more_are_not() -> None:
    plain = trained("fedcssl")[2]["pretrain"]
    assert same(tensors(trained("fedcssl", local_updates=1)[2]["pretrain"]), tensors(plain))
    assert not same(tensors(trained("fedcssl", local_updates=4)[2]["pretrain"]), tensors(plain))


def cross_encoder(schema: Schema, out: int) -> nn.Module:
    return towers("cross", lambda: mlp_encoder(schema, (16,), out))


def mean_encoders(schema: Schema, out: int) -> nn.Module:
    return towers("mean", lambda: mlp_encoder(schema, (16,), out))


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


@pytest.mark.parametrize("name", ["fedlocal_ssl", "fedgssl"])
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


@pytest.mark.parametrize("ssl", METHODS)
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


@pytest.mark.parametrize("ssl", METHODS)
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


# Learning rates


def test_learning_rates_follow_the_published_rule() -> None:
    for gamma, want in ((0.0, 0.1), (0.5, 0.05)):
        recipe = make("fedgssl", gamma=gamma, pretrain_batch_size=512, queue=4096).recipe()
        assert recipe.lr == pytest.approx(want)
    assert (
        make("fedgssl", rescale_lr=False, pretrain_batch_size=256, queue=4096).recipe().lr == 0.05
    )
    assert make("fedcssl", pretrain_batch_size=512).recipe().lr == pytest.approx(0.1)


def test_cosine_schedule_spares_the_predictor() -> None:
    fed = start(make("fedhssl", pretrain_iterations=4))
    work: Pretraining = fed.extra["pretraining"]
    fed.phase = "pretrain"
    first = work.recipe.lr
    seen = []
    for iteration in range(4):
        work.after_iteration(iteration)
        local = work.members[0].local
        assert local is not None
        groups = [g for made, _ in local.optimizers for g in made.param_groups]
        seen.append({g["annealed"]: g["lr"] / first for g in groups})
    annealed = [s[True] for s in seen]
    assert annealed == pytest.approx(
        [0.5 * (1 + 2**-0.5), 0.5, 0.5 * (1 - 2**-0.5), 0.0], abs=1e-12
    )
    assert [s[False] for s in seen] == [1.0] * 4


# Ledger


def ledger(fed: Federation, **where: str) -> list[tuple[int, int, int]]:
    return [
        (row["messages"], row["elements"], row["bytes"])
        for row in fed.channel.ledger.of(0)
        if all(row[k] == v for k, v in where.items())
    ]


@pytest.mark.parametrize("updates", [1, 4])
def test_cross_step_sends_two_tensors_a_batch_and_passive_party(updates: int) -> None:
    _, fed, _ = trained("fedcssl", {"widths": (4, 6, 5)}, local_updates=updates)
    # 144 aligned rows in batches of 32 are 5 batches; 2 iterations; D = 16; float64
    for party in ("passive1", "passive2"):
        for ends in (
            {"sender": party, "receiver": "active"},
            {"sender": "active", "receiver": party},
        ):
            got = ledger(fed, phase="pretrain", kind="embedding", name="cross", **ends)
            assert got == [(10, 2 * 144 * 16, 2 * 144 * 16 * 8)]
        assert ledger(fed, phase="pretrain", kind="ids", name="batch", receiver=party) == [
            (10, 2 * 144, 2 * 144 * 8)
        ]
    assert not ledger(fed, phase="pretrain", kind="gradient")


@pytest.mark.parametrize("server", ["active", "third"])
def test_aggregation_ledger(server: str) -> None:
    _, fed, _ = trained("fedhssl", {"widths": (4, 6, 5)}, server=server)
    top = 16 * 16 + 16 + 32
    projector = 2 * (16 * 16 + 32) + 16 * 16 + 16 + 32
    predictor = 16 * 8 + 16 + 8 * 16 + 16
    buffers = 5 * (2 * 16 + 1) - 16  # one layer has 8 channels: 4 x 33 + 17
    hub = "active" if server == "active" else "server"
    spokes = ["passive1", "passive2"] + (["active"] if server == "third" else [])
    for party in spokes:
        for ends in ({"sender": party, "receiver": hub}, {"sender": hub, "receiver": party}):
            (parameters,) = ledger(fed, kind="state", name="parameters", **ends)
            assert parameters[1] == 2 * (top + projector + predictor)
            assert ledger(fed, kind="state", name="buffers", **ends)[0][1] == 2 * buffers
    assert len(ledger(fed, kind="state", name="parameters")) == 2 * len(spokes)


def test_published_state_size() -> None:
    wide = {"hidden": (512,), "cut": 512, "projector_hidden": 512, "predictor_hidden": 128,
            "pretrain_iterations": 1, "epochs": 1}  # fmt: skip
    for ssl, want in (("simsiam", 1_185_536), ("moco", 855_936)):
        algorithm = make("fedhssl", ssl=ssl, projector_out=0, **wide)
        fed = Federation.create(small_stack([0], torch.float32, **WORLD), [0])
        algorithm.build(fed)
        fed.phase = "pretrain"
        fed.extra["pretraining"].aggregate()
        got = ledger(fed, kind="state", name="parameters", sender="passive1")
        assert got[0][1:] == (want, 4 * want)


# Pooling, options, use


@pytest.mark.parametrize("pooling", ["mean", "concat", "cross", "local"])
def test_pooling_is_fine_tuned_and_heads_are_dropped(pooling: str) -> None:
    algorithm, fed, states = trained("fedhssl", pooling=pooling)
    assert set(fed.parties["active"].modules) == {"bottom", "top"}
    assert set(fed.parties["passive1"].modules) == {"bottom"}
    other = {"cross": "local_tower", "local": "cross_tower"}.get(pooling)
    parts = set(states["pretrain"]["passive1"])
    assert (other in parts) if other else not any("tower" in p for p in parts)
    width = 32 if pooling == "concat" else 16
    (up,) = ledger(fed, phase="finetune", kind="embedding", sender="passive1")
    assert up[1] % width == 0
    assert algorithm.width("passive1", 2) == width
    towers_ = ("cross", "local") if pooling in ("mean", "concat") else (pooling,)
    for tower in towers_:  # pre-training does not depend on what is pooled later
        reference = trained("fedhssl")[2]["pretrain"]
        mine = tensors({"p": {"bottom": states["pretrain"]["passive1"]["bottom"]}}, f".{tower}.")
        theirs = tensors({"p": {"bottom": reference["passive1"]["bottom"]}}, f".{tower}.")
        assert same(mine, theirs)


@pytest.mark.parametrize(
    "change",
    [
        {"views": "both"}, {"corruption": "marginal"}, {"clip_norm": 0.01},
        {"pretrain_optimizer": "adam"}, {"pretrain_optimizer": "adagrad"},
        {"pretrain_schedule": "constant"}, {"ssl": "byol", "byol_form": "distance"},
        {"ssl": "moco", "guidance_queue": "shared"}, {"ssl": "moco", "temperature": 0.1},
        {"average": ("top",)}, {"average_buffers": False}, {"guide_mode": "train"},
        {"schedule": "cosine"},
    ],
    ids=str,
)  # fmt: skip
def test_every_option_changes_the_result_and_stays_finite(change: dict[str, Any]) -> None:
    base = {k: v for k, v in change.items() if k == "ssl"}
    plain, changed = (trained("fedhssl", **c)[2]["finetune"] for c in (base, change))
    assert not same(tensors(plain), tensors(changed))
    assert all(bool(torch.isfinite(v).all()) for v in tensors(changed).values())


def test_clipping_limits_each_replicas_gradient() -> None:
    fed = start(
        make("fedlocal_ssl", clip_norm=0.01, pretrain_momentum=0.0, pretrain_weight_decay=0.0)
    )
    work: Pretraining = fed.extra["pretraining"]
    m = work.members[0]
    assert m.local is not None
    before = [p.detach().clone() for p in m.local.params]
    work.local_step(m, fed.stack.rows("local:active")[:, :32])
    moved = [(a.detach() - b).flatten(1) for a, b in zip(m.local.params, before, strict=True)]
    norms = torch.cat(moved, dim=1).norm(dim=1) / work.recipe.lr
    torch.testing.assert_close(
        norms, torch.full((2,), 0.01, dtype=torch.float64), rtol=1e-3, atol=0
    )


def test_own_module_as_bottom_gets_the_packages_top() -> None:
    own = {"module": f"{__name__}:own_bottom"}
    states = trained("fedhssl", parties={"passive1": own})[2]
    keys = states["pretrain"]["passive1"]["bottom"]
    assert "local.bottom.layer.weight" in keys
    assert keys["local.top.0.weight"].shape == (2, 16, 16)


class Own(nn.Module):
    def __init__(self, inputs: int, out: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, out)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.layer(x))


def own_bottom(schema: Schema, out: int) -> nn.Module:
    return Own(schema.shape[0], out)


def test_four_parties_with_categoricals_learn() -> None:
    world = {"widths": (4, 6, 3, 5), "categorical": True, "signal": 4.0}
    algorithm, fed, _ = trained(
        "fedhssl", world, epochs=30, lr=0.05, pretrain_iterations=4, batch_size=16
    )
    rows = fed.stack.rows("test")
    right = predict(algorithm, fed, rows).argmax(2) == fed.stack.labels().gather(1, rows)
    assert float(right.double().mean()) > 0.7


# Refusals


def without(task: Task, *, aligned: int) -> Task:
    return replace(task, sets={**task.sets, "aligned": task.sets["aligned"][:aligned]})


def test_wrong_settings_give_one_clear_error() -> None:
    with pytest.raises(ConfigError, match="number of parties must be at least 2, got 1"):
        start(make("fedhssl"), widths=(4,))
    task = without(small_task(0), aligned=0)
    fed = Federation.create(Stack.build({0: task}, [0]), [0])
    with pytest.raises(ConfigError, match="aligned rows must be at least 2, got 0"):
        make("fedcssl").build(fed)
    with pytest.raises(ConfigError, match=r"'top' must be of one shape .*same last hidden width"):
        start(make("fedhssl", parties={"passive1": {"hidden": [8]}}))
    with pytest.raises(ConfigError, match="'top' must be of one shape"):
        start(make("fedhssl", parties={"active": {"cut": 8}}))
    start(make("fedhssl", parties={"passive1": {"hidden": [8]}}, average=("projector",)))
    with pytest.raises(ConfigError, match="queue must be a multiple of pretrain_batch_size = 32"):
        make("fedhssl", ssl="moco", queue=100)
    with pytest.raises(ConfigError, match="pretrain_batch_size must be at most 174, the rows of"):
        start(make("fedhssl", ssl="moco", pretrain_batch_size=256, queue=1024))
    with pytest.raises(ConfigError, match="linear_top must be true"):
        make("fedhssl", linear_top=False, aggregation="sum")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ssl", "simclr"), ("gamma", -0.1), ("pooling", "max"), ("views", "three"),
        ("corruption_rate", 1.5), ("byol_ema", 2.0), ("average", ("bottom",)), ("server", "cloud"),
        ("local_updates", 0), ("guide_mode", "on"), ("temperature", 0.0), ("stem", "big"),
        ("pretrain_batch_size", 1), ("pretrain_iterations", -1), ("encoder_kind", "vit"),
    ],
)  # fmt: skip
def test_wrong_values_are_named(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"fedhssl: {key}"):
        make("fedhssl", **{key: value})


def test_stacks_of_the_family_use_rules() -> None:
    fed = start(make("fedhssl"))
    for party in fed.parties.values():
        assert all(m.path == "stacked" for m in party.modules.values() if isinstance(m, Replicas))


def test_tiny_last_batches_are_left_out_of_pretraining() -> None:
    algorithm = make("fedhssl", pretrain_batch_size=32)
    fed = start(algorithm, unaligned=19)  # 163 local rows: five batches of 32, and 3 rows
    sizes = {}
    phase = algorithm.pretraining(fed)
    for walk in phase.walks():
        sizes[walk.name] = [rows.shape[1] for rows in fed.batches(walk)]
    assert sizes["cross"] == [32, 32, 32, 32, 16]
    assert sizes["local:active"] == [32] * 5
    algorithm = make("fedhssl", ssl="moco")
    phase = algorithm.pretraining(start(algorithm))
    assert [w.smallest for w in phase.walks()] == [8, 32, 32]
