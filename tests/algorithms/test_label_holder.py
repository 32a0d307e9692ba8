"""An active party that holds labels only: no bottom, no controls on columns, clear refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import assert_follows, federation, models, trained
from sampled import sampled
from torch import nn

from vflsec.core.rng import generator
from vflsec.data.load import load_source
from vflsec.data.prepare import make_task
from vflsec.data.table_warnings import list_warnings
from vflsec.errors import ConfigError, DataError
from vflsec.measure.controls import feature_controls, make_controls
from vflsec.plugins import registry
from vflsec.specs import AttackSpec
from vflsec.testing import small_stack, small_task, train
from vflsec.train.loop import predict
from vflsec.train.views import make_view

WIDTHS = (0, 4, 6)
SUPPORTED = {
    "splitnn", "falsevfl", "fedbcd", "laser", "oneshot", "fewshot", "pooled_logistic",
    "pooled_boosting", "secureboost", "vertical_glm", "scorecard", "psi",
}  # fmt: skip


def test_a_step_is_that_of_one_network_over_the_clients_columns() -> None:
    """Against PyTorch's own autograd and SGD on the joint network."""
    algorithm = registry.algorithms.create(
        "splitnn", {"hidden": [5], "cut": 3, "optimizer": "sgd", "lr": 0.5, "epochs": 1}
    )
    stack = small_stack([0, 1], widths=WIDTHS)
    fed = federation(algorithm, stack, [0, 1])
    assert list(fed.active.modules) == ["top"]
    of = {p: models(fed, p) for p in fed.parties}
    parts = [of["passive1"]["bottom"], of["passive2"]["bottom"], of["active"]["top"]]
    optimizer = torch.optim.SGD([p for m in parts for p in m.parameters()], lr=0.5, momentum=0.9)
    rows = stack.rows("labelled")[:, :32]
    task = stack.first
    for _ in range(3):
        algorithm.step(fed, rows)
        z = [m(task.x[p][rows[0]].double()) for p, m in zip(task.passive, parts, strict=False)]
        loss = nn.functional.cross_entropy(parts[2](torch.cat(z, 1)), task.y[rows[0]])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert_follows(fed, of)
    facts = algorithm.facts(fed)
    assert facts.widths == {"passive1": 3, "passive2": 3}


@pytest.mark.parametrize("name", ["splitnn", "fedbcd"])
def test_without_a_top_the_label_holder_trains_nothing(name: str) -> None:
    algorithm = registry.algorithms.create(
        name, {"top": [], "linear_top": False, "aggregation": "sum", "epochs": 2, "patience": 0}
    )
    fed = trained(algorithm, small_stack([0, 1], widths=WIDTHS), [0, 1])
    assert fed.active.modules == {}
    lines = [r for r in fed.channel.ledger.of(0) if r["kind"] in ("embedding", "gradient")]
    expected = {("embedding", p, "active") for p in ("passive1", "passive2")}
    expected |= {("gradient", "active", p) for p in ("passive1", "passive2")}
    assert {(r["kind"], r["sender"], r["receiver"]) for r in lines} == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(["oneshot", "fewshot"]))
def test_one_shot_in_its_own_setting(name: str) -> None:
    """Two clients with columns, a server with labels: 3 N_o d numbers a client, 4 N_o d + N_k (d+1)
    for few-shot, as published."""
    params: dict[str, Any] = {"cut": 8, "hidden": [16], "local_steps": 80, "epochs": 20,
                              "batch_size": 32, "lr": 3e-3}  # fmt: skip
    stack = small_stack([0, 1], widths=WIDTHS, unaligned=40)
    algorithm = registry.algorithms.create(name, params)
    fed = trained(algorithm, stack, [0, 1])
    aligned, d, own = stack.rows("aligned").shape[1], 8, 40
    expected = 3 * aligned * d if name == "oneshot" else 4 * aligned * d + own * (d + 1)
    for party in ("passive1", "passive2"):
        lines = [r for r in fed.channel.ledger.of(0) if party in (r["sender"], r["receiver"])]
        kinds = ("embedding", "gradient", "signal")
        lines = [r for r in lines if r["phase"] != "predict" and r["kind"] in kinds]
        crossed = [r["elements"] for r in lines if r["elements"] > 1]
        assert sum(crossed) == expected
    assert "bottom" not in fed.active.modules
    assert "temporary.active" not in fed.extra
    rows = stack.rows("test")
    right = predict(algorithm, fed, rows).argmax(-1) == stack.labels().gather(1, rows)
    assert right.double().mean(1).min() > 0.75  # two classes alike often


def test_trees_split_by_the_clients_columns_alone() -> None:
    algorithm = registry.algorithms.create("secureboost", {"trees": 4})
    stack = small_stack([0, 1], widths=WIDTHS)
    fed = trained(algorithm, stack, [0, 1])
    rows = stack.rows("test")
    right = predict(algorithm, fed, rows).argmax(-1) == stack.labels().gather(1, rows)
    assert right.double().mean(1).min() > 0.75


@pytest.mark.parametrize("name", sorted(registry.algorithms.names()))
def test_who_needs_the_active_partys_columns_says_so(name: str) -> None:
    cls = registry.algorithms.get(name)
    assert cls.label_holder == (name in SUPPORTED)
    if not cls.label_holder:
        with pytest.raises(
            ConfigError, match=rf"{name}: the active party must be one with columns"
        ):
            registry.algorithms.create(name).check_columns(small_task(0, widths=WIDTHS))
    registry.algorithms.create(name).check_columns(small_task(0))


