"""The FedHSSL family: learning rates, exact ledgers, options, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from sampled import sampled
from ssl_runs import WORLD, ledger, make, same, start, tensors, trained
from torch import Tensor, nn

from vflsec.algorithms._pretraining import Pretraining
from vflsec.core.federation import Federation
from vflsec.core.task import Stack, Task
from vflsec.core.view import Schema
from vflsec.errors import ConfigError
from vflsec.nn.replicas import Replicas
from vflsec.plugins import registry
from vflsec.testing import small_stack, small_task
from vflsec.train.loop import predict

# Learning rates


def test_learning_rates_follow_the_published_rule() -> None:
    paper = {"sizes": "paper", "pretrain_batch_size": 512}
    for gamma, want in ((0.0, 0.1), (0.5, 0.05)):
        recipe = make("fedgssl", gamma=gamma, queue=4096, **paper).recipe()
        assert recipe.lr == pytest.approx(want)
    half = paper | {"pretrain_batch_size": 256}
    assert make("fedgssl", rescale_lr=False, queue=4096, **half).recipe().lr == 0.05
    assert make("fedcssl", **paper).recipe().lr == pytest.approx(0.1)


def test_sizes_are_the_table_s_or_the_paper_s_and_what_is_given_stands() -> None:
    made = {s: registry.algorithms.create("fedhssl", {"sizes": s}) for s in ("table", "paper")}
    assert made["table"] == registry.algorithms.create("fedhssl", {})
    assert (made["table"].hidden, made["table"].cut, made["table"].batch_size) == ((64,), 64, 64)
    assert (made["paper"].hidden, made["paper"].cut, made["paper"].batch_size) == ((512,), 512, 512)
    assert [m.recipe().lr for m in made.values()] == [0.05, 0.05]  # of 128 and of 512 rows
    moco = registry.algorithms.create("fedhssl", {"sizes": "paper", "ssl": "moco", "cut": 100})
    assert (moco.projector_out, moco.cut, moco.predictor_hidden) == (128, 100, 128)
    assert all(f"cut = {m.cut}" in m.settled() for m in made.values())


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


@pytest.mark.parametrize("updates", sampled([4, 1]))
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


@pytest.mark.slow
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
            "pretrain_iterations": 1, "epochs": 1, "sizes": "paper"}  # fmt: skip
    for ssl, want in (("simsiam", 1_185_536), ("moco", 855_936)):
        algorithm = make("fedhssl", ssl=ssl, projector_out=0, **wide)
        fed = Federation.create(small_stack([0], torch.float32, **WORLD), [0])
        algorithm.build(fed)
        fed.phase = "pretrain"
        fed.extra["pretraining"].aggregate()
        got = ledger(fed, kind="state", name="parameters", sender="passive1")
        assert got[0][1:] == (want, 4 * want)


# Pooling, options, use


@pytest.mark.slow
@pytest.mark.parametrize("pooling", sampled(["concat", "mean", "cross", "local"]))
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
    sampled([
        {"views": "both"}, {"corruption": "marginal"}, {"clip_norm": 0.01},
        {"pretrain_optimizer": "adam"}, {"pretrain_optimizer": "adagrad"},
        {"pretrain_schedule": "constant"}, {"ssl": "byol", "byol_form": "distance"},
        {"ssl": "moco", "guidance_queue": "shared"}, {"ssl": "moco", "temperature": 0.1},
        {"average": ("top",)}, {"average_buffers": False}, {"guide_mode": "train"},
        {"schedule": "cosine"}, {"finetune_clip_norm": 0.01}, {"init_std": 1e-4},
    ], every=8),
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


def test_fine_tuning_is_clipped_by_party_and_replica() -> None:
    algorithm = make(
        "fedhssl", finetune_clip_norm=0.01, pretrain_iterations=0, weight_decay=0.0, epochs=1
    )
    fed = start(algorithm)
    (phase,) = algorithm.phases(fed)
    assert phase.before is not None
    phase.before()
    fed.phase = "finetune"
    before = {p: [w.detach().clone() for w in o.parameters()] for p, o in fed.parties.items()}
    algorithm.step(fed, fed.stack.rows("labelled")[:, :32])
    for name, party in fed.parties.items():
        moved = [(a.detach() - b).flatten(1) for a, b in zip(party.parameters(), before[name])]
        norms = torch.cat(moved, dim=1).norm(dim=1) / algorithm.lr
        torch.testing.assert_close(
            norms, torch.full((2,), 0.01, dtype=torch.float64), rtol=1e-3, atol=0
        )


def test_small_initial_weights_spare_the_local_top() -> None:
    """Embeddings, bottoms and cross tops start at 1e-4; local tops as without the option."""
    world = {"widths": (4, 6), "categorical": True}
    small, plain = (start(make("fedhssl", init_std=s), **world).state() for s in (1e-4, 0.0))
    seen = {"tables": 0, "small": 0}
    for party in ("active", "passive1"):
        for key, w in small[party]["bottom"].items():
            reference = plain[party]["bottom"][key]
            if "local.top" in key or w.dim() < 3:  # biases, normalisation, counters
                assert torch.equal(w, reference)
                continue
            assert 0.5e-4 < float(w.std()) < 2e-4, key
            seen["tables"] += "tables" in key
            seen["small"] += 1
    assert seen["tables"] >= 2
    assert seen["small"] >= 6


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


@pytest.mark.slow
def test_four_parties_with_categoricals_learn() -> None:
    world = {"widths": (4, 6, 3, 5), "categorical": True, "signal": 4.0}
    algorithm, fed, _ = trained(
        "fedhssl", world, epochs=12, lr=0.05, pretrain_iterations=2, batch_size=16
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
    with pytest.raises(ConfigError, match=r"'top' must be of one shape .*last hidden width"):
        start(make("fedhssl", parties={"passive1": {"hidden": [8]}}))
    with pytest.raises(ConfigError, match="'top' must be of one shape"):
        start(make("fedhssl", parties={"active": {"cut": 8}}))
    start(make("fedhssl", parties={"passive1": {"hidden": [8]}}, average=("projector",)))
    with pytest.raises(ConfigError, match="queue must be a multiple of pretrain_batch_size = 32"):
        make("fedhssl", ssl="moco", queue=100)
    with pytest.raises(ConfigError, match="pretrain_batch_size must be at most 174, the rows of"):
        start(make("fedhssl", ssl="moco", pretrain_batch_size=256, queue=1024))
    with pytest.raises(ConfigError, match="needs linear_top = true"):
        make("fedhssl", linear_top=False, aggregation="sum")


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
