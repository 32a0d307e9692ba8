"""The table of what stays visible says what the views of a trained run hold."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from scipy import stats

from vflsec.config.scenario import load_scenario
from vflsec.core.attack import Attack
from vflsec.core.channel import Recorder
from vflsec.core.rng import numpy_generator
from vflsec.core.view import Need
from vflsec.core.visibility import claim, format_markdown
from vflsec.engine.dry_run import make_plan
from vflsec.engine.run import run_audit
from vflsec.errors import ThreatModelError
from vflsec.he.flood import Flood
from vflsec.he.visibility import visibility
from vflsec.plan.observe import Obstacle, System, choose_attacker, find_refusal
from vflsec.plan.values import DataInfo
from vflsec.plugins import registry
from vflsec.report.plan_table import print_plan
from vflsec.specs import AttackSpec, CellSpec, DefenseSpec
from vflsec.testing import small_stack, train
from vflsec.train.views import make_view

CASES = [
    (),
    (DefenseSpec("he_embedding", {"mode": "clear"}),),
    (DefenseSpec("he_embedding", {}),),
    (DefenseSpec("he_embedding", {"weights": "shared"}),),
    (DefenseSpec("he_gradient", {}),),
]
KINDS = ("embedding", "activation", "gradient", "weights", "weight_gradient", "output_gradient")


@pytest.mark.parametrize("defenses", CASES, ids=lambda d: str([x.params for x in d]))
def test_the_table_is_what_the_views_hold(defenses: tuple[DefenseSpec, ...]) -> None:
    algorithm = registry.algorithms.create("splitnn", {"epochs": 1, "batch_size": 48})
    off = torch.zeros(2, dtype=torch.float64)
    made = [(registry.defenses.create(d.name, d.params), off) for d in defenses]
    parties = {"active": "active", "passive": "passive1"}
    wanted = [
        key
        for party in parties.values()
        for kind in KINDS
        for what in (kind, f"sent.{kind}")
        if (key := Recorder.wants(party, Need.parse(f"{what}:all"))) is not None
    ]
    trained = train(algorithm, small_stack([0, 0]), [0, 0], {"passive1": made}, sorted(wanted))
    lines = visibility(defenses)
    for role, party in parties.items():
        spec = AttackSpec("norm", adversary=(party,))
        view = make_view(trained.algorithm, trained.fed, trained.initial, spec, 0)
        for kind in KINDS:
            held = False
            for way in (view.received, view.sent):
                try:
                    held = held or len(way(kind, "all")) > 0
                except ThreatModelError:
                    continue
            stated = any(role in line.clear for line in lines if line.kind == kind)
            own = (kind, role) in (("embedding", "passive"), ("gradient", "active"))  # made there
            assert stated == held or (stated and own), f"{kind} at {role}: {stated}, held {held}"


@dataclass(frozen=True)
class Raw(Attack):
    needs = frozenset({"embedding:last"})
    target = "feature"


@pytest.mark.parametrize(
    ("params", "status"),
    [({"mode": "clear"}, ""), ({}, "not-observable"), ({"mode": "real"}, "not-observable"),
     ({"weights": "shared"}, "not-observable")],
)  # fmt: skip
def test_raw_embedding_inversion_is_not_observable(params: dict[str, Any], status: str) -> None:
    info = DataInfo("small", {}, ("active", "passive1"), 2, 240, "")
    cell = CellSpec({}, "splitnn", {}, (DefenseSpec("he_embedding", params),))
    spec = AttackSpec("raw", adversary=("active",))
    found = find_refusal(Raw(), spec, System(info, cell))
    assert (found.status if found else "") == status
    assert not found or found.code is Obstacle.MESSAGE_NOT_HELD
    assert not found or "splitnn with he_embedding" in found.reason
    for name in ("linear_inversion", "norm", "model_completion"):
        role = "active" if name == "linear_inversion" else "passive1"
        attack = registry.attacks.create(name)
        assert find_refusal(attack, AttackSpec(name, adversary=(role,)), System(info, cell)) is None
        assert choose_attacker(attack, System(info, cell)) == role.removesuffix("1")


def test_gradient_attacks_are_not_observable_under_summed_gradients() -> None:
    info = DataInfo("small", {}, ("active", "passive1"), 2, 240, "")
    cell = CellSpec({}, "splitnn", {}, (DefenseSpec("he_gradient"),))
    attack = registry.attacks.create("norm")
    found = find_refusal(attack, AttackSpec("norm", adversary=("passive1",)), System(info, cell))
    assert found is not None
    assert (found.code, found.status) == (Obstacle.MESSAGE_NOT_HELD, "not-observable")


def test_one_sentence() -> None:
    def said(params: dict[str, Any], cut: int = 16) -> str:
        return claim("It", *registry.defenses.create("he_embedding", params).bought({"cut": cut}))

    assert "(32 equations for 16 unknowns)" in said({"out": 32})
    assert "8 of 16 output columns lack" in said({"out": 8})
    assert "(8 equations for 8 unknowns)" in said({"out": 8}, cut=8)
    assert "linear algebra; it leaves the active party z" in said({"weights": "shared"})
    assert said({"mode": "clear"}).startswith("It hides nothing; it leaves the passive party")
    table = format_markdown(visibility([DefenseSpec("he_embedding")])).splitlines()
    assert table[0].count("|") == table[2].count("|") == 7


SCENARIO: dict[str, Any] = {
    "name": "sealed",
    "data": {"name": "control_gaussian", "params": {"rows": 200, "test_rows": 60,
             "validation_rows": 50, "d_passive": 6, "d_active": 4}},
    "algorithm": {"name": "splitnn", "hidden": [8], "cut": 4, "top": [4], "epochs": 2,
                  "batch_size": 50},
    "defense": [
        {"name": "he_embedding", "choice": "c", "mode": "clear", "out": 6},
        {"name": "he_embedding", "choice": "c", "out": 6},
        {"name": "he_embedding", "choice": "c", "out": 6, "weights": "shared"},
    ],
    "attack": [
        {"name": "linear_inversion", "adversary": "active"},
        {"name": "embedding_inversion", "adversary": "active", "aux_rows": 40},
        {"name": "model_completion", "known_rows": 10},
    ],
    "audit": {"seeds": 3, "references": []},
}  # fmt: skip


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sealed")
    run_audit(SCENARIO, folder)
    return folder


@pytest.mark.slow
def test_reports_say_what_encryption_hides(audited: Path) -> None:
    folder = audited
    stored = json.loads((folder / "summary.json").read_text())["visibility"]
    clear, plain, shared = stored
    assert [e["defense"] for e in stored] == [
        "he_embedding(mode=clear, out=6)", "he_embedding(out=6)",
        "he_embedding(out=6, weights=shared)",
    ]  # fmt: skip
    assert clear["sentences"] == clear["unseen"] == []
    for entry in (plain, shared):
        assert [u[:3] for u in entry["unseen"]] == [
            ["embedding_inversion", "active", "not-observable"]
        ]
    found = {m["attack"]: m for m in plain["measured"]}
    assert found["linear_inversion"]["value"] < 1e-2
    assert found["linear_inversion"]["control"] > 0.3
    assert abs(found["model_completion"]["change"]) < 0.05  # what flooding does to the training
    hidden = {m["attack"]: m for m in shared["measured"]}
    assert hidden["linear_inversion"]["value"] > 0.9
    assert hidden["model_completion"]["seeds"] == 3
    change = hidden["model_completion"]
    inside = change["change_low"] <= 0 <= change["change_high"]
    assert inside == (change["verdict"] == "change within its interval")
    [[dataset, text]] = plain["sentences"]
    assert dataset == "control_gaussian"
    assert "(6 equations for 4 unknowns)" in text
    assert "not observable, so not tested: embedding_inversion" in text
    assert text.count(". ") == 0  # one sentence
    for name in ("report.html", "summary.md"):
        page = (folder / name).read_text()
        assert "(6 equations for 4 unknowns)" in page
        assert "opaque for" in page.lower()
        for line in plain["lines"]:
            assert line["what"].replace("'", "&#39;") in page or line["what"] in page
    html = (folder / "report.html").read_text()
    assert "not-observable" in html
    assert "What encryption costs" in html


def test_a_plan_has_the_tables_and_the_price() -> None:
    made = make_plan(load_scenario(SCENARIO), try_out=False)
    plan = made.to_json()
    assert [bool(e["hides"]) for e in plan["visibility"]] == [False, True, True]
    console = Console(width=200, record=True, file=io.StringIO())
    print_plan(made, console)
    text = console.export_text()
    assert "What stays visible: he_embedding(out=6, weights=shared)" in text
    assert "not-observable: embedding_inversion" in text
    costs = plan["cost"]["encryption"]
    assert [c["defense"] for c in costs] == [e["defense"] for e in plan["visibility"][1:]]
    for c in costs:
        assert set(c["seconds"]) == {"encrypt", "multiply", "decrypt", "transfer"}
        assert c["in_all"] == c["per_epoch"] * 2 * 3  # epochs and seeds
        assert not c["computed"]
    assert "an epoch" in text
    assert "the whole run" in text
    assert "if it were real" in text


def test_a_real_audit_stores_its_seconds_and_no_secret_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tenseal")
    from test_interactive import secret_windows

    from vflsec.he import interactive

    caplog.set_level(0)
    made: list[Any] = []

    class Remembered(interactive.KeyPair):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            made.append(self)

    monkeypatch.setattr(interactive, "KeyPair", Remembered)
    sealed = {"name": "he_embedding", "out": 2, "mode": "real", "processes": False}
    one = {**SCENARIO, "defense": [sealed], "attack": [], "audit": {"seeds": 1, "references": []}}
    one["algorithm"] = {**one["algorithm"], "epochs": 1}
    summary = run_audit(one, tmp_path).summary
    [point] = summary["cost"]["points"]
    spent = point["encryption"]
    assert min(spent[k] for k in ("encrypt", "multiply", "decrypt")) > 0
    assert sum(spent.values()) < point["seconds"]
    files = [p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 5
    [keys] = made
    pieces = secret_windows(keys)
    assert len(pieces) > 20
    for where in (*files, caplog.text.encode(), repr(dict(os.environ)).encode()):
        for piece in pieces:
            assert piece not in where
            assert piece.hex().encode() not in where
            assert base64.b64encode(piece)[:30] not in where


KEYS = ["defense", "attack", "attack_key", "adversary", "metric", "split", "phase"]
REAL = Path(__file__).parents[2] / "scenarios" / "he_vs_attacks.toml"
SMALL = [
    'data=[{name="control_gaussian", params={rows=160, test_rows=50, validation_rows=50}}]',
    "algorithm.epochs=1",
    "algorithm.batch_size=80",
    "audit.references=[]",
]


def modes(mode: str, *more: str) -> list[str]:
    return [*SMALL, *(f"defense.{i}.mode={mode}" for i in (1, 2, 3)), *more]


def figures(out: Path) -> pd.Series:
    """Every figure of the layers of a stored audit, by what it is a figure of."""
    frame = pd.read_parquet(out / "results.parquet")
    sealed = frame[frame["defense"].str.contains("out=")].copy()
    for pattern in (r"mode=(real|emulated)(, )?", r"processes=False(, )?"):
        sealed["defense"] = sealed["defense"].str.replace(pattern, "", regex=True)
    sealed[KEYS] = sealed[KEYS].fillna("")
    return sealed.dropna(subset="value").drop_duplicates(KEYS).set_index(KEYS)["value"].sort_index()


@pytest.mark.slow
@pytest.mark.long
def test_without_flooding_a_real_audit_has_the_figures_of_the_emulated_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key holder is in this process, or its noise would be another one."""
    pytest.importorskip("tenseal")
    monkeypatch.setattr(Flood, "noise", lambda self, answer, *shape: np.zeros(shape))
    inside = [f"defense.{i}.processes=false" for i in (1, 2, 3)]
    both = []
    for mode in ("emulated", "real"):
        run_audit(REAL, tmp_path / mode, seeds=1, set=modes(mode, *inside))
        both.append(figures(tmp_path / mode))
    assert both[0].index.equals(both[1].index)
    assert len(both[0]) > 150
    assert float((both[0] - both[1]).abs().max()) < 1e-5


