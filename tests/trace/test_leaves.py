"""A table of tree, row and leaf becomes a trace that is audited as any."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Cli
from planted_trees import boost, find_leaves
from sampled import sampled

import vflsec
from vflsec.cli.main import main
from vflsec.engine.recordings import record_scenario
from vflsec.engine.trace_attacks import infer, score
from vflsec.errors import ConfigError, VflsecError
from vflsec.trace.leaves import Beside, import_leaves
from vflsec.trace.limits import TRUSTED
from vflsec.trace.validate import info
from vflsec.trees.profiles import PROFILES

N = 300


def write(path: Path, header: str, lines: Iterable[Sequence[Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header.split(","))
        writer.writerows(lines)
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Leaves of a world in which the guest's first column is the label, and what stands beside."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(N, 6))
    y = (x[:, 0] > 0.4).astype(np.int64)
    x[:, 0] = y
    of = boost(x, y, (3,), rounds=4)
    leaves = [
        (t, f"c{i}", leaf) for t in range(4) for i, leaf in enumerate(find_leaves(of, t))
    ]  # fmt: skip
    named = [(f"c{i}", "bad" if y[i] else "good") for i in range(N)]
    order = rng.permutation(len(leaves))
    return {
        "leaves": write(tmp_path / "leaves.csv", "tree,row,leaf", [leaves[k] for k in order]),
        "truth": write(tmp_path / "truth.csv", "row,label", named),
        "known": write(tmp_path / "known.csv", "row,label", [named[k] for k in range(20)]),
        "columns": write(
            tmp_path / "own.csv", "row,a,b,c", [(f"c{i}", *x[i, 3:]) for i in range(N)]
        ),
    }


def test_leaves_are_audited(files: dict[str, Path], tmp_path: Path) -> None:
    beside = Beside(files["known"], files["columns"], files["truth"])
    folder = import_leaves(files["leaves"], tmp_path / "trace", beside, profile="fate-2")
    guesses = infer([folder], tmp_path / "guesses", attacks=["leaf_vote", "leaf_graph"])
    result = score(guesses, [folder / "truth"], tmp_path / "out")
    found = result.results
    auc = found[(found.metric == "auc") & (found.split != "")].set_index("attack")
    assert auc.value["leaf_vote"] == 1.0
    assert auc.n["leaf_vote"] == N - 20
    assert auc.control_value["leaf_vote"] < 0.8
    assert set(found.algorithm) == {"trees fate-2"}


@pytest.mark.parametrize("profile", sampled(["", *PROFILES], 2))
def test_only_defenses_that_hide_leaves_in_the_profile_are_advised(
    files: dict[str, Path], tmp_path: Path, profile: str
) -> None:
    """Limits on row sets were, of a recording that shows every party the node of every row."""
    beside = Beside(files["known"], files["columns"], files["truth"])
    folder = import_leaves(files["leaves"], tmp_path / "trace", beside, profile=profile)
    guesses = infer([folder], tmp_path / "guesses", attacks=["leaf_vote"])
    found = score(guesses, [folder / "truth"], tmp_path / "out").summary["acting"]
    limits = {"id_lmid", "k_anonymous", "purity_limit"}
    hides = not profile or PROFILES[profile].nodes == "split"
    assert set(found["partition"]["tuned"]) & limits == (limits if hides else set())
    assert "local_trees" in found["partition"]["tuned"]
    assert "iso" not in found["gradient"]["tuned"]  # it needs batches of a network


def test_leaves_that_were_not_told_are_left_out(files: dict[str, Path], tmp_path: Path) -> None:
    lines = files["leaves"].read_text(encoding="utf-8").splitlines()
    hidden = [lines[0]] + [
        f"{line.rpartition(',')[0]},-1" if line.split(",")[1] == "c25" else line
        for line in lines[1:]
    ]
    files["leaves"].write_text("\n".join(hidden), encoding="utf-8")
    folder = import_leaves(
        files["leaves"], tmp_path / "trace", Beside(files["known"], None, files["truth"])
    )
    guesses = infer([folder], tmp_path / "guesses", attacks=["leaf_vote"])
    found = score(guesses, [folder / "truth"], tmp_path / "out").results
    assert found[found.metric == "auc"].n.tolist() == [N - 21]


def test_runs_that_name_no_data_are_repetitions(files: dict[str, Path], tmp_path: Path) -> None:
    """The name of the file told them apart, so that each was a data set of a single seed."""
    beside, folders = Beside(files["known"], None, files["truth"]), []
    rng = np.random.default_rng(1)
    for seed in range(3):
        lines = [(t, f"c{i}", rng.integers(7, 15)) for t in range(4) for i in range(N)]
        other = write(tmp_path / f"leaves{seed}.csv", "tree,row,leaf", lines)
        folders.append(import_leaves(other, tmp_path / f"trace{seed}", beside, seed=seed))
    again = import_leaves(files["leaves"], tmp_path / "again", beside, seed=2)
    with pytest.raises(ConfigError, match="have seed 2"):
        infer([*folders, again], tmp_path / "twice", attacks=["leaf_vote"])
    guesses = infer(folders, tmp_path / "guesses", attacks=["leaf_vote"])
    found = score(guesses, [f / "truth" for f in folders], tmp_path / "out").found
    (point,) = [p for p in found.points if p.attack and p.is_main]
    assert point.seeds == 3


def test_a_party_without_columns_has_none(files: dict[str, Path], tmp_path: Path) -> None:
    """Its table names rows alone: as if it had given no table."""
    write(files["columns"], "row", [(f"c{i}",) for i in range(N)])
    of = {}
    for name, columns in (("none", None), ("empty", files["columns"])):
        beside = Beside(files["known"], columns, files["truth"])
        folder = import_leaves(files["leaves"], tmp_path / name, beside)
        guesses = infer([folder], tmp_path / f"{name}-guesses", attacks=["leaf_vote"])
        found = score(guesses, [folder / "truth"], tmp_path / f"{name}-out").results
        of[name] = found[["metric", "value", "control", "control_value"]]
    assert of["empty"].equals(of["none"])
    assert {*of["none"].control} <= {"majority", "chance"}


Change = Callable[[str], str]
BAD: list[tuple[str, Change, str]] = [
    ("leaves", lambda s: s.replace("tree,row,leaf", "tree,row,node"),
     "'node', got 'leaf'"),
    ("leaves", lambda s: s.replace("tree,row,leaf", "leaf,row,leaf"),
     "'leaf' twice"),
    ("leaves", lambda s: s + s.splitlines()[1] + "\n",
     "row {row} in tree {tree} must be 1, got 2"),
    ("leaves", lambda s: "\n".join([s.splitlines()[0], *s.splitlines()[2:]]),
     "row {row} in tree {tree} must be 1, got 0"),
    ("leaves", lambda s: s.splitlines()[0] + "\n", "have rows"),
    ("leaves", lambda s: s + "1,2\n", "as many fields"),
    ("known", lambda s: s + "c999,good\n", "row c999 is in no tree of the leaves"),
    ("known", lambda s: s + "c3,\n", "row c3 must have a label"),
    ("known", lambda s: s.replace("good", "Good"), "'Good'"),
    ("truth", lambda s: s + "c3,good\n", "each row once, got c3 twice"),
    ("columns", lambda s: s.rpartition("c299")[0], "got no c299"),
    ("columns", lambda s: s.replace("row,a,b,c", "row,a,b,c").rpartition(",")[0] + ",tall\n",
     "column 'c', row c299 must be a finite number, got 'tall'"),
]  # fmt: skip


@pytest.mark.parametrize(("which", "change", "words"), BAD)
def test_bad_files_are_one_error_with_a_remedy(
    files: dict[str, Path], tmp_path: Path, which: str, change: Change, words: str
) -> None:
    text = files[which].read_text(encoding="utf-8").replace("\r\n", "\n")
    tree, row, _ = files["leaves"].read_text(encoding="utf-8").splitlines()[1].split(",")
    files[which].write_text(change(text), encoding="utf-8")
    beside = Beside(files["known"], files["columns"], files["truth"])
    with pytest.raises(VflsecError) as found:
        import_leaves(files["leaves"], tmp_path / "trace", beside)
    assert words.format(row=row, tree=tree) in str(found.value)
    assert str(files[which]) in str(found.value)
    code = main([
        "trace", "import-leaves", str(files["leaves"]), "--known", str(files["known"]), "--columns",
        str(files["columns"]), "--truth", str(files["truth"]), "--out", str(tmp_path / "other"),
    ])  # fmt: skip
    assert code == 2
    assert not (tmp_path / "other" / "seal.json").exists()


def test_a_system_that_is_none_is_one_error(
    files: dict[str, Path], tmp_path: Path, cli: Cli
) -> None:
    asked = ["trace", "import-leaves", str(files["leaves"]), "--profile", "fate-1"]
    said = cli.refuses(*asked, "--out", tmp_path / "other")
    assert "fate-1" in said
    assert "xgboost-open" in said
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("local_tree", ["local_trees", "other"]),
        ("local_trees=0.5", ["local_trees", "0.5"]),
        ("local_trees=many", ["--defense", "many"]),
        ("masked_gradient=1", ["--defense", "masked_gradient"]),
        ("none=1", ["--defense", "none"]),
    ],
)
def test_a_defense_that_is_none_is_one_error(
    files: dict[str, Path], tmp_path: Path, cli: Cli, given: str, words: list[str]
) -> None:
    out = tmp_path / "other"
    asked = ["trace", "import-leaves", str(files["leaves"]), "--defense", given]
    said = cli.refuses(*asked, "--out", out)
    assert all(w in said for w in words)
    assert not out.exists()


def test_a_defense_by_another_name_is_that_one(files: dict[str, Path], tmp_path: Path) -> None:
    of = {"complete_secure=1": ("local_trees", 1.0), "other": ("other", None)}
    for given, told in of.items():
        folder = import_leaves(files["leaves"], tmp_path / given, Beside(), defense=given)
        run = info(folder)["run"]
        assert (run["defense"], run["strength"]) == told


def test_digits_that_are_no_numbers_are_texts(tmp_path: Path) -> None:
    leaves = write(tmp_path / "leaves.csv", "tree,row,leaf", [("²", "³", 1), ("²", "2", 2)])
    folder = import_leaves(leaves, tmp_path / "trace", Beside())
    assert (folder / "seal.json").exists()


def test_a_recorded_simulation_of_trees_is_audited_as_it_was(tmp_path: Path) -> None:
    """Neither could be written, nor kept by `--keep-views`: its facts and its NaN were refused."""
    scenario = {
        "data": {"name": "control_gaussian", "params": {"rows": 300}},
        "algorithm": {"name": "secureboost", "trees": 2},
        "attack": [{"name": "leaf_vote"}], "audit": {"seeds": 1, "references": []},
    }  # fmt: skip
    live = vflsec.run_audit(scenario, out=tmp_path / "live", keep_views=True).results
    (folder,) = record_scenario(scenario, tmp_path / "t")
    guesses = infer([folder], tmp_path / "g", attacks=["leaf_vote"], limits=TRUSTED)
    traced = score(guesses, [folder], tmp_path / "o").results
    found = [
        r.query("metric == 'auc' and role == 'audit' and attack == 'leaf_vote'").value.tolist()
        for r in (live, traced)
    ]
    assert len(found[0]) == 1
    assert found[0] == found[1]
