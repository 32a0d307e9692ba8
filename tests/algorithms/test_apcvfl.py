"""APC-VFL: one upload and no word back, what it is without a teacher, and what the upload tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import assert_follows, assert_same, federation, models, tapped, trained, without
from torch import Tensor
from worlds import few_aligned, small_task, with_category

from vflsec.algorithms.apcvfl import APCVFL, in_deviations
from vflsec.algorithms.local import Local
from vflsec.core.federation import Federation
from vflsec.core.task import Stack, Task
from vflsec.core.view import Schema
from vflsec.data.prepare import make_task
from vflsec.engine.cohort import run_cohort
from vflsec.errors import ConfigError, PolicyError
from vflsec.label import make_label
from vflsec.plugins import registry
from vflsec.specs import AttackSpec, CellResult, CellSpec, DefenseSpec, Measure
from vflsec.train.cohort import Training
from vflsec.train.loop import predict, run_phases

HEAD: dict[str, Any] = {
    "hidden": (7,), "top": (5,), "batch_size": 16, "lr": 1e-2, "epochs": 3, "patience": 2,
}  # fmt: skip
SMALL = HEAD | {"cut": 3, "joint": 4, "autoencoder_epochs": 4}
MINE = ("student", "student_decoder", "top")
WIDTHS = (3, 4, 5)
LINEAR: dict[str, Any] = {"variants": ["linear"]}


def few() -> Task:
    """64 aligned rows, 40 of them labelled; the active party has 80 more rows and all labels."""
    return few_aligned(small_task(0, widths=WIDTHS), 64, labelled=40)


def stacked(*tasks: Task) -> Stack:
    return Stack.build(dict(enumerate(tasks)), list(range(len(tasks))), dtype=torch.float64)


def mine(fed: Federation) -> dict[str, dict[str, dict[str, Tensor]]]:
    """What the active party answers with."""
    return {"active": {part: fed.active.modules[part].state() for part in MINE}}


def scrambled(task: Task) -> Task:
    """The same rows of the active party beside a partner with other columns."""
    return replace(task, x={**task.x, "passive1": task.x["passive1"].flip(0) * 3 + 1})


def test_without_lambda_no_partner_counts_and_nothing_is_sent() -> None:
    algorithm = APCVFL(**SMALL, distill=0.0)
    deaf = trained(algorithm, stacked(few()))
    assert deaf.channel.ledger.of(0) == []
    assert_same(mine(deaf), mine(trained(algorithm, stacked(scrambled(few())))))
    heard = [trained(APCVFL(**SMALL), stacked(task)) for task in (few(), scrambled(few()))]
    for part in ("student", "top"):
        key = "0.weight" if part == "top" else "1.weight"
        states = [fed.active.modules[part].state()[key] for fed in (deaf, *heard)]
        assert not any(torch.equal(states[i], states[j]) for i, j in ((0, 1), (0, 2), (1, 2)))


def test_without_a_partner_or_aligned_rows_it_is_so_too() -> None:
    deaf = trained(APCVFL(**SMALL, distill=0.0), stacked(few()))
    none = few()
    none = replace(none, sets={**none.sets, "aligned": none.sets["aligned"][:0]})
    for task in (without(few(), "passive1", "passive2"), none):
        fed = trained(APCVFL(**SMALL), stacked(task))
        assert fed.channel.ledger.of(0) == []
        assert_same(mine(deaf), mine(fed))


def test_the_head_is_local_training_on_the_students_latent() -> None:
    """Which is taken of all rows at once here, so that the last bit may differ."""
    fed = trained(APCVFL(**SMALL), stacked(few()))
    task = without(few(), "passive1", "passive2")
    every = torch.arange(len(task.y)).unsqueeze(0)
    latent = fed.active.modules["student"](fed.columns("active", every), train=False)[0].detach()
    seen = replace(task, x={"active": latent}, schema={"active": Schema.numbers((4,))})
    own = {"active": {"module": "torch.nn:Identity", "cut": 4}}
    alone = trained(Local(**HEAD, own_labels=True, parties=own), stacked(seen))
    a, b = (f.active.modules["top"].state() for f in (fed, alone))
    assert all(torch.allclose(a[k], b[k], rtol=0, atol=1e-12) for k in a)


def test_finetuned_without_autoencoders_it_is_local_bit_for_bit() -> None:
    stack = stacked(few())
    algorithm = APCVFL(**SMALL | {"autoencoder_epochs": 0}, distill=0.0, finetune=True)
    fed, local = federation(algorithm, stack), Local(**HEAD, cut=4, own_labels=True)
    alone = federation(local, stack)
    for here, there in (("student", "bottom"), ("top", "top")):
        alone.active.modules[there].load(fed.active.modules[here].state())
    for each, of in ((algorithm, fed), (local, alone)):
        for _ in run_phases(each, of):
            pass
    rows = stack.rows("test")
    assert torch.equal(predict(algorithm, fed, rows), predict(local, alone, rows))


def test_updates_are_those_of_plain_torch() -> None:
    """Stages 1, 3 and 4 on one batch, the active party with a category, by autograd and Adam."""
    stack = with_category(stacked(few()))
    algorithm, task = APCVFL(**SMALL, distill=2.5, held_out=0.0), stack.first
    fed = federation(algorithm, stack)
    fed.phase = "teacher"
    algorithm.collect(fed)
    steps = {phase.name: phase for phase in algorithm.phases(fed)}
    aligned, rows = stack.rows("aligned"), stack.rows("local:active")[:, ::3]
    x = {p: task.x[p].double() for p in task.parties}
    nets = {p: models(fed, p) for p in task.parties}
    a = nets["active"]

    def wrong(party: str, decoder: str, z: Tensor, of: Tensor) -> Tensor:
        made, wanted = nets[party][decoder](z), task.schema[party].design(x[party][of])
        return (made - wanted).square().sum(1) / x[party].shape[1]

    def own(party: str) -> Tensor:
        return wrong(party, "decoder", nets[party]["bottom"](x[party][rows[0]]), rows[0]).mean()

    def joint() -> Tensor:
        return (a["joint_decoder"](a["joint"](kept)) - kept).square().mean()

    def student() -> Tensor:
        s = a["student"](x["active"][rows[0]])
        t = a["joint"](kept).detach()
        t = (t - t.mean(0)) / t.std(0)
        far = torch.zeros(rows.shape[1], dtype=torch.float64)
        place = {row: k for k, row in enumerate(aligned[0].tolist())}
        for i, row in enumerate(rows[0].tolist()):
            if row in place:
                far[i] = (s[i] - t[place[row]]).square().mean()
        assert 0 < int((far > 0).sum()) < len(far)
        return (wrong("active", "student_decoder", s, rows[0]) + 2.5 * far).mean()

    kept = torch.cat([nets[p]["bottom"](x[p][aligned[0]]) for p in task.parties], dim=1).detach()
    kept = (kept - kept.mean(0)) / kept.std(0)
    for name, party, parts, loss, batch in (
        ("autoencoder:passive2", "passive2", ("bottom", "decoder"), lambda: own("passive2"), rows),
        ("autoencoder:active", "active", ("bottom", "decoder"), lambda: own("active"), rows),
        ("teacher", "active", ("joint", "joint_decoder"), joint, aligned),
        ("student", "active", ("student", "student_decoder"), student, rows),
    ):
        algorithm.teach(fed)  # and afresh
        optimizer = torch.optim.Adam([p for m in parts for p in nets[party][m].parameters()], 1e-2)
        for _ in range(3):
            steps[name].step(batch)
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        assert_follows(fed, {party: {part: nets[party][part] for part in parts}}, 1e-9)


def test_the_ledger_is_ids_and_one_upload_of_the_aligned_rows() -> None:
    """Of unlabelled ones too; answers cost nothing."""
    fed = trained(APCVFL(**SMALL), stacked(few()))
    ledger = fed.channel.ledger.of(0)
    found = {(r["phase"], r["kind"], r["sender"], r["receiver"]): (r["messages"], r["elements"])
             for r in ledger}  # fmt: skip
    expected = {("teacher", "ids", "active", p): (1, 64) for p in ("passive1", "passive2")}
    expected |= {("teacher", "embedding", p, "active"): (1, 64 * 3)
                 for p in ("passive1", "passive2")}  # fmt: skip
    assert found == expected
    predict(APCVFL(**SMALL), fed, fed.stack.rows("test"))
    assert fed.channel.ledger.of(0) == ledger


def test_a_passive_party_ends_with_what_it_could_have_trained_alone() -> None:
    """Bit for bit, so that no attack on its model can beat the control that has the same."""
    algorithm = APCVFL(**SMALL)
    fed = trained(algorithm, stacked(few()))
    alone = trained(algorithm.local_training("passive1"), stacked(few()))
    assert alone.channel.ledger.of(0) == []
    for part in ("bottom", "decoder"):
        a, b = (f.parties["passive1"].modules[part].state() for f in (fed, alone))
        assert all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.slow
def test_autoencoders_keep_their_best_weights_by_rows_held_out_at_home() -> None:
    fed = trained(APCVFL(**SMALL | {"autoencoder_epochs": 60, "autoencoder_patience": 2}),
                  stacked(few(), few()), [0, 1])  # fmt: skip
    for name in ("autoencoder:active", "autoencoder:passive1", "teacher", "student"):
        for best, n in zip(fed.kept[name], fed.epochs[name], strict=True):
            assert 0 < best <= n <= best + 2
    whole = trained(APCVFL(**SMALL, held_out=0.0), stacked(few()))
    assert whole.epochs["student"] == [4]


def test_labels_change_nothing_that_is_sent() -> None:
    """So label-DP protects nobody from anything here; it only makes the head worse."""
    policy = registry.defenses.create("label_dp")
    strength = torch.full((1,), 0.5, dtype=torch.float64)
    sent, fed = [], {}
    for name, policies in (("clean", {}), ("private", {"active": [(policy, strength)]})):
        fed[name] = federation(APCVFL(**SMALL), stacked(few()), policies=policies)
        with tapped(fed[name]) as passed:
            for _ in run_phases(APCVFL(**SMALL), fed[name]):
                pass
        sent.append([got for _, got in passed])
    assert all(torch.equal(a, b) for a, b in zip(*sent, strict=True))
    a, b = (mine(fed[name])["active"] for name in ("clean", "private"))
    assert all(torch.equal(a["student"][k], b["student"][k]) for k in a["student"])
    assert not torch.equal(a["top"]["0.weight"], b["top"]["0.weight"])


def test_noise_on_embeddings_is_on_the_one_upload() -> None:
    """By the formula: E|e|^2 is strength^2 times the largest row's square."""
    task = few_aligned(small_task(0, n=1200, widths=(3, 4)), 700)
    iso, algorithm = registry.defenses.create("iso", {"on": "embedding"}), APCVFL(**SMALL)
    strength = torch.full((1,), 0.5, dtype=torch.float64)
    fed = federation(algorithm, stacked(task), policies={"passive1": [(iso, strength)]})
    with tapped(fed) as passed:
        for _ in run_phases(algorithm, fed):
            pass
    (pair,) = [(m.tensor, got) for m, got in passed if m.kind == "embedding"]
    noise = (pair[1] - pair[0]).square().sum(-1).mean()
    largest = pair[0].square().sum(-1).max()
    assert float(noise / largest) == pytest.approx(0.25, rel=0.1)
    assert torch.equal(fed.extra["kept"][..., 3:], in_deviations(pair[1]))


