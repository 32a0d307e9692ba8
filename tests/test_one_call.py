"""`vflsec.audit`: DataFrames in, a verdict out, no row left behind, errors of one sentence."""

from __future__ import annotations

import re
import tempfile
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import vflsec
from vflsec.errors import VflsecError

pytestmark = pytest.mark.figures

MARK = "person-"


def people(rows: int = 240) -> dict[str, pd.DataFrame]:
    """A bank with rare defaults, and a shop whose columns tell of them."""
    rng = np.random.default_rng(5)
    y = (rng.random(rows) < 0.2).astype(int)
    ids = [f"{MARK}{i:04d}" for i in range(rows)]
    bank = pd.DataFrame({"id": ids, "age": rng.normal(size=rows), "default": y})
    columns = {f"c{i}": rng.normal(size=rows) + 1.5 * y for i in range(4)}
    return {"bank": bank, "shop": pd.DataFrame({"id": ids, **columns})}


def call(tables: Any, out: Path, **change: Any) -> vflsec.Audit:
    settings: dict[str, Any] = {
        "label": "default", "id": "id", "defenses": {}, "attacks": ["norm"], "seeds": 3,
        "epochs": 3, "device": "cpu",
    }  # fmt: skip
    found: vflsec.Audit = vflsec.audit(tables, out=out, **(settings | change))
    return found


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No references and no positive control, which take most of an audit of so few rows."""
    from vflsec import audit_tables

    less = ["audit.references=[]", "audit.positive_control=false"]
    monkeypatch.setattr(audit_tables, "run_audit", partial(audit_tables.run_audit, set=less))


@pytest.fixture(scope="module")
def temp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory, temp: Path) -> vflsec.Audit:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temp))
        return call(people(), tmp_path_factory.mktemp("call") / "out")


def test_it_trains_attacks_and_judges(audited: vflsec.Audit) -> None:
    own = audited.results[audited.results.role == "audit"]
    attack = own[(own.attack == "norm") & (own.metric == "auc")]
    assert sorted(set(attack.seed)) == [0, 1, 2]
    assert attack.value.mean() > 0.75  # rare positives have long gradients
    (verdict,) = audited.summary["gates"]
    asked = verdict["gate"]  # own columns leave no room for a limit on the advantage itself
    assert (asked["of"], asked["max"], verdict["defense"]) == ("error_removed", 0.25, "none")
    assert audited.verdict == verdict["verdict"]
    assert audited.findings == [f["text"] for f in audited.summary["findings"]]
    assert audited.findings
    assert audited.summary["parties"]["bank_shop"]["parties"] == ["bank", "shop"]
    assert audited.plot().axes
    with pytest.raises(VflsecError, match="plot: kind must be one of 'advantage_by_strength'"):
        audited.plot("pie")


def test_no_row_and_no_temporary_path_stays_behind(audited: vflsec.Audit, temp: Path) -> None:
    assert list(temp.iterdir()) == []
    files = [p for p in audited.folder.rglob("*") if p.is_file()]
    assert {"results.csv", "report.html", "summary.json"} <= {p.name for p in files}
    held = b"\n".join(p.read_bytes() for p in files)
    ages = [repr(float(a)).encode() for a in people()["bank"].age[:20]]
    assert MARK.encode() not in held
    assert str(temp).encode() not in held
    assert not any(a in held for a in ages)
    assert 'bank = "bank.parquet"' in audited.summary["scenario"]


def test_it_shows_itself_and_escapes_every_text(audited: vflsec.Audit) -> None:
    from printed import html_of

    class Tags(HTMLParser):
        found: set[str] = set()

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found.add(tag)
            assert not any(k.startswith("on") or k in ("src", "srcset") for k, _ in attrs)

    evil = "<script>alert(1)</script><img src=x onerror=y>"
    shown = audited._repr_html_()
    assert audited.verdict in shown
    assert "<svg" in shown
    assert "norm" in shown

    def spoiled(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: spoiled(v) for k, v in value.items()}
        if isinstance(value, list):
            return [spoiled(v) for v in value]
        return value.replace("norm", evil).replace("bank", evil) if type(value) is str else value

    summary = spoiled(audited.summary) | {"name": evil, "notes": [evil]}
    summary["findings"] = [{"kind": "leak", "text": evil}]
    text = html_of(summary)
    tags = Tags()
    tags.feed(text)
    assert not tags.found & {"script", "img", "iframe", "object"}
    assert text.count("&lt;script&gt;") >= 4
    assert "<Audit of bank: " in repr(audited)


def test_run_audit_takes_dataframes_and_agrees(audited: vflsec.Audit, tmp_path: Path) -> None:
    scenario = {
        "name": "bank",
        "data": {"files": people(), "id": "id", "label": "default", "active": "bank"},
        "algorithm": {"name": "splitnn", "epochs": 3},
        "attack": [{"name": "norm"}],
        "audit": {"seeds": 3},
    }
    again = vflsec.run_audit(scenario, tmp_path / "out", device="cpu")
    mine, first = again.results, audited.results[audited.results.role == "audit"]
    keys = ["seed", "split", "metric"]
    both = [f[f.attack == "norm"].set_index(keys).value.sort_index() for f in (mine, first)]
    pd.testing.assert_series_equal(both[0], both[1])


def test_rows_and_codes_are_said_as_in_a_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vflsec import audit_tables

    seen: list[dict[str, Any]] = []

    def stop(scenario: Any, *_: Any, **__: Any) -> None:
        seen.append(scenario.resolved()["data"][0])
        raise VflsecError("enough")

    monkeypatch.setattr(audit_tables, "run_audit", stop)
    bank, shop = people().values()
    bank.loc[:20, "age"] = -999.0
    twice = pd.concat([shop, shop.iloc[:30]])
    visits = pd.concat([shop, shop.iloc[:30].assign(c0=9.0)])
    for tables, change in (
        ({"bank": bank, "shop": twice}, {"duplicates": "first"}),
        ({"bank": bank, "shop": visits},
         {"aggregate": {"c0": "mean", "c1": "max"}, "missing": {"age": "-999"}}),
    ):  # fmt: skip
        with pytest.raises(VflsecError, match="enough"):
            call(tables, tmp_path / "out", **change)
    assert seen[0]["duplicates"] == "first"
    assert seen[1]["aggregate"] == {"c0": "mean", "c1": "max"}
    assert seen[1]["missing"] == {"age": ["-999"]}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("how", "held"),
    [
        ({"columns": {"bank": ["age"], "shop": ["c0", "c1"]}}, {"bank": 1, "shop": 2}),
        ({"divide": {"importance": 0.5}}, {"active": 1, "passive": 2}),
    ],
)
def test_the_columns_of_one_table_are_given_to_parties(
    how: dict[str, Any], held: dict[str, int], tmp_path: Path
) -> None:
    bank, shop = people().values()
    whole = bank.merge(shop.drop(columns="c3"), on="id")
    whole["c1"] = whole.default  # a copy of the label counts where it is named
    audited = call(whole, tmp_path / "out", seeds=1, **how)
    (found,) = audited.summary["parties"].values()
    assert found["columns"] == held


@pytest.mark.usefixtures("alone")
def test_a_system_that_is_no_network_gets_its_own_defense_and_attacks(tmp_path: Path) -> None:
    """As `init --algorithm` drafts them: noise on gradients was refused, which nobody named."""
    how: dict[str, Any] = {"defenses": None, "attacks": None, "seeds": 1, "epochs": 1}
    audited = call(people(), tmp_path / "out", algorithm="vertical_glm", **how)
    own = audited.results[audited.results.role == "audit"]
    assert {d.partition("(")[0] for d in own.defense} - {"none"} == {"label_dp"}
    assert set(own.attack.dropna()) - {""} == {
        "glm_gradient", "equation_solving(equations=score)",
    }  # fmt: skip


def test_other_ways_to_name_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vflsec import audit_tables

    seen: list[dict[str, Any]] = []

    class Done(Exception):
        pass

    def stop(scenario: Any, *_: Any, **__: Any) -> None:
        seen.append(scenario.resolved())
        raise Done

    monkeypatch.setattr(audit_tables, "run_audit", stop)
    monkeypatch.chdir(tmp_path)
    bank, shop = people().values()
    shop.to_csv("shop.csv", index=False)
    whole = bank.merge(shop, on="id")
    for tables in (
        [bank, shop],
        {"bank": bank.set_index("id"), "shop": "shop.csv"},
        whole,
        ["shop.csv", bank],
    ):
        with pytest.raises(Done):
            call(tables, tmp_path / "out", defenses={"iso": [1, 5]}, max=0.2, seeds=[4, 5])
    listed, mixed, single, both = (s["data"][0] for s in seen)
    assert listed["files"] == {"active": "active.parquet", "passive": "passive.parquet"}
    assert mixed["files"] == {"bank": "bank.parquet", "shop": str(tmp_path / "shop.csv")}
    assert single["file"] == "table.parquet"
    assert sorted(single["columns"]) == ["active", "passive"]
    assert both["files"]["active"] == "active.parquet"
    assert seen[0]["defense"] == [{"name": "iso", "strength": [1.0, 5.0]}]
    (gate,) = seen[0]["gate"]
    assert (gate["max"], gate["defense"]) == (0.2, "defended")
    assert seen[0]["audit"]["seeds"] == [4, 5]
    with pytest.raises(Done):  # what `vflsec init` writes, with another limit
        call([bank, shop], tmp_path, defenses=None, attacks=None, max=0.3)
    assert seen[-1]["defense"] == [{"name": "iso", "strength": [0.0, 1.0, 5.0, 25.0]}]
    assert [(g["metric"], g["max"]) for g in seen[-1]["gate"]] == [
        ("advantage", 0.3), ("utility_drop", 0.05)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tables": 3}, "audit: tables must be a DataFrame, a path"),
        ({"tables": {}}, "audit: tables must be"),
        ({"tables": {"bank": 3}}, "int for 'bank'"),
        ({"tables": "x" * 5000}, "existing file"),
        ({"tables": "no.csv"}, "existing file"),
        ({"label": "defualt"}, "audit: label must be a column of one table"),
        ({"label": 3}, "audit: label must be the name of a column"),
        ({"id": "name"}, "audit: id must be a column of "),
        ({"id": 3}, "audit: id must be the name of a column"),
        ({"max": "low"}, "audit: max must be a finite number"),
        ({"defenses": 3}, "audit: defenses must be names"),
        ({"attacks": [3]}, "audit: attacks must be names"),
        ({"attacks": ["nrom"]}, "Did you mean 'norm'?"),
        ({"epocs": 3}, "Did you mean 'epochs'?"),
        ({"seeds": "many"}, "audit.seeds must be 1 to 10000 or a list of seeds"),
        ({"algorithm": "splitn"}, "Did you mean 'splitnn'?"),
        ({"divide": 3}, "audit: divide must be a mapping"),
        ({"columns": {"bank": ["age"]}}, "left out where each party has a table"),
        ({"columns": {"bank": "age"}}, "audit: columns must be lists of columns by party"),
    ],
)
def test_wrong_arguments_are_sentences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    change = {"tables": people(), **change}
    with pytest.raises(VflsecError) as found:
        call(change.pop("tables"), tmp_path / "out", **change)
    text = str(found.value)
    assert said in text
    assert str(tmp_path) not in text.replace(str(Path.cwd()), "")
    assert "\n" not in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: f.rename(columns={"age": 7}), "got 7"),
        (lambda f: f.assign(age=[1, "a"] * 120), "column 'age' must hold one kind of value"),
        (lambda f: pd.concat([f, f[["age"]]], axis=1), "each column name must appear once"),
        (lambda f: f.set_index("id", drop=False), "index must have another name"),
    ],
)
def test_dataframes_that_no_table_holds(spoil: Any, said: str, tmp_path: Path) -> None:
    tables = people()
    tables["bank"] = spoil(tables["bank"])
    with pytest.raises(VflsecError, match=re.escape(said)):
        call(tables, tmp_path / "out")


def test_a_dataframe_is_no_scenario() -> None:
    with pytest.raises(VflsecError, match=r"use vflsec\.audit\(tables, label="):
        vflsec.run_audit(people()["bank"])  # type: ignore[arg-type]
    with pytest.raises(VflsecError, match="is not a file"):
        vflsec.run_audit("x" * 5000)


def test_the_package_keeps_its_names() -> None:
    from vflsec.audit import cap, pareto, t_interval, trials

    package: Any = vflsec.audit
    assert package.cap is cap
    assert all(callable(f) for f in (cap, pareto, t_interval, trials))
    assert set(package.__all__) <= set(dir(package))
    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_the_same_call_trains_nothing_twice(audited: vflsec.Audit) -> None:
    from vflsec.plan.values import Plan
    from vflsec.runtime.progress_protocol import Reporter

    class Told(Reporter):
        works: list[Any] = []

        def plan(self, plan: Plan, folder: Path, works: Any) -> None:
            self.works += works

    told = Told()
    again = call(people(), audited.folder, progress=told)
    assert told.works == []
    assert again.summary["scenario_hash"] == audited.summary["scenario_hash"]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"out": 3}, "run_audit: out must be a path"),
        ({"progress": 3}, "run_audit: progress must be True, False or a Reporter"),
        ({"seeds": 2.0}, "run_audit: seeds must be"),
        ({"sedes": 2}, "Did you mean 'seeds'"),
        ({"freshh": True}, "run_audit: an argument must be .* Did you mean 'fresh'"),
        ({"fresh": "no"}, "fresh must be"),
        ({"keep_views": "no"}, "keep_views must be"),
        ({"set": [3]}, "run_audit: set must be a list"),
        ({"set": "audit.seeds=1"}, "run_audit: set must be a list"),
    ],
)
def test_run_audit_takes_what_it_says(how: dict[str, Any], said: str) -> None:
    with pytest.raises(VflsecError, match=said):
        vflsec.run_audit("quickstart", **how)


def test_a_party_whose_name_no_file_can_have_is_told() -> None:
    a, b = people().values()
    with pytest.raises(VflsecError, match="party name must be a word"):
        vflsec.audit({"a" * 5000: a, "b": b}, "default")
