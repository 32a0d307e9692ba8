"""Encryption inside training: one meaning in every mode, and only what is clear is in the views."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import assert_same
from sampled import sampled

from vflsec.core.channel import Recorder
from vflsec.core.rng import generator, numpy_generator
from vflsec.core.view import View, as_needs
from vflsec.errors import ConfigError, MissingDependencyError, PolicyError, ThreatModelError
from vflsec.he.flood import FLOOD_BITS, GRID, Flood
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import Trained, small_stack, train
from vflsec.train.loop import predict
from vflsec.train.views import make_view

NET = {"epochs": 3, "batch_size": 48, "hidden": (8,), "cut": 6, "top": (8,), "patience": 0}
HE = "he_embedding"
USES = ("output", "gradient", "joint")
ONCE = {"net": {"epochs": 1}, "world": {"n": 160}}
"""Two steps and predictions under real keys: each takes a fifth of a second."""
LEAST_FLOOD = 19  # the smallest flooding that is accepted; the default is 12


def run(
    defense: str = HE,
    seeds: tuple[int, ...] = (0, 0),
    net: dict[str, Any] | None = None,
    wanted: tuple[tuple[str, str, str, str], ...] = (),
    world: dict[str, Any] | None = None,
    extra: dict[str, list[Any]] | None = None,
    algorithm: str = "splitnn",
    **params: Any,
) -> Trained:
    if defense == HE:
        params = {"out": 8, "processes": False, **params}
    policy = registry.defenses.create(defense, params)
    off = torch.zeros(len(seeds), dtype=torch.float64)
    policies = {"passive1": [(policy, off)]}
    for party, more in (extra or {}).items():
        policies.setdefault(party, []).extend((p, off + 1) for p in more)
    made = registry.algorithms.create(algorithm, {**NET, **(net or {})})
    return train(
        made, small_stack(list(seeds), **(world or {})), list(seeds), policies, sorted(wanted)
    )


def logits(trained: Trained) -> torch.Tensor:
    return predict(trained.algorithm, trained.fed, trained.fed.stack.rows("test"))


def attacked(use: str, r: int = 0, **settings: Any) -> tuple[float, float]:
    """Relative error of `linear_inversion`, and of the best linear guess from z."""
    attack = registry.attacks.create("linear_inversion", {"use": use})
    every = registry.attacks.create("linear_inversion", {"use": "output"})
    needs = as_needs(attack.needs | every.needs)
    wanted = tuple({w for n in needs if (w := Recorder.wants("active", n)) is not None})
    trained = run(wanted=wanted, **settings)
    view = view_of(trained, "active", r)
    guess = attack.infer(view, generator(0, "attack"))
    rows = torch.from_numpy(guess.rows)
    truth = trained.fed.link("passive1").embeddings(r, "train").of_rows(rows).double()
    z = view.received("activation", "last").of_rows(rows).double()
    z = torch.cat([z, torch.ones(len(z), 1)], dim=1)
    best = z @ torch.linalg.lstsq(z, truth, driver="gelsd").solution
    size = truth.norm()
    found = torch.from_numpy(guess.scores)
    return float((found - truth).norm() / size), float((best - truth).norm() / size)


def view_of(trained: Trained, party: str, r: int = 0) -> View:
    spec = AttackSpec("linear_inversion", adversary=(party,))
    return make_view(trained.algorithm, trained.fed, trained.initial, spec, r)


def test_emulated_is_clear_up_to_flooding() -> None:
    """What the key holder adds to its answers is all the difference, and falls with its size."""
    clear = logits(run(mode="clear"))
    far = [
        float((logits(run(mode="emulated", flood_bits=bits)) - clear).abs().max())
        for bits in (12, LEAST_FLOOD)
    ]
    assert 1e-5 < far[0] < 1e-2
    assert far[1] < far[0] / 2**6


@pytest.mark.parametrize("shared", sampled([True, False]))
@pytest.mark.parametrize(("algorithm", "iterations"), [("fedlocal_ssl", 1), ("fedcssl", 0)])
def test_fine_tuning_after_private_pre_training_is_encrypted_as_well(
    algorithm: str, iterations: int, shared: bool
) -> None:
    """The heads of pre-training go, the layer between bottom and top stays, and it learns."""
    net = {"top": (), "optimizer": "adam", "pretrain_iterations": iterations,
           "pretrain_batch_size": 32, "projector_hidden": 8, "projector_out": 8,
           "predictor_hidden": 4, "batch_size": 48, "own_control": False}  # fmt: skip
    settings: dict[str, Any] = {"algorithm": algorithm, "net": net}
    weights = {"weights": "shared"} if shared else {}
    trained = run(mode="emulated", **weights, **settings)
    once = run(mode="emulated", **weights, algorithm=algorithm, net={**net, "epochs": 1})
    layers = [
        t.fed.active.modules["interactive.passive1"].params["weight"] for t in (once, trained)
    ]
    assert float((layers[1] - layers[0]).abs().max()) > 1e-3
    assert ("share" in trained.fed.parties["passive1"].modules) is shared
    assert not [k for k in trained.fed.active.modules if k.endswith("_projector")]
    if not shared:
        far = float((logits(trained) - logits(run(mode="clear", **settings))).abs().max())
        assert 1e-5 < far < 1e-2


def test_plain_weights_are_autograd_with_sgd() -> None:
    """The layer trained by the protocol equals one trained by autograd and plain SGD."""
    wanted = (
        ("active", "received", "weights", "all"),
        ("active", "received", "weight_gradient", "all"),
    )
    trained = run(wanted=wanted, lr=0.2)
    view = view_of(trained, "active")
    w, g = view.received("weights", "all"), view.received("weight_gradient", "all")
    moved = w.tensor[1:, :-1] - w.tensor[:-1, :-1]
    assert torch.allclose(moved, -0.2 * g.tensor[:-1], atol=1e-12)
    assert float(moved.abs().max()) > 1e-4


@pytest.fixture
def unflooded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers without the noise that a real key holder draws anew each time."""
    monkeypatch.setattr(Flood, "noise", lambda self, answer, *shape: np.zeros(shape))