def audit(
    attacks: list[AttackSpec], *stacks: tuple[DefenseSpec, ...]
) -> tuple[list[CellResult], list[dict[tuple[str, str], list[Measure]]]]:
    """Two seeds under each stack of defenses; its measures by attack and phase."""
    tasks = {s: small_task(s, n=400, widths=(3, 4), unaligned=40) for s in (0, 1)}
    params = SMALL | {"autoencoder_epochs": 30, "cut": 4}
    cells = [CellSpec({"name": "small"}, "apcvfl", params, of, seed=s)
             for of in stacks for s in (0, 1)]  # fmt: skip
    results = run_cohort(cells, attacks, tasks, device="cpu")
    found: list[dict[tuple[str, str], list[Measure]]] = [{} for _ in stacks]
    for i, result in enumerate(results):
        for m in (m for m in result.measures if m.attack):
            found[i // 2].setdefault((m.attack.partition("(")[0], m.phase), []).append(m)
    return results, found


INVERSION = AttackSpec("embedding_inversion", LINEAR, ("active",), aux_rows=40)
ON_LABELS = [
    AttackSpec("direction", adversary=("passive1",), known_rows=4),
    AttackSpec("similarity", adversary=("passive1",), known_rows=8),
    AttackSpec("model_completion", {"variants": ["logistic"]}, ("passive1",), known_rows=8),
]


@cache
def attacked() -> list[dict[tuple[str, str], list[Measure]]]:
    """Undefended, and under noise of 30 times the rows, with the controls of both made once."""
    iso = [DefenseSpec("iso", {"on": "embedding"}, strength=s) for s in (0.0, 30.0)]
    return audit([INVERSION, *ON_LABELS], *((of,) for of in iso))[1]


def r2(measures: list[Measure]) -> list[float]:
    """Of two seeds."""
    found = [m.value for m in measures if m.metric == "r2" and m.value is not None]
    assert len(found) == 2
    return found


@pytest.mark.slow
def test_the_upload_gives_columns_away_and_iso_buries_them() -> None:
    """Own columns tell nothing of them; noise of 30 times the rows leaves nothing."""
    told = {}
    for strength, found in zip((0.0, 30.0), attacked(), strict=True):
        later = found["embedding_inversion", "classifier"]
        assert [m.status for m in later] == ["not-observable"] * 2
        seen = found["embedding_inversion", "teacher"]
        told[strength] = r2(seen)
        for control in (c for m in seen if m.metric == "r2" for c in m.controls.values()):
            assert control["value"] is not None
            assert control["value"] < 0.1
    assert min(told[0.0]) > 0.7
    assert max(told[30.0]) < 0.1


def test_attacks_on_labels_have_nothing_to_read() -> None:
    """But what a passive party trained alone, which is the control ``alone`` as well."""
    found, _ = attacked()
    for phase in ("teacher", "classifier"):
        for attack in ("direction", "similarity"):
            assert {m.status for m in found[attack, phase]} == {"not-observable"}
        for m in found["model_completion", phase]:
            assert m.status == "ok"
            assert m.value == m.controls["alone"]["value"]


def test_what_asks_the_own_top_is_told_that_a_student_does() -> None:
    spec = AttackSpec("sdar", {"steps": 1}, adversary=("active",), aux_rows=20)
    cell = CellSpec({"name": "small"}, "apcvfl", SMALL)
    (result,) = run_cohort([cell], [spec], {0: small_task(0)}, device="cpu")
    (found,) = (m for m in result.measures if (m.attack, m.phase) == (spec.label, "teacher"))
    assert found.status == "error"
    assert "Error" not in found.reason


def test_defenses_of_gradients_are_said_to_do_nothing() -> None:
    tasks = {0: small_task(0, unaligned=40)}
    noise = (DefenseSpec("iso", strength=1.0),)
    cells = [CellSpec({"name": "small"}, "apcvfl", SMALL, noise, seed=0)] * 2
    made = Training(cells, (), tasks, torch.device("cpu"))
    for _ in made.run(predictions=False):
        pass
    assert [row.idle for row in made.guarantees(0)] == [True]


@pytest.mark.slow
def test_behind_an_encrypted_layer_no_embedding_passes_in_the_clear() -> None:
    """Though what the layer, whose weights never train, gives out tells as much."""
    hidden = DefenseSpec("he_embedding", {"mode": "emulated"})
    inversion = [AttackSpec("embedding_inversion", LINEAR | on, ("active",), aux_rows=40)
                 for on in ({}, {"on": "activation"})]  # fmt: skip
    results, (found,) = audit(inversion, (hidden,))
    for result in results:
        kinds = {(x.kind, x.receiver) for x in result.ledger}
        assert {kind for kind, _ in kinds} == {"ids", "ciphertext", "masked"}
        assert ("ciphertext", "active") in kinds
        assert [m.phase for m in result.measures if m.metric == "auc"][-1] == "classifier"
    seen = found["embedding_inversion", "teacher"]
    assert [m.status for m in seen if "activation" not in m.attack] == ["not-observable"] * 2
    assert min(r2([m for m in seen if "activation" in m.attack])) > 0.7


def test_gradients_of_rows_cannot_be_limited() -> None:
    dpsgd = registry.defenses.create("dpsgd")
    on = torch.ones(1, dtype=torch.float64)
    with pytest.raises(PolicyError):
        trained(APCVFL(**SMALL), stacked(few()), policies={"passive1": [(dpsgd, on)]})


def test_a_head_that_is_not_linear_is_refused() -> None:
    with pytest.raises(ConfigError):
        APCVFL(**SMALL, linear_top=False)


def test_a_quantity_is_learnt_too() -> None:
    task = few()
    value = task.x["active"][:, 0].double()
    made = replace(task, label=make_label(1), y=torch.zeros_like(task.y), values=value)
    stack = stacked(made)
    algorithm = APCVFL(**SMALL | {"epochs": 20, "autoencoder_epochs": 20})
    rows = stack.rows("test")
    answers = predict(algorithm, trained(algorithm, stack), rows)[0, :, 0]
    assert float(torch.corrcoef(torch.stack([answers, value[rows[0]]]))[0, 1]) > 0.8


@pytest.mark.slow
def test_images_are_rebuilt_pixel_by_pixel() -> None:
    source = registry.datasets.create("digits", {"as_images": True}).load(0)
    stack = Stack.build({0: make_task(source, 0, aligned=128, validation=0.1)}, [0])
    conv = {"encoder_kind": "conv", "hidden": (8, 8), "cut": 16, "autoencoder_epochs": 12}
    algorithm = APCVFL(**HEAD | conv | {"batch_size": 64}, joint=16)
    fed, rows = trained(algorithm, stack), stack.rows("test")
    with torch.no_grad():
        found = algorithm.own_losses(fed, fed.parties["passive"], rows, train=False).mean()
    assert float(found) < 0.8 * float(fed.columns("passive", rows).var(1).mean())


@pytest.mark.slow
@pytest.mark.real
@pytest.mark.parametrize("table", ["credit_default", "adult", "diabetes130", "covtype_20k"])
def test_it_learns_on_real_tables(
    table: str, tmp_path: Path, data_folder: Path, benchmark_script: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """About as well as the active party alone, on validation rows of two seeds."""
    script, trials = benchmark_script("defaults"), benchmark_script("defaults_of.trials")
    monkeypatch.setattr(script, "ROOT", tmp_path)
    mine, alone = (
        script.run(trials.Trial(table, name, name, params), [0, 1]).value.mean()
        for name, params in (("apcvfl", {}), ("local", {"own_labels": True}))
    )
    assert mine > alone - 0.02