@pytest.mark.slow
@pytest.mark.long
def test_a_real_audit_by_the_command_line_is_one_draw_of_the_flooding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each figure lies in its prediction interval from `draws` emulated audits that differ in
    nothing but the flooding (Student's t, one in a thousand over all figures), or within three
    pairs of rows: an AUC of 50 rows has steps of 1 / 600.
    """
    pytest.importorskip("tenseal")
    given = [part for s in modes("real") for part in ("--set", s)]
    command = [sys.executable, "-m", "vflsec", "audit", "he_vs_attacks", "--seeds", "1"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "real"), *given], capture_output=True, text=True,
        timeout=180,
    )  # fmt: skip
    assert done.returncode != 2, done.stderr
    draws = 12
    emulated = []
    for k in range(draws):
        again = f"draw {k}"

        def noise(self: Flood, answer: int, *shape: int, again: str = again) -> np.ndarray:
            rng = numpy_generator(0, again, self.party, answer)
            return rng.standard_normal(shape) * 2.0**-self.bits

        monkeypatch.setattr(Flood, "noise", noise)
        run_audit(REAL, tmp_path / again, seeds=1, set=modes("emulated"))
        emulated.append(figures(tmp_path / again))
    real, table = figures(tmp_path / "real"), pd.concat(emulated, axis=1)
    assert table.index.equals(real.index)
    metric = real.index.get_level_values("metric")
    smooth = metric.isin(["auc", "r2", "r2_column", "relative_error"])
    real, table = real[smooth], table[smooth]
    assert len(real) > 40
    assert float(table.std(axis=1).max()) > 1e-4  # it does move them
    level = stats.t.isf(0.0005 / len(real), draws - 1) * np.sqrt(1 + 1 / draws)
    room = np.maximum(level * table.std(axis=1), np.where(metric[smooth] == "auc", 3 / 600, 1e-6))
    assert ((real - table.mean(axis=1)).abs() <= room).all()


def test_nobody_attacks_a_party_of_its_own() -> None:
    info = DataInfo("small", {}, ("active", "passive1", "passive2"), 2, 240, "")
    system = System(info, CellSpec({}, "splitnn", {}, ()))
    norm, inversion = (registry.attacks.create(n) for n in ("norm", "embedding_inversion"))
    found = find_refusal(norm, AttackSpec("norm", adversary=("active", "passive1")), system)
    assert found is not None
    assert (found.code, found.status) == (Obstacle.ATTACKS_ITSELF, "not-applicable")
    for attack, who in ((norm, ("passive1", "passive2")), (inversion, ("active", "passive1"))):
        spec = AttackSpec(attack.name, adversary=who, aux_rows=20)
        assert find_refusal(attack, spec, system) is None