@pytest.mark.slow
@pytest.mark.usefixtures("unflooded")
@pytest.mark.parametrize("weights", sampled(["shared", "plain"]))
def test_real_and_emulated_agree(weights: str) -> None:
    """Each answer is rounded once to the grid, with its mask or without: at most half a step off
    in either mode, and weights that began, or moved, by rounded answers add the rest.
    """
    pytest.importorskip("tenseal")
    kinds = ("weights", "activation", "weight_gradient", "output_gradient")
    wanted = tuple(("active", "received", k, "all") for k in kinds)
    wanted += (("passive1", "received", "gradient", "all"),)
    both = [run(mode=m, weights=weights, wanted=wanted, **ONCE) for m in ("real", "emulated")]
    step = 2.0 ** -(FLOOD_BITS + GRID)
    for party, _, kind, _ in wanted:
        a, b = (view_of(t, party).received(kind, "all").tensor for t in both)  # type: ignore[arg-type]
        assert len(a) > 0
        assert float((a - b).abs().max()) < 4 * step, kind
    a, b = (logits(t) for t in both)
    assert float((a - b).abs().max()) < 4 * step
    ledgers = [t.fed.channel.ledger.of(0) for t in both]
    for real, emulated in zip(*ledgers, strict=True):
        assert {**real, "bytes": 0, "elements": 0} == {**emulated, "bytes": 0, "elements": 0}
        assert real["bytes"] == pytest.approx(emulated["bytes"], rel=2e-3), real
    sealed = [row for row in ledgers[0] if row["kind"] == "ciphertext" and row["phase"] == "train"]
    assert len(sealed) == (6 if weights == "shared" else 4)
    assert not any(row["kind"] == "embedding" for row in ledgers[0])


@pytest.mark.slow
@pytest.mark.usefixtures("unflooded")
@pytest.mark.parametrize("weights", sampled(["shared", "plain"]))
def test_attacks_agree_in_both_modes(weights: str) -> None:
    pytest.importorskip("tenseal")
    found = [attacked("output", mode=m, weights=weights, **ONCE)[0] for m in ("real", "emulated")]
    assert abs(found[0] - found[1]) < 1e-5


