"""One-shot VFL: what crosses, what the one download says, and what trains when."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from by_hand import assert_same, federation, trained
from sampled import sampled
from torch import Tensor, nn

from vflsec.algorithms._local_work import JUDGES
from vflsec.algorithms.fewshot import FewShot
from vflsec.algorithms.oneshot import OneShot
from vflsec.core.federation import Federation
from vflsec.core.party import Party
from vflsec.core.rng import Streams, generator
from vflsec.core.view import Schema
from vflsec.errors import ConfigError
from vflsec.inference.clustering_points import find_clusters
from vflsec.nn.fixmatch import ImageViews, TabularViews, column_centres
from vflsec.testing import small_stack, train
from vflsec.train.loop import predict, run_phases

SMALL: dict[str, Any] = {
    "hidden": (7,), "cut": 3, "top": (), "batch_size": 32, "epochs": 2, "local_epochs": 2,
    "patience": 0, "starts": 2, "local_held_out": 0.0,
}  # fmt: skip


def purity(found: Tensor, truth: Tensor) -> float:
    """Share of rows whose class is the commonest of their cluster."""
    table = torch.zeros(int(found.max()) + 1, int(truth.max()) + 1)
    for c, y in zip(found, truth, strict=True):
        table[c, y] += 1
    return float(table.max(1).values.sum() / len(truth))


def after_exchange(algorithm: OneShot, fed: Federation) -> Federation:
    next(run_phases(algorithm, fed))
    return fed


@pytest.mark.parametrize(
    ("aligned", "printed"), [(256, 0.79), (512, 1.6), (1024, 3.1), (2048, 6.3)]
)
def test_bytes_are_those_of_table_1(aligned: int, printed: float) -> None:
    """Two uploads, one download of N_o x 256 float32 a client, MB = 10^6 bytes."""
    stack = small_stack([0], torch.float32, n=-(-aligned * 10 // 6))
    assert stack.rows("labelled").shape[1] == aligned
    algorithm = OneShot(hidden=(), cut=256, local_epochs=1, epochs=1, batch_size=aligned, starts=1)
    ledger = trained(algorithm, stack).channel.ledger.of(0)
    own = [r for r in ledger if r["phase"] != "predict" and r["kind"] in ("embedding", "gradient")]
    assert [(r["kind"], r["name"], r["messages"]) for r in own] == [
        ("embedding", "initial", 1), ("gradient", "", 1), ("embedding", "trained", 1),
    ]  # fmt: skip
    total = sum(r["bytes"] for r in own)
    assert total == 3 * aligned * 256 * 4
    assert float(f"{total / 1e6:.2g}") == printed
    signals = [r for r in ledger if r["kind"] == "signal"]
    assert [(r["name"], r["elements"]) for r in signals] == [("classes", 1)]
    assert {r["phase"] for r in ledger} == {"exchange", "classifier", "predict"}


def test_every_client_pays_alike() -> None:
    stack = small_stack([0], widths=(3, 4, 5))
    ledger = trained(OneShot(**SMALL), stack).channel.ledger.of(0)
    for party in ("passive1", "passive2"):
        up = [r for r in ledger if r["sender"] == party and r["phase"] != "predict"]
        down = [r for r in ledger if r["receiver"] == party and r["kind"] == "gradient"]
        assert [r["messages"] for r in up] == [1, 1]
        assert [r["elements"] for r in up + down] == [144 * 3] * 3


@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("top", [(), (6,)])
def test_constant_representations_give_one_gradient_a_class(
    classes: int, top: tuple[int, ...]
) -> None:
    stack = small_stack([0, 1], classes=classes, widths=(6, 6))
    algorithm = OneShot(**SMALL | {"top": top, "starts": 10})
    fed = federation(algorithm, stack, [0, 1])
    with torch.no_grad():
        for party in fed.parties.values():
            for weight in party.parameters(("bottom",)):
                weight.zero_()
            party.modules["bottom"].params["3.bias"].fill_(1.0)
    after_exchange(algorithm, fed)
    rows = stack.rows("labelled")
    for r in range(2):
        found = fed.extra["temporary.passive1"][r, rows[r]]
        truth = stack.labels()[r, rows[r]]
        assert len(found.unique()) == len(truth.unique()) == classes
        assert purity(found, truth) == 1.0


def test_the_one_download_holds_every_label_of_a_linear_head() -> None:
    """Two classes, untrained: gradients of one class are parallel, of two opposite."""
    stack = small_stack([0, 1, 2])
    fed = after_exchange(
        algorithm := OneShot(**SMALL), federation(OneShot(**SMALL), stack, [0, 1, 2])
    )
    assert algorithm.top == ()
    rows = stack.rows("labelled")
    for r in range(3):
        found = fed.extra["temporary.passive1"][r, rows[r]]
        assert purity(found, stack.labels()[r, rows[r]]) == 1.0
    outside = torch.ones(fed.labels.shape[1], dtype=torch.bool)
    outside[rows[0]] = False
    assert bool((fed.extra["temporary.passive1"][0, outside] == -1).all())


def test_the_download_is_recorded_with_rows_and_summed() -> None:
    """What `cluster` and `direction` need: one gradient row for each aligned sample id."""
    stack = small_stack([0])
    wanted = [("passive1", "received", "gradient", form) for form in ("mean", "first", "all")]
    run = train(OneShot(**SMALL), stack, [0], wanted=wanted)
    tables = run.fed.channel.recorder.tables(0, ("passive1",), "exchange")
    rows = stack.rows("labelled")[0]
    assert len(tables) == 3
    for table in tables.values():
        assert torch.equal(table.rows.sort().values, rows)
        assert table.tensor.shape == (len(rows), 3)
    assert not run.fed.channel.recorder.tables(0, ("passive1",), "classifier")
    # a summed loss: (p - y) times the head's weights, not divided by the number of rows
    table = tables["received", "gradient", "mean", "passive1"]
    top = federation(OneShot(**SMALL), stack).active.modules["top"]
    w = top.params["0.weight"].detach()[0, :, 3:]
    share = table.tensor @ (w[1] - w[0]) / (w[1] - w[0]).square().sum()  # p_1 - y
    y = stack.labels()[0, table.rows]
    assert bool(((share > 0) == (y == 0)).all())
    assert 0.1 < float(share.abs().min()) < float(share.abs().max()) < 0.9


def test_exchange_trains_nothing_and_the_classifier_only_itself() -> None:
    stack = small_stack([0, 1], unaligned=30)
    algorithm = OneShot(**SMALL)
    fed = federation(algorithm, stack, [0, 1])
    before = fed.state()
    states = {phase.name: fed.state() for phase in run_phases(algorithm, fed)}
    assert list(states) == ["exchange", "local", "classifier"]
    assert_same(before, states["exchange"])
    top = {k: v.clone() for k, v in states["local"]["active"].pop("top").items()}
    for key, value in before["active"].pop("top").items():
        assert torch.equal(value, top[key])
    for party in ("active", "passive1"):
        old, new = before[party]["bottom"], states["local"][party]["bottom"]
        assert all(not torch.equal(old[k], new[k]) for k in old)
    last = states["classifier"]["active"].pop("top")
    assert all(not torch.equal(last[k], top[k]) for k in top)
    assert_same(states["local"], states["classifier"])


def test_without_unaligned_rows_clients_learn_their_clusters() -> None:
    """Without FixMatch: cross entropy on the temporary labels, as in plain torch."""
    settings = SMALL | {"replaced": 0.0, "unlabelled_weight": 0.0, "lr": 1e-2}
    alone = small_stack([0, 1])
    algorithm = OneShot(**settings)
    fed = after_exchange(algorithm, federation(algorithm, alone, [0, 1]))
    party = fed.parties["passive1"]
    bottom = nn.Sequential(party.modules["bottom"].one(0), party.modules["head"].one(0)).train()
    for weight in bottom.parameters():
        weight.requires_grad_()
    names = fed.extra["temporary.passive1"][0]
    optimizer = torch.optim.Adam(bottom.parameters(), lr=1e-2)
    phases = algorithm.phases(fed)
    fed.phase = "local"
    algorithm.restart(fed)
    x = alone.first.x["passive1"].double()
    for _ in range(2):
        for rows in fed.batches(phases[1]):
            phases[1].step(rows)
            loss = nn.functional.cross_entropy(bottom(x[rows[0]]), names[rows[0]])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for key, value in party.modules["bottom"].params.items():
        assert torch.allclose(value[0], dict(bottom[0].named_parameters())[key], atol=1e-12)
    # the default weight, but no unaligned rows
    other = trained(OneShot(**settings | {"unlabelled_weight": 1.0}), alone, [0, 1])
    same = trained(algorithm, alone, [0, 1])
    assert_same(other.state(), same.state())


def test_unaligned_rows_and_confidence_matter() -> None:
    stack = small_stack([0, 1], unaligned=60)
    base = SMALL | {"local_epochs": 4, "threshold": 0.5}
    states = [
        trained(OneShot(**base | more), stack, [0, 1]).state()["passive1"]["bottom"]["1.weight"]
        for more in ({}, {"threshold": 1.0}, {"unlabelled_weight": 0.0})
    ]
    assert not torch.equal(states[0], states[1])
    stack_alone = small_stack([0, 1])
    assert stack.unaligned("passive1").shape == (2, 60)
    assert stack_alone.unaligned("passive1").shape == (2, 0)
    held = stack.unaligned("passive1")[0]
    assert bool((held >= 300).all())
    assert not torch.isin(held, stack.rows("aligned")[0]).any()


def test_the_active_party_may_be_a_client_like_any_other() -> None:
    stack = small_stack([0, 1])
    fed = trained(OneShot(**SMALL, active_labels="clusters"), stack, [0, 1])
    rows = stack.rows("labelled")
    assert purity(fed.extra["temporary.active"][0, rows[0]], stack.labels()[0, rows[0]]) == 1.0
    assert "temporary.active" not in trained(OneShot(**SMALL), stack, [0, 1]).extra


def test_finetune_of_no_batches_changes_nothing_and_of_some_does() -> None:
    stack = small_stack([0, 1])
    plain = trained(OneShot(**SMALL), stack, [0, 1])
    none = trained(OneShot(**SMALL, finetune=True, finetune_epochs=0), stack, [0, 1])
    some = trained(OneShot(**SMALL, finetune=True, finetune_epochs=2), stack, [0, 1])
    rows = stack.rows("test")
    answers = [predict(OneShot(**SMALL), fed, rows) for fed in (plain, none, some)]
    assert torch.equal(answers[0], answers[1])
    assert not torch.equal(answers[0], answers[2])
    split = [r for r in some.channel.ledger.of(0) if r["phase"] == "finetune"]
    assert {(r["kind"], r["messages"]) for r in split} >= {("gradient", 10), ("embedding", 10)}
    assert not [r for r in none.channel.ledger.of(0) if r["phase"] == "finetune"]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"top": (), "linear_top": False, "aggregation": "sum"}, "needs linear_top"),
        ({"local_ema": 0.9}, "oneshot.local_held_out"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        OneShot(**settings)


# FixMatch views


def views(share: float, sigma: float) -> tuple[TabularViews, Tensor]:
    x = torch.randn(2, 50, 4, generator=generator(0, "x"), dtype=torch.float64)
    x[:, :, 3] = (x[:, :, 3] > -1).double() + 1  # mostly code 2
    schema = Schema(("a", "b", "c", "d"), (0, 0, 0, 3), (4,))
    centres = column_centres(x, schema)
    made = TabularViews(
        centres, schema.numeric, share, sigma, Streams([0, 1], "v", dtype=torch.float64)
    )
    return made, x


def test_no_mask_and_no_noise_is_no_augmentation() -> None:
    made, x = views(0.0, 0.0)
    weak, strong = made.pair(x)
    assert torch.equal(weak, x)
    assert torch.equal(strong, x)


def test_a_full_mask_is_the_column_centre() -> None:
    made, x = views(1.0, 0.0)
    for view in made.pair(x):
        assert torch.equal(view, made.centres.unsqueeze(1).expand_as(x))
    assert torch.allclose(made.centres[:, :3], x[:, :, :3].mean(1))
    assert made.centres[:, 3].tolist() == [2.0, 2.0]


def test_share_and_noise_are_those_that_were_asked_for() -> None:
    made, x = views(0.2, 0.1)
    x = x.repeat(1, 40, 1)
    weak, strong = made.pair(x)
    numeric = (weak != x)[..., :3].double().mean()
    assert abs(float(numeric) - 0.2) < 0.01  # 12,000 entries: 3 standard errors are 0.011
    noise = (strong - weak)[..., :3]
    assert abs(float(noise.std()) - 0.1) < 0.002
    assert torch.equal(strong[..., 3], weak[..., 3])  # no noise on codes, and the same mask
    assert set(weak[..., 3].unique().tolist()) <= {1.0, 2.0}


def test_image_views_shift_and_cut_within_the_image() -> None:
    x = torch.rand(2, 30, 1, 8, 4, generator=generator(0, "x"))
    made = ImageViews(Streams([0, 1], "v"))
    weak, strong = made.pair(x)
    assert weak.shape == strong.shape == x.shape
    inner = {
        (dy, dx): (weak[:, :, :, 2:6, 1:3] == x[:, :, :, 2 + dy : 6 + dy, 1 + dx : 3 + dx])
        .flatten(2).all(2)
        for dy in (-1, 0, 1) for dx in (-1, 0, 1)
    }  # fmt: skip
    assert bool(torch.stack(list(inner.values())).any(0).all())
    holes = (strong == 0).flatten(2).sum(2)
    assert int(holes.min()) >= 2
    assert float(strong.max()) <= 1
    flat = torch.full((2, 5, 1, 8, 4), 0.5)
    assert torch.equal(ImageViews(Streams([0, 1], "v"), flip=True).weak(flat), flat)


def test_flipping_mirrors_half_of_the_images() -> None:
    x = torch.zeros(1, 400, 1, 8, 4)
    x[..., 0] = 1.0  # shifts keep the bright side on its side
    weak = ImageViews(Streams([0], "v"), flip=True).weak(x)
    left = (weak[..., 0] == 1).flatten(2).all(2)
    right = (weak[..., 3] == 1).flatten(2).all(2)
    assert 0.3 < float((right & ~left).double().mean()) < 0.6


def test_clusters_go_by_direction_not_length() -> None:
    g = generator(0, "directions")
    length = torch.rand(2, 60, 1, generator=g, dtype=torch.float64) * 100 + 0.01
    sign = torch.arange(60) % 2 * 2 - 1
    rows = length * sign.reshape(1, 60, 1) * torch.tensor([3.0, 4.0]).double()
    found = find_clusters(rows, 2, [0, 1], "party", starts=1)
    for r in range(2):
        assert purity(found[r], (sign > 0).long()) == 1.0
    assert find_clusters(torch.zeros(1, 5, 3), 2, [0], "p").tolist() == [[0] * 5]


class Watch:
    """Rates and weights of the passive client after each of its updates in local training."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rates: list[float] = []
        self.weights: list[dict[str, Tensor]] = []
        original = OneShot._update

        def update(one: OneShot, fed: Federation, party: Party, rows: Tensor) -> None:
            original(one, fed, party, rows)
            if not party.active:
                self.rates.append(party.optimizer.param_groups[0]["lr"])
                self.weights.append(party.modules["bottom"].state())

        monkeypatch.setattr(OneShot, "_update", update)


