"""A whole audit of several labels: files to verdicts, and one label that leaks among ten."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gate_rows import STEADY, at, points_of, rows

import vflsec
from vflsec.audit.gate import Gate
from vflsec.audit.judge import judge
from vflsec.audit.leakage import complete_rows, summarise
from vflsec.audit.multilabel import build_label_findings, by_label
from vflsec.audit.point import Grants
from vflsec.audit.record import AttackFacts
from vflsec.audit.result_row import ResultRow
from vflsec.cli import main as cli
from vflsec.config.scenario import load_scenario
from vflsec.engine.dry_run import make_plan
from vflsec.errors import ConfigError

TEN = tuple(f"d{i}" for i in range(10))


def tables(folder: Path, labels: int, told: int, n: int = 500, width: int = 40) -> list[str]:
    """Of `labels` labels the first `told` follow from the shop's columns, the others are coins."""
    rng = np.random.default_rng(3)
    own, theirs = rng.standard_normal((n, 4)), rng.standard_normal((n, width))
    y = theirs @ rng.standard_normal((width, labels)) + rng.standard_normal((n, labels)) > 0
    y[:, told:] = rng.random((n, labels - told)) < 0.5
    names = [f"d{i}" for i in range(labels)]
    clinic = pd.DataFrame(own, columns=[f"a{i}" for i in range(4)])
    pd.concat([clinic, pd.DataFrame(y.astype(int), columns=names)], axis=1).to_csv(
        folder / "clinic.csv", index_label="id"
    )
    pd.DataFrame(theirs).add_prefix("b").to_csv(folder / "shop.csv", index_label="id")
    return names


def scenario(
    folder: Path, labels: list[str], rest: str, training: str = "epochs = 6", **audit: Any
) -> Path:
    path = folder / "case.toml"
    told = {"seeds": 3, "references": [], "positive_control": False} | audit
    lines = [f"{k} = {json.dumps(v)}" for k, v in told.items()]
    path.write_text(
        f"""name = "case"
[data]
files = {{ clinic = "clinic.csv", shop = "shop.csv" }}
id = "id"
label = {json.dumps(labels)}
task = "multilabel"
[algorithm]
name = "splitnn"
{training}
[audit]
"""
        + "\n".join(lines) + "\n" + rest, encoding="utf-8",
    )  # fmt: skip
    return path


SWEEP = """
[[defense]]
name = "iso"
strength = [0, 50]
[[attack]]
name = "similarity"
[[attack]]
name = "cluster"
[[gate]]
max = 0.15
attack = "similarity"
defense = "defended"
"""


def run(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str]:
    code = cli.main([str(a) for a in args])
    out, err = capsys.readouterr()
    return code, " ".join((out + err).split())