@pytest.mark.slow
def test_training_through_the_real_layer_keeps_the_main_metric() -> None:
    pytest.importorskip("tenseal")
    world = {"n": 160, "signal": 4.0}
    net = {"epochs": 8, "lr": 2e-2}
    losses = []
    for mode in ("clear", "real"):
        trained = run(mode=mode, net=net, world=world)
        rows = trained.fed.stack.rows("test")
        y = torch.stack([t.y for t in trained.fed.stack.tasks])[trained.fed.stack.of].gather(
            1, rows
        )
        z = logits(trained)
        assert float((z.argmax(2) == y).double().mean()) > 0.8
        losses.append(float(torch.nn.functional.cross_entropy(z.flatten(0, 1), y.flatten())))
    assert abs(losses[0] - losses[1]) <= 0.005  # of 0.37; a row at the threshold may change sides


def test_a_cell_alone_equals_the_cell_in_company() -> None:
    for weights in ("plain", "shared"):
        many = run(seeds=(2, 0, 1), weights=weights)
        alone = run(seeds=(1, 1), weights=weights)
        assert torch.equal(logits(many)[2], logits(alone)[0])


def test_views_hold_what_is_clear_and_nothing_else() -> None:
    kinds = ("embedding", "ciphertext", "masked", "activation", "gradient")
    wanted = tuple((p, "received", k, "all") for p in ("active", "passive1") for k in kinds)
    trained = run(wanted=wanted)
    active, passive = view_of(trained, "active"), view_of(trained, "passive1")
    with pytest.raises(ThreatModelError, match="'embedding' in form 'all' received by 'active'"):
        active.received("embedding", "all")
    with pytest.raises(ThreatModelError, match="'activation'"):
        passive.received("activation", "all")
    for view in (active, passive):
        opaque = view.received("ciphertext", "all").tensor
        assert opaque.shape[1] == 1  # sizes
        assert opaque.dtype == torch.int64
    z = active.received("activation", "all")
    for view in (active, passive):
        masked = view.received("masked", "all").tensor if view is passive else None
        if masked is not None:
            assert masked.abs().median() > 1000 * z.tensor.abs().max()
            assert abs(np.corrcoef(masked.ravel(), z.tensor.ravel())[0, 1]) < 0.06
    assert passive.received("gradient", "all").tensor.shape[1] == NET["cut"]
    sends = trained.fed.facts(
        algorithm="splitnn", aggregation="concat", top=True, widths={}, batch_size=1, epochs=1
    ).sends
    assert ("activation", "passive1", "active") in sends
    assert not any(kind == "embedding" for kind, _, _ in sends)


def test_plain_weights_give_the_embedding_away() -> None:
    wide, _ = attacked("output", out=8, flood_bits=LEAST_FLOOD)
    assert wide < 1e-3
    flooded, _ = attacked("output", out=8)
    assert 10 * wide < flooded < 5e-3  # flooding protects the key, not the embeddings
    narrow, best = attacked("output", out=3, net={"batch_size": 16, "epochs": 6})
    assert 0.1 < best <= narrow < 0.9
    joint, _ = attacked("joint", out=3, net={"batch_size": 16, "epochs": 6})
    assert joint < narrow


def test_a_small_batch_is_read_from_its_weight_gradient() -> None:
    """With b at most the rank of g, h = (G g^+)^T, whatever W is."""
    net, world = {"batch_size": 1, "epochs": 1}, {"n": 60}
    error, _ = attacked("gradient", net=net, world=world, flood_bits=LEAST_FLOOD)
    assert error < 1e-3
    error, _ = attacked("gradient", net=net, world=world)
    assert error < 0.05
    large, _ = attacked("gradient", net={"batch_size": 48, "epochs": 1})
    assert large > 0.3