def test_controls_are_the_adversarys_own_columns_and_nothing_without() -> None:
    algorithm = registry.algorithms.create("splitnn", {"epochs": 1, "hidden": [4], "cut": 3})
    stack = small_stack([0, 1], dtype=torch.float32, widths=WIDTHS)
    done = train(algorithm, stack, [0, 1])
    rng = [generator(0, "test")]

    def view(*adversary: str, **grants: Any) -> Any:
        spec = AttackSpec("model_completion", {}, adversary, **grants)
        return make_view(done.algorithm, done.fed, done.initial, spec, 0)

    passive = view("passive1", known_rows=10)
    names = {c.name for c in make_controls([passive], rng)[0]}
    assert {"majority", "scratch", "logistic", "trees", "principal"} <= names
    both = view("active", "passive2", known_rows=10)
    rows = both.target_rows
    torch.testing.assert_close(both.embed(rows), view("passive2").embed(rows))
    assert both.design(rows).shape == (len(rows), 6)
    assert {c.name for c in make_controls([both], rng)[0]} == names
    alone = view("active", known_rows=10)
    assert [c.name for c in make_controls([alone], rng)[0]] == ["majority"]
    ((mean,),) = feature_controls([view("active", aux_rows=10)], rng)
    assert (mean.name, mean.guess.scores.shape[1]) == ("mean", 10)
    attributed = view("passive1", aux_rows=10).for_attribute("")
    x = stack.first.x["passive2"][attributed.known.rows, 0]
    assert torch.equal(attributed.known.labels, (x > 0).long())


def test_a_table_of_ids_and_labels(tmp_path: Path) -> None:
    (tmp_path / "server.csv").write_text("id,y\n" + "".join(f"{i},{i % 2}\n" for i in range(40)))
    for name in ("bank", "shop"):
        lines = "".join(f"{i},{(i * 7) % 11}\n" for i in range(40))
        (tmp_path / f"{name}.csv").write_text(f"id,{name}0\n" + lines)
    files = {"server": "server.csv", "bank": "bank.csv", "shop": "shop.csv"}
    section = {"files": files, "id": "id", "label": "y"}
    source = load_source(section, 0, tmp_path)
    assert source.label_holder
    assert "server holds labels only." in list_warnings(source)
    task = make_task(source, 0)
    assert task.parties == ("server", "bank", "shop")
    assert task.x["server"].shape == (40, 0)
    assert task.schema["server"].design(task.x["server"]).shape == (40, 0)
    one = {"file": "bank.csv", "label": "bank0", "columns": {"active": [], "other": ["id"]},
           "label_edges": [5]}  # fmt: skip
    assert load_source(one, 0, tmp_path).label_holder
    with pytest.raises(DataError, match="party 'shop' must have a feature column"):
        load_source({**section, "columns": {"shop": []}}, 0, tmp_path)


def test_a_server_beside_the_halves_of_images() -> None:
    source = registry.datasets.create("digits", {"as_images": True, "server": True}).load(0)
    task = make_task(source, 0, aligned=128, validation=0.1)
    assert task.parties == ("active", "passive1", "passive2")
    plain = registry.datasets.create("digits", {"as_images": True}).load(0)
    assert (source.parties["passive1"].values == plain.parties["active"].values).all()
    algorithm = registry.algorithms.create("splitnn", {"encoder_kind": "conv", "hidden": [4]})
    fed = federation(algorithm, _stack(task), [0, 0])
    assert isinstance(fed.parties["passive2"].modules["bottom"].template[0], nn.Conv2d)


def _stack(task: Any) -> Any:
    from vflsec.core.task import Stack

    return Stack.build({0: task}, [0, 0])


@pytest.mark.slow
def test_views_are_kept_of_those_who_have_columns(tmp_path: Path) -> None:
    """Attacks by a passive party come from kept views; the label holder's need the training."""
    from vflsec.engine.run import run_audit

    rng = torch.Generator().manual_seed(0)
    x = torch.randn(240, 4, generator=rng)
    y = (x[:, 1] + x[:, 3] > 0).int()
    names = {"server": [], "bank": [0, 1], "shop": [2, 3]}
    for name, own in names.items():
        head = ",".join(["id", *(f"{name}{i}" for i in own), *(["y"] if not own else [])])
        lines = [
            ",".join(map(str, [r, *x[r, own].tolist(), *([int(y[r])] if not own else [])]))
            for r in range(240)
        ]
        (tmp_path / f"{name}.csv").write_text("\n".join([head, *lines]) + "\n")
    wanted: dict[str, Any] = {
        "data": [{"files": {n: str(tmp_path / f"{n}.csv") for n in names}, "id": "id",
                  "label": "y"}],
        "algorithm": [{"name": "splitnn", "epochs": 2, "hidden": [4], "cut": 3}],
        "attack": [{"name": "direction", "known_rows": 10},
                   {"name": "embedding_inversion", "adversary": "active", "aux_rows": 20}],
        "audit": {"seeds": 2, "references": [], "positive_control": False},
    }  # fmt: skip
    found = run_audit(wanted, tmp_path / "out", keep_views=True, device="cpu").results
    assert set(found.status) == {"ok"}
    wanted["attack"].append({"name": "model_completion", "known_rows": 10,
                             "variants": ["logistic"]})  # fmt: skip
    again = run_audit(wanted, tmp_path / "out", keep_views=True, device="cpu").results
    assert set(again.status) == {"ok"}
    more = again[again.attack.str.startswith("model_completion") & (again.metric == "auc")]
    assert set(more.adversary) == {"bank", "shop"}
    assert more.value.mean() > 0.6