def test_from_files_to_verdicts_and_exit_codes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Undefended gradients fail a gate by each label; behind heavy noise all of them pass."""
    labels = tables(tmp_path, 2, told=2, n=300, width=80)
    path, out = scenario(tmp_path, labels, SWEEP), tmp_path / "out"
    code, text = run(capsys, "audit", path, "--out", out, "--device", "cpu")
    assert code == 0, text
    assert "cluster needs one label" in text
    for label in labels:
        code, text = run(capsys, "gate", out, "--max", 0.1, "--defense", "iso", "--strength", 0,
                         "--attack", f"similarity(label={label})")  # fmt: skip
        assert code == 1, text
        assert f"similarity(label={label})" in text
    results = pd.read_csv(out / "results.csv")
    found = results[(results.metric == "auc") & (results.strength == 0)]
    assert found.groupby("attack").seed.nunique().to_dict() == {
        f"similarity(label={x})": 3 for x in labels
    }
    assert found.value.min() > 0.9
    main = results[(results.attack.isna()) & (results.split == "test") & (results.strength == 0)]
    assert set(main.primary) == {"macro_auc"}
    assert main[main.metric == "macro_auc"].value.mean() > 0.6  # of 75 rows in each of three seeds
    summary = json.loads((out / "summary.json").read_text())
    bare = [r for r in summary["labels"] if r["strength"] == 0]
    assert [(r["attack"], r["labels"], r["split"]) for r in bare] == [("similarity", 2, "train")]
    assert bare[0]["value"] == pytest.approx(found.value.mean())
    assert bare[0]["most"] in labels
    several = [f["place"] for f in summary["findings"] if f["kind"] == "several_labels"]
    assert ("similarity", "shop") in {(at["attack"], at["adversary"]) for at in several}
    html = (out / "report.html").read_text()
    assert "(several of each row: d0, d1)" in html
    assert "Several labels: their mean" in html
    for statement in ("report.html", "statement.html"):
        assert "several of each row" in (out / statement).read_text(), statement


TRAINED = "epochs = 20\nlr = 0.005\nbatch_size = 64"
ONE = """
[[attack]]
name = "model_completion"
variants = ["logistic"]
known_rows = 20
[[gate]]
max = 0.1
split = "test"
"""


@pytest.mark.slow
def test_one_label_that_leaks_among_ten_fails_the_gate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nine labels are coins, which no model can tell of new rows; the mean hides the tenth."""
    labels = tables(tmp_path, 10, told=1, n=2500, width=100)
    path, out = scenario(tmp_path, labels, ONE, TRAINED, seeds=4), tmp_path / "out"
    code, text = run(capsys, "audit", path, "--out", out, "--device", "cpu")
    assert code == 1, text
    (verdict,) = json.loads((out / "summary.json").read_text())["gates"]
    assert verdict["verdict"] == "FAIL"
    assert verdict["attack"].endswith("label=d0)")
    (told,) = [
        r for r in json.loads((out / "summary.json").read_text())["labels"] if r["split"] == "test"
    ]
    assert told["most"] == "d0"
    assert told["most_advantage"] > 0.15
    assert told["advantage"] < 0.1


def ten(leak: float, **extra: Any) -> tuple[list[ResultRow], dict[str, AttackFacts]]:
    """Made-up figures of an attack on ten labels, of which the fourth leaks, and what it is."""
    records, attacks = [], {}
    for i, label in enumerate(TEN):
        noise = np.roll(STEADY, i)
        records += rows(leak if i == 3 else 0.0, noise, attack=f"norm(label={label})",
                        attack_key=label, of_label=label, **extra)  # fmt: skip
        attacks[label] = AttackFacts(every_label="norm")
    return records, attacks


def test_a_gate_sees_the_one_label_that_leaks_and_a_mean_does_not() -> None:
    records, attacks = ten(0.5)
    rows = complete_rows(records)
    summary = summarise(rows)
    (verdict,) = judge(summary, [Gate(max=0.1)], at(summary))
    assert (verdict.verdict, verdict.attack) == ("FAIL", "norm(label=d3)")
    ((row),) = by_label(rows, attacks, 0.95)
    assert row.advantage == pytest.approx(0.05)
    assert row.value == pytest.approx(0.55)
    assert (row.most, row.most_advantage) == ("d3", pytest.approx(0.5))
    assert row.labels == 10
    assert row.low <= row.value + 1e-12
    assert row.high >= row.value - 1e-12
    (said,) = build_label_findings([row])
    numbers = [float(n) for n in re.findall(r"[0-9]+[.][0-9]+", said.text)]
    assert numbers == [0.55, 0.5, 1.0, 0.5]
    none, _ = ten(0.0)
    quiet = points_of(none)
    (verdict,) = judge(quiet, [Gate(max=0.1)], at(quiet))
    assert verdict.verdict == "PASS"


def test_sections_that_only_their_grants_tell_apart_are_not_merged() -> None:
    """Of two sections the figures of the later one stood for both."""
    (loud, plain), (quiet, more) = ten(0.5), ten(0.0)
    rich = {f"rich {k}": replace(a, section="r", aux_rows=20) for k, a in more.items()}
    quiet = [replace(r, attack_key=f"rich {r.attack_key}") for r in quiet]
    found = by_label(complete_rows([*loud, *quiet]), plain | rich, 0.95)
    assert [r.advantage for r in found] == pytest.approx([0.05, 0.0], abs=1e-9)
    said = build_label_findings(found, {"r": Grants(aux_rows=20)})
    assert ["with 20 auxiliary rows" in f.text for f in said] == [False, True]