def test_the_weight_gradient_gives_rows_where_their_gradients_are_independent() -> None:
    """A batch of 4 at width 16: exact where dL/dz has rank 4; else parallel rows stay mixed."""
    attack = registry.attacks.create("linear_inversion", {"use": "gradient"})
    wanted = tuple({w for n in as_needs(attack.needs) if (w := Recorder.wants("active", n))})
    net = {"batch_size": 4, "epochs": 1, "top": (16,)}
    trained = run(wanted=wanted, net=net, world={"n": 120}, out=16, flood_bits=LEAST_FLOOD)
    view = view_of(trained, "active")
    guess = attack.infer(view, generator(0, "attack"))
    found = dict(zip(guess.rows.tolist(), torch.from_numpy(guess.scores), strict=True))
    truth = trained.fed.link("passive1").embeddings(0, "train")
    g = view.received("output_gradient", "all")
    errors: dict[bool, list[float]] = {True: [], False: []}
    for step in g.step.unique().tolist():
        rows, mine = g.rows[g.step == step], g.tensor[g.step == step].double()
        full = int(torch.linalg.matrix_rank(mine, rtol=1e-3)) == len(rows)
        h = truth.of_rows(rows).double()
        mine = torch.stack([found[r] for r in rows.tolist()])
        errors[full].append(float((mine - h).norm() / h.norm()))
    assert len(errors[True]) >= 5
    assert max(errors[True]) < 1e-2
    assert len(errors[False]) >= 3
    assert min(errors[False]) > 0.05


@pytest.mark.parametrize("use", sampled(USES))
def test_shared_weights_leave_linear_inversion_nothing(use: str) -> None:
    """Guessing zero has error 1; the attack is no better."""
    found = [attacked(use, r=r, seeds=(0, 1, 2), weights="shared", out=12)[0] for r in range(3)]
    assert min(found) > 0.97
    assert min(attacked("output", r=0, flood_bits=LEAST_FLOOD, out=12)) < 1e-3


def test_with_shared_weights_no_one_knows_w() -> None:
    wanted = (("active", "received", "weights", "all"),)
    trained = run(weights="shared", wanted=wanted, net={"epochs": 5}, out=12)
    link = trained.fed.link("passive1")
    layer = link.layer(trained.fed)  # type: ignore[attr-defined]
    whole, mine = layer.whole[0].ravel(), layer.weight[0].ravel()
    assert layer.share is not None
    for held in (mine, layer.share[0].ravel()):
        assert abs(np.corrcoef(whole, held)[0, 1]) < 4 / np.sqrt(len(whole))
    assert float(whole.abs().max()) < 2.0
    assert float(mine.std()) > 4.0


def test_noise_on_embeddings_is_applied_before_encryption() -> None:
    iso = registry.defenses.create("iso", {"on": "embedding"})
    quiet, loud = run(), run(extra={"passive1": [iso]})
    assert float((logits(quiet) - logits(loud)).abs().max()) > 1e-3


def test_shared_weights_refuse_gradient_noise() -> None:
    iso = registry.defenses.create("iso", {"on": "gradient"})
    with pytest.raises(PolicyError, match="iso cannot treat the gradient"):
        run(weights="shared", extra={"active": [iso]})
    run(weights="plain", extra={"active": [iso]})


def test_two_ways_for_one_embedding_are_refused() -> None:
    other = registry.defenses.create("he_gradient")
    with pytest.raises(PolicyError, match="he_embedding and he_gradient"):
        run(extra={"passive1": [other]})


def test_an_algorithm_that_sends_past_the_link_is_refused() -> None:
    with pytest.raises(PolicyError, match="embedding messages must pass encrypted"):
        run(algorithm="oneshot", net={"local_epochs": 1})


def test_clear_mode_has_no_shares() -> None:
    with pytest.raises(ConfigError, match="must be plain in mode clear"):
        registry.defenses.create(HE, {"mode": "clear", "weights": "shared"})
    with pytest.raises(ConfigError, match="at most 218 bits"):
        registry.defenses.create(HE, {"bits": (60, 40, 40, 40, 60)})