STEPS = {k: v for k, v in SMALL.items() if k != "local_epochs"}


def test_local_work_is_counted_in_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """144 aligned rows in batches of 32 are five updates an epoch."""
    assert OneShot().local_steps >= 1000
    assert OneShot().local_epochs == 0
    stack = small_stack([0, 1], unaligned=40)
    assert stack.rows("labelled").shape[1] == 144
    watch = Watch(monkeypatch)
    trained(OneShot(**STEPS, local_steps=7), stack, [0, 1])
    assert len(watch.weights) == 7
    by_steps = trained(OneShot(**STEPS, local_steps=10), stack, [0, 1])
    by_epochs = trained(OneShot(**STEPS, local_epochs=2), stack, [0, 1])
    assert len(watch.weights) == 27
    assert_same(by_steps.state(), by_epochs.state())


STOPPED: dict[str, Any] = {
    **SMALL, "local_held_out": 0.25, "local_epochs": 40, "local_patience": 12, "lr": 0.03,
    "active_labels": "clusters",
}  # fmt: skip


def after_local(
    monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> tuple[Federation, dict[str, list[Tensor]]]:
    """What clients are after local training, and by client how each epoch was judged."""
    stack, seen = small_stack([0, 1], unaligned=40), dict[str, list[Tensor]]()
    original = OneShot._judge

    def judge(one: OneShot, fed: Federation, party: Party, held: Tensor) -> Tensor:
        seen.setdefault(party.name, []).append(original(one, fed, party, held))
        return seen[party.name][-1]

    with monkeypatch.context() as patched:
        patched.setattr(OneShot, "_judge", judge)
        algorithm = OneShot(**{**STOPPED, **settings})
        fed = federation(algorithm, stack, [0, 1])
        for phase in run_phases(algorithm, fed):
            if phase.name == "exchange":
                fed.labels = torch.zeros_like(fed.labels)  # true labels tell no one anything
            if phase.name == "local":
                break
    return fed, seen


def test_a_client_finds_its_length_by_itself_and_trains_that_long_on_all_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By labels of its own alone: each client and replica ends, bit for bit, where training on all
    aligned rows ends after as many passes as were best, and nothing is sent.
    """
    plain = {"replaced": 0.0, "unlabelled_weight": 0.0}
    fed, seen = after_local(monkeypatch, **plain)
    epochs, lengths = len(seen["passive1"]), set()
    assert 4 < epochs < 40
    at_home = {r["phase"] for r in fed.channel.ledger.of(0)} & {"local_length", "local"}
    assert not at_home
    for name, losses in seen.items():
        for r in (0, 1):
            own = [float(loss[r]) for loss in losses]
            # 108 rows are four batches, so three epochs of patience
            stop = next(i for i in range(len(own)) if min(own[i + 1 : i + 4], default=9) >= own[i]
                        and own[i] == min(own[: i + 1]))  # fmt: skip
            until, none = after_local(
                monkeypatch, **plain, local_epochs=stop + 1, local_held_out=0.0
            )
            assert not none
            lengths.add(stop)
            for part in ("bottom", "head"):
                a, b = (f.parties[name].modules[part].state() for f in (fed, until))
                assert all(torch.equal(a[k][r], b[k][r]) for k in a)
    assert len(lengths) > 1


@pytest.mark.parametrize(("share", "found"), [(0.5, True), (0.05, False)])
def test_too_few_rows_to_judge_by_are_not_held_out(share: float, found: bool) -> None:
    """Three rows of a class once ended training after one pass of 60."""
    algorithm = OneShot(**{**SMALL, "local_held_out": share})
    fed = federation(algorithm, small_stack([0]))
    rows = fed.stack.rows("labelled").shape[1]
    assert (int(share * rows) >= JUDGES * fed.classes) == found
    phases = {p.name: p for p in algorithm.phases(fed)}
    assert ("local_length" in phases) == found
    assert phases["local"].rows.shape[1] == rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "dropout"),
    sampled([(OneShot, 0.2), (FewShot, 0.2), (OneShot, 0.0), (FewShot, 0.0)]),
)
def test_how_long_replicas_beside_train_at_home_changes_no_bit(
    algorithm: type[OneShot], dropout: float
) -> None:
    """Where each has a length of its own, and draws rows, views and dropout at home."""
    one = algorithm(**{**STOPPED, "dropout": dropout})

    def made(seeds: list[int]) -> Federation:
        return trained(one, small_stack(seeds, unaligned=40), seeds)

    alone, together = made([0]), made([0, 1, 2])
    assert alone.epochs["local_length"][0] < max(together.epochs["local_length"])
    for name, party in alone.parties.items():
        for part, module in party.modules.items():
            other = together.parties[name].modules[part].state()
            assert all(torch.equal(v[0], other[k][0]) for k, v in module.state().items())


def test_the_cosine_ends_at_seven_sixteenths_and_the_classifier_starts_afresh(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Watch(monkeypatch)
    algorithm = OneShot(**STEPS, local_steps=8, local_schedule="cosine")
    fed = trained(algorithm, small_stack([0, 1]), [0, 1])
    expected = [algorithm.lr * math.cos(7 * math.pi * t / 128) for t in range(8)]
    assert watch.rates == pytest.approx(expected)
    assert fed.active.optimizer.param_groups[0]["lr"] == algorithm.lr


def test_the_average_over_local_training_takes_the_weights_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stack = small_stack([0, 1], unaligned=40)
    watch = Watch(monkeypatch)
    fed = trained(OneShot(**STEPS, local_steps=6, local_ema=0.75), stack, [0, 1])
    kept = watch.weights[0]
    for weights in watch.weights[1:]:
        kept = {k: 0.75 * v + 0.25 * weights[k] for k, v in kept.items()}
    now = fed.parties["passive1"].modules["bottom"].state()
    last = watch.weights[-1]
    for key, value in now.items():
        assert torch.allclose(value, kept[key], atol=1e-12)
        assert not torch.allclose(value, last[key], atol=1e-6)
    assert "ema" not in fed.extra