def test_a_label_without_a_figure_is_left_out_of_the_mean_and_said() -> None:
    records, attacks = ten(0.2)
    lost = [replace(r, value=None, controls={}) if r.attack_key == "d7" else r for r in records]
    (row,) = by_label(complete_rows(lost), attacks, 0.95)
    assert (row.labels, row.left_out) == (9, ("d7",))
    assert row.advantage == pytest.approx(0.2 / 9)
    assert "d7" in build_label_findings([row])[0].text
    summary = points_of(lost)
    (verdict,) = judge(summary, [Gate(max=0.5)], at(summary))
    assert verdict.verdict == "INCONCLUSIVE"


def test_every_label_has_a_control_of_its_own_named_beforehand() -> None:
    """Trees know the first label and a line the second, as their known rows say of each."""
    records = []
    for label, best in (("a", "trees"), ("b", "logistic")):
        controls = {
            c: {"value": 0.7 if c == best else 0.5, "cv": 0.7 if c == best else 0.5}
            for c in ("trees", "logistic")
        }
        records += rows(0.25, attack=f"norm(label={label})", attack_key=label, of_label=label,
                        known_rows=20, controls=controls)  # fmt: skip
    points = points_of(records)
    assert {p.of_label: p.named for p in points} == {"a": "trees", "b": "logistic"}
    assert max(p.advantage.upper or 1.0 for p in points) < 0.1


def test_harmless_labels_do_not_fail_more_often_for_being_many() -> None:
    """Ten labels at the limit that rise and fall together: accusations in at most 5 % of audits."""
    g = np.random.default_rng(0)
    failed, times = 0, 40
    for _ in range(times):
        noise = 0.02 * g.standard_normal(5)
        records: list[ResultRow] = []
        for label in TEN:
            records += rows(0.1, noise, attack=f"norm(label={label})", attack_key=label)
        summary = points_of(records)
        (verdict,) = judge(summary, [Gate(max=0.1)], at(summary))
        failed += verdict.verdict == "FAIL"
    assert failed / times <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / times)


def test_the_positive_control_has_labels_of_the_same_names(tmp_path: Path) -> None:
    labels = tables(tmp_path, 3, told=1, n=200)
    path = scenario(tmp_path, labels, SWEEP, positive_control=True)
    plan = make_plan(load_scenario(str(path), []), try_out=False)
    own = {a.label for g in plan.groups if g.role == "audit" for a in g.attacks}
    assert own == {f"similarity(label={x})" for x in labels}
    control = [g for g in plan.groups if g.role == "control"]
    assert len(control) == 2
    for group in control:
        assert group.data.name.startswith("several_gaussian")
        assert group.data.labels == tuple(labels)
        assert {a.label for a in group.attacks} == own
    refused = {(r.role, r.attack.label) for r in plan.refused}
    assert refused == {("audit", "cluster"), ("control", "cluster")}


def test_what_has_classes_only_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = tables(tmp_path, 2, told=1, n=200)
    gate = '[[attack]]\nname = "norm"\n[[gate]]\nmax = 0.1\n'
    path = scenario(tmp_path, labels, gate, references=["logistic"], attacker="strong")
    code, text = run(capsys, "check", path)
    assert code == 0
    assert "pooled_logistic learns classes" in text
    assert "it has several labels" in text
    code, text = run(capsys, "audit", path, "--out", tmp_path / "o", "--keep-views")
    assert code == 2
    assert "holds classes, and there are several labels here" in text
    code, text = run(capsys, "trace", "record", path, "--out", tmp_path / "t")
    assert code == 2
    assert "clinic_shop: there are several labels; traces are recorded of one label" in text
    path.write_text(
        path.read_text().replace('"norm"\n', '"norm"\n[[defense]]\nname = "label_dp"\n')
    )
    code, text = run(capsys, "check", path)
    assert code == 2
    assert "label_dp: the label must be a class, got 'several labels'" in text


def draft(
    folder: Path, capsys: pytest.CaptureFixture[str], *more: str
) -> tuple[int, str, dict[str, Any]]:
    """Exit code, output and scenario of ``vflsec init`` on the two tables."""
    out = folder / "o.toml"
    code, text = run(
        capsys, "init", folder / "clinic.csv", folder / "shop.csv", "--id", "id", *more,
        "--out", out,
    )  # fmt: skip
    made = tomllib.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    return code, text, made