@pytest.mark.slow
def test_summed_gradients_real_equals_emulated_for_a_linear_bottom(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But for the flooding, which no run of a real key repeats."""
    pytest.importorskip("tenseal")
    of: dict[str, Any] = {"net": {"hidden": (), "batch_size": 32, "epochs": 1}, "world": {"n": 160}}
    plain = logits(run("iso", **of))  # iso at strength 0 is the undefended run
    flooded, again = (logits(run("he_gradient", mode="real", **of)) for _ in range(2))
    assert 1e-5 < float((flooded - plain).abs().max()) < 5e-3
    assert 1e-5 < float((flooded - again).abs().max()) < 5e-3
    monkeypatch.setattr(Flood, "noise", lambda self, answer, *shape: np.zeros(shape))
    emulated, real = (logits(run("he_gradient", mode=m, **of)) for m in ("emulated", "real"))
    assert float((real - emulated).abs().max()) < 1e-5


def test_flooding_of_a_replica_does_not_depend_on_its_company() -> None:
    """Early stopping at different epochs: who stopped first predicts as it does alone."""
    world, net = {"n": 120, "signal": 4.0}, {"epochs": 6, "patience": 1, "lr": 0.1}
    many = run(seeds=(0, 1, 2, 3), net=net, world=world)
    kept = many.fed.epochs["train"]
    assert len(set(kept)) > 1
    together = logits(many)
    for r in range(4):
        assert torch.equal(together[r], logits(run(seeds=(r, r), net=net, world=world))[0])


def test_summed_gradients_hide_rows() -> None:
    wanted = (
        ("passive1", "received", "gradient", "all"),
        ("passive1", "received", "masked_sum", "all"),
    )
    view = view_of(run("he_gradient", wanted=wanted), "passive1")
    with pytest.raises(ThreatModelError, match="'gradient'"):
        view.received("gradient", "all")
    assert view.received("masked_sum", "all").tensor.std() > 1e4
    pytest.importorskip("tenseal")
    with pytest.raises(ConfigError, match="needs a linear bottom"):
        run("he_gradient", mode="real")


@pytest.mark.parametrize("name", [HE, "he_gradient"])
def test_without_tenseal(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything else works, and real encryption says how to install it."""
    load = builtins.__import__

    def missing(module: str, *args: Any, **kwargs: Any) -> Any:
        if module.split(".")[0] == "tenseal":
            raise ImportError("No module named 'tenseal'")
        return load(module, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    monkeypatch.delitem(sys.modules, "tenseal", raising=False)
    run(name, mode="emulated", net={"epochs": 1})
    with pytest.raises(MissingDependencyError, match=r"pip install 'vflsec\[he\]'"):
        run(name, mode="real", net={"epochs": 1, "hidden": ()})


@pytest.mark.parametrize(
    ("defense", "params"),
    [(HE, {"out": 4}), (HE, {"out": 4, "weights": "shared"}), ("he_gradient", {})],
)
def test_a_training_that_begins_anew_draws_anew(
    defense: str, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`lp_mst` trains twice from scratch; where it is off a replica draws what it would alone."""
    import vflsec.he.flood
    import vflsec.he.interactive

    begun: list[tuple[Any, ...]] = []

    def spy(seed: int, *names: Any) -> np.random.Generator:
        begun.append((seed, *names))
        return numpy_generator(seed, *names)

    for module in (vflsec.he.flood, vflsec.he.interactive):
        monkeypatch.setattr(module, "numpy_generator", spy)
    policy, staged = registry.defenses.create(defense, params), registry.defenses.create("lp_mst")
    net = {**NET, "epochs": 2, "hidden": (), "top": ()}
    states = {}
    for strengths in ((0.5, 0.0), (0.0, 0.0)):
        begun.clear()
        on = torch.tensor(strengths, dtype=torch.float64)
        bound = {"active": [(staged, on)], "passive1": [(policy, torch.ones(2).double())]}
        made = train(registry.algorithms.create("splitnn", net), small_stack([0, 1]), [0, 1], bound)
        states[strengths] = made.fed.state()
        mine = [stream for stream in begun if stream[0] == 0]
        assert len(set(mine)) == len(mine) > 5
        link: Any = made.fed.link("passive1")
        turns = ["passive1/training 2" if s else "passive1" for s in strengths]
        assert link.answers.names("passive1") == turns
        if defense == "he_gradient":
            assert [of.names[1] for of in link.masks] == turns
    assert_same(states[0.5, 0.0], states[0.0, 0.0], of=(1, 1))