def test_init_drafts_several_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels are no features, nor is what gives one of them away; the draft checks and runs."""
    tables(tmp_path, 3, told=1, n=200)
    clinic = pd.read_csv(tmp_path / "clinic.csv")
    clinic.assign(said=clinic.d1.map({0: "no", 1: "yes"})).to_csv(
        tmp_path / "clinic.csv", index=False
    )
    code, _, made = draft(tmp_path, capsys, "--label", "d0", "--label", "d1", "--label", "d2")
    assert code == 0
    assert made["data"]["label"] == ["d0", "d1", "d2"]
    assert made["data"]["task"] == "multilabel"
    assert made["data"]["drop"] == ["said"]
    assert made["data"]["active"] == "clinic"
    written = (tmp_path / "o.toml").read_text(encoding="utf-8")
    assert "3 yes/no labels: utility is their mean AUC" in written
    assert "copies of d0 or d1 or d2" in written
    code, text = run(capsys, "check", tmp_path / "o.toml")
    assert code == 0
    assert "several_gaussian(labels=" in text
    assert "keep-views" not in text


def test_a_call_drafts_several_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables(tmp_path, 2, told=1)
    monkeypatch.chdir(tmp_path)
    ran: list[Any] = []

    class Ran(Exception):
        pass

    def run_audit(loaded: Any, *_: Any, **__: Any) -> None:
        ran.append(loaded)
        raise Ran

    monkeypatch.setattr("vflsec.audit_tables.run_audit", run_audit)
    for label in (["d0", "d1"], ("d0", "d1"), ["d0"]):
        with pytest.raises(Ran):
            vflsec.audit(["clinic.csv", "shop.csv"], label, "id", attacks="similarity")
    found = [loaded.resolved() for loaded in ran]
    data = [f["data"][0] for f in found]
    assert [d["label"] for d in data] == [["d0", "d1"], ["d0", "d1"], "d0"]
    assert [d.get("task") for d in data] == ["multilabel", "multilabel", None]
    assert [a["name"] for a in found[0]["attack"]] == ["similarity"]


@pytest.mark.slow
def test_a_call_takes_several_labels(tmp_path: Path) -> None:
    """The label that leaks is told from the coin beside it, and fails the gate by its name."""
    tables(tmp_path, 2, told=1)
    frames = {p: pd.read_csv(tmp_path / f"{p}.csv") for p in ("clinic", "shop")}
    audited = vflsec.audit(
        frames, ["d0", "d1"], "id", attacks="similarity", defenses={}, seeds=3, epochs=6,
        out=tmp_path / "out", device="cpu",
    )  # fmt: skip
    (verdict,) = audited.summary["gates"]
    assert verdict["verdict"] == "FAIL"
    found = audited.results
    found = found[(found.role == "audit") & (found.split == "train") & (found.metric == "auc")]
    told = found[found.attack.str.contains("label=d0")].advantage
    assert len(told) == 3
    assert told.min() > 0.2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--label", "d0", "--label", "b1"], "must be different columns of one table"),
        (["--label", "d0", "--label", "d0"], "must be different columns of one table"),
        (["--label", "d0", "--label", "dd1"], "Did you mean 'd1'"),
        (["--label", "d0", "--label", "a1"], "label column 'a1' must have two classes"),
        (["--label", "d0", "--label", "d1", "--bins", "2"], "--bins is for one label, got 2"),
        (["--label", "d0", "--label", "d1", "--regression"], "--regression is for one label"),
        (["--label", "d0", "--label", "d1", "--rare", "drop"], "--rare is for one label"),
    ],
)
def test_what_init_refuses_of_several_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], said: str
) -> None:
    tables(tmp_path, 2, told=1, n=200)
    code, text, made = draft(tmp_path, capsys, *more)
    assert code == 2
    assert said in text
    assert made == {}


@pytest.mark.parametrize("label", [[], ["d0", 3], {"d0": 1}, None])
def test_a_call_names_labels(tmp_path: Path, label: Any) -> None:
    with pytest.raises(ConfigError, match="audit: label must be the name of a column"):
        vflsec.audit([tmp_path / "clinic.csv"], label)
